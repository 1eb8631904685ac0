/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public store functions and the table of schemes. What is the same for every backend is here: defaults, argument
 * checks, listing and verifying (from a snapshot of the manifest, so that no transaction is open during a callback).
 */
#include "store/store.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"

static const struct kni_store_ops *const schemes[] = {&kni_store_lmdb_ops, &kni_store_fault_ops}; /* redis:// and s3:// will sit here */
#define N_SCHEMES (sizeof schemes / sizeof *schemes)

static enum kn_status refuse_scheme(const char *url, struct kn_err *err)
{
    char forms[128] = "";
    for (size_t i = 0, n = 0; i < N_SCHEMES && n < sizeof forms; i++)
        n += (size_t)snprintf(forms + n, sizeof forms - n, "%s%s", i ? ", " : "", schemes[i]->form);
    if (!strncmp(url, "redis", 5) || !strncmp(url, "s3:", 3))
        return kni_err_set(err, KN_E_UNSUPPORTED, "store \"%.200s\": this scheme is planned but not in this build; supported: %s", url, forms);
    return kni_err_set(err, KN_E_UNSUPPORTED, "store \"%.200s\": unknown scheme; supported: %s", url, forms);
}

enum kn_status kn_store_open(struct kn_store **out, const struct kn_store_opts *opts, struct kn_err *err)
{
    struct kn_store_opts o;
    *out = NULL;
    enum kn_status status = KNI_OPTS_READ(&o, opts, kn_store_opts, err);
    if (status)
        return status;
    if (!o.url || !*o.url)
        return kni_err_set(err, KN_E_ARG, "store: no URL given; expected something like lmdb:PATH");
    if (!o.max_bytes)
        o.max_bytes = KNI_STORE_DEFAULT_MAX_BYTES;
    for (size_t i = 0; i < N_SCHEMES; i++) {
        size_t n = strlen(schemes[i]->scheme);
        if (strncmp(o.url, schemes[i]->scheme, n))
            continue;
        enum kn_status s = schemes[i]->open(out, &o, o.url + n, err);
        if (s)
            return s;
        (*out)->ops = schemes[i];
        (*out)->max_bytes = o.max_bytes;
        (*out)->ttl_s = o.ttl_s;
        (*out)->read_only |= o.read_only; /* it may have been opened so because it had to */
        (*out)->wall_s = kni_wall_s;
        return KN_OK;
    }
    return refuse_scheme(o.url, err);
}

void kn_store_close(struct kn_store **store)
{
    if (!store || !*store)
        return;
    kni_store_interrupt(*store); /* so that the flush does not wait for a store that hangs */
    kni_store_flush(*store); /* last-use times are worth a try, not an error */
    (*store)->ops->close(*store);
    *store = NULL;
}

void kni_store_interrupt(struct kn_store *store)
{
    if (store->ops->interrupt)
        store->ops->interrupt(store);
}

bool kni_store_is_open(struct kn_store *store)
{
    return !store->ops->is_open || store->ops->is_open(store);
}

bool kn_store_is_read_only(const struct kn_store *store)
{
    return store->read_only || (store->ops->is_read_only && store->ops->is_read_only(store));
}

void kni_store_retry(struct kn_store *store)
{
    if (store->ops->retry)
        store->ops->retry(store);
}

enum kn_status kni_store_lookup(struct kn_store *store, const struct kni_store_key *keys, uint32_t n_keys, uint32_t *n_found, struct kn_err *err)
{
    *n_found = 0;
    return n_keys ? store->ops->lookup(store, keys, n_keys, n_found, err) : KN_OK;
}

enum kn_status kni_store_get(struct kn_store *store, const char *key, struct kni_store_entry *entry, struct kni_store_buf *buf, struct kn_err *err)
{
    struct kni_store_entry unused;
    if (!entry)
        entry = &unused;
    memset(entry, 0, sizeof *entry);
    buf->n_bytes = 0;
    if (!kni_store_key_is_valid(key))
        return kni_err_set(err, KN_E_ARG, "store: \"%.64s\" is not a key", key);
    return store->ops->get(store, key, entry, buf, err);
}

enum kn_status kni_store_put(struct kn_store *store, const char *key, const struct kni_chunk_meta *meta, const void *data, size_t n_bytes, struct kn_err *err)
{
    if (!kni_store_key_is_valid(key) || !n_bytes)
        return kni_err_set(err, KN_E_ARG, "store: \"%.64s\" is not a key, or its chunk is empty", key);
    if (kn_store_is_read_only(store))
        return kni_err_set(err, KN_E_STATE, "store: opened read-only, nothing can be put");
    if (n_bytes > store->max_bytes)
        return kni_err_set(err, KN_E_FULL, "store: a chunk of %zu bytes is larger than the store's limit of %llu; raise the limit", n_bytes,
                           (unsigned long long)store->max_bytes);
    struct kni_store_entry e = {.n_bytes = n_bytes,
                                .xxh3 = kni_xxh3(data, n_bytes),
                                .created_s = store->wall_s(),
                                .ttl_s = store->ttl_s,
                                .first_token = meta->first_token,
                                .n_tokens = meta->n_tokens};
    e.last_used_s = e.created_s;
    memcpy(e.fingerprint, meta->fingerprint, 16);
    snprintf(e.preset, sizeof e.preset, "%s", kni_preset_name(meta->preset));
    return store->ops->put(store, key, &e, data, err);
}

enum kn_status kni_store_drop(struct kn_store *store, const char *key, const struct kni_store_entry *only, struct kn_err *err)
{
    if (!kni_store_key_is_valid(key))
        return kni_err_set(err, KN_E_ARG, "store: \"%.64s\" is not a key", key);
    if (kn_store_is_read_only(store))
        return kni_err_set(err, KN_E_STATE, "store: opened read-only, nothing can be removed");
    return store->ops->drop(store, key, only, err);
}

enum kn_status kni_store_flush(struct kn_store *store)
{
    return kn_store_is_read_only(store) ? KN_OK : store->ops->flush(store);
}

enum kn_status kni_store_check(const struct kni_store_entry *entry, const void *data, size_t n_bytes, struct kn_err *err)
{
    if (n_bytes != entry->n_bytes)
        return kni_err_set(err, KN_E_FORMAT, "holds %zu bytes where its manifest entry says %llu", n_bytes, (unsigned long long)entry->n_bytes);
    if (kni_xxh3(data, n_bytes) != entry->xxh3)
        return kni_err_set(err, KN_E_FORMAT, "its bytes do not match the checksum in its manifest entry");
    struct kni_chunk_meta meta;
    enum kn_status s = kni_chunk_verify(data, n_bytes, err);
    if (!s)
        s = kni_chunk_read_meta(data, n_bytes, &meta, err);
    if (s)
        return s;
    if (meta.first_token != entry->first_token || meta.n_tokens != entry->n_tokens)
        return kni_err_set(err, KN_E_FORMAT, "the container covers tokens %u+%u, its manifest entry says %u+%u", meta.first_token, meta.n_tokens,
                           entry->first_token, entry->n_tokens);
    if (memcmp(meta.fingerprint, entry->fingerprint, 16) || strcmp(kni_preset_name(meta.preset), entry->preset))
        return kni_err_set(err, KN_E_FORMAT, "the container's model or preset is not the one in its manifest entry");
    return KN_OK;
}

void kni_store_list_fini(struct kni_store_list *list)
{
    kni_arena_fini(&list->arena);
    list->first = NULL;
    list->n_rows = 0;
}

static void fill_item(struct kn_store_item *item, const struct kni_store_row *row)
{
    *item = (struct kn_store_item){.key = row->key,
                                   .preset = row->entry.preset,
                                   .n_bytes = row->entry.n_bytes,
                                   .created_s = row->entry.created_s,
                                   .last_used_s = row->entry.last_used_s,
                                   .first_token = row->entry.first_token,
                                   .n_tokens = row->entry.n_tokens};
    memcpy(item->fingerprint, row->entry.fingerprint, 16);
}

enum kn_status kn_store_ls(struct kn_store *store, kn_store_item_fn fn, void *user)
{
    struct kni_store_list list;
    enum kn_status s = store->ops->list(store, "", &list);
    for (const struct kni_store_row *r = list.first; !s && r; r = r->next) {
        struct kn_store_item item;
        if (r->status)
            continue; /* verify says what is wrong with it */
        fill_item(&item, r);
        fn(user, &item);
    }
    kni_store_list_fini(&list);
    return s;
}

enum kn_status kn_store_stat(struct kn_store *store, struct kn_store_stat *out)
{
    struct kn_store_stat now = {.max_bytes = store->max_bytes};
    enum kn_status status = kni_stats_write(out, &now, sizeof now);
    if (status || (status = store->ops->stat(store, &now)))
        return status;
    return kni_stats_write(out, &now, sizeof now);
}

enum kn_status kn_store_get(struct kn_store *store, const char *prefix, kn_store_bytes_fn fn, void *user, struct kn_err *err)
{
    if (!store || !prefix || !fn)
        return kni_err_set(err, KN_E_ARG, "kn_store_get needs a store, a prefix, and someone to give the bytes to");
    struct kni_store_list list;
    struct kni_store_buf buf = {0};
    struct kni_store_entry entry;
    struct kn_store_item item;
    enum kn_status s = store->ops->list(store, prefix, &list);
    if (s)
        kni_err_set(err, s, "store: the list of chunks cannot be read");
    else if (!list.n_rows)
        s = kni_err_set(err, KN_E_NOT_FOUND, "store: no chunk has a key that begins with \"%.160s\"", prefix);
    else if (list.n_rows > 1)
        s = kni_err_set(err, KN_E_ARG, "store: %zu chunks have keys that begin with \"%.160s\": give more of the key", list.n_rows, prefix);
    else if (!(s = kni_store_get(store, list.first->key, &entry, &buf, err)))
        s = kni_store_check(&entry, buf.data, buf.n_bytes, err);
    if (!s) {
        fill_item(&item, list.first);
        s = fn(user, &item, buf.data, buf.n_bytes);
        if (s)
            kni_err_set(err, s, "store: the chunk was refused by its receiver");
    }
    kni_store_buf_fini(&buf);
    kni_store_list_fini(&list);
    return s;
}

enum kn_status kn_store_verify(struct kn_store *store, kn_store_verify_fn fn, void *user)
{
    struct kni_store_list list;
    struct kni_store_buf buf = {0};
    bool bad = false;
    enum kn_status s = store->ops->list(store, "", &list);
    for (const struct kni_store_row *r = list.first; !s && r; r = r->next) {
        struct kn_store_item item;
        struct kni_store_entry entry = {0};
        struct kn_err err = {0};
        fill_item(&item, r);
        enum kn_status one = r->status;
        if (one)
            kni_err_set(&err, one, "its manifest entry is damaged or of another version");
        else if (kni_store_entry_is_expired(&r->entry, store->ttl_s, store->wall_s()))
            one = KN_OK; /* nobody is served it any more; gc takes it */
        else
            one = store->ops->get(store, r->key, &entry, &buf, &err);
        if (!one && buf.n_bytes)
            one = kni_store_check(&entry, buf.data, buf.n_bytes, &err);
        buf.n_bytes = 0;
        if (one == KN_E_NOT_FOUND && !entry.n_bytes)
            continue; /* removed since the snapshot */
        if (one == KN_E_NOMEM || one == KN_E_IO) { /* says nothing about the chunk */
            s = one;
            break;
        }
        bad |= one != KN_OK;
        if (fn)
            fn(user, &item, one, one ? err.text : "");
    }
    kni_store_buf_fini(&buf);
    kni_store_list_fini(&list);
    return s ? s : bad ? KN_E_FORMAT : KN_OK;
}

enum kn_status kn_store_gc(struct kn_store *store, uint64_t *n_removed, uint64_t *bytes_removed)
{
    uint64_t n = 0, bytes = 0;
    enum kn_status s = kn_store_is_read_only(store) ? KN_E_STATE : store->ops->gc(store, &n, &bytes);
    if (n_removed)
        *n_removed = n;
    if (bytes_removed)
        *bytes_removed = bytes;
    return s;
}

enum kn_status kn_store_rm(struct kn_store *store, const char *prefix, uint64_t *n_removed)
{
    uint64_t n = 0;
    enum kn_status s = !prefix ? KN_E_ARG : kn_store_is_read_only(store) ? KN_E_STATE : store->ops->rm(store, prefix, &n);
    if (n_removed)
        *n_removed = n;
    return s;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that need not be there. It stands in for the store at a URL, which may be absent when the engine opens, vanish, or be
 * replaced by another under the same name.
 *
 *     not open --retry succeeds--> open --DEAD_AFTER failures in a row, and nobody inside, at a retry--> closed --> opened anew
 *        ^  '--calls: KN_E_IO at once, with why                                                             |
 *        '----------------------------------------------------- that fails ----------------------------------'
 *
 * Only kni_store_retry opens and closes, so that no call waits for it: a folder on a disk that is gone may take long to say so.
 * The old store is closed before the new one is opened: two LMDB handles of one process share what is open, and a shared
 * environment would be as dead as before.
 *
 * Threads: any. The lock guards the fields marked so, for a few lines; never over a call of the store. Calls inside are
 * counted; the store is closed when there are none. Failure: as the store's; KN_E_IO while it is not open.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "store/store.h"

#define DEAD_AFTER 4u /* three open the breaker of fetch/, one is its first probe */
#define RETRY_NS 1000000000ull

struct lazy_store {
    struct kn_store base;
    struct kn_store_opts opts; /* constant; url is ours */
    char *url;
    pthread_mutex_t lock;
    /* (lock) */
    struct kn_store *inner; /* NULL: not open */
    uint32_t n_inside;      /* calls of inner that are out */
    uint32_t n_failures;    /* of inner, in a row */
    bool retrying, closing;
    uint64_t next_try_ns;
    struct kn_err why; /* of the last try to open */
};

static struct lazy_store *self(struct kn_store *store)
{
    return (struct lazy_store *)(void *)store;
}

/* NULL, and a sentence: not open. Otherwise leave must follow. */
static struct kn_store *enter(struct lazy_store *l, struct kn_err *err)
{
    struct kn_err why = {0};
    pthread_mutex_lock(&l->lock);
    struct kn_store *inner = l->inner;
    l->n_inside += inner != NULL;
    if (!inner)
        why = l->why;
    pthread_mutex_unlock(&l->lock);
    if (!inner)
        kni_err_set(err, KN_E_IO, "not open: %.480s", why.text);
    return inner;
}

/* Returns s. */
static enum kn_status leave(struct lazy_store *l, enum kn_status s)
{
    bool failed = s == KN_E_IO || s == KN_E_TIMEOUT; /* others say something about a chunk, the disk or the caller */
    pthread_mutex_lock(&l->lock);
    l->n_inside--;
    l->n_failures = failed ? l->n_failures + 1 : 0;
    pthread_mutex_unlock(&l->lock);
    return s;
}

static enum kn_status lazy_lookup(struct kn_store *store, const struct kni_store_key *keys, uint32_t n_keys, uint32_t *n_found, struct kn_err *err)
{
    struct kn_store *inner = enter(self(store), err);
    if (!inner)
        return KN_E_IO;
    enum kn_status s = inner->ops->lookup(inner, keys, n_keys, n_found, err);
    leave(self(store), s == KN_E_FORMAT ? KN_E_IO : s); /* of a lookup, damage is the tables', not a chunk's */
    return s;
}

static enum kn_status lazy_get(struct kn_store *store, const char *key, struct kni_store_entry *entry, struct kni_store_buf *buf, struct kn_err *err)
{
    struct kn_store *inner = enter(self(store), err);
    return inner ? leave(self(store), inner->ops->get(inner, key, entry, buf, err)) : KN_E_IO;
}

static enum kn_status lazy_put(struct kn_store *store, const char *key, const struct kni_store_entry *entry, const void *data, struct kn_err *err)
{
    struct kn_store *inner = enter(self(store), err);
    return inner ? leave(self(store), kn_store_is_read_only(inner) ? KN_E_STATE : inner->ops->put(inner, key, entry, data, err)) : KN_E_IO;
}

static enum kn_status lazy_drop(struct kn_store *store, const char *key, const struct kni_store_entry *only, struct kn_err *err)
{
    struct kn_store *inner = enter(self(store), err);
    return inner ? leave(self(store), kn_store_is_read_only(inner) ? KN_E_STATE : inner->ops->drop(inner, key, only, err)) : KN_E_IO;
}

static enum kn_status lazy_flush(struct kn_store *store)
{
    struct kn_store *inner = enter(self(store), NULL);
    return inner ? leave(self(store), kni_store_flush(inner)) : KN_E_IO;
}

static enum kn_status lazy_list(struct kn_store *store, const char *prefix, struct kni_store_list *out)
{
    struct kn_store *inner = enter(self(store), NULL);
    *out = (struct kni_store_list){0};
    return inner ? leave(self(store), inner->ops->list(inner, prefix, out)) : KN_E_IO;
}

static enum kn_status lazy_stat(struct kn_store *store, struct kn_store_stat *out)
{
    struct kn_store *inner = enter(self(store), NULL);
    return inner ? leave(self(store), inner->ops->stat(inner, out)) : KN_E_IO;
}

static enum kn_status lazy_gc(struct kn_store *store, uint64_t *n_removed, uint64_t *bytes_removed)
{
    struct kn_store *inner = enter(self(store), NULL);
    return inner ? leave(self(store), kn_store_is_read_only(inner) ? KN_E_STATE : inner->ops->gc(inner, n_removed, bytes_removed)) : KN_E_IO;
}

static enum kn_status lazy_rm(struct kn_store *store, const char *prefix, uint64_t *n_removed)
{
    struct kn_store *inner = enter(self(store), NULL);
    return inner ? leave(self(store), kn_store_is_read_only(inner) ? KN_E_STATE : inner->ops->rm(inner, prefix, n_removed)) : KN_E_IO;
}

static bool lazy_is_open(struct kn_store *store)
{
    struct lazy_store *l = self(store);
    pthread_mutex_lock(&l->lock);
    bool is_open = l->inner != NULL;
    pthread_mutex_unlock(&l->lock);
    return is_open;
}

static bool lazy_is_read_only(const struct kn_store *store)
{
    struct lazy_store *l = self((struct kn_store *)(uintptr_t)store);
    pthread_mutex_lock(&l->lock);
    bool read_only = l->inner && kn_store_is_read_only(l->inner);
    pthread_mutex_unlock(&l->lock);
    return read_only;
}

static void lazy_interrupt(struct kn_store *store)
{
    struct lazy_store *l = self(store);
    pthread_mutex_lock(&l->lock);
    struct kn_store *inner = l->inner;
    l->closing = true; /* no retry begins any more */
    l->n_inside += inner != NULL;
    pthread_mutex_unlock(&l->lock);
    if (!inner)
        return;
    kni_store_interrupt(inner);
    pthread_mutex_lock(&l->lock);
    l->n_inside--;
    pthread_mutex_unlock(&l->lock);
}

/* Opens; says so when that is news. l->retrying is ours. */
static enum kn_status try_open(struct lazy_store *l, struct kn_err *err)
{
    struct kn_store *inner = NULL;
    enum kn_status s = kn_store_open(&inner, &l->opts, err);
    if (inner)
        inner->wall_s = l->base.wall_s;
    pthread_mutex_lock(&l->lock);
    bool news = !s || strcmp(l->why.text, err->text) != 0, late = l->closing;
    l->inner = inner;
    l->n_failures = 0;
    l->why = s ? *err : (struct kn_err){0};
    l->next_try_ns = kni_now_ns() + RETRY_NS;
    pthread_mutex_unlock(&l->lock);
    if (inner && late) /* the interrupt came while it was being opened and could not reach it; whoever closes waits for us */
        kni_store_interrupt(inner);
    if (s && news)
        kni_log(KN_LOG_LEVEL_WARN, "store", "the store cannot be opened (%s); it is tried again every second, prompts are recomputed meanwhile", err->text);
    return s;
}

static void lazy_retry(struct kn_store *store)
{
    struct lazy_store *l = self(store);
    struct kn_store *dead = NULL;
    struct kn_err err = {0};
    pthread_mutex_lock(&l->lock);
    bool due = !l->retrying && !l->closing && kni_now_ns() >= l->next_try_ns && (!l->inner || (l->n_failures >= DEAD_AFTER && !l->n_inside));
    if (due) {
        l->retrying = true;
        dead = l->inner;
        l->inner = NULL;
    }
    pthread_mutex_unlock(&l->lock);
    if (!due)
        return;
    if (dead)
        kni_log(KN_LOG_LEVEL_INFO, "store", "the store at %.200s fails and fails: it is closed and opened anew", l->url);
    kn_store_close(&dead);
    if (!try_open(l, &err))
        kni_log(KN_LOG_LEVEL_INFO, "store", "the store at %.200s is open now", l->url);
    pthread_mutex_lock(&l->lock);
    l->retrying = false;
    pthread_mutex_unlock(&l->lock);
}

static void lazy_close(struct kn_store *store)
{
    struct lazy_store *l = self(store);
    kn_store_close(&l->inner);
    pthread_mutex_destroy(&l->lock);
    kni_free(l->url);
    kni_free(l);
}

static const struct kni_store_ops lazy_ops = {
    .scheme = "",
    .form = "",
    .close = lazy_close,
    .interrupt = lazy_interrupt,
    .is_open = lazy_is_open,
    .is_read_only = lazy_is_read_only,
    .retry = lazy_retry,
    .lookup = lazy_lookup,
    .get = lazy_get,
    .put = lazy_put,
    .drop = lazy_drop,
    .flush = lazy_flush,
    .list = lazy_list,
    .stat = lazy_stat,
    .gc = lazy_gc,
    .rm = lazy_rm,
};

/* Errors that no waiting mends. */
static bool is_final(enum kn_status s)
{
    return s == KN_E_ARG || s == KN_E_UNSUPPORTED || s == KN_E_NOMEM || s == KN_E_MISMATCH;
}

enum kn_status kni_store_open_lazy(struct kn_store **out, const struct kn_store_opts *opts, struct kn_err *err)
{
    enum kn_status s = KN_E_NOMEM;
    struct kn_err why = {0};
    *out = NULL;
    struct lazy_store *l = kni_calloc(KNI_ALLOC_TAG_STORE, sizeof *l, 0);
    if (!l)
        return kni_err_set(err, s, "store: out of memory");
    pthread_mutex_init(&l->lock, NULL);
    l->opts = *opts;
    l->base = (struct kn_store){.ops = &lazy_ops,
                                .max_bytes = opts->max_bytes ? opts->max_bytes : KNI_STORE_DEFAULT_MAX_BYTES,
                                .ttl_s = opts->ttl_s,
                                .read_only = opts->read_only,
                                .wall_s = kni_wall_s};
    l->url = opts->url ? kni_strdup(KNI_ALLOC_TAG_STORE, opts->url) : NULL;
    l->opts.url = l->url;
    if (opts->url && !l->url) {
        kni_err_set(err, s, "store: out of memory");
        goto done;
    }
    s = kn_store_open(&l->inner, &l->opts, &why);
    if (is_final(s)) {
        kni_err_set(err, s, "%s", why.text);
        goto done;
    }
    if (s) {
        l->why = why;
        l->next_try_ns = kni_now_ns() + RETRY_NS;
        kni_log(KN_LOG_LEVEL_WARN, "store", "the store cannot be opened (%s); it is tried again every second, prompts are recomputed meanwhile", why.text);
    }
    *out = &l->base;
    l = NULL;
    s = KN_OK;
done:
    if (l)
        lazy_close(&l->base);
    return s;
}

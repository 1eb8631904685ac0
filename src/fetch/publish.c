/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing in the background: chunks that the store does not have yet are encoded and put, first positions first, so
 * that what is visible is always a usable prefix. Publishers are threads of their own at a low priority (workers cannot
 * lend theirs: an ordinary process may not raise its priority again), and give way while fetch work waits to begin.
 *
 * The first error ends a publish: later chunks would lie behind a gap that no lookup crosses. Each kind of error is
 * logged once until a chunk is stored again. The queue is bounded; each entry pins blocks of the pool.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fetch/fetcher.h"
#include "kv/chain.h"

#define NICE 10
#define YIELD_NS 50000000ull       /* one wait for fetch work to begin */
#define YIELDS 20                  /* at most, for each chunk: publishing is delayed, not starved */
#define LEFT_ALONE "the store has failed and is being left alone"
#define FLUSH_EVERY_NS 5000000000ull /* last-use times are written at most this often when nothing is published */

void kni_publish_free(struct kni_publish *p)
{
    if (!p)
        return;
    kni_free(p->tokens);
    kni_free(p->table);
    kni_free(p->qualities);
    kni_free(p);
}

static void push(struct kni_publish_list *list, struct kni_publish *p)
{
    p->next = NULL;
    *list->last = p;
    list->last = &p->next;
    list->n++;
}

static struct kni_publish *pop(struct kni_publish_list *list)
{
    struct kni_publish *p = list->first;
    if (p) {
        list->first = p->next;
        if (!list->first)
            list->last = &list->first;
        list->n--;
    }
    return p;
}

enum kn_status kni_publish_submit(struct kni_fetcher *f, const int32_t *tokens, uint32_t n_tokens, const char *salt, const struct kni_kv_view *view,
                                  const uint8_t *qualities, void *cookie)
{
    enum kn_status s = KN_OK;
    if (kn_store_is_read_only(f->store))
        return KN_E_STATE;
    if (n_tokens > (uint64_t)view->n_blocks * KNI_BLOCK_TOKENS)
        return KN_E_ARG;
    struct kni_publish *p = kni_calloc(KNI_ALLOC_TAG_FETCH, sizeof *p, 0);
    if (!p)
        return KN_E_NOMEM;
    p->tokens = kni_alloc(KNI_ALLOC_TAG_FETCH, (size_t)n_tokens * sizeof *tokens, 0);
    p->table = kni_alloc(KNI_ALLOC_TAG_FETCH, (size_t)view->n_blocks * sizeof *p->table, 0);
    if (qualities)
        p->qualities = kni_alloc(KNI_ALLOC_TAG_FETCH, view->n_blocks, 0);
    if (!p->tokens || !p->table || (qualities && !p->qualities)) {
        kni_publish_free(p);
        return KN_E_NOMEM;
    }
    if (n_tokens)
        memcpy(p->tokens, tokens, (size_t)n_tokens * sizeof *tokens);
    if (view->n_blocks)
        memcpy(p->table, view->block_ids, (size_t)view->n_blocks * sizeof *p->table);
    if (view->n_blocks && qualities)
        memcpy(p->qualities, qualities, view->n_blocks);
    p->n_tokens = n_tokens;
    p->seed = kni_chain_seed(f->opts.fingerprint, salt);
    p->view = *view;
    p->view.block_ids = p->table;
    p->cookie = cookie;
    pthread_mutex_lock(&f->lock);
    if (f->queued.n >= KNI_FETCH_MAX_PUBLISHES) {
        s = KN_E_FULL;
    } else if (kni_fetcher_publishers_hang(f)) { /* nobody is there to refuse it later */
        kni_publish_finish(f, p, KN_E_IO);
        p = NULL;
    } else {
        push(&f->queued, p);
        p = NULL;
        pthread_cond_broadcast(&f->publish);
    }
    pthread_mutex_unlock(&f->lock);
    kni_publish_free(p);
    return s;
}

void kni_publish_finish(struct kni_fetcher *f, struct kni_publish *p, enum kn_status s)
{
    f->stats.n_errors += s && s != KN_E_CANCELLED;
    p->status = s;
    push(&f->finished, p);
    kni_fetcher_tell(f);
}

void kni_publish_disown(struct kni_fetch_thread *t, enum kn_status s)
{
    t->disowned = true;
    t->fetcher->n_publishing--;
    kni_publish_finish(t->fetcher, t->publish, s);
    t->publish = NULL;
}

void kni_publish_drop_queued(struct kni_fetcher *f, enum kn_status s)
{
    for (struct kni_publish *p; (p = pop(&f->queued));)
        kni_publish_finish(f, p, s);
}

bool kni_publish_poll(struct kni_fetcher *f, void **cookie, enum kn_status *status)
{
    kni_fetcher_watch(f);
    pthread_mutex_lock(&f->lock);
    struct kni_publish *p = pop(&f->finished);
    pthread_mutex_unlock(&f->lock);
    if (!p)
        return false;
    *cookie = p->cookie;
    *status = p->status;
    kni_publish_free(p);
    return true;
}

bool kni_publish_withdraw(struct kni_fetcher *f, void **cookie)
{
    pthread_mutex_lock(&f->lock);
    struct kni_publish *p = f->queued.first, **link = &f->queued.first;
    while (p && p->next) {
        link = &p->next;
        p = p->next;
    }
    if (p) {
        *link = NULL;
        f->queued.last = link;
        f->queued.n--;
    }
    pthread_mutex_unlock(&f->lock);
    if (!p)
        return false;
    *cookie = p->cookie;
    kni_publish_free(p);
    return true;
}

void kni_publish_get_stats(struct kni_fetcher *f, struct kni_publish_stats *out)
{
    pthread_mutex_lock(&f->lock);
    *out = f->stats;
    out->n_queued = f->queued.n + f->n_publishing;
    pthread_mutex_unlock(&f->lock);
}

/* Lets fetches begin first. False when the fetcher is closing. *may_write: whether there is a point in encoding a chunk. */
static bool give_way(struct kni_fetcher *f, bool *may_write)
{
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < YIELDS && !f->stopping && kni_fetcher_has_work(f); i++)
        kni_fetcher_cond_wait(&f->publish, &f->lock, kni_now_ns() + YIELD_NS);
    bool go_on = !f->stopping;
    *may_write = kni_fetcher_may_ask(f, KNI_STORE_USE_WRITE);
    pthread_mutex_unlock(&f->lock);
    return go_on;
}

/* Whether the chunk's blocks are good enough for the name under which it would be stored. */
static bool is_good_enough(const struct kni_publish *p, const struct kni_chunk_meta *meta, enum kn_kv_quality named)
{
    for (uint32_t b = meta->first_token / KNI_BLOCK_TOKENS; p->qualities && b < (meta->first_token + meta->n_tokens) / KNI_BLOCK_TOKENS; b++)
        if (p->qualities[b] > named)
            return false;
    return true;
}

/* *mine becomes false when the publish has been given back to the owner: p is gone then. */
static enum kn_status publish_chunk(struct kni_fetch_thread *t, struct kni_codec *codec, const struct kni_publish *p, const struct kni_chunk_meta *meta,
                                    const struct kni_store_key *key, bool *mine, struct kn_err *err)
{
    struct kni_fetcher *f = t->fetcher;
    void *data = NULL;
    size_t n_bytes = 0;
    const struct kni_kv_host from = kni_kv_host_of(&p->view);
    enum kn_status s = kni_chunk_encode(codec, meta, &from, &data, &n_bytes, err);
    if (!s) /* what was encoded was computed before this */
        s = kni_fetcher_check(f);
    if (!s && !kni_fetcher_ask(t, KNI_STORE_CALL_WRITE))
        s = kni_err_set(err, KN_E_IO, LEFT_ALONE);
    else if (!s) {
        s = kni_store_put(f->store, key->text, meta, data, n_bytes, err);
        *mine = kni_fetcher_told(t, s == KN_E_IO || s == KN_E_TIMEOUT, err);
    }
    kni_free(data);
    if (s)
        return s;
    pthread_mutex_lock(&f->lock);
    f->stats.n_chunks++;
    f->stats.n_bytes += n_bytes;
    f->stats.raw_bytes += (uint64_t)meta->n_tokens * kni_kv_token_bytes(&meta->kv);
    f->logged_kinds = 0;
    pthread_mutex_unlock(&f->lock);
    return KN_OK;
}

static enum kn_status run_publish(struct kni_fetch_thread *t, struct kni_codec **codec, const struct kni_publish *p, bool *mine, struct kn_err *err)
{
    struct kni_fetcher *f = t->fetcher;
    struct kni_hash chain = p->seed;
    for (uint32_t c = 0; *mine && c < p->n_tokens / f->opts.chunk_tokens; c++) {
        struct kni_chunk_meta meta;
        struct kni_store_key key;
        uint32_t n_found = 0;
        bool may_write;
        kni_fetcher_chain(f, &p->seed, p->tokens, c, &chain);
        kni_fetcher_meta(f, c, &chain, &meta);
        kni_store_key_make(&key, &meta, &f->opts.tiles, &f->opts.hevc);
        if (!give_way(f, &may_write))
            return kni_err_set(err, KN_E_CANCELLED, "the fetcher was closed");
        enum kn_status s = kni_fetcher_check(f);
        if (s)
            return s;
        if (!may_write || !kni_fetcher_ask(t, KNI_STORE_CALL_LOOKUP))
            return kni_err_set(err, KN_E_IO, LEFT_ALONE);
        s = kni_store_lookup(f->store, &key, 1, &n_found, err); /* one by one: another process may be publishing the same */
        *mine = kni_fetcher_told(t, s != KN_OK, err);
        if (!*mine)
            return s;
        if (!s && n_found)
            continue;
        if (!s && !is_good_enough(p, &meta, kni_preset_quality(f->opts.preset, &f->opts.tiles))) {
            pthread_mutex_lock(&f->lock);
            f->stats.n_refused++;
            pthread_mutex_unlock(&f->lock);
            return KN_OK; /* what lies behind it descends from it */
        }
        if (!s && !*codec) {
            struct kni_codec_opts o = {.preset = f->opts.preset, .tiles = f->opts.tiles, .profile = f->opts.profile, .backend = f->opts.backend,
                                       .hevc = f->opts.hevc, .cpu_without = f->opts.cpu_without};
            s = kni_codec_open(codec, &o, err);
        }
        if (!s)
            s = publish_chunk(t, *codec, p, &meta, &key, mine, err);
        if (s)
            return s;
    }
    return KN_OK;
}

/* Works on p until it is done, or given back to the owner because the store hangs. */
static void serve(struct kni_fetch_thread *t, struct kni_codec **codec, struct kni_publish *p)
{
    struct kni_fetcher *f = t->fetcher;
    struct kn_err err = {0};
    bool mine = true, say = false;
    uint64_t begin_ns = kni_now_ns();
    enum kn_status s = run_publish(t, codec, p, &mine, &err);
    pthread_mutex_lock(&f->lock);
    f->stats.busy_ns += kni_now_ns() - begin_ns;
    t->publish = NULL; /* no call is out, so that nobody takes it from here on */
    if (mine && s && s != KN_E_CANCELLED && s != KN_E_CHANGED) { /* whoever found a change has said it */
        say = !(f->logged_kinds & 1u << s);
        f->logged_kinds |= 1u << s;
    }
    pthread_mutex_unlock(&f->lock);
    if (say)
        kni_log(KN_LOG_LEVEL_WARN, "fetch", "a prefix was not published: %s (%s); said once until one is stored again", err.text[0] ? err.text : "no reason given", kn_status_name(s));
    if (!mine)
        return;
    pthread_mutex_lock(&f->lock);
    f->n_publishing--;
    kni_publish_finish(f, p, s);
    pthread_mutex_unlock(&f->lock);
}

/* Writes last-use times: a loss is not an error. */
static void flush(struct kni_fetch_thread *t)
{
    struct kn_err err = {0};
    if (!kni_fetcher_ask(t, KNI_STORE_CALL_WRITE))
        return;
    enum kn_status s = kni_store_flush(t->fetcher->store);
    if (s)
        kni_err_set(&err, s, "last-use times cannot be written");
    (void)kni_fetcher_told(t, s == KN_E_IO || s == KN_E_TIMEOUT, &err);
}

void *kni_publisher_main(void *arg)
{
    struct kni_fetch_thread *t = arg;
    struct kni_fetcher *f = t->fetcher;
    struct kni_codec *codec = NULL;
    uint64_t next_flush_ns = 0;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE); /* of this thread only; refused: we go on as we are */
    pthread_mutex_lock(&f->lock);
    while (!f->stopping) {
        struct kni_publish *p = pop(&f->queued);
        uint64_t now = kni_now_ns();
        if (p) {
            f->n_publishing++;
            t->publish = p;
            t->disowned = false;
            pthread_mutex_unlock(&f->lock);
            serve(t, &codec, p);
            pthread_mutex_lock(&f->lock);
        } else if (f->flush_wanted && now >= next_flush_ns) {
            f->flush_wanted = false;
            pthread_mutex_unlock(&f->lock);
            flush(t);
            next_flush_ns = kni_now_ns() + FLUSH_EVERY_NS;
            pthread_mutex_lock(&f->lock);
        } else if (f->flush_wanted)
            kni_fetcher_cond_wait(&f->publish, &f->lock, next_flush_ns);
        else
            pthread_cond_wait(&f->publish, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    kni_codec_close(&codec);
    pthread_mutex_lock(&f->lock);
    kni_fetcher_thread_end(t);
    return NULL;
}

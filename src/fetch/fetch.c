/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of fetching: opening and closing the fetcher, beginning, starting, polling and ending jobs. Nothing
 * here asks the store or decodes; the workers do (fetch_worker.c). Every function takes the one lock for a few lines.
 *
 * When a job is over. RUNNING becomes DONE once nothing more can be added (all restored; or a chunk failed, the deadline
 * passed or the owner cancelled) *and* no worker is writing into the blocks. So n_restored of a DONE job is final, and the
 * blocks beyond it may be overwritten at once: a download that comes in later finds the job cut and is thrown away.
 */
#include "fetch/fetcher.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/status.h"
#include "kv/chain.h"

#define DEFAULT_DEADLINE_MS 30000u
#define DEFAULT_LOOKUP_MS 2000u
#define DEFAULT_CLOSE_WAIT_MS 10000u
#define MOST_WRITE_MS 10000u
#define LEAST_HANG_MS 1000u       /* a busy machine is not a store that hangs, whatever the deadline */
#define CLOSE_LOOK_NS 100000000ull /* between two looks at whether all threads that are left hang */

void kni_fetcher_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    pthread_cond_timedwait(cond, lock, &ts);
}

void kni_fetcher_tell(struct kni_fetcher *f)
{
    f->n_news++;
    pthread_cond_signal(&f->news);
}

enum kn_status kni_fetcher_check(const struct kni_fetcher *f)
{
    return f->opts.check ? f->opts.check(f->opts.check_of) : KN_OK;
}

void kni_fetcher_meta(const struct kni_fetcher *f, uint32_t chunk, const struct kni_hash *chain, struct kni_chunk_meta *out)
{
    *out = (struct kni_chunk_meta){.chain = *chain,
                                   .preset = f->opts.preset,
                                   .backend = kni_backend_of(f->opts.preset, f->opts.backend),
                                   .first_token = chunk * f->opts.chunk_tokens,
                                   .n_tokens = f->opts.chunk_tokens,
                                   .kv = f->opts.kv};
    memcpy(out->fingerprint, f->opts.fingerprint, 16);
    if (f->opts.profile && kni_preset_needs_profile(f->opts.preset))
        memcpy(out->profile, f->opts.profile->id, 16);
}

void kni_fetcher_chain(const struct kni_fetcher *f, const struct kni_hash *seed, const int32_t *tokens, uint32_t chunk, struct kni_hash *state)
{
    if (chunk == 0)
        *state = *seed;
    const int32_t *t = tokens + (size_t)chunk * f->opts.chunk_tokens;
    for (uint32_t i = 0; i < f->opts.chunk_tokens; i += KNI_BLOCK_TOKENS)
        *state = kni_chain_next(state, t + i, KNI_BLOCK_TOKENS);
}

void kni_fetcher_free(struct kni_fetcher *f)
{
    struct kni_publish_list *lists[] = {&f->queued, &f->finished};
    for (int i = 0; i < 2; i++)
        for (struct kni_publish *p = lists[i]->first, *next; p; p = next) {
            next = p->next;
            kni_publish_free(p);
        }
    kn_store_close(&f->store);
    if (f->opts.profile)
        kni_profile_close(&f->opts.profile);
    pthread_cond_destroy(&f->ended);
    pthread_cond_destroy(&f->news);
    pthread_cond_destroy(&f->publish);
    pthread_cond_destroy(&f->work);
    pthread_mutex_destroy(&f->lock);
    kni_free(f->threads);
    kni_free(f);
}

void kni_fetcher_thread_end(struct kni_fetch_thread *t)
{
    struct kni_fetcher *f = t->fetcher;
    bool last = --f->n_alive == 0 && f->abandoned;
    pthread_cond_broadcast(&f->ended);
    pthread_mutex_unlock(&f->lock);
    if (last)
        kni_fetcher_free(f);
}

/* Waits until no thread is left, or for close_wait_ms until all that are left hang in the store. False: some are. (lock) held. */
static bool await_threads(struct kni_fetcher *f)
{
    uint64_t until = kni_now_ns() + f->opts.close_wait_ms * 1000000ull;
    while (f->n_alive) {
        uint32_t n_out = 0;
        for (uint32_t i = 0; i < f->n_threads; i++)
            n_out += f->threads[i].call_begin_ns != 0;
        if (n_out == f->n_alive && kni_now_ns() >= until)
            return false;
        kni_fetcher_cond_wait(&f->ended, &f->lock, kni_now_ns() + CLOSE_LOOK_NS);
    }
    return true;
}

static void destroy(struct kni_fetcher *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    assert(!f->jobs); /* the owner ends its jobs first */
    f->stopping = true;
    pthread_cond_broadcast(&f->work);
    pthread_cond_broadcast(&f->publish);
    pthread_mutex_unlock(&f->lock);
    kni_store_interrupt(f->store);
    pthread_mutex_lock(&f->lock);
    bool all = await_threads(f);
    uint32_t n_left = f->n_alive;
    for (uint32_t i = 0; i < f->n_threads && !all; i++) {
        struct kni_fetch_thread *t = &f->threads[i];
        if (t->publish) /* whose blocks go with the pool: when the call returns, kni_fetcher_told says so */
            kni_publish_disown(t, KN_E_CANCELLED);
        pthread_detach(t->id);
    }
    f->abandoned = !all;
    pthread_mutex_unlock(&f->lock); /* abandoned: from here on f may be gone at any time */
    if (!all) {
        kni_log(KN_LOG_LEVEL_WARN, "fetch", "the store does not answer: closed without waiting for %u calls that it has not returned from", n_left);
        return;
    }
    for (uint32_t i = 0; i < f->n_threads; i++)
        pthread_join(f->threads[i].id, NULL);
    kni_fetcher_free(f);
}

static bool opts_are_sane(const struct kni_fetcher_opts *o)
{
    return o->preset != KN_PRESET_DEFAULT && o->chunk_tokens && o->chunk_tokens % KNI_BLOCK_TOKENS == 0 && o->n_workers >= 1 && o->n_workers <= 64 &&
           o->kv.n_layer && o->kv.n_kv_head && o->kv.d_head;
}

static enum kn_status start_threads(struct kni_fetcher *f, uint32_t n)
{
    sigset_t before;
    int rc = 0;
    kni_signals_block(&before);
    pthread_mutex_lock(&f->lock); /* a thread's first act is to take it, so that it finds all fields written */
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct kni_fetch_thread *t = &f->threads[i];
        t->fetcher = f;
        t->role = i < f->n_workers ? KNI_FETCH_ROLE_WORKER : i == f->n_workers ? KNI_FETCH_ROLE_KEEPER : KNI_FETCH_ROLE_PUBLISHER;
        rc = pthread_create(&t->id, NULL, t->role == KNI_FETCH_ROLE_PUBLISHER ? kni_publisher_main : kni_fetch_worker_main, t);
        f->n_threads += !rc;
        f->n_alive += !rc;
    }
    pthread_mutex_unlock(&f->lock);
    kni_signals_restore(&before);
    return rc ? KN_E_NOMEM : KN_OK;
}

/* Fills in the bounds on the store's calls. */
static void set_limits(struct kni_fetcher *f)
{
    struct kni_fetcher_opts *o = &f->opts;
    if (!o->deadline_ms)
        o->deadline_ms = DEFAULT_DEADLINE_MS;
    if (!o->lookup_ms)
        o->lookup_ms = DEFAULT_LOOKUP_MS;
    if (o->lookup_ms > o->deadline_ms)
        o->lookup_ms = o->deadline_ms;
    if (!o->close_wait_ms)
        o->close_wait_ms = DEFAULT_CLOSE_WAIT_MS;
    const uint32_t ms[3] = {o->lookup_ms, o->deadline_ms, o->deadline_ms < MOST_WRITE_MS ? o->deadline_ms : MOST_WRITE_MS}; /* by enum kni_store_call */
    for (int i = 0; i < 3; i++)
        f->limit_ns[i] = 1000000ull * (o->hang_ms ? o->hang_ms : ms[i] < LEAST_HANG_MS ? LEAST_HANG_MS : ms[i]);
}

enum kn_status kni_fetcher_open_on(struct kni_fetcher **out, const struct kni_fetcher_opts *opts, struct kn_store *store, struct kn_err *err)
{
    enum kn_status s;
    *out = NULL;
    struct kni_fetcher *f = opts_are_sane(opts) ? kni_calloc(KNI_ALLOC_TAG_FETCH, sizeof *f, 0) : NULL;
    if (!f) {
        kn_store_close(&store);
        return opts_are_sane(opts) ? kni_err_set(err, KN_E_NOMEM, "fetch: out of memory")
                                   : kni_err_set(err, KN_E_ARG, "fetch: chunk of %u tokens (a multiple of 16), %u workers (1..64) or the KV layout is out of range",
                                                 opts->chunk_tokens, opts->n_workers);
    }
    f->opts = *opts;
    f->opts.store_url = NULL;
    if (f->opts.profile)
        kni_profile_ref(f->opts.profile);
    set_limits(f);
    f->store = store;
    f->queued.last = &f->queued.first;
    f->finished.last = &f->finished.first;
    f->n_workers = opts->n_workers;
    f->n_publishers = opts->n_workers < 8 ? 1 : opts->n_workers / 4;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, &attr);
    pthread_cond_init(&f->publish, &attr);
    pthread_cond_init(&f->news, &attr);
    pthread_cond_init(&f->ended, &attr);
    pthread_condattr_destroy(&attr);
    uint32_t n_threads = f->n_workers + 1 + f->n_publishers; /* with the keeper */
    f->threads = kni_calloc(KNI_ALLOC_TAG_FETCH, n_threads * sizeof *f->threads, 0);
    s = f->threads ? start_threads(f, n_threads) : KN_E_NOMEM;
    if (s) {
        destroy(f);
        return kni_err_set(err, s, "fetch: cannot start %u workers: out of memory or threads", opts->n_workers);
    }
    *out = f;
    return KN_OK;
}

enum kn_status kni_fetcher_open(struct kni_fetcher **out, const struct kni_fetcher_opts *opts, struct kn_err *err)
{
    struct kn_store *store = NULL;
    struct kn_store_opts so = {.size = sizeof so, .url = opts->store_url, .max_bytes = opts->max_bytes, .ttl_s = opts->ttl_s,
                               .read_only = opts->store_read_only, .may_read_only = true};
    *out = NULL;
    enum kn_status s = opts->store_optional ? kni_store_open_lazy(&store, &so, err) : kn_store_open(&store, &so, err);
    return s ? s : kni_fetcher_open_on(out, opts, store, err);
}

void kni_fetcher_close(struct kni_fetcher **fetcher)
{
    if (!fetcher)
        return;
    destroy(*fetcher);
    *fetcher = NULL;
}

/* ---- jobs */

static void job_free(struct kni_fetch *job)
{
    if (!job)
        return;
    kni_free(job->tokens);
    kni_free(job->chunks);
    kni_free(job->keys);
    kni_free(job->table);
    kni_free(job);
}

void kni_fetch_unref(struct kni_fetch *job)
{
    if (--job->n_refs == 0)
        job_free(job);
}

static void finish(struct kni_fetch *job, uint64_t now_ns)
{
    job->state = KNI_FETCH_STATE_DONE;
    job->end_ns = now_ns;
    job->fetcher->flush_wanted = !kn_store_is_read_only(job->fetcher->store);
    pthread_cond_broadcast(&job->fetcher->publish);
    kni_fetcher_tell(job->fetcher);
}

void kni_fetch_settle(struct kni_fetch *job, uint64_t now_ns)
{
    if (job->state != KNI_FETCH_STATE_LOOKUP && job->state != KNI_FETCH_STATE_RUNNING)
        return;
    if (now_ns >= job->deadline_ns)
        job->cut = true;
    bool over = job->cut || job->cancelled || (job->state == KNI_FETCH_STATE_RUNNING && job->n_prefix == job->end_chunk && !job->more);
    if (over && !job->n_restoring)
        finish(job, now_ns);
}

bool kni_fetcher_has_work(struct kni_fetcher *f)
{
    for (const struct kni_fetch *j = f->jobs; j; j = j->next)
        if ((j->state == KNI_FETCH_STATE_LOOKUP && !j->lookup_begun) ||
            (j->state == KNI_FETCH_STATE_RUNNING && !j->cut && !j->cancelled && j->next_chunk < j->end_chunk))
            return true;
    return false;
}

enum kn_status kni_fetch_begin(struct kni_fetch **out, struct kni_fetcher *f, const int32_t *tokens, uint32_t n_tokens, uint32_t first_token, const char *salt)
{
    *out = NULL;
    if (first_token > n_tokens)
        return KN_E_ARG;
    struct kni_fetch *job = kni_calloc(KNI_ALLOC_TAG_FETCH, sizeof *job, 0);
    if (!job)
        return KN_E_NOMEM;
    job->fetcher = f;
    job->n_tokens = n_tokens;
    job->first_token = first_token;
    job->first_chunk = first_token / f->opts.chunk_tokens;
    job->n_chunks = n_tokens ? (n_tokens - 1) / f->opts.chunk_tokens : 0; /* the last token is left to the engine: it yields the logits */
    job->seed = kni_chain_seed(f->opts.fingerprint, salt);
    job->begin_ns = job->end_ns = kni_now_ns();
    job->deadline_ns = job->begin_ns + f->opts.lookup_ms * 1000000ull; /* until start, which gives it the rest */
    job->found_chunk = job->end_chunk = job->n_prefix = job->next_chunk = job->first_chunk;
    job->n_refs = 1;
    bool ask = job->n_chunks > job->first_chunk;
    job->state = ask ? KNI_FETCH_STATE_LOOKUP : KNI_FETCH_STATE_DONE;
    if (ask) {
        size_t tokens_bytes = (size_t)job->n_chunks * f->opts.chunk_tokens * sizeof *tokens;
        job->tokens = kni_alloc(KNI_ALLOC_TAG_FETCH, tokens_bytes, 0);
        job->chunks = kni_calloc(KNI_ALLOC_TAG_FETCH, job->n_chunks * sizeof *job->chunks, 0);
        job->keys = kni_alloc(KNI_ALLOC_TAG_FETCH, job->n_chunks * sizeof *job->keys, 0);
        if (!job->tokens || !job->chunks || !job->keys) {
            job_free(job);
            return KN_E_NOMEM;
        }
        memcpy(job->tokens, tokens, tokens_bytes);
    }
    kni_fetcher_watch(f);
    pthread_mutex_lock(&f->lock);
    if (ask && !kni_fetcher_may_ask(f, KNI_STORE_USE_READ))
        job->state = KNI_FETCH_STATE_DONE;
    struct kni_fetch **link = &f->jobs;
    while (*link)
        link = &(*link)->next;
    *link = job;
    if (job->state == KNI_FETCH_STATE_DONE)
        kni_fetcher_tell(f);
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    *out = job;
    return KN_OK;
}

/* A READY job gets a table for all that was found: later windows only fill it. (lock) held. */
static void start(struct kni_fetch *job, const struct kni_kv_view *view, uint32_t *table, uint32_t n_entries, uint64_t now_ns)
{
    job->table = table;
    job->view = *view;
    job->view.block_ids = table;
    job->view.n_blocks = n_entries;
    job->state = KNI_FETCH_STATE_RUNNING;
    /* the lookup had a deadline of its own; the time that the owner took to reserve blocks is not the fetch's */
    job->deadline_ns = job->begin_ns + job->fetcher->opts.deadline_ms * 1000000ull + (now_ns - job->end_ns);
}

enum kn_status kni_fetch_extend(struct kni_fetch *job, const struct kni_kv_view *view, uint32_t n_tokens, bool more)
{
    struct kni_fetcher *f = job->fetcher;
    struct kni_kv_layout *a = &f->opts.kv;
    const struct kni_kv_layout *b = &view->layout;
    uint32_t *table = NULL, end = n_tokens / f->opts.chunk_tokens, n_entries = 0;
    enum kn_status s = KN_OK;
    if (a->n_layer != b->n_layer || a->n_kv_head != b->n_kv_head || a->d_head != b->d_head || a->type != b->type)
        return KN_E_ARG;
    if (n_tokens > (uint64_t)view->n_blocks * KNI_BLOCK_TOKENS)
        return KN_E_ARG;
    if (!job->table) { /* the owner's until it is started: needs no lock to be looked at */
        n_entries = job->n_chunks * (f->opts.chunk_tokens / KNI_BLOCK_TOKENS);
        table = kni_calloc(KNI_ALLOC_TAG_FETCH, n_entries * sizeof *table, 0);
        if (!table)
            return KN_E_NOMEM;
    }
    pthread_mutex_lock(&f->lock);
    uint64_t now = kni_now_ns();
    if (table && job->state == KNI_FETCH_STATE_READY) {
        start(job, view, table, n_entries, now);
        job->more = true;
        table = NULL;
    }
    if (table || job->state != KNI_FETCH_STATE_RUNNING) {
        s = KN_E_STATE;
    } else {
        end = end < job->found_chunk ? end : job->found_chunk;
        if (job->more && end > job->end_chunk) { /* a failed chunk has ended it otherwise */
            uint32_t from = job->end_chunk * (f->opts.chunk_tokens / KNI_BLOCK_TOKENS), to = end * (f->opts.chunk_tokens / KNI_BLOCK_TOKENS);
            memcpy(job->table + from, view->block_ids + from, (to - from) * sizeof *job->table);
            job->end_chunk = end;
        }
        job->more = job->more && more && job->end_chunk < job->found_chunk;
        kni_fetch_settle(job, now);
        pthread_cond_broadcast(&f->work);
    }
    pthread_mutex_unlock(&f->lock);
    kni_free(table);
    return s;
}

void kni_fetch_poll(struct kni_fetch *job, struct kni_fetch_progress *out)
{
    struct kni_fetcher *f = job->fetcher;
    kni_fetcher_watch(f);
    pthread_mutex_lock(&f->lock);
    uint64_t now = kni_now_ns();
    kni_fetch_settle(job, now);
    uint32_t wanted = job->found_chunk * f->opts.chunk_tokens, restored = job->n_prefix * f->opts.chunk_tokens;
    *out = (struct kni_fetch_progress){.state = job->state,
                                       .n_wanted = wanted > job->first_token ? wanted : job->first_token,
                                       .n_restored = restored > job->first_token ? restored : job->first_token,
                                       .n_bytes = job->n_bytes,
                                       .n_misses = job->n_misses,
                                       .elapsed_ns = (job->state == KNI_FETCH_STATE_DONE ? job->end_ns : now) - job->begin_ns};
    pthread_mutex_unlock(&f->lock);
}

/* The owner lets go. (lock) held. */
static void detach(struct kni_fetch *job)
{
    struct kni_fetch **link = &job->fetcher->jobs;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    kni_fetch_unref(job); /* a worker in the middle of a lookup or a download still holds one */
}

bool kni_fetch_try_end(struct kni_fetch **fetch)
{
    struct kni_fetch *job = *fetch;
    struct kni_fetcher *f = job->fetcher;
    pthread_mutex_lock(&f->lock);
    job->cancelled = true;
    bool ended = !job->n_restoring;
    if (ended)
        detach(job);
    pthread_mutex_unlock(&f->lock);
    if (ended)
        *fetch = NULL;
    return ended;
}

void kni_fetcher_wait(struct kni_fetcher *f, uint32_t timeout_ms)
{
    uint64_t until = kni_now_ns() + timeout_ms * 1000000ull;
    pthread_mutex_lock(&f->lock);
    for (const struct kni_fetch *j = f->jobs; j; j = j->next) /* a deadline is news too */
        if ((j->state == KNI_FETCH_STATE_LOOKUP || j->state == KNI_FETCH_STATE_RUNNING) && !j->cut && j->deadline_ns < until)
            until = j->deadline_ns;
    while (f->n_news == f->n_news_seen && kni_now_ns() < until)
        kni_fetcher_cond_wait(&f->news, &f->lock, until);
    f->n_news_seen = f->n_news;
    pthread_mutex_unlock(&f->lock);
}

void kni_fetcher_wake(struct kni_fetcher *f)
{
    pthread_mutex_lock(&f->lock);
    kni_fetcher_tell(f);
    pthread_mutex_unlock(&f->lock);
}

uint64_t kni_fetcher_working_bytes(struct kni_fetcher *f)
{
    pthread_mutex_lock(&f->lock);
    uint64_t n = f->working_bytes;
    pthread_mutex_unlock(&f->lock);
    return n;
}

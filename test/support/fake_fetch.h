/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fetcher for tests of its callers: the functions of fetch/fetch.h over a table in memory, single threaded and
 * deterministic. Include it in one test file; it takes the library's place at link time. Time is counted in polls: each
 * poll of a job or of publishes is one tick. It checks its caller too: blocks of a running publish must not change, a
 * started fetch must find writable blocks, everything must be ended.
 */
#ifndef KN_TEST_FAKE_FETCH_H
#define KN_TEST_FAKE_FETCH_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fetch/fetch.h"

#define KN_FAKE_ENTRIES 512

struct kn_fake_entry { /* one published prefix */
    int32_t *tokens;
    uint16_t *rows; /* [n_tokens][values of a token] */
    uint32_t n_tokens;
    char salt[16];
};

struct kn_fake_publish {
    struct kn_fake_publish *next;
    struct kn_fake_entry entry;
    struct kni_kv_view view;
    uint32_t *ids;
    void *cookie;
    uint32_t ticks;
};

struct kn_fake_opts {
    uint32_t lookup_ticks, chunk_ticks, publish_ticks;
    uint32_t chunks_at_most;       /* a fetch ends after so many; 0: no limit */
    uint32_t end_refusals;         /* so often a worker has not let go of a running fetch that is to end, and writes rubbish */
    enum kn_status begin_status, start_status, submit_status, publish_status;
};

struct kni_fetcher {
    uint32_t chunk_tokens;
    struct kni_kv_layout kv;
    struct kn_fake_opts opts;
    struct kn_fake_entry entries[KN_FAKE_ENTRIES];
    uint32_t n_entries;
    struct kn_fake_publish *queue;
    uint32_t n_jobs, n_begun, n_waits, n_extends, n_withdrawn;
    struct kni_publish_stats stats;
    enum kn_kv_quality worst_published; /* of the blocks of the last publish */
};

struct kni_fetch {
    struct kni_fetcher *fetcher;
    const struct kn_fake_entry *entry;
    struct kni_kv_view view;
    uint32_t *ids;
    uint32_t first, n_limit, n_chunks, n_refusals;
    bool more;
    uint32_t ticks;
    struct kni_fetch_progress p;
};

static void kn_fake_rows(const struct kni_kv_view *v, uint32_t pos, uint16_t *rows, int restore)
{
    const struct kni_kv_layout *l = &v->layout;
    const struct kni_kv_host h = kni_kv_host_of(v);
    for (uint32_t layer = 0; layer < l->n_layer; layer++)
        for (uint32_t is_v = 0; is_v < 2; is_v++)
            for (uint32_t head = 0; head < l->n_kv_head; head++, rows += l->d_head)
                if (restore)
                    memcpy(kni_kv_row(&h, layer, is_v, head, pos), rows, l->d_head * 2u);
                else
                    memcpy(rows, kni_kv_row(&h, layer, is_v, head, pos), l->d_head * 2u);
}

static uint32_t kn_fake_token_values(const struct kni_kv_layout *l)
{
    return (uint32_t)kni_kv_token_bytes(l) / 2;
}

enum kn_status kni_fetcher_open(struct kni_fetcher **out, const struct kni_fetcher_opts *opts, struct kn_err *err)
{
    (void)err;
    struct kni_fetcher *f = calloc(1, sizeof *f);
    f->chunk_tokens = opts->chunk_tokens;
    f->kv = opts->kv;
    *out = f;
    return KN_OK;
}

static void kn_fake_entry_free(struct kn_fake_entry *e)
{
    free(e->tokens);
    free(e->rows);
}

void kni_fetcher_close(struct kni_fetcher **fetcher)
{
    struct kni_fetcher *f = *fetcher;
    if (!f)
        return;
    assert(!f->n_jobs);
    for (uint32_t i = 0; i < f->n_entries; i++)
        kn_fake_entry_free(&f->entries[i]);
    while (f->queue) {
        struct kn_fake_publish *q = f->queue;
        f->queue = q->next;
        kn_fake_entry_free(&q->entry);
        free(q->ids);
        free(q);
    }
    free(f);
    *fetcher = NULL;
}

enum kn_status kni_fetch_begin(struct kni_fetch **out, struct kni_fetcher *f, const int32_t *tokens, uint32_t n_tokens, uint32_t first_token,
                               const char *salt)
{
    *out = NULL;
    f->n_begun++;
    if (f->opts.begin_status)
        return f->opts.begin_status;
    struct kni_fetch *job = calloc(1, sizeof *job);
    job->fetcher = f;
    job->first = first_token - first_token % f->chunk_tokens;
    job->ticks = f->opts.lookup_ticks;
    job->p.n_wanted = job->p.n_restored = job->first;
    for (uint32_t i = 0; i < f->n_entries; i++) {
        const struct kn_fake_entry *e = &f->entries[i];
        uint32_t n = 0;
        if (strcmp(e->salt, salt ? salt : "") != 0)
            continue;
        while (n < e->n_tokens && n + 1 < n_tokens && e->tokens[n] == tokens[n])
            n++;
        n -= n % f->chunk_tokens;
        if (n > job->p.n_wanted) {
            job->p.n_wanted = n;
            job->entry = e;
        }
    }
    f->n_jobs++;
    *out = job;
    return KN_OK;
}

enum kn_status kni_fetch_extend(struct kni_fetch *job, const struct kni_kv_view *view, uint32_t n_tokens, bool more)
{
    if (job->p.state == KNI_FETCH_STATE_DONE)
        return KN_E_STATE;
    assert(job->p.state != KNI_FETCH_STATE_LOOKUP && n_tokens <= job->p.n_wanted && view->n_blocks * KNI_BLOCK_TOKENS >= n_tokens);
    if (job->fetcher->opts.start_status)
        return job->fetcher->opts.start_status;
    job->fetcher->n_extends++;
    if (job->p.state == KNI_FETCH_STATE_READY) {
        job->more = true;
        job->n_limit = job->first;
        job->ticks = job->fetcher->opts.chunk_ticks;
        job->p.state = KNI_FETCH_STATE_RUNNING;
    }
    assert(n_tokens >= job->n_limit && (job->more || n_tokens == job->n_limit) && n_tokens % job->fetcher->chunk_tokens == 0);
    job->ids = realloc(job->ids, view->n_blocks * sizeof *job->ids);
    assert(!job->n_limit || memcmp(job->ids, view->block_ids, job->n_limit / KNI_BLOCK_TOKENS * sizeof *job->ids) == 0 || job->n_limit == job->first);
    memcpy(job->ids, view->block_ids, view->n_blocks * sizeof *job->ids);
    job->view = *view;
    job->view.block_ids = job->ids;
    job->n_limit = n_tokens;
    job->more = job->more && more && n_tokens < job->p.n_wanted;
    return KN_OK;
}

/* What a refused or interrupted chunk leaves behind. */
static void kn_fake_rubbish(struct kni_fetch *job)
{
    uint32_t n_values = kn_fake_token_values(&job->fetcher->kv);
    uint16_t *rubbish = malloc(n_values * 2);
    memset(rubbish, 0xee, n_values * 2);
    for (uint32_t p = job->p.n_restored; p < job->n_limit; p++)
        kn_fake_rows(&job->view, p, rubbish, 1);
    free(rubbish);
}

void kni_fetch_poll(struct kni_fetch *job, struct kni_fetch_progress *out)
{
    struct kni_fetcher *f = job->fetcher;
    uint32_t n_values = kn_fake_token_values(&f->kv);
    if (job->ticks) {
        job->ticks--;
    } else if (job->p.state == KNI_FETCH_STATE_LOOKUP) {
        job->p.state = job->p.n_wanted > job->first ? KNI_FETCH_STATE_READY : KNI_FETCH_STATE_DONE;
    } else if (job->p.state == KNI_FETCH_STATE_RUNNING) {
        bool refused = f->opts.chunks_at_most && job->n_chunks == f->opts.chunks_at_most;
        if (!refused && job->more && job->p.n_restored == job->n_limit) {
            /* waits for blocks */
        } else if (refused || job->p.n_restored + f->chunk_tokens > job->n_limit) {
            job->p.state = KNI_FETCH_STATE_DONE;
            if (job->p.n_restored < job->n_limit || refused) {
                kn_fake_rubbish(job);
                job->p.n_misses++;
            }
        } else {
            for (uint32_t i = 0; i < f->chunk_tokens; i++, job->p.n_restored++)
                kn_fake_rows(&job->view, job->p.n_restored, job->entry->rows + (size_t)job->p.n_restored * n_values, 1);
            job->p.n_bytes += f->chunk_tokens;
            job->n_chunks++;
            job->ticks = f->opts.chunk_ticks;
        }
    }
    *out = job->p;
}

bool kni_fetch_try_end(struct kni_fetch **fetch)
{
    struct kni_fetch *job = *fetch;
    if (job->p.state == KNI_FETCH_STATE_RUNNING && job->n_refusals++ < job->fetcher->opts.end_refusals) {
        kn_fake_rubbish(job);
        return false;
    }
    job->fetcher->n_jobs--;
    free(job->ids);
    free(job);
    *fetch = NULL;
    return true;
}

void kni_fetcher_wait(struct kni_fetcher *f, uint32_t timeout_ms)
{
    assert(timeout_ms);
    f->n_waits++;
}

void kni_fetcher_wake(struct kni_fetcher *f)
{
    (void)f;
}

static uint16_t *kn_fake_copy(const struct kni_kv_view *view, uint32_t n_tokens)
{
    uint32_t n_values = kn_fake_token_values(&view->layout);
    uint16_t *rows = malloc((size_t)n_tokens * n_values * 2);
    for (uint32_t p = 0; p < n_tokens; p++)
        kn_fake_rows(view, p, rows + (size_t)p * n_values, 0);
    return rows;
}

enum kn_status kni_publish_submit(struct kni_fetcher *f, const int32_t *tokens, uint32_t n_tokens, const char *salt, const struct kni_kv_view *view,
                                  const uint8_t *qualities, void *cookie)
{
    f->worst_published = KN_KV_QUALITY_EXACT;
    for (uint32_t b = 0; qualities && b < view->n_blocks; b++)
        if (qualities[b] > f->worst_published)
            f->worst_published = (enum kn_kv_quality)qualities[b];
    if (f->opts.submit_status)
        return f->opts.submit_status;
    struct kn_fake_publish *q = calloc(1, sizeof *q), **link = &f->queue;
    n_tokens -= n_tokens % f->chunk_tokens;
    assert(n_tokens && view->n_blocks * KNI_BLOCK_TOKENS >= n_tokens && strlen(salt) < sizeof q->entry.salt);
    q->entry.n_tokens = n_tokens;
    q->entry.tokens = malloc(n_tokens * sizeof *tokens);
    memcpy(q->entry.tokens, tokens, n_tokens * sizeof *tokens);
    memcpy(q->entry.salt, salt, strlen(salt));
    q->view = *view;
    q->ids = malloc(view->n_blocks * sizeof *q->ids);
    memcpy(q->ids, view->block_ids, view->n_blocks * sizeof *q->ids);
    q->view.block_ids = q->ids;
    q->entry.rows = kn_fake_copy(&q->view, n_tokens);
    q->cookie = cookie;
    q->ticks = f->opts.publish_ticks;
    f->stats.n_queued++;
    while (*link)
        link = &(*link)->next;
    *link = q;
    return KN_OK;
}

bool kni_publish_poll(struct kni_fetcher *f, void **cookie, enum kn_status *status)
{
    struct kn_fake_publish *q = f->queue;
    if (!q || q->ticks-- > 0) {
        return false;
    }
    f->queue = q->next;
    f->stats.n_queued--;
    uint16_t *now = kn_fake_copy(&q->view, q->entry.n_tokens);
    assert(memcmp(now, q->entry.rows, (size_t)q->entry.n_tokens * kni_kv_token_bytes(&f->kv)) == 0); /* untouched all the time */
    free(now);
    *cookie = q->cookie;
    *status = f->opts.publish_status;
    if (*status || f->n_entries == KN_FAKE_ENTRIES) {
        f->stats.n_errors += *status != KN_OK;
        kn_fake_entry_free(&q->entry);
    } else {
        f->stats.n_chunks += q->entry.n_tokens / f->chunk_tokens;
        f->entries[f->n_entries++] = q->entry;
    }
    free(q->ids);
    free(q);
    return true;
}

bool kni_publish_withdraw(struct kni_fetcher *f, void **cookie)
{
    struct kn_fake_publish *q, **link = &f->queue;
    if (!f->queue || !f->queue->next) /* the first is under way */
        return false;
    while ((*link)->next)
        link = &(*link)->next;
    q = *link;
    *link = NULL;
    *cookie = q->cookie;
    kn_fake_entry_free(&q->entry);
    free(q->ids);
    free(q);
    f->stats.n_queued--;
    f->n_withdrawn++;
    return true;
}

void kni_publish_get_stats(struct kni_fetcher *f, struct kni_publish_stats *out)
{
    *out = f->stats;
}

#endif

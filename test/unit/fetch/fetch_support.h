/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the fetch tests: a store in memory that can be slow, short, corrupt, dead or forgetful on command, a small pool of
 * blocks whose content follows from position, and a prompt.
 */
#ifndef KN_TEST_FETCH_SUPPORT_H
#define KN_TEST_FETCH_SUPPORT_H

#include <assert.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fetch/fetcher.h"
#include "kinema/log.h"

#define CHUNK 32u /* tokens */
#define MAX_CHUNKS 400

enum trouble { TROUBLE_NONE, TROUBLE_IO, TROUBLE_CORRUPT, TROUBLE_SHORT, TROUBLE_VANISHED, TROUBLE_OTHER_CHUNK, TROUBLE_GATE, TROUBLE_DELAY };

/* A store in memory. Chunks are numbered by first_token / CHUNK. The lock guards everything. */
struct fake_store {
    struct kn_store base;
    pthread_mutex_t lock;
    pthread_cond_t gate;
    struct { char key[KNI_STORE_KEY_BYTES]; uint8_t *data; size_t n_bytes; struct kni_store_entry entry; } item[MAX_CHUNKS];
    enum trouble get_trouble[MAX_CHUNKS];
    uint32_t n_items, n_lookups, n_gets, n_puts, n_drops, n_flushes, n_waiting;
    bool lookup_fails, lookup_gate, put_gate, open_gates;
    enum kn_status put_status;
    bool *closed; /* set by close when not NULL */
};

static inline int fake_find(struct fake_store *s, const char *key)
{
    for (uint32_t i = 0; i < s->n_items; i++)
        if (!strcmp(s->item[i].key, key))
            return (int)i;
    return -1;
}

static inline void fake_wait_gate(struct fake_store *s)
{
    s->n_waiting++;
    while (!s->open_gates)
        pthread_cond_wait(&s->gate, &s->lock);
    s->n_waiting--;
}

static inline enum kn_status fake_lookup(struct kn_store *store, const struct kni_store_key *keys, uint32_t n_keys, uint32_t *n_found, struct kn_err *err)
{
    struct fake_store *s = (struct fake_store *)store;
    enum kn_status st = KN_OK;
    pthread_mutex_lock(&s->lock);
    s->n_lookups++;
    if (s->lookup_gate)
        fake_wait_gate(s);
    if (s->lookup_fails)
        st = kni_err_set(err, KN_E_IO, "fake: connection refused");
    for (*n_found = 0; !st && *n_found < n_keys && fake_find(s, keys[*n_found].text) >= 0; ++*n_found)
        ;
    pthread_mutex_unlock(&s->lock);
    return st;
}

static inline enum kn_status fake_get(struct kn_store *store, const char *key, struct kni_store_entry *entry, struct kni_store_buf *buf, struct kn_err *err)
{
    struct fake_store *s = (struct fake_store *)store;
    enum kn_status st = KN_OK;
    pthread_mutex_lock(&s->lock);
    s->n_gets++;
    int i = fake_find(s, key);
    uint32_t chunk = i < 0 ? 0 : s->item[i].entry.first_token / CHUNK;
    enum trouble t = i < 0 ? TROUBLE_NONE : s->get_trouble[chunk];
    if (t == TROUBLE_GATE)
        fake_wait_gate(s);
    if (t == TROUBLE_DELAY) {
        pthread_mutex_unlock(&s->lock);
        nanosleep(&(struct timespec){.tv_nsec = (long)(chunk * 2654435761u % 5u) * 400000}, NULL);
        pthread_mutex_lock(&s->lock);
    }
    i = fake_find(s, key);
    if (i < 0) {
        st = kni_err_set(err, KN_E_NOT_FOUND, "fake: gone");
    } else if (t == TROUBLE_IO) {
        st = kni_err_set(err, KN_E_IO, "fake: connection reset");
    } else {
        *entry = s->item[i].entry;
        if (t == TROUBLE_VANISHED) {
            st = kni_err_set(err, KN_E_NOT_FOUND, "fake: its data is gone");
        } else {
            int from = t == TROUBLE_OTHER_CHUNK ? (i ? i - 1 : 1) : i;
            size_t n = s->item[from].n_bytes / (t == TROUBLE_SHORT ? 2 : 1);
            if (!kni_store_buf_reserve(buf, n)) {
                st = KN_E_NOMEM;
            } else {
                memcpy(buf->data, s->item[from].data, n);
                buf->n_bytes = n;
                if (t == TROUBLE_CORRUPT)
                    buf->data[n - n / 4] ^= 0x20;
            }
        }
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

static inline enum kn_status fake_put(struct kn_store *store, const char *key, const struct kni_store_entry *entry, const void *data, struct kn_err *err)
{
    struct fake_store *s = (struct fake_store *)store;
    pthread_mutex_lock(&s->lock);
    enum kn_status st = s->put_status ? kni_err_set(err, s->put_status, "fake: refused") : KN_OK;
    s->n_puts++;
    if (s->put_gate)
        fake_wait_gate(s);
    int i = fake_find(s, key);
    if (!st && i < 0) {
        assert(s->n_items < MAX_CHUNKS);
        i = (int)s->n_items++;
        snprintf(s->item[i].key, KNI_STORE_KEY_BYTES, "%s", key);
    }
    if (!st) {
        free(s->item[i].data);
        s->item[i].data = malloc(entry->n_bytes);
        memcpy(s->item[i].data, data, entry->n_bytes);
        s->item[i].n_bytes = entry->n_bytes;
        s->item[i].entry = *entry;
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

static inline enum kn_status fake_drop(struct kn_store *store, const char *key, const struct kni_store_entry *only, struct kn_err *err)
{
    struct fake_store *s = (struct fake_store *)store;
    (void)only;
    (void)err;
    pthread_mutex_lock(&s->lock);
    s->n_drops++;
    int i = fake_find(s, key);
    if (i >= 0) {
        free(s->item[i].data);
        s->item[i] = s->item[--s->n_items];
        s->item[s->n_items].data = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return KN_OK;
}

static inline enum kn_status fake_flush(struct kn_store *store)
{
    struct fake_store *s = (struct fake_store *)store;
    pthread_mutex_lock(&s->lock);
    s->n_flushes++;
    pthread_mutex_unlock(&s->lock);
    return KN_OK;
}

static inline void fake_close(struct kn_store *store)
{
    struct fake_store *s = (struct fake_store *)store;
    for (uint32_t i = 0; i < s->n_items; i++)
        free(s->item[i].data);
    if (s->closed)
        *s->closed = true;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->gate);
    free(s);
}

static const struct kni_store_ops fake_ops = {
    .scheme = "fake:", .form = "fake:", .close = fake_close, .lookup = fake_lookup, .get = fake_get, .put = fake_put, .drop = fake_drop, .flush = fake_flush};

static inline struct fake_store *fake_open(void)
{
    struct fake_store *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->base = (struct kn_store){.ops = &fake_ops, .max_bytes = 1ull << 40, .wall_s = kni_wall_s};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->gate, NULL);
    return s;
}

static inline void fake_release(struct fake_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->open_gates = true;
    pthread_cond_broadcast(&s->gate);
    pthread_mutex_unlock(&s->lock);
}

#define FAKE_SET(s, statement) (pthread_mutex_lock(&(s)->lock), (statement), pthread_mutex_unlock(&(s)->lock))
static inline uint32_t fake_read(struct fake_store *s, const uint32_t *field)
{
    pthread_mutex_lock(&s->lock);
    uint32_t v = *field;
    pthread_mutex_unlock(&s->lock);
    return v;
}

static inline void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

/* Waits until at least n calls stand at a gate. */
static inline void fake_await_waiting(struct fake_store *s, uint32_t n)
{
    while (fake_read(s, &s->n_waiting) < n)
        nap();
}

/* Opens the gates until nobody stands there, then shuts them again. */
static inline void fake_pulse(struct fake_store *s)
{
    fake_release(s);
    while (fake_read(s, &s->n_waiting))
        nap();
    FAKE_SET(s, s->open_gates = false);
}

/* ---- pool: block i of the source holds values that follow from position */

static const struct kni_kv_layout test_kv = {.n_layer = 3, .n_kv_head = 2, .d_head = 8, .type = KN_KV_TYPE_F16};

struct test_pool {
    struct kni_kv_host host;
    struct kni_kv_view view; /* of host */
    uint32_t *table;
    size_t n_values;
};

/* n_tokens positions in shuffled blocks; fill < 0: values by position, otherwise that byte everywhere. */
static inline struct test_pool pool_make(uint32_t n_tokens, int fill)
{
    struct test_pool p = {0};
    uint32_t n = (n_tokens + 15) / 16;
    p.n_values = n * kni_kv_block_values(&test_kv);
    uint16_t *base = malloc(p.n_values * 2 + 2);
    p.table = malloc((n + 1) * sizeof *p.table);
    assert_true(base && p.table);
    for (uint32_t i = 0; i < n; i++)
        p.table[i] = n - 1 - i;
    p.host = kni_kv_host_by_block(&test_kv, base, p.table, n);
    p.view = kni_kv_view_of(&p.host);
    memset(base, fill < 0 ? 0 : fill, p.n_values * 2);
    for (uint32_t pos = 0; fill < 0 && pos < n * 16; pos++)
        for (uint32_t l = 0; l < test_kv.n_layer; l++)
            for (uint32_t h = 0; h < test_kv.n_kv_head; h++)
                for (uint32_t v = 0; v < 2; v++)
                    for (uint32_t i = 0; i < test_kv.d_head; i++)
                        kni_kv_row(&p.host, l, v, h, pos)[i] = (uint16_t)((pos * 977 + l * 131 + h * 37 + v * 17 + i) * 2654435761u >> 13) & 0xbfff; /* finite */
    return p;
}

static inline void pool_free(struct test_pool *p)
{
    free(p->host.k);
    free(p->table);
}

/* True when a and b agree in positions first..end. */
static inline bool pool_equal(const struct test_pool *a, const struct test_pool *b, uint32_t first, uint32_t end)
{
    for (uint32_t pos = first; pos < end; pos++)
        for (uint32_t l = 0; l < test_kv.n_layer; l++)
            for (uint32_t h = 0; h < test_kv.n_kv_head; h++)
                for (uint32_t v = 0; v < 2; v++)
                    if (memcmp(kni_kv_row(&a->host, l, v, h, pos), kni_kv_row(&b->host, l, v, h, pos), test_kv.d_head * 2))
                        return false;
    return true;
}

static inline void prompt_fill(int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i * 31 % 1009);
}

static inline struct kni_fetcher_opts test_opts(uint32_t n_workers, uint32_t deadline_ms)
{
    struct kni_fetcher_opts o = {.preset = KN_PRESET_EXACT, .chunk_tokens = CHUNK, .n_workers = n_workers, .deadline_ms = deadline_ms, .kv = test_kv};
    memset(o.fingerprint, 0x11, 16);
    return o;
}

static inline struct kni_fetcher *fetcher_on(struct fake_store *s, uint32_t n_workers, uint32_t deadline_ms)
{
    struct kni_fetcher *f = NULL;
    struct kn_err err = {0};
    struct kni_fetcher_opts o = test_opts(n_workers, deadline_ms);
    if (kni_fetcher_open_on(&f, &o, &s->base, &err))
        fail_msg("%s", err.text);
    return f;
}

static inline enum kn_status publish_wait(struct kni_fetcher *f, const int32_t *tokens, uint32_t n, const char *salt, const struct test_pool *pool)
{
    void *cookie = NULL;
    int mark;
    enum kn_status s;
    assert_int_equal(kni_publish_submit(f, tokens, n, salt, &pool->view, NULL, &mark), KN_OK);
    while (!kni_publish_poll(f, &cookie, &s))
        kni_fetcher_wait(f, 1000);
    assert_ptr_equal(cookie, &mark);
    return s;
}

/* Polls until state is past the given one. */
static inline struct kni_fetch_progress await_past(struct kni_fetcher *f, struct kni_fetch *job, enum kni_fetch_state state)
{
    struct kni_fetch_progress p;
    for (kni_fetch_poll(job, &p); p.state <= state; kni_fetch_poll(job, &p))
        kni_fetcher_wait(f, 1000);
    return p;
}

/* Starts a READY job with all the blocks that it will get. */
static inline enum kn_status fetch_start(struct kni_fetch *job, const struct kni_kv_view *view, uint32_t n_tokens)
{
    struct kni_fetch_progress p;
    kni_fetch_poll(job, &p);
    return p.state == KNI_FETCH_STATE_READY ? kni_fetch_extend(job, view, n_tokens, false) : KN_E_STATE;
}

/* Cancels if still running, waits for its workers, frees. NULL is fine. */
static inline void fetch_end(struct kni_fetch **job)
{
    const struct timespec nap = {.tv_nsec = 200000};
    while (*job && !kni_fetch_try_end(job))
        nanosleep(&nap, NULL);
}

/* Begin, start, run to the end. */
static inline struct kni_fetch_progress fetch_all(struct kni_fetcher *f, const int32_t *tokens, uint32_t n, uint32_t first, const char *salt, const struct test_pool *into)
{
    struct kni_fetch *job = NULL;
    assert_int_equal(kni_fetch_begin(&job, f, tokens, n, first, salt), KN_OK);
    struct kni_fetch_progress p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
    if (p.state == KNI_FETCH_STATE_READY) {
        assert_true(p.n_wanted > first && p.n_wanted < n);
        assert_int_equal(fetch_start(job, &into->view, p.n_wanted), KN_OK);
        p = await_past(f, job, KNI_FETCH_STATE_RUNNING);
    }
    fetch_end(&job);
    assert_null(job);
    return p;
}

/* ---- what was logged */

struct log_book { pthread_mutex_t lock; uint32_t n_warnings; char last[1024]; };
static struct log_book log_book = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void log_book_fn(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user;
    (void)area;
    pthread_mutex_lock(&log_book.lock);
    if (level >= KN_LOG_LEVEL_WARN) {
        log_book.n_warnings++;
        snprintf(log_book.last, sizeof log_book.last, "%s", text);
    }
    pthread_mutex_unlock(&log_book.lock);
}

static inline uint32_t log_book_take(char *last, size_t n_bytes)
{
    pthread_mutex_lock(&log_book.lock);
    uint32_t n = log_book.n_warnings;
    log_book.n_warnings = 0;
    if (last)
        snprintf(last, n_bytes, "%s", log_book.last);
    pthread_mutex_unlock(&log_book.lock);
    return n;
}

#endif

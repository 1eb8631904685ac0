/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a tiny random model: argument checks, exact workspace, splits and batches, every element type, both rope ends. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "run/run.h"
#include "support/cpu_levels.h"
#include "support/tiny_model.h"

/* Relative to the largest logit. Sums in another order round K and V to another 16-bit neighbour (5e-4 of a value) now and
 * then, of which attention over a hundred positions leaves little; what is wrong differs by 0.1 or more. */
#define TOLERANCE 5e-4
#define N_CTX 1024u
#define N_SEQ 21u
#define N_BLOCKS (N_CTX / KNI_BLOCK_TOKENS)

struct fixture {
    struct kn_model *model;
    struct kni_threads *threads;
    struct kni_run *run;
    struct kni_kv_layout layout;
    uint16_t *pool;
    uint32_t table[N_SEQ][N_BLOCKS], n_vocab;
    int32_t tokens[N_SEQ][N_CTX];
};

static void make_without(struct fixture *f, const struct kn_tiny_opts *o, uint32_t n_threads, uint32_t max_tokens,
                         uint32_t cpu_without)
{
    char path[] = "/tmp/kn-run-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(kn_tiny_model_write(path, o), 0);
    struct kn_err err = {0};
    enum kn_status s = kn_model_open(&f->model, &(struct kn_model_opts){.size = sizeof(struct kn_model_opts), .path = path}, &err);
    unlink(path);
    if (s)
        print_error("%s\n", err.text);
    assert_int_equal(s, KN_OK);
    assert_int_equal(kni_threads_open(&f->threads, n_threads), KN_OK);
    assert_int_equal(kni_run_open(&f->run, &(struct kni_run_opts){.model = f->model, .threads = f->threads,
                                                                  .max_tokens = max_tokens, .max_logits = 40,
                                                                      .n_ctx = N_CTX,
                                                             .cpu_without = cpu_without}, &err), KN_OK);
    const struct kni_hparams *hp = &f->model->hparams;
    f->layout = (struct kni_kv_layout){.n_layer = hp->n_layer, .n_kv_head = hp->n_kv_head, .d_head = hp->d_head};
    f->n_vocab = hp->n_vocab;
    f->pool = malloc(N_SEQ * N_BLOCKS * kni_kv_block_bytes(&f->layout));
    assert_non_null(f->pool);
    memset(f->pool, 0xff, N_SEQ * N_BLOCKS * kni_kv_block_bytes(&f->layout));
    uint32_t seed = 7;
    for (uint32_t i = 0; i < N_SEQ; i++)
        for (uint32_t j = 0; j < N_CTX; j++) {
            if (j < N_BLOCKS)
                f->table[i][j] = (N_BLOCKS - 1 - j) * N_SEQ + i;
            seed = seed * 1664525u + 1013904223u;
            f->tokens[i][j] = (int32_t)((seed >> 8) % f->n_vocab);
        }
}

static void make(struct fixture *f, const struct kn_tiny_opts *o, uint32_t n_threads, uint32_t max_tokens)
{
    make_without(f, o, n_threads, max_tokens, 0);
}

static void drop(struct fixture *f)
{
    kni_run_close(&f->run);
    kni_threads_close(&f->threads);
    kn_model_close(&f->model);
    free(f->pool);
}

static struct kni_run_item item(struct fixture *f, uint32_t seq, uint32_t first, uint32_t n, uint32_t n_logits, float *logits)
{
    return (struct kni_run_item){.kv = kni_kv_view_by_block(&f->layout, f->pool, f->table[seq], N_BLOCKS),
        .tokens = f->tokens[seq] + first, .n_tokens = n, .first_pos = first,
        .want = n_logits ? KNI_RUN_WANT_LOGITS : KNI_RUN_WANT_NOTHING, .n_logits = n_logits, .logits = logits};
}

/* The first n tokens of a sequence in steps of chunk; logits of the last. */
static void prompt(struct fixture *f, uint32_t seq, uint32_t n, uint32_t chunk, float *logits)
{
    for (uint32_t at = 0, c; at < n; at += c) {
        c = n - at < chunk ? n - at : chunk;
        struct kni_run_item it = item(f, seq, at, c, at + c == n, logits);
        assert_int_equal(kni_run_step(f->run, &it, 1), KN_OK);
    }
}

static double distance(const float *a, const float *b, uint32_t n)
{
    double worst = 0, size = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]));
        worst = fmax(worst, fabs((double)a[i] - b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    assert_true(size > 0);
    return worst / size;
}

static void bad_arguments_write_nothing(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, &(struct kn_tiny_opts){0}, 2, 32);
    float *logits = malloc(33 * f.n_vocab * sizeof *logits);
    size_t bytes = N_SEQ * N_BLOCKS * kni_kv_block_bytes(&f.layout);
    struct kni_run_item good = item(&f, 0, 0, 8, 1, logits), bad;
    int32_t tokens[8] = {0};
    bool changed = false;
#define EXPECT_ARG(change)                                                   \
    do {                                                                     \
        bad = good;                                                          \
        change;                                                              \
        assert_int_equal(kni_run_step(f.run, &bad, 1), KN_E_ARG);            \
        for (size_t i_ = 0; i_ < bytes; i_++)                                \
            changed |= ((const uint8_t *)f.pool)[i_] != 0xff;                \
        assert_false(changed);                                               \
    } while (0)
    EXPECT_ARG(bad.n_tokens = 0);
    EXPECT_ARG(bad.n_tokens = 33; bad.n_logits = 1);
    EXPECT_ARG(bad.tokens = NULL);
    EXPECT_ARG(bad.n_logits = 9);
    EXPECT_ARG(bad.logits = NULL);
    EXPECT_ARG(bad.n_logits = 0);
    EXPECT_ARG(bad.want = KNI_RUN_WANT_NOTHING);
    EXPECT_ARG(bad.want = KNI_RUN_WANT_ROWS); /* which say nothing */
    EXPECT_ARG(bad.want = (enum kni_run_want)3);
    EXPECT_ARG(bad.first_pos = N_CTX - 7);
    EXPECT_ARG(bad.first_pos = UINT32_MAX);
    EXPECT_ARG(bad.kv.n_blocks = 0);
    EXPECT_ARG(bad.first_pos = 10; bad.kv.n_blocks = 1);
    EXPECT_ARG(bad.kv.k.at = 0);
    EXPECT_ARG(bad.kv.block_ids = NULL);
    EXPECT_ARG(bad.kv.layout.d_head = 64);
    EXPECT_ARG(bad.kv.layout.n_layer++);
    EXPECT_ARG(bad.kv.layout.type = KN_KV_TYPE_BF16);
    EXPECT_ARG(tokens[3] = -1; bad.tokens = tokens);
    EXPECT_ARG(tokens[3] = (int32_t)f.n_vocab; bad.tokens = tokens);
    struct kni_run_item many[5]; /* 5 * 8 rows, or 5 * 9 logits: too many together */
    for (int i = 0; i < 5; i++)
        many[i] = good;
    assert_int_equal(kni_run_step(f.run, many, 5), KN_E_ARG);
    assert_int_equal(kni_run_step(f.run, NULL, 0), KN_OK);
    assert_int_equal(kni_run_step(f.run, &good, 1), KN_OK);
    free(logits);
    drop(&f);
}

static void open_checks_its_arguments(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, &(struct kn_tiny_opts){0}, 1, 8);
    struct kni_run_opts good = {.model = f.model, .threads = f.threads, .max_tokens = 8, .max_logits = 1, .n_ctx = 64}, bad;
    struct kni_run *r = NULL;
    struct kn_err err = {0};
#define EXPECT_BAD_OPEN(change)                                              \
    do {                                                                     \
        bad = good;                                                          \
        change;                                                              \
        assert_int_equal(kni_run_open(&r, &bad, &err), KN_E_ARG);            \
        assert_null(r);                                                      \
        assert_true(strlen(err.text) > 20);                                  \
    } while (0)
    EXPECT_BAD_OPEN(bad.max_tokens = 0);
    EXPECT_BAD_OPEN(bad.max_logits = 0);
    EXPECT_BAD_OPEN(bad.n_ctx = 0);
    EXPECT_BAD_OPEN(bad.n_ctx = UINT32_MAX);
    EXPECT_BAD_OPEN(bad.model = NULL);
    EXPECT_BAD_OPEN(bad.threads = NULL);
    EXPECT_BAD_OPEN(bad.kv_type = (enum kn_kv_type)2);
    kni_alloc_fault_arm(1, false);
    assert_int_equal(kni_run_open(&r, &good, &err), KN_E_NOMEM);
    assert_true(kni_alloc_fault_hit());
    kni_alloc_fault_arm(0, false);
    assert_null(r);
    kni_run_close(&r); /* NULL is fine */
    drop(&f);
}

/* R(c) = F + c * a, and the allocator agrees to the byte; a step allocates nothing. */
static void workspace_is_exact_and_linear(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, &(struct kn_tiny_opts){0}, 2, 64);
    struct kni_run_opts o = {.model = f.model, .threads = f.threads, .max_logits = 1, .n_ctx = N_CTX};
    size_t r[4];
    for (uint32_t i = 0; i < 4; i++) {
        o.max_tokens = 64 + 128 * i;
        r[i] = kni_run_workspace_bytes(&o);
        uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_SCRATCH).current_bytes;
        struct kni_run *run;
        assert_int_equal(kni_run_open(&run, &o, NULL), KN_OK);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_SCRATCH).current_bytes - before, r[i]);
        kni_run_close(&run);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_SCRATCH).current_bytes, before);
    }
    assert_true(r[1] > r[0]);
    assert_int_equal(r[2] - r[1], r[1] - r[0]);
    assert_int_equal(r[3] - r[2], r[1] - r[0]);
    float *logits = malloc(f.n_vocab * sizeof *logits);
    uint64_t n = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).n_allocs;
    prompt(&f, 0, 100, 37, logits);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).n_allocs, n);
    free(logits);
    drop(&f);
}

static unsigned n_closed;
static void close_other(struct kni_packed *packed)
{
    n_closed++;
    free(packed);
}

static enum kn_status pack_other(struct kni_packed **out, struct kn_model *model, void *user, struct kn_err *err)
{
    (void)model;
    (void)err;
    if (*(bool *)user)
        return KN_E_NOMEM;
    *out = calloc(1, sizeof **out);
    (*out)->close = close_other;
    return KN_OK;
}

/* Runs of one model share its packed weights, on all CPU levels: the second allocates none, and they outlive the runs.
 * Another device's form stands beside them. */
static void runs_share_packed_weights(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, &(struct kn_tiny_opts){.type = KNI_DTYPE_Q4_1}, 2, 64);
    struct kni_run_opts o = {.model = f.model, .threads = f.threads, .max_tokens = 8, .max_logits = 1, .n_ctx = N_CTX};
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL).current_bytes;
    struct kni_run *run;
    const struct kni_packed *packed = f.model->packed, *other, *again;
    bool fails = true;
    assert_non_null(packed); /* the fixture's run made them */
    assert_null(packed->next);
    o.cpu_without = UINT32_MAX;
    assert_int_equal(kni_run_open(&run, &o, NULL), KN_OK);
    o.cpu_without = 0;
    assert_ptr_equal(f.model->packed, packed);
    kni_run_close(&run);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL).current_bytes, before);
    assert_int_equal(kni_model_get_packed(&other, f.model, "other device", pack_other, &fails, NULL), KN_E_NOMEM);
    assert_null(other);
    fails = false;
    assert_int_equal(kni_model_get_packed(&other, f.model, "other device", pack_other, &fails, NULL), KN_OK);
    assert_true(other && other != packed);
    assert_int_equal(kni_model_get_packed(&again, f.model, "other device", pack_other, &fails, NULL), KN_OK);
    assert_ptr_equal(again, other);
    assert_int_equal(kni_run_open(&run, &o, NULL), KN_OK); /* finds its own */
    kni_run_close(&run);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL).current_bytes, before);
    assert_int_equal(n_closed, 0);
    drop(&f);
    assert_int_equal(n_closed, 1);
}

/* All ways to cut a prompt agree; the logits of every row are those of the row when it comes last. */
static void chunks_agree(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, &(struct kn_tiny_opts){0}, 2, N_CTX);
    float *want = malloc(f.n_vocab * sizeof *want), *got = malloc(40 * f.n_vocab * sizeof *got);
    prompt(&f, 0, 150, 150, want);
    static const uint32_t chunks[] = {1, 2, 7, 8, 9, 16, 64, 149};
    for (unsigned i = 0; i < 8; i++) {
        prompt(&f, 1, 1, 1, got); /* other steps in between must not matter */
        prompt(&f, 0, 150, chunks[i], got);
        assert_true(distance(got, want, f.n_vocab) < TOLERANCE);
    }
    struct kni_run_item it = item(&f, 0, 0, 150, 40, got);
    assert_int_equal(kni_run_step(f.run, &it, 1), KN_OK);
    assert_true(distance(got + 39 * f.n_vocab, want, f.n_vocab) < TOLERANCE);
    prompt(&f, 0, 120, 150, want);
    assert_true(distance(got + 9 * f.n_vocab, want, f.n_vocab) < TOLERANCE);
    free(want);
    free(got);
    drop(&f);
}

/* A decode gives the same bits alone, its keys and heads shared out among any number of workers, and beside others that make
 * the plan leave it whole; with a window in one layer, too. A chunk that ends with the same token agrees. */
static void decodes_do_not_depend_on_the_plan(void **state)
{
    (void)state;
    enum { N = 4 };
    static const uint32_t lengths[N] = {900, 513, 30, 256};
    float *first = NULL;
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        struct fixture f;
        make(&f, &(struct kn_tiny_opts){.n_head = 8, .n_kv_head = 4, .d_head = 16}, n_threads, 256);
        f.model->layers[f.model->hparams.n_layer - 1].window = 300;
        f.model->hparams.attn_softcap = 20;
        size_t n = f.n_vocab;
        float *alone = malloc(N * n * sizeof *alone), *got = malloc(N * n * sizeof *got);
        for (uint32_t i = 0; i < N; i++) {
            prompt(&f, i, lengths[i], 256, got);
            struct kni_run_item it = item(&f, i, lengths[i], 1, 1, alone + i * n);
            assert_int_equal(kni_run_step(f.run, &it, 1), KN_OK);
        }
        for (uint32_t round = 0; round < 3; round++) { /* all; with a chunk beside them; the short ones */
            struct kni_run_item items[N + 1];
            uint32_t from = round == 2 ? 1 : 0;
            for (uint32_t i = from; i < N; i++)
                items[i - from] = item(&f, i, lengths[i], 1, 1, got + i * n);
            assert_int_equal(kni_run_step(f.run, items, N - from), KN_OK);
            assert_memory_equal(got + from * n, alone + from * n, (N - from) * n * sizeof *got);
            if (round != 1)
                continue;
            items[N] = item(&f, N, 0, 20, 0, NULL);
            assert_int_equal(kni_run_step(f.run, items, N + 1), KN_OK);
            for (uint32_t i = 0; i < N; i++) /* more rows go through other products */
                assert_true(distance(got + i * n, alone + i * n, f.n_vocab) < TOLERANCE);
        }
        for (uint32_t i = 0; i < N; i++) {
            prompt(&f, i, lengths[i] + 1, 200, got);
            assert_true(distance(got, alone + i * n, f.n_vocab) < TOLERANCE);
        }
        if (first)
            assert_memory_equal(alone, first, N * n * sizeof *first);
        free(got);
        if (n_threads == 1)
            first = alone;
        else
            free(alone);
        drop(&f);
    }
    free(first);
}

/* Few decodes, whose keys are shared out, and more than that, beside a chunk: each as if alone. */
static void a_big_batch_agrees_with_single_items(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, &(struct kn_tiny_opts){.type = KNI_DTYPE_Q4_1}, 3, N_CTX);
    float *want = malloc(N_SEQ * f.n_vocab * sizeof *want), *got = malloc(N_SEQ * f.n_vocab * sizeof *got);
    struct kni_run_item items[N_SEQ];
    for (uint32_t i = 0; i < N_SEQ; i++) {
        prompt(&f, i, 90 + i, N_CTX, got);
        items[i] = item(&f, i, 90 + i, i ? 1 : 30, 1, want + i * f.n_vocab); /* sequence 0 goes on with a chunk */
        assert_int_equal(kni_run_step(f.run, &items[i], 1), KN_OK);
        items[i].logits = got + i * f.n_vocab;
    }
    for (uint32_t n = 4; n <= N_SEQ; n += N_SEQ - 4) {
        assert_int_equal(kni_run_step(f.run, items, n), KN_OK);
        for (uint32_t i = 0; i < n; i++)
            assert_true(distance(got + i * f.n_vocab, want + i * f.n_vocab, f.n_vocab) < TOLERANCE);
    }
    free(want);
    free(got);
    drop(&f);
}

/* Levels and thread counts, for every element type: SIMD against references, same bits for any number of threads. */
static void types_and_levels_agree(void **state)
{
    (void)state;
    static const uint32_t types[] = {KNI_DTYPE_F32, KNI_DTYPE_F16, KNI_DTYPE_BF16, KNI_DTYPE_Q4_0, KNI_DTYPE_Q4_1, KNI_DTYPE_Q5_0,
                                     KNI_DTYPE_Q5_1, KNI_DTYPE_Q8_0, KNI_DTYPE_Q4_K, KNI_DTYPE_Q5_K, KNI_DTYPE_Q6_K};
    unsigned n_differ = 0;
    for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
        struct kn_tiny_opts o = {.type = types[i], .n_head = 8, .n_kv_head = 2, .d_head = 32, .untied = i % 2};
        static const struct { uint32_t set, n_threads; } runs[] = {{0, 2}, {1, 1}, {1, 2}, {1, 3}, {2, 2}, {3, 1}, {3, 3}}; /* of cpu_sets */
        float *logits[sizeof runs / sizeof *runs] = {NULL};
        uint32_t n_vocab = 0, n_runs = 0;
        struct fixture f[sizeof runs / sizeof *runs]; /* all open at once: a level is a run's, not the process's */
        for (; n_runs < sizeof runs / sizeof *runs && runs[n_runs].set < cpu_sets_count(N_CPU_SETS); n_runs++)
            make_without(&f[n_runs], &o, runs[n_runs].n_threads, 64, ~cpu_sets[runs[n_runs].set]);
        for (uint32_t v = 0; v < n_runs; v++) {
            n_vocab = f[v].n_vocab;
            logits[v] = malloc(n_vocab * sizeof *logits[v]);
            prompt(&f[v], 2, 70, 64, logits[v]); /* 64 rows, then 6 */
        }
        for (uint32_t v = 0; v < n_runs; v++)
            drop(&f[v]);
        for (uint32_t v = 1; v < n_runs; v++) {
            assert_true(distance(logits[v], logits[0], n_vocab) < 2 * TOLERANCE); /* sums in another order; 1.1 seen, of Q5_0 */
            n_differ += runs[v].set == 1 && memcmp(logits[v], logits[0], n_vocab * sizeof *logits[v]);
            if (runs[v].set == runs[v - 1].set)
                assert_memory_equal(logits[v], logits[v - 1], n_vocab * sizeof *logits[v]);
        }
        for (uint32_t v = 0; v < n_runs; v++)
            free(logits[v]);
    }
    assert_true(n_differ || cpu_sets_count(N_CPU_SETS) < 2); /* each had kernels of its own */
}

/* Head sizes that the SIMD forms do not take, or take with a remainder. */
static void odd_head_sizes(void **state)
{
    (void)state;
    static const uint32_t ds[] = {4, 8, 20, 24, 40};
    for (unsigned i = 0; i < 5; i++) {
        struct fixture f;
        make(&f, &(struct kn_tiny_opts){.d_head = ds[i], .n_head = 3, .n_kv_head = 1}, 2, N_CTX);
        float *want = malloc(f.n_vocab * sizeof *want), *got = malloc(f.n_vocab * sizeof *got);
        prompt(&f, 0, 90, 90, want);
        prompt(&f, 0, 90, 1, got);
        assert_true(distance(got, want, f.n_vocab) < TOLERANCE);
        free(want);
        free(got);
        drop(&f);
    }
}

struct tap {
    uint32_t n_layer, n_workers;
    _Atomic uint32_t seen[8][64]; /* [layer][position] calls */
    float q[64][128];             /* [position] of layer 0 */
};

static void look(void *user, uint32_t worker, uint32_t layer, uint32_t pos, const float *q)
{
    struct tap *t = user;
    if (worker >= t->n_workers || layer >= t->n_layer || pos >= 64)
        abort();
    t->seen[layer][pos]++;
    if (layer == 0)
        memcpy(t->q[pos], q, sizeof t->q[pos]);
}

/* The tap sees every layer and row once, with the query that attention uses, and changes nothing. */
static void a_tap_sees_queries(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, &(struct kn_tiny_opts){0}, 2, 32);
    const struct kni_hparams *hp = &f.model->hparams;
    struct tap *t = calloc(1, sizeof *t);
    float *with = malloc(f.n_vocab * sizeof *with), *without = malloc(f.n_vocab * sizeof *without);
    assert_true(t && with && without);
    assert_int_equal(hp->n_head * hp->d_head, 128);
    t->n_layer = hp->n_layer;
    t->n_workers = 2;
    f.tokens[0][5] = f.tokens[0][0];
    memcpy(f.tokens[1], f.tokens[0], sizeof f.tokens[0]);
    prompt(&f, 0, 64, 20, without);
    kni_run_set_tap(f.run, look, t);
    prompt(&f, 1, 63, 20, with);
    kni_run_set_tap(f.run, NULL, NULL);
    struct kni_run_item last = item(&f, 1, 63, 1, 1, with);
    assert_int_equal(kni_run_step(f.run, &last, 1), KN_OK);
    assert_true(distance(with, without, f.n_vocab) < TOLERANCE);
    for (uint32_t l = 0; l < hp->n_layer; l++)
        for (uint32_t p = 0; p < 64; p++)
            assert_int_equal(t->seen[l][p], p < 63);

    /* Layer 0 at position 0: nothing is turned, q = Wq * norm(embedding). */
    const float *x = (const float *)f.model->tok_embd->data + (size_t)f.tokens[0][0] * hp->n_embd, *wq = f.model->layers[0].wq->data, *g = f.model->layers[0].attn_norm->data;
    double power = 0;
    for (uint32_t i = 0; i < hp->n_embd; i++)
        power += (double)x[i] * x[i] / hp->n_embd;
    for (uint32_t o = 0; o < 128; o++) {
        double sum = 0;
        for (uint32_t i = 0; i < hp->n_embd; i++)
            sum += (double)wq[(size_t)o * hp->n_embd + i] * x[i] * g[i] / sqrt(power + (double)hp->rms_eps);
        assert_true(fabs(sum - t->q[0][o]) < 1e-4 * (1 + fabs(sum)));
    }
    /* The same token at position 5: turned, but as long, pair by pair (2i, 2i + 1). */
    assert_true(fabsf(t->q[0][0] - t->q[5][0]) > 1e-3f);
    for (uint32_t i = 0; i < 128; i += 2) {
        double a = hypot((double)t->q[0][i], (double)t->q[0][i + 1]), b = hypot((double)t->q[5][i], (double)t->q[5][i + 1]);
        assert_true(fabs(a - b) < 1e-4 * (1 + a));
    }
    free(t);
    free(with);
    free(without);
    drop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_write_nothing), cmocka_unit_test(open_checks_its_arguments), cmocka_unit_test(workspace_is_exact_and_linear),
        cmocka_unit_test(runs_share_packed_weights), cmocka_unit_test(chunks_agree), cmocka_unit_test(decodes_do_not_depend_on_the_plan),
        cmocka_unit_test(a_big_batch_agrees_with_single_items), cmocka_unit_test(types_and_levels_agree),
        cmocka_unit_test(odd_head_sizes), cmocka_unit_test(a_tap_sees_queries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

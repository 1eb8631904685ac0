/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences over a pool, checked against a simple model: what a position must hold is a hash of all tokens up to it, so any
 * block that is shared, copied, evicted or overwritten wrongly shows as a wrong value. The random test does 12,000
 * operations and after each one looks at every position of every sequence, every reference count and every invariant.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kv/chain.h"
#include "kv/seq.h"

static const struct kni_kv_layout layout = {.n_layer = 1, .n_kv_head = 1, .d_head = 2, .type = KN_KV_TYPE_F16};
static const uint8_t fingerprint[16] = {1, 2, 3};

static uint64_t rng = 1;
static uint32_t rnd(uint32_t n)
{
    uint64_t z = rng += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % n);
}

static struct kni_pool *open_pool(uint32_t n_blocks, bool no_index)
{
    struct kni_pool *pool;
    struct kni_pool_opts o = {.layout = layout, .n_blocks = n_blocks, .no_prefix_index = no_index};
    assert_int_equal(kni_pool_open(&pool, &o, NULL), KN_OK);
    return pool;
}

static uint32_t mix(uint32_t state, int32_t token)
{
    return (state ^ (uint32_t)token) * 16777619u + 12345u;
}

static void write_at(const struct kni_kv_view *v, uint32_t pos, uint32_t value)
{
    uint16_t k[2] = {(uint16_t)value, (uint16_t)(value >> 16)}, w[2] = {(uint16_t)~k[0], (uint16_t)~k[1]};
    const struct kni_kv_host h = kni_kv_host_of(v);
    memcpy(kni_kv_row(&h, 0, 0, 0, pos), k, 4);
    memcpy(kni_kv_row(&h, 0, 1, 0, pos), w, 4);
}

static uint32_t read_at(const struct kni_kv_view *v, uint32_t pos)
{
    const struct kni_kv_host h = kni_kv_host_of(v);
    const uint16_t *k = kni_kv_row(&h, 0, 0, 0, pos), *w = kni_kv_row(&h, 0, 1, 0, pos);
    assert_int_equal((uint16_t)~w[0], k[0]);
    assert_int_equal((uint16_t)~w[1], k[1]);
    return (uint32_t)k[0] | (uint32_t)k[1] << 16;
}

static void compute(struct kni_seq *seq, const int32_t *tokens, uint32_t salt, uint32_t from, uint32_t to)
{
    struct kni_kv_view v = kni_seq_view(seq);
    uint32_t state = salt;
    for (uint32_t p = 0; p < to; p++) {
        state = mix(state, tokens[p]);
        if (p >= from)
            write_at(&v, p, state);
    }
}

static void verify(const struct kni_seq *seq, const int32_t *tokens, uint32_t salt)
{
    struct kni_kv_view v = kni_seq_view(seq);
    uint32_t state = salt;
    for (uint32_t p = 0; p < seq->n_tokens; p++) {
        state = mix(state, tokens[p]);
        if (read_at(&v, p) != state)
            fail_msg("position %u holds another prefix", p);
    }
}

static void fill(struct kni_seq *seq, const int32_t *tokens, uint32_t n)
{
    assert_int_equal(kni_seq_reserve(seq, n), n);
    compute(seq, tokens, 0, seq->n_tokens, n);
    kni_seq_commit(seq, tokens, n);
}

static struct kni_hash seed_of(uint32_t salt)
{
    return kni_chain_seed(fingerprint, salt ? "other tenant" : NULL);
}

static void test_match(void **state)
{
    (void)state;
    struct kni_pool *pool = open_pool(16, false);
    struct kni_hash seed = seed_of(0), other = seed_of(1);
    int32_t a[100], b[100];
    for (int i = 0; i < 100; i++)
        a[i] = b[i] = 1000 + i;
    b[40] = 7; /* leaves a's prefix inside the third block */
    struct kni_seq s = {0}, t = {0};
    assert_int_equal(kni_seq_init(&s, pool, 100, &seed), KN_OK);
    assert_int_equal(kni_seq_match(&s, a, 100, KN_KV_QUALITY_ANY), 0);
    fill(&s, a, 70);
    assert_int_equal(kni_pool_get_stats(pool).n_free_blocks, 16 - 5);

    /* while it is still open: whole blocks are shared, and eight tokens of the third */
    assert_int_equal(kni_seq_init(&t, pool, 100, &seed), KN_OK);
    assert_int_equal(kni_seq_match(&t, b, 100, KN_KV_QUALITY_ANY), 40);
    assert_int_equal(t.block_ids[1], s.block_ids[1]);
    assert_int_equal(t.block_ids[2], s.block_ids[2]);
    assert_int_equal(kni_pool_refs(pool, s.block_ids[2]), 2);
    verify(&t, b, 0);
    fill(&t, b, 60); /* copies before it writes */
    assert_int_not_equal(t.block_ids[2], s.block_ids[2]);
    assert_int_equal(t.block_ids[1], s.block_ids[1]);
    assert_int_equal(kni_pool_refs(pool, s.block_ids[2]), 1);
    verify(&s, a, 0);
    verify(&t, b, 0);
    kni_seq_fini(&t);

    /* one token is always left, also when the whole prompt is known and ends with a block */
    assert_int_equal(kni_seq_init(&t, pool, 100, &seed), KN_OK);
    assert_int_equal(kni_seq_match(&t, a, 64, KN_KV_QUALITY_ANY), 63);
    kni_seq_truncate(&t, 0);
    assert_int_equal(kni_seq_match(&t, a, 65, KN_KV_QUALITY_ANY), 64);
    kni_seq_truncate(&t, 0);
    assert_int_equal(kni_seq_match(&t, a, 1, KN_KV_QUALITY_ANY), 0);
    kni_seq_truncate(&t, 0);
    /* of two blocks that follow the same prefix the one that shares more wins */
    int32_t c[100];
    memcpy(c, b, sizeof c);
    c[45] = 9;
    assert_int_equal(kni_seq_match(&t, c, 100, KN_KV_QUALITY_ANY), 45);
    kni_seq_truncate(&t, 0);
    kni_seq_fini(&t);

    /* another tenant finds nothing */
    assert_int_equal(kni_seq_init(&t, pool, 100, &other), KN_OK);
    assert_int_equal(kni_seq_match(&t, a, 100, KN_KV_QUALITY_ANY), 0);
    kni_seq_fini(&t);
    kni_seq_fini(&s);
    assert_null(kni_pool_check(pool));
    assert_int_equal(kni_pool_available(pool), 16);
    kni_pool_close(&pool);
}

static void test_eviction_keeps_the_head(void **state)
{
    (void)state;
    struct kni_pool *pool = open_pool(8, false);
    struct kni_hash seed = seed_of(0);
    int32_t a[128], b[128];
    for (int i = 0; i < 128; i++)
        a[i] = i, b[i] = 500 + i;
    struct kni_seq s = {0};
    assert_int_equal(kni_seq_init(&s, pool, 128, &seed), KN_OK);
    fill(&s, a, 96);
    kni_seq_fini(&s);
    assert_int_equal(kni_pool_get_stats(pool).n_cached_blocks, 6);
    assert_int_equal(kni_seq_init(&s, pool, 128, &seed), KN_OK);
    fill(&s, b, 64); /* two free ones, then the last two of a */
    kni_seq_fini(&s);
    assert_int_equal(kni_seq_init(&s, pool, 128, &seed), KN_OK);
    assert_int_equal(kni_seq_match(&s, a, 128, KN_KV_QUALITY_ANY), 64);
    verify(&s, a, 0);
    kni_seq_fini(&s);
    assert_null(kni_pool_check(pool));
    kni_pool_close(&pool);
}

static void test_full_pool(void **state)
{
    (void)state;
    struct kni_pool *pool = open_pool(3, false);
    struct kni_hash seed = seed_of(0);
    int32_t a[64] = {0};
    for (int i = 0; i < 64; i++)
        a[i] = i;
    struct kni_seq s = {0}, t = {0};
    assert_int_equal(kni_seq_init(&s, pool, 64, &seed), KN_OK);
    assert_int_equal(kni_seq_reserve(&s, 64), 48); /* keeps what it got */
    assert_int_equal(s.n_blocks, 3);
    assert_int_equal(kni_seq_reserve(&s, 64), 48);
    kni_seq_truncate(&s, 0);
    assert_int_equal(kni_pool_available(pool), 3);
    fill(&s, a, 48);
    assert_int_equal(kni_seq_init(&t, pool, 48, &seed), KN_OK);
    assert_int_equal(kni_seq_match(&t, a, 48, KN_KV_QUALITY_ANY), 47);
    assert_int_equal(kni_seq_reserve(&t, 48), 47); /* shared, and no room for a copy */
    kni_seq_fini(&s);
    assert_int_equal(kni_seq_reserve(&t, 48), 48); /* alone now: the block leaves the index and is written in place */
    compute(&t, a, 0, 47, 48);
    kni_seq_commit(&t, a, 48);
    verify(&t, a, 0);
    assert_null(kni_pool_check(pool));
    kni_seq_fini(&t);
    kni_pool_close(&pool);
}

static void test_no_index(void **state)
{
    (void)state;
    struct kni_pool *pool = open_pool(4, true);
    struct kni_hash seed = seed_of(0);
    int32_t a[64] = {0};
    struct kni_seq s = {0};
    assert_int_equal(kni_seq_init(&s, pool, 64, &seed), KN_OK);
    fill(&s, a, 64);
    kni_seq_fini(&s);
    assert_int_equal(kni_pool_get_stats(pool).n_free_blocks, 4);
    assert_int_equal(kni_seq_init(&s, pool, 64, &seed), KN_OK);
    assert_int_equal(kni_seq_match(&s, a, 64, KN_KV_QUALITY_ANY), 0);
    kni_seq_fini(&s);
    assert_null(kni_pool_check(pool));
    kni_pool_close(&pool);
}

/* ---- random operations */

#define N_SEQ 7u
#define N_HOLD 3u
#define N_POOL 26u
#define MAX_TOKENS 130u
#define N_OPS 12000u

struct slot {
    bool open;
    struct kni_seq seq;
    int32_t tokens[MAX_TOKENS];
    uint32_t n, salt;
};

struct hold {
    uint32_t n_blocks, ids[MAX_TOKENS / 16];
    uint32_t values[MAX_TOKENS];
};

static struct slot slots[N_SEQ];
static struct hold holds[N_HOLD];
static int32_t past[16][MAX_TOKENS]; /* earlier prompts, whose prefixes come back */

static void random_prompt(struct slot *s)
{
    uint32_t from = rnd(16), keep = rnd(MAX_TOKENS + 1);
    s->n = 1 + rnd(MAX_TOKENS);
    s->salt = rnd(8) == 0;
    for (uint32_t i = 0; i < MAX_TOKENS; i++)
        s->tokens[i] = i < keep ? past[from][i] : (int32_t)rnd(3);
    memcpy(past[rnd(16)], s->tokens, sizeof s->tokens);
}

static void check_all(struct kni_pool *pool)
{
    uint32_t refs[N_POOL] = {0};
    for (uint32_t i = 0; i < N_SEQ; i++) {
        if (!slots[i].open)
            continue;
        verify(&slots[i].seq, slots[i].tokens, slots[i].salt);
        for (uint32_t b = 0; b < slots[i].seq.n_blocks; b++)
            refs[slots[i].seq.block_ids[b]]++;
    }
    for (uint32_t i = 0; i < N_HOLD; i++) {
        const struct kni_kv_view v = kni_pool_view(pool, holds[i].ids, holds[i].n_blocks);
        for (uint32_t b = 0; b < holds[i].n_blocks; b++)
            refs[holds[i].ids[b]]++;
        for (uint32_t p = 0; p < holds[i].n_blocks * 16; p++)
            assert_int_equal(read_at(&v, p), holds[i].values[p]);
    }
    for (uint32_t b = 0; b < N_POOL; b++)
        assert_int_equal(kni_pool_refs(pool, b), refs[b]);
    const char *why = kni_pool_check(pool);
    if (why)
        fail_msg("%s", why);
}

static void operate(struct kni_pool *pool)
{
    struct slot *s = &slots[rnd(N_SEQ)];
    struct hold *h = &holds[rnd(N_HOLD)];
    uint32_t op = rnd(10);
    if (!s->open) {
        random_prompt(s);
        struct kni_hash seed = seed_of(s->salt);
        assert_int_equal(kni_seq_init(&s->seq, pool, s->n, &seed), KN_OK);
        s->open = true;
        uint32_t n = kni_seq_match(&s->seq, s->tokens, s->n, KN_KV_QUALITY_ANY);
        assert_true(n < s->n);
    } else if (op < 5) { /* compute */
        uint32_t left = s->n - s->seq.n_tokens, want = s->seq.n_tokens + (left ? rnd(left + 1) : 0);
        uint32_t ready = kni_seq_reserve(&s->seq, want);
        assert_true(ready <= want && ready >= s->seq.n_tokens);
        if (rnd(8)) {
            compute(&s->seq, s->tokens, s->salt, s->seq.n_tokens, ready);
            kni_seq_commit(&s->seq, s->tokens, ready);
        }
    } else if (op < 6) { /* cut back, perhaps go another way, perhaps match again */
        kni_seq_truncate(&s->seq, rnd(s->seq.n_tokens + 1));
        if (rnd(2)) {
            for (uint32_t p = s->seq.n_tokens; p < MAX_TOKENS; p++)
                s->tokens[p] = (int32_t)rnd(3);
            s->seq.n_chain = s->seq.n_hashed; /* the names of other tokens */
        }
        if (rnd(2))
            kni_seq_match(&s->seq, s->tokens, s->n, KN_KV_QUALITY_ANY);
    } else if (op < 7) {
        if (h->n_blocks) {
            while (h->n_blocks)
                kni_pool_unref(pool, h->ids[--h->n_blocks]);
        } else {
            struct kni_kv_view v = kni_seq_view(&s->seq);
            h->n_blocks = s->seq.n_tokens / 16;
            for (uint32_t b = 0; b < h->n_blocks; b++)
                kni_pool_ref(pool, h->ids[b] = s->seq.block_ids[b]);
            for (uint32_t p = 0; p < h->n_blocks * 16; p++)
                h->values[p] = read_at(&v, p);
        }
    } else if (op < 9) {
        kni_seq_fini(&s->seq);
        s->open = false;
    }
}

static void test_random(void **state)
{
    (void)state;
    struct kni_alloc_stats before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT);
    struct kni_pool *pool = open_pool(N_POOL, false);
    uint64_t n_shared = 0, n_full = 0;
    for (uint32_t i = 0; i < N_OPS; i++) {
        operate(pool);
        check_all(pool);
        for (uint32_t b = 0; b < N_POOL; b++)
            n_shared += kni_pool_refs(pool, b) > 1;
        n_full += !kni_pool_available(pool);
    }
    assert_true(n_shared > N_OPS / 2 && n_full > N_OPS / 50); /* the walk went where it is difficult */
    for (uint32_t i = 0; i < N_SEQ; i++)
        if (slots[i].open)
            kni_seq_fini(&slots[i].seq);
    for (uint32_t i = 0; i < N_HOLD; i++)
        while (holds[i].n_blocks)
            kni_pool_unref(pool, holds[i].ids[--holds[i].n_blocks]);
    assert_int_equal(kni_pool_available(pool), N_POOL);
    assert_null(kni_pool_check(pool));
    kni_pool_close(&pool);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before.current_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_match),     cmocka_unit_test(test_eviction_keeps_the_head), cmocka_unit_test(test_full_pool),
        cmocka_unit_test(test_no_index), cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

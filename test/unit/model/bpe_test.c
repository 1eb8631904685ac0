/* SPDX-License-Identifier: Apache-2.0 */
/* The merge loop against the definition: join the leftmost pair of lowest rank until there is none. Random tables and words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/bpe.h"

#define N_IDS 64u

static uint64_t rng = 1;
static uint32_t next(uint32_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)(rng >> 16) % n;
}

static struct { uint32_t rank, joined; bool is; } plain[N_IDS][N_IDS];

static size_t merge_plain(uint32_t *ids, size_t n)
{
    for (;;) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (plain[ids[i]][ids[i + 1]].is && (best == n || plain[ids[i]][ids[i + 1]].rank < plain[ids[best]][ids[best + 1]].rank))
                best = i;
        if (best == n)
            return n;
        ids[best] = plain[ids[best]][ids[best + 1]].joined;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void random_tables(void **state)
{
    (void)state;
    size_t merged = 0;
    for (unsigned round = 0; round < 300; round++) {
        struct kni_arena arena;
        struct kni_bpe bpe;
        struct kni_bpe_scratch s = {0};
        uint32_t n_merges = 1 + next(400), n_base = 1 + next(8);
        kni_arena_init(&arena, KNI_ALLOC_TAG_MODEL, 0);
        assert_int_equal(kni_bpe_init(&bpe, &arena, n_merges), KN_OK);
        memset(plain, 0, sizeof plain);
        for (uint32_t rank = 0; rank < n_merges; rank++) { /* pairs may repeat: the last rank counts, as in the reference */
            uint32_t a = next(N_IDS), b = next(N_IDS), joined = next(N_IDS);
            if (rank < 20)
                a = next(n_base), b = next(n_base);
            kni_bpe_add(&bpe, a, b, rank, joined);
            plain[a][b].rank = rank, plain[a][b].joined = joined, plain[a][b].is = true;
        }
        for (unsigned word = 0; word < 30; word++) {
            size_t n = next(word < 20 ? 24 : 300);
            uint32_t want[300];
            assert_int_equal(kni_bpe_reserve(&s, n), KN_OK);
            for (size_t i = 0; i < n; i++)
                s.symbols[i].id = want[i] = next(n_base);
            size_t n_want = merge_plain(want, n), n_got = kni_bpe_merge(&bpe, &s, n, &(struct kni_effort){0});
            assert_int_equal(n_got, n_want);
            for (size_t i = 0; i < n_got; i++)
                assert_int_equal(s.symbols[i].id, want[i]);
            merged += n - n_got;
        }
        kni_bpe_scratch_fini(&s);
        kni_arena_fini(&arena);
    }
    assert_true(merged > 10000); /* the words did exercise the loop */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

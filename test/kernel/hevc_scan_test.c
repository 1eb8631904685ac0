/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scan of blocks at every CPU level against one written from the drawing in hevc_state.h: sizes, odd strides and offsets, loud,
 * quiet, zero and extreme differences, canaries around the block, and samples in exact memory, so that sanitizers see what is read
 * beyond it. Then emulation prevention against the rule of H.265, 7.3.1.1, byte by byte.
 *
 *     hevc_scan_test --bench      samples a second
 */
#include "check.h"

#include "codec/hevc/hevc_state.h"
#include "support/cpu_levels.h"

static const kni_hevc_scan_fn scan_forms[N_CPU_LEVELS] = {
    kni_hevc_scan_ref,
#if defined(__x86_64__)
    kni_hevc_scan_avx2,
    kni_hevc_scan_avx512,
#endif
};
static uint32_t n_levels;

/* Where coefficients lie in a sub-block: the numbers of the drawing, row by row. */
static const uint8_t drawn[16] = {0, 2, 5, 9, 1, 4, 8, 12, 3, 7, 11, 14, 6, 10, 13, 15};

struct samples { uint8_t *room, *at; size_t stride, bytes; };

/* The last row ends where the memory does. */
static struct samples samples_make(uint32_t size)
{
    struct samples s = {.stride = size + rnd() % 70};
    size_t ahead = rnd() % 33;
    s.bytes = ahead + (size - 1) * s.stride + size;
    s.room = malloc(s.bytes);
    assert_non_null(s.room);
    s.at = s.room + ahead;
    for (size_t i = 0; i < s.bytes; i++)
        s.room[i] = (uint8_t)rnd();
    return s;
}

enum kind { KIND_NOISE, KIND_NEAR, KIND_SPARSE, KIND_EQUAL, KIND_EXTREME, KIND_COUNT };

/* now becomes before (NULL: 128) and a difference of the kind. */
static void paint(const struct samples *now, const struct samples *before, uint32_t size, enum kind kind)
{
    for (uint32_t y = 0; y < size; y++)
        for (uint32_t x = 0; x < size; x++) {
            uint8_t *p = now->at + y * now->stride + x, base = before ? before->at[y * before->stride + x] : 128;
            switch (kind) {
            case KIND_NOISE: *p = (uint8_t)rnd(); break;
            case KIND_NEAR: *p = (uint8_t)(base + rnd() % 7 - 3); break; /* wraps: 255 apart, too */
            case KIND_SPARSE: *p = (uint8_t)(base + (rnd() % 50 == 0)); break;
            case KIND_EQUAL: *p = base; break;
            default: *p = rnd() & 1 ? 255 : 0; break;
            }
        }
}

static void check_block(const struct kni_hevc_block *b, const struct samples *now, const struct samples *before, uint32_t size, const char *name)
{
    for (uint32_t r = 0; r < 64; r++) {
        const uint32_t x0 = r % 8 * 4, y0 = r / 8 * 4;
        const bool inside = x0 < size && y0 < size;
        uint32_t sig = 0, sign = 0, over1 = 0, over2 = 0, level[16] = {0};
        for (uint32_t i = 0; i < 16 && inside; i++) {
            const uint32_t x = x0 + i % 4, y = y0 + i / 4, n = drawn[i];
            int32_t d = now->at[y * now->stride + x] - (before ? before->at[y * before->stride + x] : 128);
            level[n] = (uint32_t)abs(d);
            sig |= (uint32_t)(d != 0) << n;
            sign |= (uint32_t)(d < 0) << n;
            over1 |= (uint32_t)(abs(d) > 1) << n;
            over2 |= (uint32_t)(abs(d) > 2) << n;
        }
        if ((b->coded >> r & 1) != (sig != 0))
            fail_msg("%s: size %u, sub-block %u is coded: %d", name, size, r, (int)(b->coded >> r & 1));
        if (!sig)
            continue;
        if (b->sig[r] != sig || b->sign[r] != sign || b->over1[r] != over1 || b->over2[r] != over2)
            fail_msg("%s: size %u, sub-block %u: masks %04x %04x %04x %04x, not %04x %04x %04x %04x", name, size, r, b->sig[r], b->sign[r], b->over1[r],
                     b->over2[r], sig, sign, over1, over2);
        for (uint32_t n = 0; n < 16; n++)
            if (b->level[r][n] != level[n])
                fail_msg("%s: size %u, sub-block %u, coefficient %u: %u, not %u", name, size, r, n, b->level[r][n], level[n]);
    }
}

static void scans(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 600; round++)
        for (uint32_t log2 = 2; log2 <= 5; log2++) {
            const uint32_t size = 1u << log2;
            const bool flat = rnd() & 1;
            struct samples now = samples_make(size), before = samples_make(size);
            if (round % KIND_COUNT == KIND_EXTREME)
                paint(&before, NULL, size, KIND_EXTREME);
            paint(&now, flat ? NULL : &before, size, round % KIND_COUNT);
            for (uint32_t i = 0; i < n_levels; i++) {
                struct kni_hevc_block *b = guarded(sizeof *b);
                memset(b, 0x5a, sizeof *b);
                scan_forms[i](b, now.at, now.stride, flat ? NULL : before.at, flat ? 0 : before.stride, size);
                check_block(b, &now, flat ? NULL : &before, size, cpu_set_names[i]);
                guarded_check_free(b);
            }
            free(now.room);
            free(before.room);
        }
}

static size_t escape_plainly(uint8_t *to, const uint8_t *from, size_t n)
{
    size_t m = 0, zeros = 0;
    for (size_t i = 0; i < n; i++) {
        if (zeros == 2 && from[i] < 4) {
            to[m++] = 3;
            zeros = 0;
        }
        to[m++] = from[i];
        zeros = from[i] ? 0 : zeros + 1;
    }
    return m;
}

static void escapes(void **state)
{
    (void)state;
    static const uint32_t one_of[4] = {1, 3, 40, 400}; /* bytes is a small one */
    for (uint32_t round = 0; round < 20000; round++) {
        const size_t n = rnd() % (round % 10 ? 40 : 600), room = n + n / 2;
        const uint32_t rare = one_of[rnd() % 4], small = rnd() % 2 ? 1 : 5;
        uint8_t *from = malloc(n + 1), *want = malloc(room + 1), *got = guarded(room + !room);
        assert_true(from && want);
        for (size_t i = 0; i < n; i++)
            from[i] = (uint8_t)(rnd() % rare ? rnd() | 1 : rnd() % small);
        size_t n_want = escape_plainly(want, from, n);
        assert_true(n_want <= room);
        memcpy(got, from, n);
        assert_int_equal(kni_hevc_escape(got, n), n_want);
        assert_memory_equal(got, want, n_want);
        guarded_check_free(got);
        free(from);
        free(want);
    }
}

static void bench(void)
{
    struct kni_hevc_block b;
    static uint8_t now[32 * 32], before[32 * 32];
    for (uint32_t i = 0; i < sizeof now; i++) {
        now[i] = (uint8_t)(128 + rnd() % 5 - 2);
        before[i] = (uint8_t)(128 + rnd() % 5 - 2);
    }
    for (uint32_t i = 0; i < n_levels; i++)
        for (uint32_t flat = 0; flat < 2; flat++) {
            double seconds;
            BENCH_SECONDS(seconds, scan_forms[i](&b, now, 32, flat ? NULL : before, 32, 32));
            printf("%-9s from %-12s %7.0f million samples a second\n", cpu_set_names[i], flat ? "128:" : "a picture:", 1024 / seconds * 1e-6);
        }
}

int main(int argc, char **argv)
{
    bool want_bench = check_start(argc, argv);
    n_levels = cpu_sets_count(N_CPU_LEVELS);
    if (want_bench) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(scans), cmocka_unit_test(escapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

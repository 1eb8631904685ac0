/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intra prediction against the standard's formulas, written down sample by sample (8.4.4.2): every mode, size and kind of plane on random and on
 * extreme borders; borders at every place of a plane, whatever is missing; the most probable modes.
 */
#include "unit/codec/codec_support.h"

#include <stdlib.h>

#include "codec/hevc/hevc_intra.h"
#include "support/hevc_random.h"

static const int32_t angle_of[35] = {0, 0, 32, 26, 21, 17, 13, 9, 5, 2, 0, -2, -5, -9, -13, -17, -21, -26, -32, -26, -21, -17, -13, -9, -5, -2, 0, 2, 5, 9, 13, 17, 21, 26, 32};
static const int32_t inverse_of[35] = {[11] = -4096, -1638, -910, -630, -482, -390, -315, -256, -315, -390, -482, -630, -910, -1638, -4096};

/* p[x][y] of the standard, x or y is -1. */
static int32_t p(const uint8_t *line, int32_t n, int32_t x, int32_t y)
{
    return line[x < 0 ? 2 * n - 1 - y : 2 * n + 1 + x];
}

/* ref[i] of 8.4.4.2.6, of a mode that looks up (or, with the axes exchanged, to the left). */
static int32_t reference(const uint8_t *line, int32_t n, uint32_t mode, int32_t i)
{
    const bool up = mode >= 18;
    if (i < 0) {
        const int32_t along = -1 + ((i * inverse_of[mode] + 128) >> 8);
        return up ? p(line, n, -1, along) : p(line, n, along, -1);
    }
    return up ? p(line, n, -1 + i, -1) : p(line, n, -1, -1 + i);
}

static int32_t predicted(const struct kni_hevc_border *b, int32_t n, uint32_t mode, bool luma, int32_t x, int32_t y)
{
    static const int32_t threshold[33] = {[4] = 99, [8] = 7, [16] = 1, [32] = 0};
    const int32_t v = abs((int32_t)mode - 26), h = abs((int32_t)mode - 10);
    const uint8_t *line = mode != 1 && (v < h ? v : h) > threshold[n] ? b->smooth : b->raw;
    const bool edge = luma && n < 32;
    if (mode == 0)
        return ((n - 1 - x) * p(line, n, -1, y) + (x + 1) * p(line, n, n, -1) + (n - 1 - y) * p(line, n, x, -1) + (y + 1) * p(line, n, -1, n) + n) / (2 * n);
    if (mode == 1) {
        int32_t sum = n;
        for (int32_t i = 0; i < n; i++)
            sum += p(line, n, i, -1) + p(line, n, -1, i);
        const int32_t dc = sum / (2 * n);
        if (!edge || (x && y))
            return dc;
        if (!x && !y)
            return (p(line, n, -1, 0) + 2 * dc + p(line, n, 0, -1) + 2) >> 2;
        return ((y ? p(line, n, -1, y) : p(line, n, x, -1)) + 3 * dc + 2) >> 2;
    }
    const bool up = mode >= 18;
    const int32_t along = up ? x : y, away = up ? y : x, moved = (away + 1) * angle_of[mode], whole = moved >> 5, part = moved & 31;
    if (!angle_of[mode] && edge && along == 0) {
        const int32_t sum = up ? p(line, n, x, -1) + ((p(line, n, -1, y) - p(line, n, -1, -1)) >> 1) : p(line, n, -1, y) + ((p(line, n, x, -1) - p(line, n, -1, -1)) >> 1);
        return sum < 0 ? 0 : sum > 255 ? 255 : sum;
    }
    const int32_t one = reference(line, n, mode, along + whole + 1);
    return part ? ((32 - part) * one + part * reference(line, n, mode, along + whole + 2) + 16) >> 5 : one;
}

static void every_mode(void **state)
{
    (void)state;
    uint64_t rng = hevc_mix(1);
    for (uint32_t round = 0; round < 12; round++)
        for (uint32_t log2 = 2; log2 <= 5; log2++) {
            const uint32_t n = 1u << log2;
            struct kni_hevc_border b;
            for (uint32_t i = 0; i <= 4 * n; i++) {
                b.raw[i] = round % 3 == 0 ? (uint8_t)hevc_random(&rng) : round % 3 == 1 ? (hevc_random(&rng) & 1 ? 255 : 0) : (uint8_t)(120 + hevc_random(&rng) % 16);
                b.smooth[i] = (uint8_t)hevc_random(&rng); /* unrelated, so that it shows which one is taken */
            }
            for (uint32_t mode = 0; mode < KNI_HEVC_INTRA_MODES; mode++)
                for (uint32_t luma = 0; luma < 2; luma++) {
                    uint8_t out[32 * 32 + 1];
                    out[n * n] = 0xa5;
                    kni_hevc_intra_predict(out, &b, mode, log2, luma);
                    for (uint32_t i = 0; i < n * n; i++)
                        if (out[i] != predicted(&b, (int32_t)n, mode, luma, (int32_t)(i % n), (int32_t)(i / n)))
                            fail_msg("mode %u, size %u, luma %u: sample (%u, %u) is %u", mode, n, luma, i % n, i / n, out[i]);
                    assert_int_equal(out[n * n], 0xa5);
                }
        }
}

/* Blocks anywhere in a plane that may end inside of them; availability at random, but for what cannot be. */
static void borders(void **state)
{
    (void)state;
    uint64_t rng = hevc_mix(2);
    uint8_t plane[64 * 80];
    for (uint32_t i = 0; i < sizeof plane; i++)
        plane[i] = (uint8_t)hevc_random(&rng);
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t n = 4u << hevc_random(&rng) % 4;
        struct kni_hevc_around a = {.plane = plane, .stride = 64, .width = 17 + hevc_random(&rng) % 48, .height = 17 + hevc_random(&rng) % 63, .n = n};
        a.x = hevc_random(&rng) % ((a.width + 7) / 8) * 8;
        a.y = hevc_random(&rng) % ((a.height + 7) / 8) * 8;
        a.left = a.x && hevc_random(&rng) % 4;
        a.above = a.y && hevc_random(&rng) % 4;
        a.corner = a.x && a.y && hevc_random(&rng) % 4;
        a.n_below = a.left ? hevc_random(&rng) % (n / 4 + 1) * 4 : 0;
        a.n_right = a.above ? hevc_random(&rng) % (n / 4 + 1) * 4 : 0;
        struct kni_hevc_border b;
        kni_hevc_border_fill(&b, &a);
        int32_t want[129], last = -1;
        for (uint32_t i = 0; i <= 4 * n; i++) {
            const bool low = i < 2 * n, there = low ? i >= n ? a.left : i >= n - a.n_below : i == 2 * n ? a.corner : i <= 3 * n ? a.above : i <= 3 * n + a.n_right;
            uint32_t x = i <= 2 * n ? a.x - 1 : a.x + i - 2 * n - 1, y = low ? a.y + 2 * n - 1 - i : a.y - 1;
            x = there && x >= a.width ? a.width - 1 : x;
            y = there && y >= a.height ? a.height - 1 : y;
            want[i] = there ? plane[y * 64 + x] : last;
            last = want[i];
        }
        int32_t first = 128;
        for (uint32_t i = 4 * n + 1; i-- > 0;)
            first = want[i] >= 0 ? want[i] : first;
        for (uint32_t i = 0; i <= 4 * n; i++) {
            want[i] = want[i] < 0 ? first : want[i];
            if (b.raw[i] != want[i])
                fail_msg("round %u, size %u, at (%u, %u) of %u x %u: sample %u is %u, not %d", round, n, a.x, a.y, a.width, a.height, i, b.raw[i], want[i]);
        }
        for (uint32_t i = 0; i <= 4 * n; i++)
            assert_int_equal(b.smooth[i], i && i < 4 * n ? (want[i - 1] + 2 * want[i] + want[i + 1] + 2) >> 2 : want[i]);
    }
}

static void probable_modes(void **state)
{
    (void)state;
    static const uint8_t cases[][5] = {{1, 1, 0, 1, 26}, {0, 0, 0, 1, 26}, {0, 1, 0, 1, 26}, {1, 0, 1, 0, 26}, {10, 10, 10, 9, 11}, {2, 2, 2, 33, 3},
                                       {34, 34, 34, 33, 3}, {26, 10, 26, 10, 0}, {0, 10, 0, 10, 1}, {7, 1, 7, 1, 0}, {26, 0, 26, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t got[3];
        kni_hevc_intra_probable(got, cases[i][0], cases[i][1]);
        assert_memory_equal(got, cases[i] + 2, 3);
    }
    for (uint32_t left = 0; left < 35; left++)
        for (uint32_t above = 0; above < 35; above++) {
            uint8_t m[3];
            kni_hevc_intra_probable(m, left, above);
            assert_true(m[0] < 35 && m[1] < 35 && m[2] < 35 && m[0] != m[1] && m[0] != m[2] && m[1] != m[2]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_mode), cmocka_unit_test(borders), cmocka_unit_test(probable_modes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

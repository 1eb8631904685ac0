/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Infinity and NaN in K and V: no preset codes them, and none restores them, even from a chunk whose checksums are right: exact
 * values, exact first tokens, bases of the model, scales. Such chunks are made by asking the layouts past the codec's check, or by
 * putting another section into a good one.
 */
#include "unit/codec/spectral_support.h"

#include "base/le.h"
#include "codec/exact/exact_model.h"
#include "codec/sinks.h"
#include "support/chunk_sections.h"
#include "support/cpu_levels.h"

#define N_TOKENS 64u

static const struct { enum kn_preset preset; enum kn_backend backend; } ways[] = {
    {KN_PRESET_EXACT, 0},
    {KN_PRESET_TILES, 0},
    {KN_PRESET_FINE, KN_BACKEND_RANS},
    {KN_PRESET_MEDIUM, KN_BACKEND_RANS},
    {KN_PRESET_SMALL, KN_BACKEND_RANS},
    {KN_PRESET_FINE, KN_BACKEND_HEVC},
    {KN_PRESET_MEDIUM, KN_BACKEND_HEVC},
    {KN_PRESET_SMALL, KN_BACKEND_HEVC},
};
#define N_WAYS (sizeof ways / sizeof *ways)

struct bed {
    struct kni_profile *p;
    struct pool from, to;
    struct kni_chunk_meta m;
    struct kni_codec *codec;
};

static struct kni_chunk_meta meta_of(const struct kni_profile *p, const struct pool *pool, uint32_t n_tokens, unsigned way)
{
    struct kni_chunk_meta m = test_meta(pool, 0, n_tokens);
    if (ways[way].backend)
        memcpy(m.profile, p->id, 16);
    return m;
}

static struct bed bed_open(unsigned way, enum kn_kv_type type)
{
    struct bed b = {.p = spectral_profile((struct kn_tiny_profile_opts){.n_layer = 2, .n_kv_head = 2, .d_head = 32, .n_group = 2, .n_sinks = 4})};
    b.from = pool_make(2, 2, 32, type, N_TOKENS);
    b.to = pool_make(2, 2, 32, type, N_TOKENS);
    pool_fill_smooth(&b.from);
    b.m = meta_of(b.p, &b.from, N_TOKENS, way);
    b.codec = spectral_codec(b.p, ways[way].preset, ways[way].backend, 0);
    return b;
}

static void bed_close(struct bed *b)
{
    kni_codec_close(&b->codec);
    kni_profile_close(&b->p);
    pool_free(&b->from);
    pool_free(&b->to);
}

static const uint16_t bad[2][4] = {{0x7c00, 0xfc00, 0x7e01, 0xffff}, {0x7f80, 0xff80, 0xffc1, 0x7fff}};

static void none_is_encoded(void **state)
{
    (void)state;
    EACH_CPU_LEVEL(level)
        for (unsigned way = 0; way < N_WAYS; way++)
            for (int k = 0; k < 8; k++) {
                struct bed b = bed_open(way, k % 2 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16);
                void *data;
                size_t n;
                struct kn_err err = {0};
                uint16_t *at = &kni_kv_row(&b.from.view, 1, 1, 1, k < 4 ? 21 : 2)[5], good = *at;
                *at = bad[k % 2][k / 2];
                assert_int_equal(kni_chunk_encode(b.codec, &b.m, &b.from.view, &data, &n, &err), KN_E_NOT_FINITE);
                assert_non_null(strstr(err.text, k < 4 ? "V of layer 1 at position 21 is" : "V of layer 1 at position 2 is"));
                assert_null(data);
                *at = (uint16_t)(bad[k % 2][0] - 1); /* the largest finite one; the handle stays usable */
                assert_int_equal(kni_chunk_encode(b.codec, &b.m, &b.from.view, &data, &n, &err), KN_OK);
                assert_int_equal(kni_chunk_restore(b.codec, data, n, &b.m, &b.to.view, &err), KN_OK);
                kni_free(data);
                *at = good;
                kni_kv_row(&b.from.view, 0, 0, 0, 40)[0] = bad[k % 2][k / 2]; /* outside the chunk: nobody's business */
                b.m = meta_of(b.p, &b.from, 32, way);
                assert_int_equal(kni_chunk_encode(b.codec, &b.m, &b.from.view, &data, &n, &err), KN_OK);
                kni_free(data);
                bed_close(&b);
            }
}

/* The layout's chunk of `from`, whatever that holds: what a writer without the check would have stored. */
static void *encode_unchecked(struct bed *b, size_t *n)
{
    void *data;
    struct kni_container c;
    struct kni_container_writer w = {0};
    struct pool clean = pool_copy(&b->from);
    pool_fill_smooth(&clean);
    assert_int_equal(kni_chunk_encode(b->codec, &b->m, &clean.view, &data, n, NULL), KN_OK); /* for its header */
    assert_int_equal(kni_container_open(&c, data, *n, NULL), KN_OK);
    c.header.n_sections += 1; /* escapes, maybe */
    assert_int_equal(kni_container_writer_init(&w, &c.header, NULL), KN_OK);
    kni_free(data);
    assert_int_equal(b->codec->encoder->encode(b->codec, &b->from.view, &w, NULL), KN_OK);
    kni_container_writer_finish(&w, &data, n);
    kni_container_writer_fini(&w);
    pool_free(&clean);
    return data;
}

static bool is_finite(const struct pool *p)
{
    bool finite = true;
    for (uint32_t b = 0; b < p->view.n_blocks; b++) {
        size_t n = kni_kv_block_values(&p->view.layout);
        finite = finite && kni_kv_largest(p->view.k + p->table[b] * n, n) < kni_kv_infinity(p->view.layout.type);
    }
    return finite;
}

static void expect_refused(struct bed *b, const void *data, size_t n, const char *words)
{
    struct kn_err err = {0};
    assert_int_equal(kni_chunk_verify(data, n, &err), KN_OK); /* checksums are right */
    assert_int_equal(kni_chunk_restore(b->codec, data, n, &b->m, &b->to.view, &err), KN_E_FORMAT);
    if (!strstr(err.text, words))
        fail_msg("%s", err.text);
}

/* One bad value, or many, as a channel's rule or as an escape from it. */
static void exact_values(void **state)
{
    (void)state;
    EACH_CPU_LEVEL(level)
        for (int k = 0; k < 16; k++) {
            struct bed b = bed_open(0, k % 2 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16);
            size_t n;
            uint32_t every = k / 8 ? 1 : N_TOKENS;
            for (uint32_t t = 7; t < 7 + N_TOKENS; t += every)
                kni_kv_row(&b.from.view, 1, 0, 1, t % N_TOKENS)[9] = bad[k % 2][k / 2 % 4];
            void *data = encode_unchecked(&b, &n);
            expect_refused(&b, data, n, "K of layer 1) holds values that are not finite");
            kni_free(data);
            bed_close(&b);
        }
}

/* Any bases decode to some values; a chunk passes exactly when these are finite. */
static void exact_bases(void **state)
{
    (void)state;
    EACH_CPU_LEVEL(level) {
        unsigned n_refused = 0, n_passed = 0;
        for (int k = 0; k < 60; k++) {
            struct bed b = bed_open(0, k % 2 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16);
            size_t n, n_plain, n_channels = 2 * 2 * 2 * 32, at = 1 + 2 * KNI_EXACT_N_TABLES * 256;
            struct kn_err err = {0};
            void *data;
            assert_int_equal(kni_chunk_encode(b.codec, &b.m, &b.from.view, &data, &n, &err), KN_OK);
            uint8_t *plain = kn_chunk_unpack_first(data, n, &n_plain);
            for (size_t c = k % 3 == 0 ? 0 : test_random() % n_channels; c < n_channels; c += k % 3 == 0 ? 1 : n_channels) {
                uint16_t base = (uint16_t)(plain[at + c] | plain[at + n_channels + c] << 8);
                base = (uint16_t)(k % 3 == 2 ? base - 1 - test_random() % 2 : base + test_random() % 64);
                plain[at + c] = (uint8_t)base;
                plain[at + n_channels + c] = (uint8_t)(base >> 8);
            }
            void *other = kn_chunk_repack_first(data, &n, plain, n_plain);
            memset(b.to.view.k, 0, b.to.n_values * 2);
            enum kn_status s = kni_chunk_restore(b.codec, other, n, &b.m, &b.to.view, &err);
            if (s) {
                assert_int_equal(s, KN_E_FORMAT);
                assert_non_null(strstr(err.text, "not finite"));
            } else
                assert_true(is_finite(&b.to));
            n_refused += s != KN_OK;
            n_passed += s == KN_OK;
            free(plain);
            kni_free(other);
            kni_free(data);
            bed_close(&b);
        }
        if (n_refused < 10 || n_passed < 5)
            fail_msg("%u refused, %u passed", n_refused, n_passed);
    }
}

static void exact_first_tokens(void **state)
{
    (void)state;
    for (unsigned way = 2; way < N_WAYS; way++)
        for (int k = 0; k < 8; k++) {
            struct bed b = bed_open(way, k % 2 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16);
            size_t n;
            kni_kv_row(&b.from.view, k / 4, k / 2 % 2, 1, 3)[31] = bad[k % 2][k / 2];
            void *data = encode_unchecked(&b, &n);
            expect_refused(&b, data, n, "exact tokens hold values that are not finite");
            kni_free(data);
            bed_close(&b);
        }
}

static void scales(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        struct bed b = bed_open(1, k % 2 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16);
        size_t n, n_plain;
        void *data;
        assert_int_equal(kni_chunk_encode(b.codec, &b.m, &b.from.view, &data, &n, NULL), KN_OK);
        uint8_t *plain = kn_chunk_unpack_first(data, n, &n_plain);
        for (int finite = 0; finite < 2; finite++) { /* the largest scale gives the largest values, no larger ones */
            size_t n_other = n, at = 2 * N_TOKENS + 17;
            uint16_t scale = finite ? (uint16_t)(bad[k % 2][0] - 1) : bad[k % 2][k / 2];
            plain[at] = (uint8_t)scale;
            plain[n_plain / 2 + at] = (uint8_t)(scale >> 8);
            void *other = kn_chunk_repack_first(data, &n_other, plain, n_plain);
            if (finite) {
                assert_int_equal(kni_chunk_restore(b.codec, other, n_other, &b.m, &b.to.view, NULL), KN_OK);
                assert_true(is_finite(&b.to));
            } else
                expect_refused(&b, other, n_other, "not a finite magnitude");
            kni_free(other);
        }
        free(plain);
        kni_free(data);
        bed_close(&b);
    }
}

/* What the steps, exponents and escapes of a spectral chunk may say at most still comes back finite. */
static void spectral_extremes(void **state)
{
    (void)state;
    EACH_CPU_LEVEL(level)
        for (unsigned way = 2; way < N_WAYS; way++)
            for (int k = 0; k < 2; k++) {
                struct bed b = bed_open(way, k % 2 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16);
                size_t n;
                for (size_t i = 0; i < b.from.n_values; i++)
                    b.from.view.k[i] = (uint16_t)((bad[k][0] - 1 - test_random() % 3) | (test_random() & 0x8000));
                void *data = spectral_encode(b.codec, &b.m, &b.from.view, &n);
                assert_int_equal(kni_chunk_restore(b.codec, data, n, &b.m, &b.to.view, NULL), KN_OK);
                assert_true(is_finite(&b.to));
                kni_free(data);
                bed_close(&b);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_is_encoded), cmocka_unit_test(exact_values), cmocka_unit_test(exact_bases), cmocka_unit_test(exact_first_tokens),
        cmocka_unit_test(scales),          cmocka_unit_test(spectral_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

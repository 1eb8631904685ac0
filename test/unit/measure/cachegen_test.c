/* SPDX-License-Identifier: Apache-2.0 */
/* CacheGen, raw and raw+zstd: restored values are those of the published quantiser, bytes are booked, damage is noticed. */
#include "measure/baseline/cachegen.h"

#include "unit/codec/codec_support.h"

#define N_LAYER 3u
#define N_HEAD 2u
#define D 16u
#define N_TOKENS 64u

static struct pool pool, back;

static int setup(void **state)
{
    (void)state;
    pool = pool_make(N_LAYER, N_HEAD, D, KN_KV_TYPE_F16, N_TOKENS);
    back = pool_make(N_LAYER, N_HEAD, D, KN_KV_TYPE_F16, N_TOKENS);
    pool_fill_smooth(&pool);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pool_free(&pool);
    pool_free(&back);
    return 0;
}

static float value(const struct pool *p, uint32_t part, uint32_t head, uint32_t pos, uint32_t i)
{
    return kni_f16_to_f32(kni_kv_row(&p->view, part / 2, part % 2, head, pos)[i]);
}

/* Every restored value against the definition: scale by the token's largest magnitude, round to m levels either way. */
static void check_values(uint32_t levels_k, uint32_t levels_v, uint32_t first, uint32_t n, uint32_t n_sinks)
{
    for (uint32_t part = 0; part < 2 * N_LAYER; part++)
        for (uint32_t pos = first; pos < first + n; pos++) {
            float scale = 0, m = (float)((part % 2 ? levels_v : levels_k) / 2 - 1);
            for (uint32_t i = 0; i < N_HEAD * D; i++)
                scale = fmaxf(scale, fabsf(value(&pool, part, i / D, pos, i % D)));
            for (uint32_t i = 0; i < N_HEAD * D; i++) {
                float x = value(&pool, part, i / D, pos, i % D), y = value(&back, part, i / D, pos, i % D);
                if (pos < n_sinks)
                    assert_true(x == y);
                else
                    assert_true(fabsf(x - y) <= 0.5001f * scale / m + 0.001f * fabsf(x));
            }
        }
}

static void round_trip(uint32_t levels_k, uint32_t levels_v, uint32_t n_sinks, uint64_t *bytes)
{
    struct kni_cachegen *c;
    struct kni_cachegen_opts o = {.levels_k = levels_k, .levels_v = levels_v, .n_sinks = n_sinks};
    struct kni_buffer b = {0};
    struct kni_account account = {0};
    double ideal_k, ideal_v;
    assert_int_equal(kni_cachegen_open(&c, &pool.view.layout, N_TOKENS, &o), KN_OK);
    memset(back.view.k, 0xff, back.n_values * 2);
    for (struct kni_span span = {.n_tokens = N_TOKENS / 2}; span.first_token < N_TOKENS; span.first_token += span.n_tokens) {
        assert_int_equal(kni_cachegen_encode(c, &pool.view, span, &b, &account), KN_OK);
        assert_int_equal(kni_cachegen_decode(c, &back.view, span, b.data, b.used), KN_OK);
        check_values(levels_k, levels_v, span.first_token, span.n_tokens, n_sinks);
    }
    struct kni_span all = {.n_tokens = N_TOKENS};
    assert_int_equal(kni_cachegen_ideal(c, &pool.view, all, &ideal_k, &ideal_v), KN_OK);
    assert_true(account.k_bytes * 8 > ideal_k && account.v_bytes * 8 > ideal_v);
    assert_true(ideal_k > 0 && ideal_v > 0);
    double heads = (double)account.all_bytes - account.k_bytes - account.v_bytes; /* two heads of 32, two checksums of 8 */
    assert_true(fabs(heads - 80) < 1e-6);
    *bytes = account.all_bytes;
    kni_free(b.data);
    kni_cachegen_close(&c);
}

static void test_round_trip(void **state)
{
    (void)state;
    uint64_t fine, coarse, sinks;
    round_trip(64, 64, 0, &fine);
    round_trip(32, 16, 0, &coarse);
    assert_true(coarse < fine);
    round_trip(64, 64, 4, &sinks);
    assert_true(sinks > fine); /* four exact tokens of 64 cost more than their symbols */
}

/* The ideal is the empirical entropy, by another way of counting. */
static void test_ideal(void **state)
{
    (void)state;
    struct kni_cachegen *c;
    struct kni_cachegen_opts o = {.levels_k = 16, .levels_v = 16};
    struct kni_span all = {.n_tokens = N_TOKENS};
    double bits[2], expected[2] = {0, 0};
    assert_int_equal(kni_cachegen_open(&c, &pool.view.layout, 16, &o), KN_OK); /* in pieces of 16 tokens: the whole counts */
    assert_int_equal(kni_cachegen_ideal(c, &pool.view, all, &bits[0], &bits[1]), KN_OK);
    for (uint32_t part = 0; part < 2 * N_LAYER; part++)
        for (uint32_t i = 0; i < N_HEAD * D; i++) {
            double n_of[16] = {0};
            for (uint32_t pos = 0; pos < N_TOKENS; pos++) {
                float scale = 0;
                for (uint32_t j = 0; j < N_HEAD * D; j++)
                    scale = fmaxf(scale, fabsf(value(&pool, part, j / D, pos, j % D)));
                n_of[(int)rintf(value(&pool, part, i / D, pos, i % D) / scale * 7) + 7]++;
            }
            for (unsigned s = 0; s < 16; s++)
                expected[part % 2] -= n_of[s] > 0 ? n_of[s] * log2(n_of[s] / N_TOKENS) : 0;
        }
    assert_true(fabs(bits[0] - expected[0]) < 1e-6 * expected[0]);
    assert_true(fabs(bits[1] - expected[1]) < 1e-6 * expected[1]);
    kni_cachegen_close(&c);
}

static void test_damage(void **state)
{
    (void)state;
    struct kni_cachegen *c;
    struct kni_cachegen_opts o = {.levels_k = 32, .levels_v = 32}, bad = {.levels_k = 3, .levels_v = 32};
    struct kni_span span = {.n_tokens = N_TOKENS}, shorter = {.n_tokens = N_TOKENS / 2};
    struct kni_buffer b = {0};
    struct kni_account account = {0};
    assert_int_equal(kni_cachegen_open(&c, &pool.view.layout, N_TOKENS, &bad), KN_E_ARG);
    assert_int_equal(kni_cachegen_open(&c, &pool.view.layout, N_TOKENS, &o), KN_OK);
    assert_int_equal(kni_cachegen_encode(c, &pool.view, span, &b, &account), KN_OK);
    for (size_t i = 0; i < b.used; i += b.used / 40 + 1) {
        b.data[i] ^= 0x10;
        assert_int_equal(kni_cachegen_decode(c, &back.view, span, b.data, b.used), KN_E_FORMAT);
        b.data[i] ^= 0x10;
    }
    assert_int_equal(kni_cachegen_decode(c, &back.view, span, b.data, b.used - 1), KN_E_FORMAT);
    assert_int_equal(kni_cachegen_decode(c, &back.view, shorter, b.data, b.used), KN_E_FORMAT);
    kni_kv_row(&pool.view, 1, 1, 0, 5)[3] = 0x7c00; /* infinity */
    assert_int_equal(kni_cachegen_encode(c, &pool.view, span, &b, &account), KN_E_UNSUPPORTED);
    pool_fill_smooth(&pool);
    kni_free(b.data);
    kni_cachegen_close(&c);
}

static void test_raw(void **state)
{
    (void)state;
    struct kni_span span = {.first_token = 16, .n_tokens = 32};
    struct kni_buffer b = {0};
    struct kni_account account = {0};
    const size_t n = 32u * N_LAYER * 2 * N_HEAD * D * 2;
    for (unsigned zstd = 0; zstd < 2; zstd++) {
        memset(back.view.k, 0xff, back.n_values * 2);
        account = (struct kni_account){0};
        assert_int_equal(zstd ? kni_raw_zstd_encode(&pool.view, span, &b, &account) : kni_raw_encode(&pool.view, span, &b, &account), KN_OK);
        assert_int_equal(account.all_bytes, b.used);
        assert_true(zstd ? b.used < n : b.used == n);
        assert_int_equal(zstd ? kni_raw_zstd_decode(&back.view, span, b.data, b.used) : kni_raw_decode(&back.view, span, b.data, b.used), KN_OK);
        for (uint32_t part = 0; part < 2 * N_LAYER; part++)
            for (uint32_t pos = 0; pos < N_TOKENS; pos++)
                for (uint32_t head = 0; head < N_HEAD; head++) {
                    const uint16_t *x = kni_kv_row(&pool.view, part / 2, part % 2, head, pos), *y = kni_kv_row(&back.view, part / 2, part % 2, head, pos);
                    bool inside = pos >= 16 && pos < 48;
                    assert_true(inside ? !memcmp(x, y, D * 2) : y[0] == 0xffff && y[D - 1] == 0xffff);
                }
    }
    b.data[b.used / 2] ^= 1;
    assert_int_equal(kni_raw_zstd_decode(&back.view, span, b.data, b.used), KN_E_FORMAT);
    kni_free(b.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_ideal), cmocka_unit_test(test_damage), cmocka_unit_test(test_raw)};
    return cmocka_run_group_tests(tests, setup, teardown);
}

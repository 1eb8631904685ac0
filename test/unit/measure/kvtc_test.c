/* SPDX-License-Identifier: Apache-2.0 */
/* KVTC: exact tokens are exact, more bits mean less error and more bytes, correlated components cost less than others, damage is noticed. */
#include "measure/baseline/kvtc.h"

#include "unit/codec/codec_support.h"
#include "kernel/rope.h"

#define N_LAYER 4u
#define N_HEAD 1u
#define D 32u
#define N_TOKENS 400u /* 268 of them coded */

static struct pool pool, back;
static double freqs[D / 2];
static const uint8_t layers[N_LAYER];
static struct kni_threads *threads;

/* Values of 4 hidden signals that all components mix, and noise; keys are rotated by their positions. */
static void fill(struct pool *p, float noise)
{
    float mix[N_LAYER * 2][D][4], cos_row[D / 2], sin_row[D / 2];
    uint64_t rng = test_rng;
    test_rng = 99; /* all texts mix alike */
    for (uint32_t i = 0; i < N_LAYER * 2 * D * 4; i++)
        (&mix[0][0][0])[i] = (float)(test_random() % 2001) / 1000.0f - 1.0f;
    test_rng = rng;
    for (uint32_t pos = 0; pos < N_TOKENS; pos++) {
        float signal[4], row[D];
        for (unsigned k = 0; k < 4; k++)
            signal[k] = (float)(test_random() % 2001) / 500.0f - 2.0f;
        for (uint32_t part = 0; part < N_LAYER * 2; part++) {
            for (uint32_t i = 0; i < D; i++) {
                row[i] = 0.3f + noise * ((float)(test_random() % 2001) / 1000.0f - 1.0f);
                for (unsigned k = 0; k < 4; k++)
                    row[i] += mix[part][i][k] * signal[k];
            }
            kni_rope_table(cos_row, sin_row, pos, D / 2, freqs);
            if (part % 2 == 0)
                kni_rope_neox_ref(row, cos_row, sin_row, D / 2);
            for (uint32_t i = 0; i < D; i++)
                kni_kv_row(&p->view, part / 2, part % 2, 0, pos)[i] = kni_f32_to_f16(row[i]);
        }
    }
}

static double squared_error(uint32_t first, uint32_t n)
{
    double sum = 0;
    for (uint32_t part = 0; part < N_LAYER * 2; part++)
        for (uint32_t pos = first; pos < first + n; pos++)
            for (uint32_t i = 0; i < D; i++) {
                double e = (double)kni_f16_to_f32(kni_kv_row(&pool.view, part / 2, part % 2, 0, pos)[i]) - (double)kni_f16_to_f32(kni_kv_row(&back.view, part / 2, part % 2, 0, pos)[i]);
                sum += e * e;
            }
    return sum / ((double)N_LAYER * 2 * n * D);
}

static int setup(void **state)
{
    (void)state;
    kni_rope_freqs(freqs, D / 2, 10000, 1, NULL);
    pool = pool_make(N_LAYER, N_HEAD, D, KN_KV_TYPE_F16, N_TOKENS);
    back = pool_make(N_LAYER, N_HEAD, D, KN_KV_TYPE_F16, N_TOKENS);
    return kni_threads_open(&threads, 2) != KN_OK;
}

static int teardown(void **state)
{
    (void)state;
    pool_free(&pool);
    pool_free(&back);
    kni_threads_close(&threads);
    return 0;
}

static struct kni_kvtc *learn(float noise)
{
    struct kni_kvtc *k;
    struct kn_err err = {0};
    struct kni_kvtc_opts o = {.kv = pool.view.layout, .rope = {.neox = true, .rope_dim = D, .n_ropes = 1, .freqs = freqs, .layers = layers}, .n_group = 2, .threads = threads};
    assert_int_equal(kni_kvtc_open(&k, &o), KN_OK);
    fill(&pool, noise); /* a text of its own, then the one that is coded */
    kni_kvtc_add(k, &pool.view, N_TOKENS);
    if (kni_kvtc_solve(k, &err))
        fail_msg("%s", err.text);
    fill(&pool, noise);
    return k;
}

static void test_bits(void **state)
{
    (void)state;
    static const double aims[] = {0.5, 1.6, 3, 5}; /* of 64 components a group of 16 with 4 bits is 1.5 of them */
    struct kni_kvtc *k = learn(0.2f);
    struct kni_buffer b = {0};
    double last_error = INFINITY, last_bytes = 0;
    for (unsigned i = 0; i < 4; i++) {
        struct kni_account account = {0};
        memset(back.view.k, 0xff, back.n_values * 2);
        assert_int_equal(kni_kvtc_allocate(k, aims[i]), KN_OK);
        assert_int_equal(kni_kvtc_encode(k, &pool.view, N_TOKENS, &b, &account), KN_OK);
        assert_int_equal(kni_kvtc_decode(k, &back.view, N_TOKENS, b.data, b.used), KN_OK);
        assert_true(squared_error(0, KNI_KVTC_SINKS) == 0.0);
        assert_true(squared_error(N_TOKENS - KNI_KVTC_RECENT, KNI_KVTC_RECENT) == 0.0);
        double error = squared_error(KNI_KVTC_SINKS, N_TOKENS - KNI_KVTC_SINKS - KNI_KVTC_RECENT), values = (double)N_LAYER * 2 * D;
        double exact_bytes = values * 2 * (KNI_KVTC_SINKS + KNI_KVTC_RECENT), coded = (double)account.all_bytes - exact_bytes;
        assert_true(error < last_error && coded > last_bytes);
        assert_true(coded * 8 < (aims[i] + 0.1) * values * (N_TOKENS - KNI_KVTC_SINKS - KNI_KVTC_RECENT)); /* the budget is kept */
        assert_int_equal(account.all_bytes, b.used);
        assert_true(fabs((double)account.all_bytes - account.k_bytes - account.v_bytes - 40) < 1e-6);
        last_error = error;
        last_bytes = coded;
    }
    assert_true(last_error < 0.004); /* of a variance of about 4: four signals, a noise of 0.013 */
    b.data[b.used / 2] ^= 1;
    assert_int_equal(kni_kvtc_decode(k, &back.view, N_TOKENS, b.data, b.used), KN_E_FORMAT);
    kni_free(b.data);
    kni_kvtc_close(&k);
}

/* With keys un-rotated and components mixed, a few of them hold everything: half a bit a value gives what noise needs many for. */
static void test_decorrelates(void **state)
{
    (void)state;
    double errors[2];
    for (unsigned i = 0; i < 2; i++) {
        struct kni_kvtc *k = learn(i ? 3.0f : 0.01f);
        struct kni_buffer b = {0};
        struct kni_account account = {0};
        assert_int_equal(kni_kvtc_allocate(k, 2.0), KN_OK);
        assert_int_equal(kni_kvtc_encode(k, &pool.view, N_TOKENS, &b, &account), KN_OK);
        assert_int_equal(kni_kvtc_decode(k, &back.view, N_TOKENS, b.data, b.used), KN_OK);
        errors[i] = squared_error(KNI_KVTC_SINKS, N_TOKENS - KNI_KVTC_SINKS - KNI_KVTC_RECENT);
        kni_free(b.data);
        kni_kvtc_close(&k);
    }
    assert_true(errors[0] < 0.02);
    assert_true(errors[1] > 10 * errors[0]);
}

static void test_too_little(void **state)
{
    (void)state;
    struct kni_kvtc *k;
    struct kn_err err = {0};
    struct kni_kvtc_opts o = {.kv = pool.view.layout, .rope = {.neox = true, .rope_dim = D, .n_ropes = 1, .freqs = freqs, .layers = layers}, .threads = threads};
    assert_int_equal(kni_kvtc_open(&k, &o), KN_OK);
    kni_kvtc_add(k, &pool.view, 64);
    assert_int_equal(kni_kvtc_solve(k, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "60 tokens"));
    kni_kvtc_close(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_decorrelates), cmocka_unit_test(test_too_little)};
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exact tokens: every finite 16-bit pattern comes back, values like real ones get smaller, and any other bytes are an error or
 * rubbish, never a read or write outside.
 */
#include "unit/codec/codec_support.h"

#include "codec/sinks.h"

static uint8_t *encode(const struct pool *p, uint32_t n_tokens, size_t *n)
{
    size_t bound = kni_sinks_bound(&p->view.layout, n_tokens);
    uint8_t *room = malloc(bound), *exact;
    void *scratch = malloc(kni_sinks_scratch_bytes());
    assert_true(room && scratch);
    *n = kni_sinks_encode(&p->view, 0, n_tokens, room, scratch);
    assert_true(*n <= bound);
    exact = malloc(*n); /* so that sanitizers see a read past its end */
    assert_non_null(exact);
    memcpy(exact, room, *n);
    free(room);
    free(scratch);
    return exact;
}

static enum kn_status decode(const struct pool *p, uint32_t n_tokens, const uint8_t *data, size_t n)
{
    void *scratch = malloc(kni_sinks_scratch_bytes());
    assert_non_null(scratch);
    enum kn_status s = kni_sinks_decode(&p->view, 0, n_tokens, data, n, scratch);
    free(scratch);
    return s;
}

/* Copies of the first n_tokens positions are equal, and nothing else of `to` has changed. */
static void compare(const struct pool *from, struct pool *to, const uint16_t *before, uint32_t n_tokens)
{
    const struct kni_kv_layout *l = &from->view.layout;
    for (uint32_t part = 0; part < l->n_layer * 2; part++)
        for (uint32_t head = 0; head < l->n_kv_head; head++)
            for (uint32_t t = 0; t < n_tokens; t++) {
                uint16_t *row = kni_kv_row(&to->view, part / 2, part % 2, head, t);
                assert_memory_equal(row, kni_kv_row(&from->view, part / 2, part % 2, head, t), l->d_head * 2u);
                memcpy(row, before + (row - to->view.k), l->d_head * 2u);
            }
    assert_memory_equal(to->view.k, before, to->n_values * 2);
}

static void round_trip(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 64}, {4, 2, 32}, {3, 1, 7}, {2, 5, 80}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < 6; kind++) /* type x random, smooth, all equal */
            for (uint32_t n_tokens = 1; n_tokens <= KNI_SINKS_MAX_TOKENS; n_tokens += n_tokens < 5 ? 1 : 11) {
                struct pool from = pool_make(shapes[i][0], shapes[i][1], shapes[i][2], kind % 2, 16), to = pool_make(shapes[i][0], shapes[i][1], shapes[i][2], kind % 2, 16);
                if (kind / 2 == 1)
                    pool_fill_smooth(&from);
                if (kind / 2 == 2)
                    memset(from.view.k, 0xf7, from.n_values * 2);
                uint16_t *before = malloc(to.n_values * 2);
                assert_non_null(before);
                memcpy(before, to.view.k, to.n_values * 2);
                size_t n;
                uint8_t *data = encode(&from, n_tokens, &n);
                assert_int_equal(decode(&to, n_tokens, data, n), KN_OK);
                compare(&from, &to, before, n_tokens);
                free(data);
                free(before);
                pool_free(&from);
                pool_free(&to);
            }
}

/* Adaptation pays on values with a shape, and costs little on noise. */
static void sizes(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        struct pool p = pool_make(8, 3, 64, type, 16);
        size_t raw = kni_kv_token_bytes(&p.view.layout) * 4, n;
        free(encode(&p, 4, &n));
        assert_true(n < raw + raw / 8);
        pool_fill_smooth(&p);
        free(encode(&p, 4, &n));
        assert_true(n < raw - raw / 12);
        pool_free(&p);
    }
}

static void damage(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        struct pool p = pool_make(2, 1, 16, type, 16), to = pool_make(2, 1, 16, type, 16);
        pool_fill_smooth(&p);
        size_t n;
        uint8_t *data = encode(&p, 3, &n);
        for (size_t k = 0; k < n; k++) {
            uint8_t *cut = malloc(k ? k : 1);
            assert_non_null(cut);
            memcpy(cut, data, k);
            assert_int_equal(decode(&to, 3, cut, k), KN_E_FORMAT);
            free(cut);
        }
        uint8_t *longer = malloc(n + 1);
        assert_non_null(longer);
        memcpy(longer, data, n);
        longer[n] = 0;
        assert_int_equal(decode(&to, 3, longer, n + 1), KN_E_FORMAT);
        free(longer);
        unsigned refused = 0;
        for (int i = 0; i < 2000; i++) {
            uint32_t at = test_random() % (uint32_t)n;
            uint8_t was = data[at];
            data[at] = (uint8_t)test_random();
            enum kn_status s = decode(&to, 3, data, n);
            assert_true(s == KN_OK || s == KN_E_FORMAT || s == KN_E_NOT_FINITE);
            refused += s != KN_OK;
            data[at] = was;
        }
        assert_true(refused > 20);
        free(data);
        pool_free(&p);
        pool_free(&to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip), cmocka_unit_test(sizes), cmocka_unit_test(damage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

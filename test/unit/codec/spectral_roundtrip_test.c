/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spectral transform against the contract of spectral.h, written down once more in doubles, straight and slow.
 *
 * Budgets. Forward: the float product differs from the double one by less than 2e-4 of a step (sums of up to 384 products of
 * numbers around 1, steps of 0.05 and more), so symbols are equal unless the double y / step lies that near to a half; an
 * exponent unless 4 log2(rms) does (1e-4). Inverse: half a unit of the pool's 16 bits, and 1e-5 of the row's scale.
 */
#include "spectral_parts.h"

#include "codec/spectral/spectral.h"
#include "support/cpu_levels.h"

#define FAR 100000u

struct bed {
    struct kni_profile *profile;
    struct pool pool;
    uint32_t first, n; /* positions */
    struct kni_spectral *s;
    uint8_t *symbols;
    size_t stride;
    struct kni_escapes escapes;
};

/* The pool's table covers positions from 0, so that a pool of few blocks serves at position 100,000: all ids point at them. */
static struct pool far_pool(const struct kni_profile *p, enum kn_kv_type type, uint32_t first, uint32_t n)
{
    struct pool pool = pool_make(p->kv.n_layer, p->kv.n_kv_head, p->kv.d_head, type, n);
    pool_fill_smooth(&pool);
    uint32_t before = first / KNI_BLOCK_TOKENS, n_blocks = n / KNI_BLOCK_TOKENS, *table = calloc(before + n_blocks, sizeof *table);
    assert_non_null(table);
    memcpy(table + before, pool.table, n_blocks * sizeof *table);
    free(pool.table);
    pool.table = table;
    pool.view.block_ids = table;
    pool.view.n_blocks = before + n_blocks;
    return pool;
}

static struct bed bed_make(const struct test_profile_opts *o, enum kn_kv_type type, uint32_t first, uint32_t n)
{
    struct bed b = {.profile = test_profile(o), .first = first, .n = n, .stride = n + 32};
    b.pool = far_pool(b.profile, type, first, n);
    b.symbols = malloc((b.profile->parts[0].width + b.profile->n_group) * b.stride);
    assert_non_null(b.symbols);
    assert_int_equal(kni_spectral_open(&b.s, b.profile, n, kni_cpu_flags(), NULL), KN_OK);
    return b;
}

static void bed_free(struct bed *b)
{
    kni_spectral_close(&b->s);
    kni_free(b->escapes.values);
    free(b->symbols);
    pool_free(&b->pool);
    test_profile_free(b->profile);
}

/* ---- the contract in doubles */

static void turn(const struct kni_profile *p, uint32_t layer, double sign, uint32_t pos, double *head)
{
    const struct kni_profile_rope *r = &p->rope;
    uint32_t n = r->rope_dim / 2;
    for (uint32_t i = 0; i < n; i++) {
        double angle = sign * pos * r->freqs[r->layers[layer] * n + i], c = cos(angle), s = sin(angle);
        double *a = head + (r->neox ? i : 2 * i), *b = head + (r->neox ? i + n : 2 * i + 1), x = *a, y = *b;
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
}

/* A (layer, token) row: un-rotated, weighted; returns 4 log2(rms), or -1000 for zeros. */
static double model_row(const struct bed *b, uint32_t layer, bool is_v, const float *weight, uint32_t pos, double *x)
{
    uint32_t d = b->profile->kv.d_head, heads = b->profile->kv.n_kv_head;
    double sum = 0;
    for (uint32_t h = 0; h < heads; h++) {
        const uint16_t *row = kni_kv_row(&b->pool.view, layer, is_v, h, pos);
        for (uint32_t i = 0; i < d; i++) {
            x[h * d + i] = (double)test_from_half(row[i], b->pool.view.layout.type);
            if (!isfinite(x[h * d + i]))
                x[h * d + i] = 0;
        }
        if (!is_v)
            turn(b->profile, layer, -1, pos, x + h * d);
    }
    for (uint32_t i = 0; i < heads * d; i++) {
        x[i] *= (double)weight[i];
        sum += x[i] * x[i];
    }
    return sum > 0 ? 2 * log2(sum / (heads * d)) : -1000;
}

static int32_t clamp_to(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

static double basis_at(const struct kni_profile_part *p, uint32_t row, uint32_t c)
{
    return (double)kni_bf16_to_f32(p->basis[(size_t)row * p->width + c]);
}

/* Compares one part's symbols and escapes with the model's. Returns how many coefficients were compared. */
static uint32_t check_forward(const struct bed *b, uint32_t part_id, enum kni_profile_preset preset)
{
    const struct kni_profile_part *part = &b->profile->parts[part_id];
    uint32_t row_n = part->width / part->n_layers, n_rows = part->rows[preset], n_compared = 0;
    double *x = test_zeros(part->width, sizeof *x);
    uint32_t *escape_at = test_zeros((size_t)n_rows * b->n, sizeof *escape_at), n_escapes = 0;
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t t = 0; t < b->n; t++) {
            uint8_t symbol = b->symbols[(part->n_layers + row) * b->stride + t];
            escape_at[row * b->n + t] = n_escapes;
            n_escapes += symbol == 1 || symbol == 255;
        }
    assert_int_equal(n_escapes, b->escapes.n);
    for (uint32_t t = 0; t < b->n; t++) {
        bool unsure = false;
        for (uint32_t l = 0; l < part->n_layers; l++) {
            double e = model_row(b, part->first_layer + l, part_id & 1, part->weight + l * row_n, b->first + t, x + l * row_n);
            int32_t rounded = clamp_to((int32_t)rint(e < -400 ? -400 : e), -96, 95);
            rounded = part->exponent[l] + clamp_to(rounded - part->exponent[l], -127, 127);
            unsure |= fabs(e - floor(e) - 0.5) < 1e-4;
            if (!unsure)
                assert_int_equal(b->symbols[l * b->stride + t], 128 + rounded - part->exponent[l]);
            for (uint32_t i = 0; i < row_n; i++)
                x[l * row_n + i] = x[l * row_n + i] / exp2((rounded - part->gain[l]) / 4.0) - (double)part->mean[l * row_n + i];
        }
        for (uint32_t row = 0; row < n_rows && !unsure; row++) {
            double y = 0;
            for (uint32_t c = 0; c < part->width; c++)
                y += x[c] * basis_at(part, row, c);
            double q = y / (double)part->step[preset];
            uint8_t symbol = b->symbols[(part->n_layers + row) * b->stride + t];
            if (fabs(q - floor(q) - 0.5) < 2e-4 + 2e-6 * fabs(q))
                continue;
            n_compared++;
            if (symbol != 128 + clamp_to((int32_t)fmax(fmin(rint(q), 1e9), -1e9), -127, 127))
                fail_msg("part %u row %u token %u: symbol %u, y / step %.6f", part_id, row, t, symbol, q);
            if (symbol == 1 || symbol == 255)
                assert_true(fabs(b->escapes.values[escape_at[row * b->n + t]] - rint(q)) <= fabs(q) * 1e-6);
        }
    }
    free(escape_at);
    free(x);
    return n_compared;
}

/* Compares the pool with what the model makes of the symbols. */
static void check_inverse(const struct bed *b, const struct kni_kv_host *view, uint32_t part_id, enum kni_profile_preset preset, uint32_t skip)
{
    const struct kni_profile_part *part = &b->profile->parts[part_id];
    uint32_t d = b->profile->kv.d_head, row_n = part->width / part->n_layers, n_rows = part->rows[preset], n_escapes = 0;
    double *y = test_zeros((size_t)n_rows * b->n, sizeof *y), *x = test_zeros(part->width, sizeof *x);
    double unit = view->layout.type == KN_KV_TYPE_F16 ? 0x1p-11 : 0x1p-8;
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t t = 0; t < b->n; t++) {
            int32_t q = b->symbols[(part->n_layers + row) * b->stride + t] - 128;
            y[row * b->n + t] = (double)(abs(q) == 127 ? b->escapes.values[n_escapes++] : q) * (double)part->step[preset];
        }
    for (uint32_t t = 0; t < b->n; t++) {
        if (b->first + t < skip)
            continue;
        for (uint32_t c = 0; c < part->width; c++) {
            x[c] = (double)part->mean[c];
            for (uint32_t row = 0; row < n_rows; row++)
                x[c] += y[row * b->n + t] * basis_at(part, row, c);
            x[c] *= exp2((b->symbols[c / row_n * b->stride + t] - 128 + part->exponent[c / row_n] - part->gain[c / row_n]) / 4.0) / (double)part->weight[c];
        }
        for (uint32_t c = 0; c < part->width; c += d) {
            uint32_t layer = part->first_layer + c / row_n;
            double largest = 0;
            for (uint32_t i = 0; i < d; i++)
                largest = fmax(largest, fabs(x[c + i]));
            if (!(part_id & 1))
                turn(b->profile, layer, 1, b->first + t, x + c);
            const uint16_t *row = kni_kv_row(view, layer, part_id & 1, c % row_n / d, b->first + t);
            for (uint32_t i = 0; i < d; i++) {
                double got = (double)test_from_half(row[i], view->layout.type), want = x[c + i];
                if (fabs(got - want) > fabs(want) * unit + largest * 1e-5 + 1e-7)
                    fail_msg("part %u token %u component %u: got %.8g, want %.8g", part_id, t, c + i, got, want);
            }
        }
    }
    free(x);
    free(y);
}

static void forward(struct bed *b, uint32_t part, enum kni_profile_preset preset)
{
    assert_int_equal(kni_spectral_forward(b->s, &b->pool.view, b->first, b->n, part, preset, b->symbols, b->stride, &b->escapes), KN_OK);
}

static enum kn_status inverse(struct bed *b, uint32_t part, enum kni_profile_preset preset, uint32_t skip)
{
    return kni_spectral_inverse(b->s, &b->pool.view, b->first, b->n, part, preset, b->symbols, b->stride, &b->escapes, skip);
}

/* ---- tests */

static void both_ways_as_the_contract_says(void **state)
{
    (void)state;
    static const struct { struct test_profile_opts o; enum kn_kv_type type; uint32_t first, n; } cases[] = {
        {{.n_layer = 5, .n_kv_head = 3, .d_head = 64, .n_group = 2, .step = 0.05f}, KN_KV_TYPE_F16, 0, 48}, /* uneven last group */
        {{.n_layer = 2, .n_kv_head = 2, .d_head = 32, .n_group = 2, .neox = true, .step = 0.05f}, KN_KV_TYPE_BF16, 4096, 16},
        {{.n_layer = 3, .n_kv_head = 1, .d_head = 128, .n_group = 3, .neox = true, .rope_dim = 48, .n_ropes = 2, .step = 0.1f}, KN_KV_TYPE_BF16, FAR, 32},
        {{.n_layer = 2, .n_kv_head = 2, .d_head = 80, .n_group = 1, .rope_dim = 40, .n_ropes = 2, .step = 0.05f, .n_rows = 96}, KN_KV_TYPE_F16, FAR, 32},
        {{.n_layer = 1, .n_kv_head = 1, .d_head = 256, .n_group = 1, .step = 0.2f, .n_rows = 112}, KN_KV_TYPE_F16, 16, 272}, /* two tiles */
        {{.n_layer = 4, .n_kv_head = 4, .d_head = 4, .n_group = 2, .step = 0.05f}, KN_KV_TYPE_F16, 32, 16}, /* rows of odd shapes */
    };
    EACH_CPU_LEVEL(level)
        for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct bed b = bed_make(&cases[i].o, cases[i].type, cases[i].first, cases[i].n);
            for (uint32_t part = 0; part < b.profile->n_parts; part++)
                for (uint32_t preset = 0; preset < KNI_PROFILE_N_PRESETS; preset++) {
                    uint32_t rows = b.profile->parts[part].rows[preset];
                    forward(&b, part, preset);
                    assert_in_range(check_forward(&b, part, preset), rows * b.n * 9 / 10, rows * b.n);
                    struct pool to = pool_make(b.profile->kv.n_layer, b.profile->kv.n_kv_head, b.profile->kv.d_head, cases[i].type, b.n);
                    struct kni_kv_host view = b.pool.view;
                    view = kni_kv_host_by_block(&view.layout, to.view.k, view.block_ids, view.n_blocks);
                    assert_int_equal(kni_spectral_inverse(b.s, &view, b.first, b.n, part, preset, b.symbols, b.stride, &b.escapes, 0), KN_OK);
                    check_inverse(&b, &view, part, preset, 0);
                    pool_free(&to);
                }
            bed_free(&b);
        }
}

/* All rows of an orthonormal basis: the error is the quantiser's, half a step a coefficient at most, and the pool's rounding. */
static void error_is_bounded_by_the_step(void **state)
{
    (void)state;
    EACH_CPU_LEVEL(level)
        for (int type = 0; type < 2; type++) {
            struct test_profile_opts o = {.n_layer = 2, .n_kv_head = 3, .d_head = 64, .n_group = 2, .step = 0.02f, .neox = true, .plain = true};
            struct bed b = bed_make(&o, (enum kn_kv_type)type, 512, 64);
            uint16_t *before = malloc(b.pool.n_values * 2);
            assert_non_null(before);
            memcpy(before, b.pool.view.k, b.pool.n_values * 2);
            for (uint32_t part_id = 0; part_id < 2; part_id++) {
                const struct kni_profile_part *part = &b.profile->parts[part_id];
                forward(&b, part_id, KNI_PROFILE_PRESET_FINE);
                assert_int_equal(inverse(&b, part_id, KNI_PROFILE_PRESET_FINE, 0), KN_OK);
                for (uint32_t t = 0; t < b.n; t++) {
                    double error = 0, size = 0; /* of the scaled row of all layers; turning keys changes neither */
                    for (uint32_t c = 0; c < part->width; c++) {
                        uint32_t l = c / 192, pos = b.first + t;
                        double scale = exp2((b.symbols[l * b.stride + t] - 128 + part->exponent[l]) / 4.0);
                        const uint16_t *now = kni_kv_row(&b.pool.view, l, part_id, c % 192 / 64, pos) + c % 64;
                        double was = (double)test_from_half(before[now - b.pool.view.k], b.pool.view.layout.type);
                        double is = (double)test_from_half(*now, b.pool.view.layout.type);
                        double unit = type == KN_KV_TYPE_F16 ? 0x1p-11 : 0x1p-8, rounding = fabs(was) * unit;
                        double e = fmax(fabs(is - was) - 2 * rounding, 0);
                        error += e * e / (scale * scale);
                        size += was * was / (scale * scale);
                    }
                    double bound = sqrt(part->width) * (double)part->step[0] / 2;
                    assert_true(sqrt(error) <= bound);
                    assert_true(sqrt(size) > 10 * bound); /* or the bound would say nothing */
                }
            }
            free(before);
            bed_free(&b);
        }
}

static void zeros_and_what_is_not_finite(void **state)
{
    (void)state;
    EACH_CPU_LEVEL(level)
        for (int type = 0; type < 2; type++) {
            struct test_profile_opts o = {.n_layer = 2, .n_kv_head = 2, .d_head = 64, .n_group = 2, .step = 0.1f};
            struct bed b = bed_make(&o, (enum kn_kv_type)type, 32, 32);
            uint16_t inf = type == KN_KV_TYPE_F16 ? 0x7c00 : 0x7f80;
            for (uint32_t is_v = 0; is_v < 2; is_v++)
                for (uint32_t h = 0; h < 2; h++) {
                    memset(kni_kv_row(&b.pool.view, 1, is_v, h, 35), 0, 128);     /* layer 1 of token 3: zeros */
                    uint16_t *row = kni_kv_row(&b.pool.view, 0, is_v, h, 36);     /* layer 0 of token 4: some are not finite */
                    row[5] = inf;
                    row[6] = (uint16_t)(inf | 0x8000);
                    row[40] = (uint16_t)(inf | 1);
                    for (uint32_t i = 0; i < 64; i++) /* token 5: as large as 16 bits allow */
                        kni_kv_row(&b.pool.view, 0, is_v, h, 37)[i] = (uint16_t)((inf - 1) | (i & 1 ? 0x8000 : 0));
                }
            for (uint32_t part = 0; part < 2; part++) {
                forward(&b, part, KNI_PROFILE_PRESET_FINE);
                if (type == KN_KV_TYPE_F16)
                    check_forward(&b, part, KNI_PROFILE_PRESET_FINE);
                assert_int_equal(b.symbols[b.stride + 3] - 128 + b.profile->parts[part].exponent[1], -96);
                assert_int_equal(inverse(&b, part, KNI_PROFILE_PRESET_FINE, 0), KN_OK);
                for (uint32_t h = 0; h < 2; h++)
                    for (uint32_t i = 0; i < 64; i++) {
                        const struct kni_kv_host *v = &b.pool.view;
                        assert_true(fabsf(test_from_half(kni_kv_row(v, 1, part, h, 35)[i], v->layout.type)) < 1e-5f);
                        for (uint32_t t = 0; t < 32; t++)
                            assert_true((kni_kv_row(v, 0, part, h, 32 + t)[i] & inf) != inf);
                    }
            }
            bed_free(&b);
        }
}

/* Values a thousand times the mean's scale at a small step: many escapes, in two tiles, so that their order counts. */
static void escapes_both_ways(void **state)
{
    (void)state;
    EACH_CPU_LEVEL(level) {
        struct test_profile_opts o = {.n_layer = 1, .n_kv_head = 1, .d_head = 64, .n_group = 1, .step = 0.004f};
        struct bed b = bed_make(&o, KN_KV_TYPE_F16, 0, 288);
        for (uint32_t part = 0; part < 2; part++)
            for (uint32_t preset = 0; preset < KNI_PROFILE_N_PRESETS; preset++) {
                forward(&b, part, preset);
                assert_in_range(b.escapes.n, 100, b.profile->parts[part].rows[preset] * b.n);
                check_forward(&b, part, preset);
                assert_int_equal(inverse(&b, part, preset, 0), KN_OK);
                check_inverse(&b, &b.pool.view, part, preset, 0);
            }
        bed_free(&b);
    }
}

static void escapes_that_do_not_fit(void **state)
{
    (void)state;
    EACH_CPU_LEVEL(level) {
        struct test_profile_opts o = {.n_layer = 1, .n_kv_head = 1, .d_head = 64, .n_group = 1, .step = 0.004f};
        struct bed b = bed_make(&o, KN_KV_TYPE_F16, 0, 48);
        forward(&b, 1, 0);
        uint32_t n = b.escapes.n, at = 1; /* of a symbol: past the exponents */
        assert_true(n > 1);
        while (b.symbols[at * b.stride + 7] == 1 || b.symbols[at * b.stride + 7] == 255)
            at++;
        uint8_t *plain = &b.symbols[at * b.stride + 7], was = *plain;
        uint16_t *pool = malloc(b.pool.n_values * 2);
        assert_non_null(pool);
        memcpy(pool, b.pool.view.k, b.pool.n_values * 2);
        int32_t *values = b.escapes.values;
        for (int i = 0; i < 8; i++) {
            int32_t value = b.escapes.values[n - 1];
            switch (i) {
            case 0: b.escapes.n = n - 1; break;               /* too few */
            case 1: b.escapes.n = 0, b.escapes.values = NULL; break;
            case 2: *plain = 255; break;                      /* one more symbol than escapes */
            case 3: *plain = 0; break;                        /* no symbol at all */
            case 4: b.escapes.values[n - 1] = -value; break;  /* the other sign */
            case 5: b.escapes.values[n - 1] = value > 0 ? 126 : -126; break; /* needs no escape */
            case 6: b.escapes.n = n + 1; break;               /* too many */
            default: b.escapes.n = 2 * n;
            }
            assert_int_equal(inverse(&b, 1, 0, 0), KN_E_FORMAT);
            b.escapes.n = n;
            b.escapes.values = values;
            values[n - 1] = value;
            *plain = was;
        }
        uint8_t *escape = NULL; /* too many again: one of the symbols becomes plain */
        for (uint32_t t = 0; t < b.n && !escape; t++)
            if (b.symbols[b.stride + t] == 1 || b.symbols[b.stride + t] == 255)
                escape = &b.symbols[b.stride + t];
        assert_non_null(escape);
        was = *escape;
        *escape = 130;
        assert_int_equal(inverse(&b, 1, 0, 0), KN_E_FORMAT);
        *escape = was;
        was = b.symbols[0]; /* exponents beyond -96..95, and none */
        static const uint8_t bad[] = {0, 1, 255};
        for (int i = 0; i < 3; i++) {
            b.symbols[0] = bad[i];
            assert_int_equal(inverse(&b, 1, 0, 0), KN_E_FORMAT);
        }
        b.symbols[0] = was;
        assert_memory_equal(pool, b.pool.view.k, b.pool.n_values * 2); /* refused before anything was written */
        assert_int_equal(inverse(&b, 1, 0, 0), KN_OK);
        free(pool);
        bed_free(&b);
    }
}

/* A typical exponent from which -96 cannot be said: a row of zeros becomes one of another exponent, and its zeros stay zeros. */
static void exponents_far_from_typical(void **state)
{
    (void)state;
    struct test_profile_opts o = {.n_layer = 1, .n_kv_head = 1, .d_head = 64, .n_group = 1, .step = 0.1f, .plain = true};
    struct bed b = bed_make(&o, KN_KV_TYPE_BF16, 0, 16);
    ((int8_t *)(uintptr_t)b.profile->parts[1].exponent)[0] = 60;
    memset(kni_kv_row(&b.pool.view, 0, 1, 0, 0), 0, 16 * 128);
    for (uint32_t i = 0; i < 64; i++)
        kni_kv_row(&b.pool.view, 0, 1, 0, 9)[i] = kni_f32_to_bf16(i & 1 ? 0x1p13f : -0x1p13f);
    forward(&b, 1, KNI_PROFILE_PRESET_FINE);
    check_forward(&b, 1, KNI_PROFILE_PRESET_FINE);
    for (uint32_t t = 0; t < 16; t++)
        assert_int_equal(b.symbols[t], t == 9 ? 128 + 52 - 60 : 1);
    assert_int_equal(inverse(&b, 1, KNI_PROFILE_PRESET_FINE, 0), KN_OK);
    check_inverse(&b, &b.pool.view, 1, KNI_PROFILE_PRESET_FINE, 0);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(kni_kv_row(&b.pool.view, 0, 1, 0, 8)[i] & 0x7fff, 0);
    b.symbols[3] = 0; /* an exponent in range, but no symbol */
    assert_int_equal(inverse(&b, 1, KNI_PROFILE_PRESET_FINE, 0), KN_E_FORMAT);
    bed_free(&b);
}

/* A handle a direction, several chunks: what was kept of the positions before must not be used. */
static void chunk_after_chunk(void **state)
{
    (void)state;
    struct test_profile_opts o = {.n_layer = 2, .n_kv_head = 1, .d_head = 64, .n_group = 1, .step = 0.1f, .neox = true};
    struct bed b = bed_make(&o, KN_KV_TYPE_F16, 0, 96);
    struct kni_spectral *back = NULL;
    static const uint32_t pieces[][2] = {{0, 32}, {32, 32}, {32, 64}, {64, 16}, {0, 96}};
    assert_int_equal(kni_spectral_open(&back, b.profile, b.n, kni_cpu_flags(), NULL), KN_OK);
    for (unsigned i = 0; i < 5; i++)
        for (uint32_t part = 0; part < 4; part++) {
            b.first = pieces[i][0];
            b.n = pieces[i][1];
            forward(&b, part, KNI_PROFILE_PRESET_MEDIUM);
            check_forward(&b, part, KNI_PROFILE_PRESET_MEDIUM);
            assert_int_equal(kni_spectral_inverse(back, &b.pool.view, b.first, b.n, part, KNI_PROFILE_PRESET_MEDIUM, b.symbols, b.stride, &b.escapes, 0), KN_OK);
            check_inverse(&b, &b.pool.view, part, KNI_PROFILE_PRESET_MEDIUM, 0);
        }
    kni_spectral_close(&back);
    bed_free(&b);
}

static void skipped_tokens_stay(void **state)
{
    (void)state;
    struct test_profile_opts o = {.n_layer = 2, .n_kv_head = 2, .d_head = 64, .n_group = 1, .step = 0.5f};
    struct bed b = bed_make(&o, KN_KV_TYPE_F16, 16, 32);
    for (uint32_t part = 0; part < b.profile->n_parts; part++) {
        forward(&b, part, KNI_PROFILE_PRESET_SMALL);
        for (size_t i = 0; i < b.pool.n_values; i++)
            b.pool.view.k[i] = 0x7e07;
        assert_int_equal(inverse(&b, part, KNI_PROFILE_PRESET_SMALL, 20), KN_OK);
        check_inverse(&b, &b.pool.view, part, KNI_PROFILE_PRESET_SMALL, 20);
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t t = 16; t < 48; t++)
                for (uint32_t i = 0; i < 64; i++)
                    assert_int_equal(kni_kv_row(&b.pool.view, part / 2, part & 1, h, t)[i] == 0x7e07, t < 20);
        for (size_t i = 0; i < b.pool.n_values; i++) /* and nothing else was written */
            if (i / kni_kv_part_values(&b.pool.view.layout) % 4 != part || !(i / kni_kv_block_values(&b.pool.view.layout) & 1))
                assert_int_equal(b.pool.view.k[i], 0x7e07);
        pool_fill_smooth(&b.pool);
    }
    bed_free(&b);
}

static void rows_for_calibration(void **state)
{
    (void)state;
    struct test_profile_opts o = {.n_layer = 4, .n_kv_head = 2, .d_head = 48, .n_group = 2, .n_ropes = 2, .rope_dim = 32, .neox = true, .step = 0.1f};
    EACH_CPU_LEVEL(level) {
        struct bed b = bed_make(&o, KN_KV_TYPE_BF16, 48, 32);
        float *x = test_zeros(32 * 192, sizeof *x), ones[192];
        int8_t e[2 * 32];
        double row[96];
        for (int i = 0; i < 192; i++)
            ones[i] = 1;
        for (uint32_t part_id = 0; part_id < 4; part_id++)
            for (int weighted = 0; weighted < 2; weighted++) {
                const struct kni_profile_part *part = &b.profile->parts[part_id];
                const float *weight = weighted ? part->weight : NULL;
                kni_spectral_rows(&b.pool.view, &b.profile->rope, part->first_layer, 2, part_id & 1, weight, b.first, b.n, x, e);
                for (uint32_t t = 0; t < b.n; t++)
                    for (uint32_t l = 0; l < 2; l++) {
                        double want = model_row(&b, part->first_layer + l, part_id & 1, (weight ? weight : ones) + l * 96, b.first + t, row);
                        assert_true(fabs(e[l * b.n + t] - want) < 0.5001);
                        for (uint32_t i = 0; i < 96; i++)
                            assert_true(fabs((double)x[t * 192 + l * 96 + i] - row[i] / exp2(e[l * b.n + t] / 4.0)) < 1e-5);
                    }
            }
        free(x);
        bed_free(&b);
    }
}

/* Whatever the symbols, once escapes have grown. */
static void calls_do_not_allocate(void **state)
{
    (void)state;
    struct test_profile_opts o = {.n_layer = 2, .n_kv_head = 2, .d_head = 64, .n_group = 2, .step = 0.1f};
    struct bed b = bed_make(&o, KN_KV_TYPE_F16, 0, 64);
    size_t bytes = kni_spectral_bytes(b.s);
    forward(&b, 0, 0);
    kni_alloc_forbid_begin();
    for (uint32_t part = 0; part < 2; part++)
        for (uint32_t preset = 0; preset < KNI_PROFILE_N_PRESETS; preset++) {
            forward(&b, part, preset);
            assert_int_equal(inverse(&b, part, preset, 4), KN_OK);
        }
    kni_alloc_forbid_end();
    assert_int_equal(kni_spectral_bytes(b.s), bytes);
    bed_free(&b);
}

static void failing_allocations(void **state)
{
    (void)state;
    struct test_profile_opts o = {.n_layer = 1, .n_kv_head = 1, .d_head = 64, .n_group = 1, .step = 0.004f};
    struct bed b = bed_make(&o, KN_KV_TYPE_F16, 0, 288);
    struct kni_spectral *s = NULL;
    struct kn_err err = {0};
    for (uint64_t n = 1; n <= 2; n++) {
        kni_alloc_fault_arm(n, false);
        assert_int_equal(kni_spectral_open(&s, b.profile, 16, kni_cpu_flags(), &err), KN_E_NOMEM);
        assert_true(kni_alloc_fault_hit() && !s && err.text[0]);
    }
    bool failed = true;
    for (uint64_t n = 1; failed; n++) { /* each growth of the escapes */
        assert_in_range(n, 1, 30);
        kni_free(b.escapes.values);
        b.escapes = (struct kni_escapes){0};
        kni_alloc_fault_arm(n, false);
        enum kn_status status = kni_spectral_forward(b.s, &b.pool.view, 0, b.n, 0, 0, b.symbols, b.stride, &b.escapes);
        failed = kni_alloc_fault_hit();
        assert_int_equal(status, failed ? KN_E_NOMEM : KN_OK);
    }
    kni_alloc_fault_arm(0, false);
    check_forward(&b, 0, 0);
    bed_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_as_the_contract_says), cmocka_unit_test(error_is_bounded_by_the_step), cmocka_unit_test(zeros_and_what_is_not_finite),
        cmocka_unit_test(escapes_both_ways), cmocka_unit_test(escapes_that_do_not_fit), cmocka_unit_test(exponents_far_from_typical),
        cmocka_unit_test(chunk_after_chunk), cmocka_unit_test(skipped_tokens_stay), cmocka_unit_test(rows_for_calibration),
        cmocka_unit_test(calls_do_not_allocate), cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

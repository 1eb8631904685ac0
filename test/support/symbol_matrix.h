/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices of symbols like those of the spectral codec: two-sided geometric, rows of falling spread, tokens of unequal loudness
 * that changes slowly, so that contexts have something to find; and hostile ones of plain random bytes. Fixed seed.
 */
#ifndef KN_TEST_SYMBOL_MATRIX_H
#define KN_TEST_SYMBOL_MATRIX_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/rans/rans.h"

struct symbol_matrix {
    uint32_t n_rows, n_tokens;
    size_t stride;
    uint8_t *symbols, *classes;
};

static uint64_t symbol_rng = 0x9e3779b97f4a7c15u;

static inline uint32_t symbol_random(void)
{
    symbol_rng ^= symbol_rng << 13;
    symbol_rng ^= symbol_rng >> 7;
    symbol_rng ^= symbol_rng << 17;
    return (uint32_t)(symbol_rng >> 24);
}

static inline double symbol_unit(void) /* above 0, below 1 */
{
    return ((double)symbol_random() + 0.5) / 4294967296.0;
}

static inline struct symbol_matrix symbol_matrix_alloc(uint32_t n_rows, uint32_t n_tokens)
{
    struct symbol_matrix m = {n_rows, n_tokens, n_tokens + 16u, NULL, NULL};
    m.symbols = malloc(m.stride * n_rows + 1);
    m.classes = malloc(n_rows + 1);
    if (!m.symbols || !m.classes)
        abort();
    memset(m.symbols, 0x5a, m.stride * n_rows);
    return m;
}

static inline void symbol_matrix_free(struct symbol_matrix *m)
{
    free(m->symbols);
    free(m->classes);
}

/* The largest row has this mean magnitude, the last about a 60th of it; loudness: spread of the tokens in octaves. */
static inline struct symbol_matrix symbol_matrix_make(uint32_t n_rows, uint32_t n_tokens, double mean, double loudness)
{
    struct symbol_matrix m = symbol_matrix_alloc(n_rows, n_tokens);
    double *loud = malloc(n_tokens * sizeof *loud), walk = 0;
    if (!loud)
        abort();
    for (uint32_t t = 0; t < n_tokens; t++) {
        walk = 0.8 * walk + 0.6 * (symbol_unit() + symbol_unit() + symbol_unit() - 1.5) * 2;
        loud[t] = exp2(loudness * walk);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        double scale = mean * exp(-4.0 * r / n_rows), sum = 0;
        for (uint32_t t = 0; t < n_tokens; t++) {
            double v = -scale * loud[t] * log(symbol_unit());
            v = v > 127 ? 127 : rint(v);
            sum += v;
            m.symbols[r * m.stride + t] = (uint8_t)(128 + (symbol_random() & 1 ? v : -v));
        }
        m.classes[r] = r < n_rows / 8 ? kni_rans_class_of_exponents(sum / n_tokens) : kni_rans_class_of_row(sum / n_tokens, r % 3 * 0.3);
    }
    free(loud);
    return m;
}

static inline struct symbol_matrix symbol_matrix_random(uint32_t n_rows, uint32_t n_tokens)
{
    struct symbol_matrix m = symbol_matrix_alloc(n_rows, n_tokens);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t t = 0; t < n_tokens; t++)
            m.symbols[r * m.stride + t] = (uint8_t)symbol_random();
        m.classes[r] = (uint8_t)symbol_random();
    }
    return m;
}

/* A model of such matrices, the same in every run. */
static inline struct kni_rans_model *symbol_matrix_model(void)
{
    struct kni_rans_trainer *t = NULL;
    struct kni_rans_model *model = NULL;
    symbol_rng = 0x9e3779b97f4a7c15u;
    struct symbol_matrix m = symbol_matrix_make(200, 64, 4.0, 0.7);
    if (kni_rans_trainer_open(&t) != KN_OK)
        abort();
    kni_rans_trainer_add(t, m.symbols, m.stride, m.n_rows, m.n_tokens, m.classes);
    if (kni_rans_trainer_finish(t, &model) != KN_OK)
        abort();
    kni_rans_trainer_close(&t);
    symbol_matrix_free(&m);
    return model;
}

/* Bits of each row's own empirical entropy, side data not counted. */
static inline double symbol_matrix_entropy(const struct symbol_matrix *m)
{
    double bits = 0;
    for (uint32_t r = 0; r < m->n_rows; r++) {
        uint32_t counts[256] = {0};
        for (uint32_t t = 0; t < m->n_tokens; t++)
            counts[m->symbols[r * m->stride + t]]++;
        for (int s = 0; s < 256; s++)
            if (counts[s])
                bits -= counts[s] * log2((double)counts[s] / m->n_tokens);
    }
    return bits;
}

#endif

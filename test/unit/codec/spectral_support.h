/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of spectral chunks share: handles with a small random profile, and a pool restored without any chunk. */
#ifndef TEST_SPECTRAL_SUPPORT_H
#define TEST_SPECTRAL_SUPPORT_H

#include "base/cpu.h"
#include "unit/codec/codec_support.h"

#include "codec/spectral/layout_spectral.h"
#include "support/tiny_profile.h"

/* Of the chunks that test_meta describes. */
static inline struct kni_profile *spectral_profile(struct kn_tiny_profile_opts o)
{
    for (int i = 0; i < 16; i++)
        o.fingerprint[i] = (uint8_t)(i + 1);
    return kn_tiny_profile_make(&o);
}

static inline struct kni_codec *spectral_codec(struct kni_profile *p, enum kn_preset preset, enum kn_backend backend, uint32_t tokens_per_picture)
{
    struct kni_codec *codec;
    struct kni_codec_opts opts = {.preset = preset, .profile = p, .backend = backend, .tokens_per_picture = tokens_per_picture};
    struct kn_err err = {0};
    if (kni_codec_open(&codec, &opts, &err) != KN_OK)
        fail_msg("%s", err.text);
    return codec;
}

static inline void *spectral_encode(struct kni_codec *codec, const struct kni_chunk_meta *m, const struct kni_kv_host *view, size_t *n)
{
    void *data;
    struct kn_err err = {0};
    if (kni_chunk_encode(codec, m, view, &data, n, &err) != KN_OK)
        fail_msg("%s", err.text);
    return data;
}

/* What `to` must hold once a chunk of `from` was restored into it: transform and inverse, run by run, and the exact tokens. */
static inline uint32_t spectral_reference(struct pool *to, const struct pool *from, const struct kni_chunk_meta *m, const struct kni_profile *p, enum kn_preset preset)
{
    struct kni_spectral *s;
    struct kni_escapes escapes = {0};
    uint32_t rows = 0, n_escapes = 0, n_sinks = m->first_token ? 0 : p->n_sinks < m->n_tokens ? p->n_sinks : m->n_tokens;
    const struct kni_kv_layout *l = &m->kv;
    for (uint32_t i = 0; i < p->n_parts; i++)
        rows = kni_spectral_rows_of(p, i, kni_spectral_preset(preset)) > rows ? kni_spectral_rows_of(p, i, kni_spectral_preset(preset)) : rows;
    uint8_t *symbols = malloc((size_t)rows * KNI_SPECTRAL_RUN);
    assert_non_null(symbols);
    assert_int_equal(kni_spectral_open(&s, p, KNI_SPECTRAL_RUN, kni_cpu_flags(), NULL), KN_OK);
    for (uint32_t t = 0; t < m->n_tokens; t += KNI_SPECTRAL_RUN)
        for (uint32_t part = 0; part < p->n_parts; part++) {
            uint32_t n = m->n_tokens - t < KNI_SPECTRAL_RUN ? m->n_tokens - t : KNI_SPECTRAL_RUN, first = m->first_token + t;
            assert_int_equal(kni_spectral_forward(s, &from->view, first, n, part, kni_spectral_preset(preset), symbols, KNI_SPECTRAL_RUN, &escapes), KN_OK);
            n_escapes += escapes.n;
            assert_int_equal(kni_spectral_inverse(s, &to->view, first, n, part, kni_spectral_preset(preset), symbols, KNI_SPECTRAL_RUN, &escapes, n_sinks), KN_OK);
        }
    for (uint32_t part = 0; part < l->n_layer * 2; part++)
        for (uint32_t head = 0; head < l->n_kv_head; head++)
            for (uint32_t t = 0; t < n_sinks; t++)
                memcpy(kni_kv_row(&to->view, part / 2, part % 2, head, t), kni_kv_row(&from->view, part / 2, part % 2, head, t), l->d_head * 2u);
    kni_spectral_close(&s);
    kni_free(escapes.values);
    free(symbols);
    return n_escapes;
}

/* A second pool with the same content and table. */
static inline struct pool pool_copy(const struct pool *p)
{
    struct pool c = *p;
    uint32_t n = p->view.n_blocks;
    c.table = malloc(n * sizeof *c.table);
    c.view = kni_kv_host_by_block(&p->view.layout, malloc(p->n_values * 2), c.table, n);
    assert_true(c.view.k && c.table);
    memcpy(c.view.k, p->view.k, p->n_values * 2);
    memcpy(c.table, p->table, n * sizeof *c.table);
    return c;
}

#endif

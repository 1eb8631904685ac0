/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes and the packed form of layout exact's model. Encoder and decoder must find the same table for every value, so a mean
 * turns in integers: phases of 2^-12 of a turn, cosines rounded to 2^-14. None of the 4096 cosines lies within 10^-8 of a
 * rounding boundary (a test looks), so any C library gives the same table.
 */
#include "codec/exact/exact_model.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

#define COSINE_BITS 14

/* Tables by |mean| in eighths of a deviation: finer where the shape changes faster. */
static const uint8_t table_edges[KNI_EXACT_N_TABLES - 1] = {1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 18, 22, 27, 33, 40, 50, 62, 78, 100};

bool kni_exact_model_init(struct kni_exact_model *m, const struct kni_kv_layout *kv)
{
    memset(m, 0, sizeof *m);
    m->kv = *kv;
    m->raw_bits = kv->type == KN_KV_TYPE_F16 ? 8 : 5;
    for (uint32_t i = 0; i < KNI_EXACT_N_PHASES; i++)
        m->cosines[i] = (int16_t)lrint(ldexp(cos(2 * 3.14159265358979323846 * i / KNI_EXACT_N_PHASES), COSINE_BITS));
    size_t bytes;
    m->n_turns = (size_t)kv->n_layer * (kv->d_head / 2);
    if (!kni_mul_size((size_t)2 * kv->n_layer * kv->n_kv_head, kv->d_head, &m->n_channels) || !kni_mul_size(m->n_channels, 2, &bytes))
        return false;
    m->bases = kni_calloc(KNI_ALLOC_TAG_CODEC, bytes, 0);
    m->means = kni_calloc(KNI_ALLOC_TAG_CODEC, m->n_channels, 0);
    m->turns = kni_calloc(KNI_ALLOC_TAG_CODEC, m->n_turns * sizeof *m->turns, 0);
    return m->bases && m->means && m->turns;
}

void kni_exact_model_fini(struct kni_exact_model *m)
{
    kni_free(m->bases);
    kni_free(m->means);
    kni_free(m->turns);
    m->bases = NULL;
    m->means = NULL;
    m->turns = NULL;
}

size_t kni_exact_model_bytes(const struct kni_exact_model *m)
{
    return m->n_channels * 3 + m->n_turns * sizeof *m->turns;
}

bool kni_exact_pair_of(const struct kni_exact_model *m, uint32_t component, uint32_t *pair, bool *second)
{
    uint32_t half = m->kv.d_head / 2;
    if (component >= 2 * half)
        return false;
    bool halves = m->pairs == KNI_EXACT_PAIRS_HALVES;
    *second = halves ? component >= half : component % 2;
    *pair = halves ? component % half : component / 2;
    return true;
}

uint32_t kni_exact_component_of(const struct kni_exact_model *m, uint32_t pair, bool second)
{
    return m->pairs == KNI_EXACT_PAIRS_HALVES ? pair + (second ? m->kv.d_head / 2 : 0) : 2 * pair + second;
}

void kni_exact_make_wave(const struct kni_exact_model *m, uint32_t turn, int16_t *wave, uint32_t n)
{
    for (uint32_t t = 0; t < n; t++) {
        uint32_t phase = turn * t >> 20; /* modulo a full turn, as it should be */
        wave[t] = m->cosines[phase];
        wave[n + t] = m->cosines[(phase - KNI_EXACT_N_PHASES / 4) % KNI_EXACT_N_PHASES];
    }
}

void kni_exact_make_waves(const struct kni_exact_model *m, uint32_t layer, uint32_t *held, int16_t *waves, uint32_t n)
{
    const uint32_t n_pairs = m->kv.d_head / 2;
    for (uint32_t pair = 0; pair < n_pairs; pair++) {
        uint32_t turn = m->turns[(size_t)layer * n_pairs + pair];
        if (turn && turn != held[pair]) {
            kni_exact_make_wave(m, turn, waves + (size_t)pair * 2 * n, n);
            held[pair] = turn;
        }
    }
}

bool kni_exact_notes(const struct kni_exact_model *m, const struct kni_exact_loops *loops, uint32_t layer, uint32_t is_v, uint32_t head, uint32_t component,
                     const int16_t *waves, int16_t *means, uint8_t *notes, uint32_t n)
{
    size_t channel = kni_exact_channel(m, layer, is_v, head, component);
    uint32_t pair = 0, turn = 0;
    bool second = false;
    if (!is_v && kni_exact_pair_of(m, component, &pair, &second))
        turn = m->turns[(size_t)layer * (m->kv.d_head / 2) + pair];
    const int8_t *head_means = m->means + channel - component;
    int32_t own = head_means[component], other = turn ? head_means[kni_exact_component_of(m, pair, !second)] : 0;
    if (!turn || !(own | other)) {
        for (uint32_t t = 0; t < 16; t++)
            means[t] = (int16_t)own;
        loops->tables(means, notes, 16, table_edges, KNI_EXACT_N_TABLES - 1);
        memset(notes, notes[0], n);
        return true;
    }
    /* (a, b) turned is (a cos - b sin, b cos + a sin) */
    const int16_t *wave = waves + (size_t)pair * 2 * n;
    loops->turn(wave, wave + n, own, second ? other : -other, means, n);
    loops->tables(means, notes, n, table_edges, KNI_EXACT_N_TABLES - 1);
    return false;
}

size_t kni_exact_model_packed_bytes(const struct kni_exact_model *m)
{
    return 1 + sizeof m->freq + m->n_channels * 3 + m->n_turns * 3;
}

void kni_exact_model_pack(const struct kni_exact_model *m, uint8_t *out)
{
    const uint16_t *freq = m->freq[0];
    const size_t n_freq = sizeof m->freq / 2;
    *out++ = (uint8_t)m->pairs;
    for (uint32_t shift = 0; shift < 16; shift += 8)
        for (size_t i = 0; i < n_freq; i++)
            *out++ = (uint8_t)(freq[i] >> shift);
    for (uint32_t shift = 0; shift < 16; shift += 8)
        for (size_t i = 0; i < m->n_channels; i++)
            *out++ = (uint8_t)(m->bases[i] >> shift);
    memcpy(out, m->means, m->n_channels);
    out += m->n_channels;
    for (uint32_t shift = 8; shift < 32; shift += 8)
        for (size_t i = 0; i < m->n_turns; i++)
            *out++ = (uint8_t)(m->turns[i] >> shift);
}

bool kni_exact_model_unpack(struct kni_exact_model *m, const uint8_t *data)
{
    uint16_t *freq = m->freq[0];
    const size_t n_freq = sizeof m->freq / 2;
    if (*data > KNI_EXACT_PAIRS_HALVES)
        return false;
    m->pairs = (enum kni_exact_pairs)*data++;
    for (size_t i = 0; i < n_freq; i++)
        freq[i] = (uint16_t)(data[i] | data[n_freq + i] << 8);
    data += 2 * n_freq;
    for (size_t i = 0; i < m->n_channels; i++)
        m->bases[i] = (uint16_t)(data[i] | data[m->n_channels + i] << 8);
    data += 2 * m->n_channels;
    memcpy(m->means, data, m->n_channels);
    data += m->n_channels;
    for (size_t i = 0; i < m->n_turns; i++)
        m->turns[i] = (uint32_t)data[i] << 8 | (uint32_t)data[m->n_turns + i] << 16 | (uint32_t)data[2 * m->n_turns + i] << 24;
    for (uint32_t table = 0; table < KNI_EXACT_N_TABLES; table++)
        if (!kni_rans_freq_ok(m->freq[table]))
            return false;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Writing profiles: the same walk as reading (profile.c), bytes by offset (profile_format.h). Any thread. */
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/le.h"
#include "codec/profile/profile_format.h"

static void f32_put(uint8_t *at, float x)
{
    kni_le32_put(at, kni_f32_bits(x));
}

static uint8_t *put_f32(uint8_t *at, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++, at += 4)
        f32_put(at, x[i]);
    return at;
}

static uint8_t *put_bytes(uint8_t *at, const void *x, size_t n)
{
    memcpy(at, x, n);
    return at + n;
}

static void put_header(uint8_t *b, const struct kni_profile *p, size_t total, size_t rans_bytes)
{
    memcpy(b + KNI_PROFILE_AT_MAGIC, "KNP1", 4);
    kni_le32_put(b + KNI_PROFILE_AT_VERSION, p->n_texts ? KNI_PROFILE_VERSION : 1);
    kni_le32_put(b + KNI_PROFILE_AT_HEADER_BYTES, KNI_PROFILE_FIXED_BYTES);
    kni_le32_put(b + KNI_PROFILE_AT_N_GROUP, p->n_group);
    kni_le64_put(b + KNI_PROFILE_AT_TOTAL_BYTES, total);
    memcpy(b + KNI_PROFILE_AT_FINGERPRINT, p->fingerprint, 16);
    kni_le32_put(b + KNI_PROFILE_AT_N_LAYER, p->kv.n_layer);
    kni_le32_put(b + KNI_PROFILE_AT_N_KV_HEAD, p->kv.n_kv_head);
    kni_le32_put(b + KNI_PROFILE_AT_D_HEAD, p->kv.d_head);
    kni_le32_put(b + KNI_PROFILE_AT_ROPE_DIM, p->rope.rope_dim);
    b[KNI_PROFILE_AT_NEOX] = p->rope.neox;
    b[KNI_PROFILE_AT_N_ROPES] = (uint8_t)p->rope.n_ropes;
    b[KNI_PROFILE_AT_N_SINKS] = (uint8_t)p->n_sinks;
    kni_le32_put(b + KNI_PROFILE_AT_RANS_BYTES, (uint32_t)rans_bytes);
    kni_le64_put(b + KNI_PROFILE_AT_N_CALIBRATION, p->n_calibration_tokens);
    kni_le32_put(b + KNI_PROFILE_AT_N_TEXTS, p->n_texts);
    for (uint32_t i = 0; i < KNI_PROFILE_N_PRESETS; i++) {
        const float q[3] = {p->quality[i].ratio, p->quality[i].kl, p->quality[i].top1};
        put_f32(b + KNI_PROFILE_AT_QUALITY + (size_t)12 * i, q, 3);
    }
}

static void put_front(uint8_t *b, const struct kni_profile *p)
{
    uint8_t *at = b + KNI_PROFILE_FIXED_BYTES;
    for (size_t i = 0; i < (size_t)p->rope.n_ropes * (p->rope.rope_dim / 2); i++, at += 8) {
        uint64_t bits;
        memcpy(&bits, &p->rope.freqs[i], 8);
        kni_le64_put(at, bits);
    }
    memcpy(at, p->rope.layers, p->kv.n_layer);
    at += kni_profile_pad8(p->kv.n_layer);
    for (uint32_t i = 0; i < p->n_parts; i++, at += KNI_PROFILE_ENTRY_BYTES)
        for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
            kni_le32_put(at + KNI_PROFILE_ENTRY_ROWS + (size_t)4 * k, p->parts[i].rows[k]);
            f32_put(at + KNI_PROFILE_ENTRY_STEPS + (size_t)4 * k, p->parts[i].step[k]);
        }
}

static void put_part(uint8_t *at, const struct kni_profile_part *part)
{
    at = put_f32(at, part->mean, part->width);
    at = put_f32(at, part->weight, part->width);
    for (size_t i = 0; i < (size_t)part->n_rows * part->width; i++, at += 2)
        kni_le16_put(at, part->basis[i]);
    at = put_bytes(at, part->exponent, part->n_layers);
    if (part->gain)
        memcpy(at, part->gain, part->n_layers); /* otherwise the zeros that are there */
    at += part->n_layers;
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++)
        at = put_bytes(at, part->classes[k], part->n_layers + part->rows[k]);
}

static void put_text(uint8_t *at, const struct kni_profile_text *t)
{
    kni_le64_put(at + KNI_PROFILE_TEXT_BYTES, t->n_bytes);
    kni_le32_put(at + KNI_PROFILE_TEXT_TOKENS, t->n_tokens);
    at[KNI_PROFILE_TEXT_HELD] = t->is_held_back;
    memcpy(at + KNI_PROFILE_TEXT_HASH, t->hash, sizeof t->hash);
    for (size_t i = 0; i + 1 < KNI_PROFILE_NAME_BYTES && t->name[i]; i++)
        at[KNI_PROFILE_TEXT_NAME + i] = (uint8_t)t->name[i];
}

enum kn_status kni_profile_write(const struct kni_profile *p, void **data, size_t *n_bytes, struct kn_err *err)
{
    *data = NULL;
    const char *bad = kni_profile_check_shape(p);
    for (uint32_t i = 0; i < p->n_parts && !bad; i++) {
        struct kni_profile_part shape = {0};
        kni_profile_part_shape(p, i, &shape);
        bad = shape.first_layer != p->parts[i].first_layer || shape.n_layers != p->parts[i].n_layers || shape.width != p->parts[i].width
                  ? "shape of a part" : kni_profile_check_rows(&p->parts[i]);
    }
    if (!bad)
        bad = kni_profile_check_values(p);
    if (!bad && p->n_texts > KNI_PROFILE_MAX_TEXTS)
        bad = "number of texts";
    if (bad)
        return kni_err_set(err, KN_E_ARG, "a profile with this %s cannot be written: out of range", bad);
    size_t rans_bytes = kni_rans_model_bytes(p->rans), total = kni_profile_front_bytes(p) + kni_profile_pad8(rans_bytes) + 8 + (size_t)p->n_texts * KNI_PROFILE_TEXT_ENTRY;
    if (rans_bytes > UINT32_MAX)
        return kni_err_set(err, KN_E_ARG, "entropy coder's tables of %zu bytes do not fit a profile", rans_bytes);
    for (uint32_t i = 0; i < p->n_parts; i++)
        total += kni_profile_part_bytes(&p->parts[i]);
    uint8_t *b = kni_calloc(KNI_ALLOC_TAG_CODEC, total, 0);
    if (!b)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a profile of %zu bytes", total);
    put_header(b, p, total, rans_bytes);
    put_front(b, p);
    uint8_t *at = b + kni_profile_front_bytes(p);
    for (uint32_t i = 0; i < p->n_parts; at += kni_profile_part_bytes(&p->parts[i++]))
        put_part(at, &p->parts[i]);
    kni_rans_model_write(p->rans, at);
    at += kni_profile_pad8(rans_bytes);
    for (uint32_t i = 0; i < p->n_texts; i++, at += KNI_PROFILE_TEXT_ENTRY)
        put_text(at, &p->texts[i]);
    kni_profile_refresh_checksum(b, total);
    *data = b;
    *n_bytes = total;
    return KN_OK;
}

void kni_profile_refresh_checksum(void *data, size_t n_bytes)
{
    uint8_t *b = data;
    if (n_bytes >= KNI_PROFILE_FIXED_BYTES + 8)
        kni_le64_put(b + n_bytes - 8, kni_xxh3(b, n_bytes - 8));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KVTC's coding: see kvtc.h. A piece:
 *
 *     head, exact tokens of K, then of V (first ones, last ones), DEFLATE of K, DEFLATE of V, checksum
 *
 * and before DEFLATE, of K or V, for each part and group: codes [token], bits packed from the low end; then for all groups shifts [token], then
 * scales [token], low bytes before high bytes. Groups are not in the piece: they are calibration, like the bases.
 */
#include <math.h>
#include <string.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/le.h"
#include "measure/baseline/kvtc_state.h"

#define WHAT_KVTC 3u
#define DEFLATE_LEVEL 9

size_t kni_kvtc_bytes(const struct kni_kvtc *k)
{
    return 2 * (size_t)KNI_KVTC_BLOCK * k->max_width * sizeof(float);
}

/* ---- rows */

void kni_kvtc_rows(const struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t part, uint32_t first, uint32_t n, uint32_t worker, float *x)
{
    const struct kni_kvtc_part *p = &k->parts[part];
    const struct kni_kv_layout *l = &k->opts.kv;
    const struct kni_profile_rope *rope = &k->opts.rope;
    uint32_t n_pairs = rope->rope_dim / 2;
    float *cos_row = k->cos_row + (size_t)worker * l->d_head, *sin_row = k->sin_row + (size_t)worker * l->d_head;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t layer = 0; layer < p->n_layers; layer++) {
            float *row = x + (size_t)t * p->width + (size_t)layer * k->row;
            if (!(part & 1)) {
                kni_rope_table(cos_row, sin_row, first + t, n_pairs, rope->freqs + (size_t)rope->layers[p->first_layer + layer] * n_pairs);
                for (uint32_t i = 0; i < n_pairs; i++)
                    sin_row[i] = -sin_row[i];
            }
            for (uint32_t head = 0; head < l->n_kv_head; head++) {
                float *to = row + (size_t)head * l->d_head;
                k->kernels.from_half[l->type](to, kni_kv_row(view, p->first_layer + layer, part & 1, head, first + t), l->d_head);
                if (!(part & 1))
                    k->kernels.rope[rope->neox](to, cos_row, sin_row, n_pairs);
            }
        }
}

/* The way back: x, less nothing, into the view. */
static void put_rows(const struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t part, uint32_t first, uint32_t n, float *x)
{
    const struct kni_kvtc_part *p = &k->parts[part];
    const struct kni_kv_layout *l = &k->opts.kv;
    const struct kni_profile_rope *rope = &k->opts.rope;
    uint32_t n_pairs = rope->rope_dim / 2;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t layer = 0; layer < p->n_layers; layer++) {
            float *row = x + (size_t)t * p->width + (size_t)layer * k->row;
            if (!(part & 1))
                kni_rope_table(k->cos_row, k->sin_row, first + t, n_pairs, rope->freqs + (size_t)rope->layers[p->first_layer + layer] * n_pairs);
            for (uint32_t head = 0; head < l->n_kv_head; head++) {
                float *from = row + (size_t)head * l->d_head;
                if (!(part & 1))
                    k->kernels.rope[rope->neox](from, k->cos_row, k->sin_row, n_pairs);
                k->kernels.to_half[l->type](kni_kv_row(view, p->first_layer + layer, part & 1, head, first + t), from, l->d_head);
            }
        }
}

/* Components that have bits: those of small variance have none. Before an allocation: all. */
static uint32_t used_components(const struct kni_kvtc_part *p)
{
    uint32_t used = p->n_groups ? 0 : p->width;
    for (uint32_t g = 0; g < p->n_groups; g++)
        used = p->groups[g].first + p->groups[g].n > used ? p->groups[g].first + p->groups[g].n : used;
    return used;
}

void kni_kvtc_forward(const struct kni_kvtc *k, uint32_t part, uint32_t n, float *x, float *y)
{
    const struct kni_kvtc_part *p = &k->parts[part];
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < p->width; i++)
            x[(size_t)t * p->width + i] -= p->mean[i];
    struct kni_gemm_args g = {.m = n, .n = used_components(p), .k = p->width, .a = x, .lda = p->width, .b = p->forward, .ldb = KNI_GEMM_PANEL,
                              .panel_stride = (size_t)KNI_GEMM_PANEL * p->width, .c = y, .ldc = p->width};
    k->kernels.gemm(&g);
}

static void inverse(const struct kni_kvtc *k, uint32_t part, uint32_t n, const float *y, float *x)
{
    const struct kni_kvtc_part *p = &k->parts[part];
    struct kni_gemm_args g = {.m = n, .n = p->width, .k = used_components(p), .a = y, .lda = p->width, .b = p->basis, .ldb = p->width, .panel_stride = KNI_GEMM_PANEL, .c = x, .ldc = p->width};
    k->kernels.gemm(&g);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < p->width; i++)
            x[(size_t)t * p->width + i] += p->mean[i];
}

/* ---- groups */

struct kni_kvtc_range kni_kvtc_range_of(const float *y, uint32_t n, uint32_t bits)
{
    struct kni_kvtc_range r;
    float low = y[0], high = y[0];
    for (uint32_t i = 1; i < n; i++) {
        low = y[i] < low ? y[i] : low;
        high = y[i] > high ? y[i] : high;
    }
    r.low_bits = kni_f32_to_f16(low);
    r.scale_bits = kni_f32_to_f16((high - low) / (float)((1u << bits) - 1));
    r.low = kni_f16_to_f32(r.low_bits);
    r.scale = kni_f16_to_f32(r.scale_bits);
    return r;
}

uint32_t kni_kvtc_code(const struct kni_kvtc_range *r, float y, uint32_t bits)
{
    float most = (float)((1u << bits) - 1), code = r->scale > 0 ? (y - r->low) / r->scale + 0.5f : 0;
    return (uint32_t)(code > most ? most : code > 0 ? code : 0);
}

/* Bytes before DEFLATE of K or V. */
static size_t plain_bytes(const struct kni_kvtc *k, uint32_t is_v, uint32_t n_tokens, size_t *range_bytes)
{
    size_t codes = 0, n_groups = 0;
    for (uint32_t i = is_v; i < k->n_parts; i += 2)
        for (uint32_t g = 0; g < k->parts[i].n_groups; g++, n_groups++)
            codes += (size_t)k->parts[i].groups[g].n * k->parts[i].groups[g].bits / 8 * n_tokens;
    *range_bytes = n_groups * n_tokens; /* of one byte plane */
    return codes + 4 * *range_bytes;
}

static void write_codes(uint8_t *to, const float *y, const struct kni_kvtc_range *r, uint32_t n, uint32_t bits)
{
    uint32_t per_byte = 8 / bits;
    for (uint32_t i = 0; i < n; i += per_byte) {
        uint32_t byte = 0;
        for (uint32_t j = 0; j < per_byte; j++)
            byte |= kni_kvtc_code(r, y[i + j], bits) << (j * bits);
        *to++ = (uint8_t)byte;
    }
}

static void read_codes(const uint8_t *from, float *y, const struct kni_kvtc_range *r, uint32_t n, uint32_t bits)
{
    uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1;
    for (uint32_t i = 0; i < n; i += per_byte, from++)
        for (uint32_t j = 0; j < per_byte; j++)
            y[i + j] = r->low + r->scale * (float)(*from >> (j * bits) & mask);
}

/* K or V of tokens first.. + n_tokens to plain bytes, or, with reading, back into the view. */
static void pass(struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t is_v, uint32_t first, uint32_t n_tokens, bool reading, uint8_t *plain)
{
    size_t plane, total = plain_bytes(k, is_v, n_tokens, &plane), at = 0, group0 = 0;
    uint8_t *ranges = plain + total - 4 * plane;
    for (uint32_t part = is_v; part < k->n_parts; part += 2) {
        const struct kni_kvtc_part *p = &k->parts[part];
        size_t part_bytes = 0;
        for (uint32_t done = 0; done < n_tokens; done += KNI_KVTC_BLOCK) {
            uint32_t n = n_tokens - done < KNI_KVTC_BLOCK ? n_tokens - done : KNI_KVTC_BLOCK;
            size_t group_at = at;
            if (reading) {
                memset(k->y, 0, (size_t)n * p->width * sizeof *k->y);
            } else {
                kni_kvtc_rows(k, view, part, first + done, n, 0, k->x);
                kni_kvtc_forward(k, part, n, k->x, k->y);
            }
            for (uint32_t g = 0; g < p->n_groups; g++) {
                const struct kni_kvtc_group *group = &p->groups[g];
                size_t bytes = (size_t)group->n * group->bits / 8;
                for (uint32_t t = 0; t < n; t++) {
                    float *y = k->y + (size_t)t * p->width + group->first;
                    uint8_t *codes = plain + group_at + (done + t) * bytes, *range = ranges + (group0 + g) * n_tokens + done + t;
                    if (reading) {
                        struct kni_kvtc_range r = {.low = kni_f16_to_f32((uint16_t)(range[0] | range[plane] << 8)),
                                                   .scale = kni_f16_to_f32((uint16_t)(range[2 * plane] | range[3 * plane] << 8))};
                        read_codes(codes, y, &r, group->n, group->bits);
                    } else {
                        struct kni_kvtc_range r = kni_kvtc_range_of(y, group->n, group->bits);
                        write_codes(codes, y, &r, group->n, group->bits);
                        range[0] = (uint8_t)r.low_bits;
                        range[plane] = (uint8_t)(r.low_bits >> 8);
                        range[2 * plane] = (uint8_t)r.scale_bits;
                        range[3 * plane] = (uint8_t)(r.scale_bits >> 8);
                    }
                }
                group_at += bytes * n_tokens;
            }
            part_bytes = group_at - at;
            if (reading) {
                inverse(k, part, n, k->y, k->x);
                put_rows(k, view, part, first + done, n, k->x);
            }
        }
        at += part_bytes;
        group0 += p->n_groups;
    }
}

/* ---- pieces */

/* Tokens that stay exact: [0, sinks) and [n_tokens - recent, n_tokens). */
static void exact_spans(uint32_t n_tokens, struct kni_span spans[2])
{
    uint32_t sinks = n_tokens < KNI_KVTC_SINKS ? n_tokens : KNI_KVTC_SINKS, left = n_tokens - sinks, recent = left < KNI_KVTC_RECENT ? left : KNI_KVTC_RECENT;
    spans[0] = (struct kni_span){.first_token = 0, .n_tokens = sinks};
    spans[1] = (struct kni_span){.first_token = n_tokens - recent, .n_tokens = recent};
}

enum kn_status kni_kvtc_encode(struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t n_tokens, struct kni_buffer *out, struct kni_account *account)
{
    struct kni_span exact[2];
    exact_spans(n_tokens, exact);
    uint32_t first = exact[0].n_tokens, n = exact[1].first_token - first, numbers[KNI_BASELINE_NUMBERS] = {n_tokens};
    size_t sizes[2] = {0, 0}, exact_bytes[2] = {0, 0};
    uint8_t *plain = NULL;
    uint16_t *values = NULL;
    enum kn_status status = kni_baseline_begin(out, WHAT_KVTC, numbers);
    for (uint32_t i = 0; i < 4 && status == KN_OK; i++) {
        size_t bytes = kni_span_values(view, exact[i % 2]) * 2;
        uint8_t *to = kni_buffer_room(out, bytes);
        kni_free(values);
        values = kni_alloc(KNI_ALLOC_TAG_CODEC, bytes, 64);
        if (!to || !values) {
            status = KN_E_NOMEM;
            break;
        }
        kni_span_gather(view, exact[i % 2], i / 2, values);
        memcpy(to, values, bytes);
        out->used += bytes;
        exact_bytes[i / 2] += bytes;
    }
    for (uint32_t is_v = 0; is_v < 2 && status == KN_OK; is_v++) {
        size_t plane, n_plain = plain_bytes(k, is_v, n, &plane);
        uLongf size = compressBound((uLong)n_plain);
        uint8_t *to = kni_buffer_room(out, size);
        kni_free(plain);
        plain = kni_alloc(KNI_ALLOC_TAG_CODEC, n_plain, 64);
        if (!to || !plain) {
            status = KN_E_NOMEM;
            break;
        }
        pass(k, view, is_v, first, n, false, plain);
        if (compress2(to, &size, plain, (uLong)n_plain, DEFLATE_LEVEL) != Z_OK)
            status = KN_E_NOMEM;
        out->used += sizes[is_v] = size;
    }
    if (status == KN_OK) {
        kni_le32_put(out->data + 8, (uint32_t)sizes[0]); /* number 1 */
        status = kni_baseline_end(out);
        account->all_bytes += out->used;
        account->k_bytes += (double)(sizes[0] + exact_bytes[0]);
        account->v_bytes += (double)(sizes[1] + exact_bytes[1]);
    }
    kni_free(plain);
    kni_free(values);
    return status;
}

enum kn_status kni_kvtc_decode(struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t n_tokens, const uint8_t *data, size_t n_bytes)
{
    struct kni_span exact[2];
    exact_spans(n_tokens, exact);
    uint32_t first = exact[0].n_tokens, n = exact[1].first_token - first, x[KNI_BASELINE_NUMBERS];
    size_t n_body, exact_all = (kni_span_values(view, exact[0]) + kni_span_values(view, exact[1])) * 4;
    const uint8_t *at;
    uint8_t *plain = NULL;
    uint16_t *values = NULL;
    enum kn_status status = kni_baseline_open(data, n_bytes, WHAT_KVTC, x, &at, &n_body);
    if (status || x[0] != n_tokens || n_body < exact_all || x[1] > n_body - exact_all)
        return KN_E_FORMAT;
    for (uint32_t i = 0; i < 4 && status == KN_OK; i++) {
        size_t bytes = kni_span_values(view, exact[i % 2]) * 2;
        kni_free(values);
        values = kni_alloc(KNI_ALLOC_TAG_CODEC, bytes, 64);
        if (!values) {
            status = KN_E_NOMEM;
            break;
        }
        memcpy(values, at, bytes);
        kni_span_scatter(view, exact[i % 2], i / 2, values);
        at += bytes;
    }
    for (uint32_t is_v = 0; is_v < 2 && status == KN_OK; is_v++) {
        size_t plane, n_plain = plain_bytes(k, is_v, n, &plane), n_coded = is_v ? n_body - exact_all - x[1] : x[1];
        uLongf size = (uLongf)n_plain;
        kni_free(plain);
        plain = kni_alloc(KNI_ALLOC_TAG_CODEC, n_plain, 64);
        if (!plain)
            status = KN_E_NOMEM;
        else if (uncompress(plain, &size, at, (uLong)n_coded) != Z_OK || size != n_plain)
            status = KN_E_FORMAT;
        else
            pass(k, view, is_v, first, n, true, plain);
        at += n_coded;
    }
    kni_free(plain);
    kni_free(values);
    return status;
}

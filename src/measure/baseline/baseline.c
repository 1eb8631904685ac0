/* SPDX-License-Identifier: Apache-2.0 */
/* Heads, exact values, and the raw baselines: see baseline.h. Little-endian like every machine that Kinema runs on. */
#include "measure/baseline/baseline.h"

#include <string.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/le.h"
#include "base/room.h"

#define HEAD_BYTES 32u
#define TAIL_BYTES 8u
#define WHAT_ZSTD 1u
#define ZSTD_LEVEL 3

uint8_t *kni_buffer_room(struct kni_buffer *b, size_t n_bytes)
{
    size_t need;
    if (!kni_add_size(b->used, n_bytes, &need))
        return NULL;
    uint8_t *data = kni_room_keep(KNI_ALLOC_TAG_CODEC, b->data, &b->capacity, need, 1);
    if (!data)
        return NULL;
    b->data = data;
    return data + b->used;
}

enum kn_status kni_baseline_begin(struct kni_buffer *b, uint32_t what, const uint32_t numbers[KNI_BASELINE_NUMBERS])
{
    b->used = 0;
    uint8_t *head = kni_buffer_room(b, HEAD_BYTES);
    if (!head)
        return KN_E_NOMEM;
    memset(head, 0, HEAD_BYTES);
    kni_le32_put(head, what);
    for (uint32_t i = 0; i < KNI_BASELINE_NUMBERS; i++)
        kni_le32_put(head + 4 + 4 * i, numbers[i]);
    b->used = HEAD_BYTES;
    return KN_OK;
}

enum kn_status kni_baseline_end(struct kni_buffer *b)
{
    uint8_t *tail = kni_buffer_room(b, TAIL_BYTES);
    if (!tail)
        return KN_E_NOMEM;
    kni_le64_put(tail, XXH3_64bits(b->data, b->used));
    b->used += TAIL_BYTES;
    return KN_OK;
}

enum kn_status kni_baseline_open(const uint8_t *data, size_t n_bytes, uint32_t what, uint32_t numbers[KNI_BASELINE_NUMBERS], const uint8_t **body, size_t *n_body)
{
    if (n_bytes < HEAD_BYTES + TAIL_BYTES || kni_le32_get(data) != what || kni_le64_get(data + n_bytes - TAIL_BYTES) != XXH3_64bits(data, n_bytes - TAIL_BYTES))
        return KN_E_FORMAT;
    for (uint32_t i = 0; i < KNI_BASELINE_NUMBERS; i++)
        numbers[i] = kni_le32_get(data + 4 + 4 * i);
    *body = data + HEAD_BYTES;
    *n_body = n_bytes - HEAD_BYTES - TAIL_BYTES;
    return KN_OK;
}

size_t kni_span_values(const struct kni_kv_host *view, struct kni_span span)
{
    const struct kni_kv_layout *l = &view->layout;
    return (size_t)l->n_layer * l->n_kv_head * l->d_head * span.n_tokens;
}

void kni_span_gather(const struct kni_kv_host *view, struct kni_span span, uint32_t is_v, uint16_t *values)
{
    const struct kni_kv_layout *l = &view->layout;
    for (uint32_t layer = 0; layer < l->n_layer; layer++)
        for (uint32_t head = 0; head < l->n_kv_head; head++)
            for (uint32_t t = 0; t < span.n_tokens; t++, values += l->d_head)
                memcpy(values, kni_kv_row(view, layer, is_v, head, span.first_token + t), l->d_head * sizeof *values);
}

void kni_span_scatter(const struct kni_kv_host *view, struct kni_span span, uint32_t is_v, const uint16_t *values)
{
    const struct kni_kv_layout *l = &view->layout;
    for (uint32_t layer = 0; layer < l->n_layer; layer++)
        for (uint32_t head = 0; head < l->n_kv_head; head++)
            for (uint32_t t = 0; t < span.n_tokens; t++, values += l->d_head)
                memcpy(kni_kv_row(view, layer, is_v, head, span.first_token + t), values, l->d_head * sizeof *values);
}

enum kn_status kni_raw_encode(const struct kni_kv_host *view, struct kni_span span, struct kni_buffer *out, struct kni_account *account)
{
    size_t half = kni_span_values(view, span) * sizeof(uint16_t);
    out->used = 0;
    uint8_t *room = kni_buffer_room(out, 2 * half);
    if (!room)
        return KN_E_NOMEM;
    kni_span_gather(view, span, 0, (uint16_t *)(void *)room);
    kni_span_gather(view, span, 1, (uint16_t *)(void *)(room + half));
    out->used = 2 * half;
    account->all_bytes += 2 * half;
    account->k_bytes += (double)half;
    account->v_bytes += (double)half;
    return KN_OK;
}

enum kn_status kni_raw_decode(const struct kni_kv_host *view, struct kni_span span, const uint8_t *data, size_t n_bytes)
{
    size_t half = kni_span_values(view, span) * sizeof(uint16_t);
    if (n_bytes != 2 * half)
        return KN_E_FORMAT;
    kni_span_scatter(view, span, 0, (const uint16_t *)(const void *)data);
    kni_span_scatter(view, span, 1, (const uint16_t *)(const void *)(data + half));
    return KN_OK;
}

enum kn_status kni_raw_zstd_encode(const struct kni_kv_host *view, struct kni_span span, struct kni_buffer *out, struct kni_account *account)
{
    size_t n_values = kni_span_values(view, span), half = n_values * sizeof(uint16_t), bound = ZSTD_compressBound(half), sizes[2] = {0, 0};
    uint32_t numbers[KNI_BASELINE_NUMBERS] = {0};
    uint16_t *values = kni_alloc(KNI_ALLOC_TAG_CODEC, half, 64);
    enum kn_status status = values ? kni_baseline_begin(out, WHAT_ZSTD, numbers) : KN_E_NOMEM;
    for (uint32_t is_v = 0; is_v < 2 && status == KN_OK; is_v++) {
        uint8_t *room = kni_buffer_room(out, bound);
        if (room)
            kni_span_gather(view, span, is_v, values);
        size_t n = room ? ZSTD_compress(room, bound, values, half, ZSTD_LEVEL) : 0;
        if (!room || ZSTD_isError(n)) {
            status = KN_E_NOMEM;
            break;
        }
        out->used += sizes[is_v] = n;
    }
    if (status == KN_OK) {
        kni_le32_put(out->data + 4, (uint32_t)sizes[0]);
        status = kni_baseline_end(out);
        account->all_bytes += out->used;
        account->k_bytes += (double)sizes[0];
        account->v_bytes += (double)sizes[1];
    }
    kni_free(values);
    return status;
}

enum kn_status kni_raw_zstd_decode(const struct kni_kv_host *view, struct kni_span span, const uint8_t *data, size_t n_bytes)
{
    size_t half = kni_span_values(view, span) * sizeof(uint16_t), n_body;
    uint32_t numbers[KNI_BASELINE_NUMBERS];
    const uint8_t *body;
    enum kn_status status = kni_baseline_open(data, n_bytes, WHAT_ZSTD, numbers, &body, &n_body);
    if (status || numbers[0] > n_body)
        return KN_E_FORMAT;
    uint16_t *values = kni_alloc(KNI_ALLOC_TAG_CODEC, half, 64);
    if (!values)
        return KN_E_NOMEM;
    for (uint32_t is_v = 0; is_v < 2 && status == KN_OK; is_v++) {
        size_t n = ZSTD_decompress(values, half, is_v ? body + numbers[0] : body, is_v ? n_body - numbers[0] : numbers[0]);
        if (n == half)
            kni_span_scatter(view, span, is_v, values);
        else
            status = KN_E_FORMAT;
    }
    kni_free(values);
    return status;
}

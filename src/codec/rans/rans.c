/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference coder, the stream's frame, and the choice of a SIMD level.
 *
 *     byte 0: 0 raw, 1 coded      raw: the symbols row after row       coded: a stream of rans_core.h
 *
 * Raw is what a matrix becomes that the model cannot shrink, so no stream is longer than the matrix and a byte.
 *
 * Encoding walks forward once (contexts follow decoding order) and notes for each symbol its table and what is coded, then walks
 * backward over the notes with the states. It writes from the end of out, checks room once a step, and moves the stream to
 * its place at last.
 */
#include "codec/rans/rans.h"
#include "codec/rans/rans_simd.h"

#include "base/alloc.h"
#include "base/cpu.h"

#include <assert.h>
#include <string.h>

enum { FRAME_RAW = 0, FRAME_CODED = 1 };

#define SLACK_BYTES (1u + KNI_RANS_STATE_BYTES + KNI_RANS_STEP_ROOM + 64u)

size_t kni_rans_bound(uint32_t n_rows, uint32_t n_tokens)
{
    return (size_t)n_rows * n_tokens + SLACK_BYTES;
}

size_t kni_rans_decode_scratch_bytes(void)
{
    return sizeof(struct kni_rans_row) + 64;
}

size_t kni_rans_scratch_bytes(uint32_t n_rows, uint32_t n_tokens)
{
    return sizeof(struct kni_rans_row) + 64 + (size_t)n_rows * n_tokens * 2;
}

static void *align64(void *p)
{
    return (void *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

static void check_size(uint32_t n_tokens)
{
    assert(n_tokens && n_tokens % 16 == 0 && n_tokens <= KNI_RANS_MAX_TOKENS);
}

bool kni_rans_encode_row_ref(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                             const uint8_t *tables, const uint8_t *coded)
{
    for (uint32_t end = n_tokens; end;) {
        uint32_t n = end % KNI_RANS_LANES ? end % KNI_RANS_LANES : KNI_RANS_LANES, p = end - n;
        if (*at - floor < KNI_RANS_STEP_ROOM)
            return false;
        for (uint32_t lane = n; lane--;)
            if (m->codes[tables[p + lane]][coded[p + lane]].what & KNI_RANS_RAW)
                x[lane] = kni_rans_put_raw(x[lane], at, coded[p + lane], 8);
        for (uint32_t lane = n; lane--;) {
            uint32_t table = tables[p + lane];
            x[lane] = kni_rans_put_code(x[lane], at, m->codes[table][coded[p + lane]].what, m->slots[table]);
        }
        end = p;
    }
    return true;
}

bool kni_rans_decode_row_ref(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], struct kni_rans_words *words, uint32_t n_tokens,
                             const struct kni_rans_class *c, struct kni_rans_row *row, uint8_t *tokens)
{
    kni_rans_row_begin(row, n_tokens);
    for (uint32_t p = 0; p < n_tokens; p += KNI_RANS_LANES) {
        uint32_t n = n_tokens - p < KNI_RANS_LANES ? n_tokens - p : KNI_RANS_LANES;
        uint8_t *s = row->symbols + p;
        for (uint32_t lane = 0; lane < n; lane++) {
            uint32_t table = c->map[kni_rans_level(c, row->loud[p + lane], p, kni_rans_before(row, c, p + lane))];
            if (!kni_rans_get_bucket(&x[lane], words, m->buckets[table], &s[lane]))
                return false;
        }
        for (uint32_t lane = 0; lane < n; lane++) {
            uint32_t value = s[lane];
            if (value == KNI_RANS_ESCAPE && !kni_rans_get_raw(&x[lane], &words->at, words->end, 8, &value))
                return false;
            s[lane] = kni_rans_flip((uint8_t)value, kni_rans_before(row, c, p + lane) < 0);
        }
    }
    kni_rans_to_tokens(tokens, row->symbols, 0, n_tokens);
    kni_rans_row_end(row, n_tokens, c);
    return true;
}

struct kni_rans_ops kni_rans_ops_get(uint32_t cpu_flags)
{
    struct kni_rans_ops ops = {kni_rans_notes_ref, kni_rans_encode_row_ref, kni_rans_decode_row_ref};
    cpu_flags = kni_cpu_flags_usable(cpu_flags);
#if defined(__x86_64__)
    if (cpu_flags & KNI_CPU_FLAG_AVX2)
        ops = (struct kni_rans_ops){kni_rans_notes_avx2, kni_rans_encode_row_avx2, kni_rans_decode_row_avx2};
    if (cpu_flags & KNI_CPU_FLAG_AVX512) {
        ops.encode_row = kni_rans_encode_row_avx512;
        ops.decode_row = kni_rans_decode_row_avx512;
    }
#endif
    return ops;
}

static size_t encode_raw(const uint8_t *symbols, size_t stride, uint32_t n_rows, uint32_t n_tokens, uint8_t *out)
{
    *out++ = FRAME_RAW;
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(out + (size_t)r * n_tokens, symbols + r * stride, n_tokens);
    return (size_t)n_rows * n_tokens + 1;
}

size_t kni_rans_encode(const struct kni_rans_model *m, const uint8_t *symbols, size_t stride, uint32_t n_rows, uint32_t n_tokens,
                       const uint8_t *classes, uint8_t *out, void *scratch, uint32_t cpu_flags)
{
    check_size(n_tokens);
    const struct kni_rans_ops ops = kni_rans_ops_get(cpu_flags);
    struct kni_rans_row *row = align64(scratch);
    uint8_t *notes = (uint8_t *)(row + 1);
    kni_rans_row_reset(row);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint8_t *tables = notes + (size_t)r * n_tokens * 2;
        ops.notes(row, kni_rans_class_get(m, classes[r]), symbols + r * stride, n_tokens, tables, tables + n_tokens);
    }
    uint32_t x[KNI_RANS_LANES];
    for (uint32_t i = 0; i < KNI_RANS_LANES; i++)
        x[i] = KNI_RANS_LOW;
    uint8_t *end = out + kni_rans_bound(n_rows, n_tokens), *at = end;
    const uint8_t *floor = out + 1 + KNI_RANS_STATE_BYTES;
    for (uint32_t r = n_rows; r--;) {
        const uint8_t *tables = notes + (size_t)r * n_tokens * 2;
        if (!ops.encode_row(m, x, &at, floor, n_tokens, tables, tables + n_tokens))
            return encode_raw(symbols, stride, n_rows, n_tokens, out);
    }
    size_t n_bytes = (size_t)(end - at) + KNI_RANS_STATE_BYTES + 1;
    if (n_bytes > (size_t)n_rows * n_tokens)
        return encode_raw(symbols, stride, n_rows, n_tokens, out);
    out[0] = FRAME_CODED;
    for (uint32_t i = 0; i < KNI_RANS_LANES; i++)
        kni_le32_put(out + 1 + 4 * i, x[i]);
    memmove(out + 1 + KNI_RANS_STATE_BYTES, at, (size_t)(end - at));
    return n_bytes;
}

static enum kn_status decode_coded(const struct kni_rans_model *m, const uint8_t *at, const uint8_t *end, uint32_t n_rows, uint32_t n_tokens, const uint8_t *classes,
                                   uint8_t *symbols, size_t stride, struct kni_rans_row *row, uint32_t cpu_flags)
{
    const struct kni_rans_ops ops = kni_rans_ops_get(cpu_flags);
    if ((size_t)(end - at) < KNI_RANS_STATE_BYTES)
        return KN_E_FORMAT;
    uint32_t x[KNI_RANS_LANES];
    for (uint32_t i = 0; i < KNI_RANS_LANES; i++, at += 4)
        x[i] = kni_le32_get(at);
    struct kni_rans_words words = {at, end};
    bool in_tail = false;
    kni_rans_row_reset(row);
    for (uint32_t r = 0; r < n_rows; r++) {
        size_t left = (size_t)(words.end - words.at);
        if (!in_tail && left < KNI_RANS_ROW_BYTES) {
            memcpy(row->tail, words.at, left);
            memset(row->tail + left, 0, sizeof row->tail - left);
            words = (struct kni_rans_words){row->tail, row->tail + left};
            in_tail = true;
        }
        if (!ops.decode_row(m, x, &words, n_tokens, kni_rans_class_get(m, classes[r]), row, symbols + r * stride))
            return KN_E_FORMAT;
    }
    bool good = words.at == words.end;
    for (uint32_t i = 0; i < KNI_RANS_LANES; i++)
        good &= x[i] == KNI_RANS_LOW;
    return good ? KN_OK : KN_E_FORMAT;
}

enum kn_status kni_rans_decode(const struct kni_rans_model *m, const uint8_t *data, size_t n_bytes, uint32_t n_rows, uint32_t n_tokens,
                               const uint8_t *classes, uint8_t *symbols, size_t stride, void *scratch,
                                   uint32_t cpu_flags)
{
    check_size(n_tokens);
    size_t n = (size_t)n_rows * n_tokens;
    if (!n_bytes || data[0] > FRAME_CODED || (data[0] == FRAME_RAW && n_bytes - 1 != n))
        return KN_E_FORMAT;
    if (data[0] == FRAME_CODED)
        return decode_coded(m, data + 1, data + n_bytes, n_rows, n_tokens, classes, symbols, stride, align64(scratch),
                            cpu_flags);
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(symbols + r * stride, data + 1 + (size_t)r * n_tokens, n_tokens);
    return KN_OK;
}

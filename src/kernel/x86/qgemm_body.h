/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of qgemm for one vector width. The including file defines
 *
 *     QG_LANES            outputs in a vector: 8 or 16 (a panel is two vectors or one)
 *     QG_FEW, QG_MANY     rows of a tile that reads packed values, and of one that reads unpacked ones
 *     QG_EACH_FEW(X), QG_EACH_MANY(X)   X(1) X(2) ... up to these
 *     VI, VF              integer and float vectors; V_* operations on them
 *     V_ROW(a, b, w0, w1, p)   a and b += products of pairs w0 and w1 with the pair at p; b and w1 only with two vectors
 *     QG_NAME             the function that comes out
 *
 * A tile is R rows by one panel. Integer accumulators are named variables (as an array, gcc leaves them on the stack); they
 * are flushed into floats once a block, and those lie in memory, in the first cache. In a step, pairs of inputs of 16 outputs
 * meet a broadcast pair of a row:
 *
 *     w = [o0: i, i+1][o1: i, i+1]...   x = [i, i+1][i, i+1]...   acc[o] += w[o][i] * x[i] + w[o][i+1] * x[i+1]
 */
#include <string.h>

#include "kernel/qgemm.h"

#define INLINE static inline __attribute__((always_inline))
#define COLS KNI_PANEL_COLS
#define PREFETCH_BYTES 2048

struct tile {
    const uint8_t *q; /* values of the first block */
    uint32_t block_bytes, n_blocks;
    const float *d, *m; /* m NULL: no minimum */
    int32_t offset;
    const uint8_t *x; /* blocks of the first row */
    size_t ldx;       /* bytes */
    float *acc;       /* [rows][16] */
};

/* Pair t (0..3) of group g (0..3) of half h: every kind's way. */
#define NIB_0(v) V_AND(v, V_SET16(15))
#define NIB_1(v) V_AND(V_SRL16(v, 4), V_SET16(15))
#define NIB_2(v) V_AND(V_SRL16(v, 8), V_SET16(15))
#define NIB_3(v) V_SRL16(v, 12)
#define ONE_0(v) V_AND(V_SLL16(v, 4), V_SET16(16))
#define ONE_1(v) V_AND(V_SLL16(v, 3), V_SET16(16))
#define ONE_2(v) V_AND(V_SLL16(v, 2), V_SET16(16))
#define ONE_3(v) V_AND(V_SLL16(v, 1), V_SET16(16))
#define TWO_0(v) V_AND(V_SLL16(v, 4), V_SET16(48))
#define TWO_1(v) V_AND(V_SLL16(v, 2), V_SET16(48))
#define TWO_2(v) V_AND(v, V_SET16(48))
#define TWO_3(v) V_AND(V_SRL16(v, 2), V_SET16(48))
#define BYTE_0(v, w) V_SRA16(V_SLL16(v, 8), 8)
#define BYTE_1(v, w) V_SRA16(v, 8)
#define BYTE_2(v, w) V_SRA16(V_SLL16(w, 8), 8)
#define BYTE_3(v, w) V_SRA16(w, 8)

#define LOAD_nibble(h) VI raw##h = V_LOAD(q + g * 64 + h * 32);
#define LOAD_nibble1(h) LOAD_nibble(h) VI top##h = V_SRL16_BY(V_LOAD(q + 256 + h * 32), 4 * g);
#define LOAD_nibble2(h) LOAD_nibble(h) VI top##h = V_SRL16_BY(V_LOAD(q + 256 + g / 2 * 64 + h * 32), 8 * (g % 2));
#define LOAD_byte(h) VI raw##h = V_LOAD(q + g * 128 + h * 32), next##h = V_LOAD(q + g * 128 + 64 + h * 32);
#define LOAD_wide(h) const uint8_t *raw##h = q + g * 256 + h * 32;
#define PAIR_nibble(h, t) NIB_##t(raw##h)
#define PAIR_nibble1(h, t) V_OR(NIB_##t(raw##h), ONE_##t(top##h))
#define PAIR_nibble2(h, t) V_OR(NIB_##t(raw##h), TWO_##t(top##h))
#define PAIR_byte(h, t) BYTE_##t(raw##h, next##h)
#define PAIR_wide(h, t) V_LOAD(raw##h + t * 64)

#define OFFSET_nibble t->offset
#define OFFSET_nibble1 t->offset
#define OFFSET_nibble2 t->offset
#define OFFSET_byte 0 /* Q8_0 has none; unpacking has taken it away */
#define OFFSET_wide 0

#if QG_LANES == 8
#define HALVES(X) X(0) X(1)
#define SECOND(...) __VA_ARGS__
#else
#define HALVES(X) X(0)
#define SECOND(...)
#endif

#define EACH_1(X) X(0)
#define EACH_2(X) EACH_1(X) X(1)
#define EACH_3(X) EACH_2(X) X(2)
#define EACH_4(X) EACH_3(X) X(3)
#define EACH_5(X) EACH_4(X) X(4)
#define EACH_6(X) EACH_5(X) X(5)
#define EACH_7(X) EACH_6(X) X(6)
#define EACH_8(X) EACH_7(X) X(7)
#define EACH_9(X) EACH_8(X) X(8)
#define EACH_10(X) EACH_9(X) X(9)
#define EACH_11(X) EACH_10(X) X(10)
#define EACH_12(X) EACH_11(X) X(11)

/* acc += float(sum - offset * sum of x) * (d * x.d), for 8 or 16 outputs of a row. */
INLINE void flush(int32_t offset, VI sum, const float *d, const uint8_t *xb, unsigned half_sum, float *acc)
{
    if (offset) {
        VI xs = half_sum < 2 ? V_BROADCAST32(xb + 72 + 4 * half_sum) : V_ADD32(V_BROADCAST32(xb + 72), V_BROADCAST32(xb + 76));
        sum = V_SUB32(sum, V_MUL32(xs, V_SET32(offset)));
    }
    V_STOREF(acc, V_ADDF(V_LOADF(acc), V_MULF(V_CVTF(sum), V_MULF(V_LOADF(d), V_BROADCASTF(xb + 64)))));
}

INLINE void add_min(const float *m, const uint8_t *xb, float *acc)
{
    V_STOREF(acc, V_ADDF(V_LOADF(acc), V_MULF(V_LOADF(m), V_BROADCASTF(xb + 68))));
}

#define DECLARE(r) VI a##r = V_ZERO(); SECOND(VI b##r = a##r;)
#define POINT(r) const uint8_t *x##r = t->x + r * t->ldx;
#define ADVANCE(r) x##r += sizeof(struct kni_xblock);
#define ROW(r) V_ROW(a##r, b##r, w0, w1, x##r + g * 16 + at);
#define STEP(kind, rows, t)                  \
    {                                        \
        enum { at = 4 * t };                 \
        VI w0 = PAIR_##kind(0, t);                 \
        SECOND(VI w1 = PAIR_##kind(1, t);)   \
        EACH_##rows(ROW)                     \
    }
#define FLUSH_WHOLE(r) flush(offset, a##r, d, x##r, 2, acc + r * COLS); SECOND(flush(offset, b##r, d + 8, x##r, 2, acc + r * COLS + 8);)
#define FLUSH_HALF(r)                                                                                                      \
    flush(offset, a##r, d + half * COLS, x##r, half, acc + r * COLS);                                                    \
    SECOND(flush(offset, b##r, d + half * COLS + 8, x##r, half, acc + r * COLS + 8); b##r = V_ZERO();)                   \
    a##r = V_ZERO();
#define MIN(r) add_min(m, x##r, acc + r * COLS); SECOND(add_min(m + 8, x##r, acc + r * COLS + 8);)

/* Four steps. Written out four times a block: around a loop the compiler would save accumulators to the stack and load them. */
#define GROUP(kind, rows, split, number)               \
    {                                                  \
        enum { g = number, half = g / 2 };             \
        HALVES(LOAD_##kind)                            \
        V_PREFETCH(q + PREFETCH_BYTES + g * 64);       \
        STEP(kind, rows, 0)                            \
        STEP(kind, rows, 1)                            \
        STEP(kind, rows, 2)                            \
        STEP(kind, rows, 3)                            \
        if (split && g % 2) {                          \
            EACH_##rows(FLUSH_HALF)                    \
        }                                              \
    }

#define TILE(kind, name, rows, split)                                                                   \
    static void tile_##name##_##rows(const struct tile *t)                                              \
    {                                                                                                   \
        const uint8_t *q = t->q;                                                                        \
        const float *d = t->d, *m = t->m;                                                               \
        float *acc = t->acc;                                                                            \
        const int32_t offset = OFFSET_##kind;                                                           \
        EACH_##rows(POINT)                                                                              \
        for (uint32_t b = t->n_blocks; b; b--, q += t->block_bytes) {                                   \
            EACH_##rows(DECLARE)                                                                        \
            GROUP(kind, rows, split, 0)                                                                 \
            GROUP(kind, rows, split, 1)                                                                 \
            GROUP(kind, rows, split, 2)                                                                 \
            GROUP(kind, rows, split, 3)                                                                 \
            if (!split) {                                                                               \
                EACH_##rows(FLUSH_WHOLE)                                                                \
            }                                                                                           \
            if (m) {                                                                                    \
                EACH_##rows(MIN)                                                                        \
                m += COLS;                                                                              \
            }                                                                                           \
            d += split ? 2 * COLS : COLS;                                                               \
            EACH_##rows(ADVANCE)                                                                        \
        }                                                                                               \
    }

#define TILE_nibble(rows) TILE(nibble, nibble, rows, 0)
#define TILE_nibble1(rows) TILE(nibble1, nibble1, rows, 0)
#define TILE_nibble2(rows) TILE(nibble2, nibble2, rows, 1)
#define TILE_byte(rows) TILE(byte, byte, rows, 0)
#define TILE_wide(rows) TILE(wide, wide, rows, 0)
#define TILE_wide_split(rows) TILE(wide, wide_split, rows, 1)
QG_EACH_FEW(TILE_nibble)
QG_EACH_FEW(TILE_nibble1)
QG_EACH_FEW(TILE_nibble2)
QG_EACH_FEW(TILE_byte)
QG_EACH_MANY(TILE_wide)
QG_EACH_MANY(TILE_wide_split)

typedef void (*tile_fn)(const struct tile *t);
#define ENTRY_nibble(rows) tile_nibble_##rows,
#define ENTRY_nibble1(rows) tile_nibble1_##rows,
#define ENTRY_nibble2(rows) tile_nibble2_##rows,
#define ENTRY_byte(rows) tile_byte_##rows,
#define ENTRY_wide(rows) tile_wide_##rows,
#define ENTRY_wide_split(rows) tile_wide_split_##rows,
static const tile_fn few_tiles[][QG_FEW] = {
    [KNI_PANEL_VALUES_NIBBLE] = {QG_EACH_FEW(ENTRY_nibble)},
    [KNI_PANEL_VALUES_NIBBLE1] = {QG_EACH_FEW(ENTRY_nibble1)},
    [KNI_PANEL_VALUES_NIBBLE2] = {QG_EACH_FEW(ENTRY_nibble2)},
    [KNI_PANEL_VALUES_BYTE] = {QG_EACH_FEW(ENTRY_byte)},
};
static const tile_fn many_tiles[2][QG_MANY] = {{QG_EACH_MANY(ENTRY_wide)}, {QG_EACH_MANY(ENTRY_wide_split)}};

/* Values less their offset, as 16-bit pairs: kni_panel_values_ref for n blocks. */
#define PUT(kind, t)                                                             \
    V_STORE(out + g * 256 + t * 64, V_SUB16(PAIR_##kind(0, t), offset));         \
    SECOND(V_STORE(out + g * 256 + t * 64 + 32, V_SUB16(PAIR_##kind(1, t), offset));)
#define UNPACK(kind, bytes)                                                      \
    static void unpack_##kind(const uint8_t *q, uint32_t n, VI offset, uint8_t *out) \
    {                                                                            \
        for (; n; n--, q += bytes, out += 1024)                                  \
            for (unsigned g = 0; g < 4; g++) {                                   \
                HALVES(LOAD_##kind)                                              \
                PUT(kind, 0) PUT(kind, 1) PUT(kind, 2) PUT(kind, 3)              \
            }                                                                    \
    }
UNPACK(nibble, 256)
UNPACK(nibble1, 320)
UNPACK(nibble2, 384)
UNPACK(byte, 512)

static void unpack(enum kni_panel_values values, const uint8_t *q, uint32_t n, int32_t offset, int16_t *out)
{
    VI o = V_SET16((short)offset);
    switch (values) {
    case KNI_PANEL_VALUES_FLOAT: break;
    case KNI_PANEL_VALUES_NIBBLE: unpack_nibble(q, n, o, (uint8_t *)out); break;
    case KNI_PANEL_VALUES_NIBBLE1: unpack_nibble1(q, n, o, (uint8_t *)out); break;
    case KNI_PANEL_VALUES_NIBBLE2: unpack_nibble2(q, n, o, (uint8_t *)out); break;
    case KNI_PANEL_VALUES_BYTE: unpack_byte(q, n, o, (uint8_t *)out); break;
    }
}

/* ---- scales: 256-bit vectors at every level, see kni_panel_scales_ref */

INLINE __m256 halves_at(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

INLINE __m256 bytes_at(const uint8_t *p, bool is_signed)
{
    __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v));
}

static void scales(enum kni_panel_scales form, const uint8_t *s, uint32_t block0, uint32_t n, float *d, float *m)
{
    const __m256 minus = _mm256_set1_ps(-0.0f);
    for (uint32_t b = block0, i = 0; i < n; b++, i++)
        for (uint32_t h = 0; h < 2; h++) {
            const uint8_t *k = s + (size_t)(b / 8) * (form == KNI_PANEL_SCALES_K ? 320 : 288), *j = k + 32 * (b % 8) + 8 * h;
            size_t at = i * COLS + 8 * h;
            switch (form) {
            case KNI_PANEL_SCALES_NONE: break;
            case KNI_PANEL_SCALES_D: _mm256_store_ps(d + at, halves_at(s + (size_t)b * 32 + 16 * h)); break;
            case KNI_PANEL_SCALES_DM:
                _mm256_store_ps(d + at, halves_at(s + (size_t)b * 64 + 16 * h));
                _mm256_store_ps(m + at, halves_at(s + (size_t)b * 64 + 32 + 16 * h));
                break;
            case KNI_PANEL_SCALES_K:
                _mm256_store_ps(d + at, _mm256_mul_ps(halves_at(k + 16 * h), bytes_at(j + 64, false)));
                _mm256_store_ps(m + at, _mm256_xor_ps(minus, _mm256_mul_ps(halves_at(k + 32 + 16 * h), bytes_at(j + 80, false))));
                break;
            case KNI_PANEL_SCALES_K6:
                _mm256_store_ps(d + at + i * COLS, _mm256_mul_ps(halves_at(k + 16 * h), bytes_at(j + 32, true)));
                _mm256_store_ps(d + at + (i + 1) * COLS, _mm256_mul_ps(halves_at(k + 16 * h), bytes_at(j + 48, true)));
            }
        }
}

/* ---- tiles over rows */

static void rows_of_panel(const struct kni_qgemm_args *a, const struct tile *first, const tile_fn *fns, uint32_t max_rows, uint32_t n_cols, float *y, bool add)
{
    float acc[QG_MANY * COLS] __attribute__((aligned(64)));
    struct tile t = *first;
    t.acc = acc;
    for (uint32_t row = 0, n; row < a->n_rows; row += n) {
        n = a->n_rows - row < max_rows ? a->n_rows - row : max_rows;
        if (!add || n_cols < COLS)
            memset(acc, 0, n * COLS * sizeof *acc);
        for (uint32_t r = 0; add && r < n; r++)
            memcpy(acc + r * COLS, y + (row + r) * a->ldy, n_cols * sizeof *y);
        t.x = first->x + row * t.ldx;
        fns[n - 1](&t);
        for (uint32_t r = 0; r < n; r++) {
            if (n_cols == COLS)
                memcpy(y + (row + r) * a->ldy, acc + r * COLS, COLS * sizeof *y); /* constant size: two or four stores */
            else
                memcpy(y + (row + r) * a->ldy, acc + r * COLS, n_cols * sizeof *y);
        }
    }
}

void QG_NAME(const struct kni_qgemm_args *a)
{
    const struct kni_panel_form *f = kni_panel_get_form(a->w->type);
    struct kni_qgemm_scratch *s = a->scratch;
    uint32_t n_blocks = a->w->n_in / KNI_PANEL_BLOCK;
    bool many = a->n_rows >= KNI_QGEMM_MANY;
    for (uint32_t col = 0; col < a->n_cols; col += COLS) {
        const uint8_t *panel = a->w->data + (size_t)((a->col0 + col) / COLS) * a->w->panel_bytes;
        uint32_t n_cols = a->n_cols - col < COLS ? a->n_cols - col : COLS;
        for (uint32_t b0 = 0, n; b0 < n_blocks; b0 += n) {
            n = n_blocks - b0 < KNI_PANEL_CHUNK ? n_blocks - b0 : KNI_PANEL_CHUNK;
            scales(f->scales, panel, b0, n, s->d, s->m);
            struct tile t = {.q = panel + a->w->values_at + (size_t)b0 * f->block_bytes, .block_bytes = f->block_bytes, .n_blocks = n, .d = s->d,
                .m = kni_panel_has_min(f->scales) ? s->m : NULL, .offset = f->offset, .x = (const uint8_t *)(a->x + b0),
                .ldx = a->ldx * sizeof(struct kni_xblock)};
            if (many) {
                unpack(f->values, t.q, n, f->offset, s->values);
                t.q = (const uint8_t *)s->values;
                t.block_bytes = 1024;
                t.offset = 0;
            }
            rows_of_panel(a, &t, many ? many_tiles[f->scales == KNI_PANEL_SCALES_K6] : few_tiles[f->values], many ? QG_MANY : QG_FEW, n_cols,
                          a->y + col, a->accumulate || b0);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The encoder's set-up, bounds, and whole access units. Everything that costs time is in slices (hevc_slice.inc). */
#include "codec/hevc/hevc_lossless.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "codec/hevc/hevc_state.h"

#define CTB_LOG2 5u /* 32: the largest transform block; 16 cost .4 %, 64 gained nothing */
#define CONTEXT_QP 10 /* says only how contexts begin: 10 to 51 differ by .04 % */
#define SLICE_SAMPLES (1u << 20) /* of a plane */
#define MIX_RATIO 3u
#define MIX_FLOOR 512u /* a quarter a symbol */
#define HEADER_BOUND 128u /* of a slice: start code, NAL header, slice header with the weights of 5 references; and the stop bit */

/*
 * Most bits of 8 x 8 samples of all planes, without emulation prevention.
 *
 * Bins with contexts. A bin costs log2(range before / range after), at most that of the worst range in 256..510: a number for each
 * state and symbol. The bins of one context walk through the states, so n of them cost no more than n times the worst mean of any
 * cycle, and a constant for where the walk begins. The worst cycle is the less probable symbol in state 0, again and again:
 * log2(319 / 128) = 1.3175 bits a bin; the constant is 14.72 bits a context (both by relaxation over all 126 steps).
 *
 * 4 x 4 samples have a flag of their own, 16 significance flags, at most 8 flags "above 1" and one "above 2": 26 bins, 34.26 bits.
 * 16 signs. What is left of 16 magnitudes of at most 255 fills most when each is 255 while rice climbs from 0: 18 + 17 + 16 + 15 + 12 * 14
 * = 234 bits with rice up to 4; 184 bits with persistent Rice, which begins with 0 and goes on to 7, where a magnitude has 9 bits
 * (the most over all sequences of magnitudes, and of first values of rice).
 *
 * What units and blocks of 8 x 8 say besides (larger ones say less a sample): at most 64 bins, 30 of them where blocks end, and 32
 * bypass bins: 116.32 bits. 12 * (34.26 + 16 + 234) + 116.32 = 3,527.4; with 184: 2,927.4. PCM samples are fewer: 1,536 bits and
 * what ends a unit's bins.
 *
 * A coding tree unit may have 5/3 of its samples' bits, 213.3 for 16 samples (A.3.5). Without persistent Rice 16 loud magnitudes exceed
 * that, and such units become PCM (hevc_slice.inc). With it they do not: a coefficient that is zero or small saves more bits of what is left
 * of it than flags can cost, so the worst unit has large magnitudes only; its flags are all alike and cost next to nothing a bin once
 * their contexts have learned that, which takes 14.72 bits of each of at most 80 contexts, 6.2 for 16 samples of a unit of 192 sub-blocks.
 * 184 + 16 + 6.2 and .4 for flags leave 6.7 of 213.3, or 80 bits a unit of 8 x 8, for what is said besides: at most 32 bypass bins and 33 others
 * (where blocks end is always the last place), 75.5. The fuzz target and the tests count every unit of every stream.
 */
#define CELL_BYTES 441u /* of a coding tree unit only until it becomes PCM */
#define CELL_BYTES_RICE 366u
#define CONTEXTS_BYTES 288u /* 156 * 14.72 bits */

enum kn_status kni_hevc_lossless_check_size(uint32_t width, uint32_t height, struct kn_err *err)
{
    const uint32_t least = KNI_HEVC_LOSSLESS_MIN_SIDE, most = KNI_HEVC_LOSSLESS_MAX_SIDE;
    if (width < least || width > most || height < least || height > most)
        return kni_err_set(err, KN_E_ARG, "pictures of %u x %u: each side has %u to %u samples", width, height, least, most);
    if ((uint64_t)((width + 7) / 8 * 8) * ((height + 7) / 8 * 8) > KNI_HEVC_LOSSLESS_MAX_SAMPLES)
        return kni_err_set(err, KN_E_ARG, "pictures of %u x %u: the highest level of HEVC, 6.2, ends at %u samples a plane", width, height, KNI_HEVC_LOSSLESS_MAX_SAMPLES);
    return KN_OK;
}

static bool in_range(const struct kni_hevc_lossless_opts *o)
{
    return kni_hevc_lossless_check_size(o->width, o->height, NULL) == KN_OK && o->tools <= KNI_HEVC_TOOLS_ALL && o->content <= KNI_HEVC_CONTENT_TILES &&
           o->n_slices <= KNI_HEVC_MAX_SLICES;
}

size_t kni_hevc_lossless_bytes(const struct kni_hevc_lossless_opts *opts)
{
    return in_range(opts) ? (sizeof(struct kni_hevc_lossless) + 63) / 64 * 64 : 0;
}

/* Loudness of the 8 rows of a band, sum of row scales. */
static uint32_t band_scale(const struct kni_hevc_lossless *e, const uint16_t *row_scale, uint32_t band)
{
    uint32_t sum = 0;
    for (uint32_t y = band * 8; y < band * 8 + 8 && y < e->height; y++)
        sum += row_scale[y];
    return sum;
}

/* Whether rows of quite different loudness meet in bands first .. end: contexts would serve none of them well. */
static bool mixes(const struct kni_hevc_lossless *e, const uint16_t *row_scale, uint32_t first, uint32_t end)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t band = first; band < end && band * 8 < e->height; band++) {
        uint32_t scale = band_scale(e, row_scale, band);
        least = scale < least ? scale : least;
        most = scale > most ? scale : most;
    }
    return most > MIX_RATIO * least + MIX_FLOOR;
}

void kni_hevc_lossless_set_rows(struct kni_hevc_lossless *e, const uint16_t *row_scale)
{
    memset(e->cu_log2, (int)e->ctb_log2, sizeof e->cu_log2);
    if (!row_scale)
        return;
    for (uint32_t log2 = e->ctb_log2; log2 > KNI_HEVC_MIN_CU_LOG2; log2--)
        for (uint32_t n = 1u << (log2 - 3), band = 0; band * 8 < e->height; band += n)
            if (e->cu_log2[band] == log2 && mixes(e, row_scale, band, band + n))
                memset(e->cu_log2 + band, (int)log2 - 1, n);
}

/* A slice costs a header and contexts that begin afresh, .06 % of a picture of 600,000 symbols. */
static void choose_slices(struct kni_hevc_lossless *e, uint32_t wanted)
{
    uint32_t n = wanted ? wanted : 1 + (uint32_t)((uint64_t)e->coded_width * e->coded_height / SLICE_SAMPLES);
    n = n < KNI_HEVC_MAX_SLICES ? n : KNI_HEVC_MAX_SLICES;
    e->n_slices = n < e->ctb_rows ? n : e->ctb_rows;
    for (uint32_t i = 0; i <= e->n_slices; i++)
        e->slice_row[i] = (uint32_t)((uint64_t)e->ctb_rows * i / e->n_slices);
}

/* A Laplace variable of mean magnitude m has about log2(1 + 2 e m) bits. A context's less probable symbol has probability .5 * .9492^state (9.3.4.3.2). */
static void fill_costs(struct kni_hevc_lossless *e)
{
    for (uint32_t sum = 0; sum < sizeof e->cost / sizeof *e->cost; sum++)
        e->cost[sum] = (uint16_t)lrint(16 * 16 * log2(1 + 0.34 * sum));
    for (uint32_t i = 0; i < 128; i++) {
        const double p = 0.5 * pow(0.9492, i / 2);
        e->bin_cost[i] = (uint8_t)lrint(-16 * log2(i & 1 ? p : 1 - p));
    }
}

static void plan_tiles(struct kni_hevc_lossless *e)
{
    static const uint8_t fades[KNI_HEVC_MAX_REFS] = {8, 6, 3, 1};
    memcpy(e->fade, fades, sizeof fades);
    e->n_refs = KNI_HEVC_MAX_REFS;
    e->qp = 0; /* contexts that begin near even odds */
    e->init_type = 2;
}

enum kn_status kni_hevc_lossless_init(struct kni_hevc_lossless **out, void *memory, const struct kni_hevc_lossless_opts *o, struct kn_err *err)
{
    *out = NULL;
    if (!in_range(o))
        return kni_err_set(err, KN_E_ARG, "no HEVC encoder for %u x %u samples, tools %u, content %d, %u slices", o->width, o->height, o->tools, (int)o->content,
                           o->n_slices);
    struct kni_hevc_lossless *e = memory;
    memset(e, 0, sizeof *e);
    e->width = o->width;
    e->height = o->height;
    e->coded_width = (o->width + 7) / 8 * 8;
    e->coded_height = (o->height + 7) / 8 * 8;
    e->tools = kni_hevc_content_tools(o->tools, o->content);
    e->content = o->content;
    kni_hevc_coding_fill(&e->states);
    e->ctb_log2 = CTB_LOG2;
    e->ctb_cols = (e->coded_width + (1u << CTB_LOG2) - 1) >> CTB_LOG2;
    e->ctb_rows = (e->coded_height + (1u << CTB_LOG2) - 1) >> CTB_LOG2;
    kni_hevc_lossless_set_rows(e, o->row_scale);
    choose_slices(e, o->n_slices);
    e->pcm = !(e->tools & KNI_HEVC_TOOL_RICE);
    kni_hevc_lossless_declare(e, 0, 0);
    e->qp = CONTEXT_QP;
    e->init_type = 1;
    e->n_refs = 1;
    e->fade[0] = 8;
    if (e->content == KNI_HEVC_CONTENT_TILES)
        plan_tiles(e);
    if (e->content == KNI_HEVC_CONTENT_TILES || e->tools & KNI_HEVC_TOOL_EXPLICIT_RDPCM)
        fill_costs(e);
    kni_hevc_contexts_init(e->contexts[0], 0, e->qp);
    kni_hevc_contexts_init(e->contexts[1], e->init_type, e->qp);
    e->slice = kni_hevc_slice_get(kni_cpu_flags_without(o->cpu_without));
    *out = e;
    return KN_OK;
}

/* Implicit RDPCM serves intra blocks that resemble their neighbours, which noise never does, and decoders disagree about it: libavcodec goes on
 * smoothing those blocks' edges, and applies it to chroma of inter blocks. Explicit RDPCM finds next to nothing in token tiles, whose flags cost
 * .07 % (doc/speed-log.md). */
uint32_t kni_hevc_content_tools(uint32_t tools, enum kni_hevc_content content)
{
    uint32_t useless = KNI_HEVC_TOOL_IMPLICIT_RDPCM;
    if (content == KNI_HEVC_CONTENT_TILES)
        useless |= KNI_HEVC_TOOL_EXPLICIT_RDPCM;
    return tools & ~useless;
}

bool kni_hevc_lossless_declare(struct kni_hevc_lossless *e, uint64_t unit_bytes, uint64_t first_unit_bytes)
{
    struct kni_hevc_need need = {e->coded_width, e->coded_height, e->n_slices, unit_bytes, first_unit_bytes};
    const struct kni_hevc_level *level = kni_hevc_level_choose(&need);
    if (!level) { /* a large first picture that does not compress to half: no level has it, and it is coded all the same */
        need.first_unit_bytes = 0;
        level = kni_hevc_level_choose(&need);
    }
    if (level)
        e->level = level;
    return level;
}

uint64_t kni_hevc_lossless_loud_bytes(const struct kni_hevc_lossless *e)
{
    const uint64_t n = (uint64_t)e->ctb_cols * e->ctb_rows * kni_hevc_ctu_bits(1u << e->ctb_log2) / 8 + KNI_HEVC_LOSSLESS_HEADERS + e->n_slices * (uint64_t)HEADER_BOUND;
    return n + n / 64;
}

uint32_t kni_hevc_lossless_n_slices(const struct kni_hevc_lossless *e)
{
    return e->n_slices;
}

size_t kni_hevc_lossless_slice_bound(const struct kni_hevc_lossless *e, uint32_t i)
{
    const uint32_t end = e->slice_row[i + 1] << e->ctb_log2, rows = (end < e->coded_height ? end : e->coded_height) - (e->slice_row[i] << e->ctb_log2);
    const size_t cells = (size_t)(e->coded_width / 8) * (rows / 8), n_units = (size_t)e->ctb_cols * (e->slice_row[i + 1] - e->slice_row[i]), unit_cells = 1u << 2 * (e->ctb_log2 - 3);
    size_t bytes = cells * (e->tools & KNI_HEVC_TOOL_RICE ? CELL_BYTES_RICE : CELL_BYTES), loud = n_units * kni_hevc_ctu_bits(1u << e->ctb_log2) / 8 + unit_cells * CELL_BYTES;
    if (e->pcm && bytes > loud)
        bytes = loud; /* units that do not become PCM, and one that is about to */
    bytes += CONTEXTS_BYTES;
    return HEADER_BOUND + bytes + bytes / 2; /* emulation prevention: at most a byte more after two */
}

size_t kni_hevc_lossless_unit_bound(const struct kni_hevc_lossless *e)
{
    size_t n = KNI_HEVC_LOSSLESS_HEADERS;
    for (uint32_t i = 0; i < e->n_slices; i++)
        n += kni_hevc_lossless_slice_bound(e, i);
    return n;
}

size_t kni_hevc_lossless_slice(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint32_t i, uint8_t *out)
{
    assert(i < e->n_slices);
    return e->slice(e, job, i, out);
}

size_t kni_hevc_lossless_unit(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint8_t *out)
{
    size_t n = job->first ? kni_hevc_lossless_headers(e, out) : 0;
    for (uint32_t i = 0; i < e->n_slices; i++)
        n += e->slice(e, job, i, out + n);
    return n;
}

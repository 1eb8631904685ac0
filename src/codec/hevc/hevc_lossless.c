/* SPDX-License-Identifier: Apache-2.0 */
/* The encoder's set-up, bounds, and whole access units. Everything that costs time is in slices (hevc_slice.inc). */
#include "codec/hevc/hevc_lossless.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "codec/hevc/hevc_state.h"

#define HEADER_BOUND 64u /* of a slice: start code, NAL header, slice header */

static bool in_range(const struct kni_hevc_lossless_opts *o)
{
    return o->width >= KNI_HEVC_LOSSLESS_MIN_SIDE && o->width <= KNI_HEVC_LOSSLESS_MAX_SIDE && o->height >= KNI_HEVC_LOSSLESS_MIN_SIDE &&
           o->height <= KNI_HEVC_LOSSLESS_MAX_SIDE && o->tools <= KNI_HEVC_TOOLS_ALL && o->content <= KNI_HEVC_CONTENT_TILES && o->n_slices <= KNI_HEVC_MAX_SLICES;
}

size_t kni_hevc_lossless_bytes(const struct kni_hevc_lossless_opts *opts)
{
    return in_range(opts) ? (sizeof(struct kni_hevc_lossless) + 63) / 64 * 64 : 0;
}

void kni_hevc_lossless_plan(struct kni_hevc_lossless *e, uint32_t ctb_log2, uint32_t cu_log2, int32_t qp, uint32_t init_type, uint32_t n_slices)
{
    e->ctb_log2 = ctb_log2;
    e->ctb_cols = (e->coded_width + (1u << ctb_log2) - 1) >> ctb_log2;
    e->ctb_rows = (e->coded_height + (1u << ctb_log2) - 1) >> ctb_log2;
    e->n_slices = n_slices < e->ctb_rows ? n_slices : e->ctb_rows;
    for (uint32_t i = 0; i <= e->n_slices; i++)
        e->slice_row[i] = (uint32_t)((uint64_t)e->ctb_rows * i / e->n_slices);
    memset(e->cu_log2, (int)cu_log2, sizeof e->cu_log2);
    e->qp = qp;
    e->init_type = init_type;
    kni_hevc_contexts_init(e->contexts[0], 0, qp);
    kni_hevc_contexts_init(e->contexts[1], init_type, qp);
}

/* 16 * 16 * log2(1 + 2 e sum / 16): a Laplace variable whose mean magnitude is the block's has log2(2 e mean) bits. */
static void fill_costs(uint16_t *cost, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cost[i] = (uint16_t)lrint(256 * log2(1 + 0.34 * (double)i));
}

static void plan_tiles(struct kni_hevc_lossless *e)
{
    static const uint8_t fades[KNI_HEVC_MAX_REFS] = {8, 6, 4, 2, 1};
    memcpy(e->fade, fades, sizeof fades);
    e->n_refs = KNI_HEVC_MAX_REFS;
    fill_costs(e->cost, sizeof e->cost / sizeof *e->cost);
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
    e->tools = o->tools & ~(uint32_t)KNI_HEVC_TOOL_IMPLICIT_RDPCM;
    if (o->content == KNI_HEVC_CONTENT_TILES)
        e->tools &= ~(uint32_t)KNI_HEVC_TOOL_EXPLICIT_RDPCM;
    e->content = o->content;
    kni_hevc_states_fill(e->states);
    kni_hevc_lossless_plan(e, 5, 5, 26, 1, o->n_slices ? o->n_slices : 1);
    e->n_refs = 1;
    e->fade[0] = 8;
    if (e->content == KNI_HEVC_CONTENT_TILES)
        plan_tiles(e);
    e->slice = kni_hevc_slice_ref;
    *out = e;
    return KN_OK;
}

uint32_t kni_hevc_lossless_n_slices(const struct kni_hevc_lossless *e)
{
    return e->n_slices;
}

size_t kni_hevc_lossless_slice_bound(const struct kni_hevc_lossless *e, uint32_t i)
{
    size_t samples = 3 * (size_t)((e->slice_row[i + 1] - e->slice_row[i]) << e->ctb_log2) * (e->ctb_cols << e->ctb_log2);
    return HEADER_BOUND + samples * 6;
}

size_t kni_hevc_lossless_unit_bound(const struct kni_hevc_lossless *e)
{
    size_t n = 256;
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

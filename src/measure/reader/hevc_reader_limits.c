/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a stream keeps to the level that it declares: each limit with the picture that comes closest to it or is furthest beyond. What is allowed
 * comes from hevc_limits.h; what the stream asks for was counted while it was read.
 */
#include "codec/hevc/hevc_limits.h"
#include "measure/reader/hevc_reader_state.h"

/* Where value is as large for what is allowed as no picture's before. at_least: value should not be less than allowed. */
static void compare(struct kni_hevc_reader *r, enum kn_hevc_limit_kind kind, uint32_t picture, double value, double allowed)
{
    struct kn_hevc_limit *limit = &r->stream.limits[kind];
    const bool at_least = kind == KN_HEVC_LIMIT_CTU;
    if (limit->known && value * limit->allowed <= limit->value * allowed)
        return;
    *limit = (struct kn_hevc_limit){.value = value, .allowed = allowed, .picture = picture, .known = true, .exceeded = at_least ? value < allowed : value > allowed};
}

static const struct kni_hevc_level *level_of(const struct kn_hevc_params *p)
{
    return kni_hevc_level_find(p->level_idc, p->high_tier);
}

static struct kni_hevc_profile profile_of(const struct kn_hevc_params *p)
{
    return kni_hevc_profile_of(p->max_bits, p->lower_bit_rate);
}

void kni_hevc_reader_limit_params(struct kni_hevc_reader *r)
{
    const struct kn_hevc_params *p = &r->stream.params;
    const struct kni_hevc_level *level = level_of(p);
    if (!level)
        return;
    compare(r, KN_HEVC_LIMIT_SAMPLES, r->stream.n_pictures, (double)p->width * p->height, level->luma_samples);
    compare(r, KN_HEVC_LIMIT_SIDE, r->stream.n_pictures, p->width > p->height ? p->width : p->height, kni_hevc_level_side(level));
    compare(r, KN_HEVC_LIMIT_CTU, r->stream.n_pictures, p->ctu, kni_hevc_level_ctu(level));
}

static double count_bins(const struct kn_hevc_counts *c)
{
    uint64_t n = 0;
    for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++)
        n += c->element[e].n_coded + c->element[e].n_bypass;
    return (double)n;
}

void kni_hevc_reader_limit_picture(struct kni_hevc_reader *r)
{
    const struct kn_hevc_params *p = &r->stream.params;
    const struct kni_hevc_level *level = level_of(p);
    const struct kni_hevc_profile profile = profile_of(p);
    const uint64_t samples = (uint64_t)p->width * p->height;
    compare(r, KN_HEVC_LIMIT_CTU_BITS, r->picture.index, r->picture_ctu_bits, kni_hevc_ctu_bits(p->ctu));
    compare(r, KN_HEVC_LIMIT_BINS, r->picture.index, count_bins(&r->picture.counts), kni_hevc_max_bins(r->slice_bytes, samples / (p->min_cu * p->min_cu), p->min_cu));
    if (level) {
        compare(r, KN_HEVC_LIMIT_SLICES, r->picture.index, r->picture.n_slices, level->slices);
        compare(r, KN_HEVC_LIMIT_SLICE_BYTES, r->picture.index, (double)r->slice_bytes, (double)kni_hevc_level_unit_bytes(level, &profile, false));
    }
    kni_hevc_reader_limit_unit(r);
}

void kni_hevc_reader_limit_unit(struct kni_hevc_reader *r)
{
    const struct kn_hevc_params *p = &r->stream.params;
    const struct kni_hevc_level *level = level_of(p);
    const struct kni_hevc_profile profile = profile_of(p);
    const uint32_t picture = r->picture.index;
    if (picture && r->unit_bytes > r->most_bytes)
        r->most_bytes = r->unit_bytes;
    if (!level)
        return;
    compare(r, KN_HEVC_LIMIT_UNIT_BYTES, picture, (double)r->unit_bytes, (double)kni_hevc_level_unit_bytes(level, &profile, true));
    if (!picture)
        compare(r, KN_HEVC_LIMIT_FIRST_BYTES, picture, (double)r->unit_bytes, (double)kni_hevc_level_first_bytes(level, &profile, (uint64_t)p->width * p->height));
}

void kni_hevc_reader_limit_end(struct kni_hevc_reader *r)
{
    const struct kn_hevc_params *p = &r->stream.params;
    const struct kni_hevc_level *level = level_of(p);
    const struct kni_hevc_profile profile = profile_of(p);
    if (level && r->stream.n_pictures)
        r->stream.pictures_s = kni_hevc_level_pictures_s(level, &profile, (uint64_t)p->width * p->height, (double)r->stream.n_bytes / r->stream.n_pictures, r->most_bytes);
}

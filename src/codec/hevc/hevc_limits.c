/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/hevc/hevc_limits.h"

#include <stddef.h>

/* Tables A.8 and A.9. Levels below 3 stand here for streams of others: a stream that is small enough for them gains nothing by saying so. */
static const struct kni_hevc_level levels[] = {
    {30, false, 36864, 350, 16, 552960, 128, 2},
    {60, false, 122880, 1500, 16, 3686400, 1500, 2},
    {63, false, 245760, 3000, 20, 7372800, 3000, 2},
    {90, false, 552960, 6000, 30, 16588800, 6000, 2},
    {93, false, 983040, 10000, 40, 33177600, 10000, 2},
    {120, false, 2228224, 12000, 75, 66846720, 12000, 4},
    {123, false, 2228224, 20000, 75, 133693440, 20000, 4},
    {150, false, 8912896, 25000, 200, 267386880, 25000, 6},
    {153, false, 8912896, 40000, 200, 534773760, 40000, 8},
    {156, false, 8912896, 60000, 200, 1069547520, 60000, 8},
    {180, false, 35651584, 60000, 600, 1069547520, 60000, 8},
    {183, false, 35651584, 120000, 600, 2139095040, 120000, 8},
    {186, false, 35651584, 240000, 600, 4278190080, 240000, 6},
    {120, true, 2228224, 30000, 75, 66846720, 30000, 4},
    {123, true, 2228224, 50000, 75, 133693440, 50000, 4},
    {150, true, 8912896, 100000, 200, 267386880, 100000, 4},
    {153, true, 8912896, 160000, 200, 534773760, 160000, 4},
    {156, true, 8912896, 240000, 200, 1069547520, 240000, 4},
    {180, true, 35651584, 240000, 600, 1069547520, 240000, 4},
    {183, true, 35651584, 480000, 600, 2139095040, 480000, 4},
    {186, true, 35651584, 800000, 600, 4278190080, 800000, 4},
};
#define N_LEVELS (sizeof levels / sizeof *levels)
#define FIRST_CHOSEN 3u /* level 3 */

const struct kni_hevc_profile kni_hevc_main_444 = {2000, 2200, 3.0, 0.5, 1};

struct kni_hevc_profile kni_hevc_profile_of(uint32_t max_bits, bool lower_bit_rate)
{
    struct kni_hevc_profile p = max_bits <= 8 ? kni_hevc_main_444
                              : max_bits <= 10 ? (struct kni_hevc_profile){2500, 2750, 3.75, 0.5, 1}
                              : max_bits <= 12 ? (struct kni_hevc_profile){3000, 3300, 4.5, 0.5, 1}
                                               : (struct kni_hevc_profile){4000, 4400, 6.0, 0.5, 1};
    p.hbr = lower_bit_rate ? 1 : 2;
    return p;
}

const struct kni_hevc_level *kni_hevc_level_find(uint32_t idc, bool high)
{
    for (size_t i = 0; i < N_LEVELS; i++)
        if (levels[i].idc == idc && levels[i].high == high)
            return &levels[i];
    return NULL;
}

static bool takes(const struct kni_hevc_level *l, const struct kni_hevc_need *need)
{
    const uint64_t luma = (uint64_t)need->width * need->height, side = need->width > need->height ? need->width : need->height;
    return luma <= l->luma_samples && side <= kni_hevc_level_side(l) && need->n_slices <= l->slices &&
           need->unit_bytes <= kni_hevc_level_unit_bytes(l, &kni_hevc_main_444, false) &&
           need->first_unit_bytes <= kni_hevc_level_first_bytes(l, &kni_hevc_main_444, luma);
}

const struct kni_hevc_level *kni_hevc_level_choose(const struct kni_hevc_need *need)
{
    for (size_t i = FIRST_CHOSEN; i < N_LEVELS; i++)
        if (takes(&levels[i], need))
            return &levels[i];
    return NULL;
}

uint32_t kni_hevc_level_side(const struct kni_hevc_level *l)
{
    uint64_t square = 8 * (uint64_t)l->luma_samples; /* A.4.1: a side is at most its root */
    uint32_t side = 0;
    for (uint32_t bit = 1u << 15; bit; bit >>= 1)
        if ((uint64_t)(side | bit) * (side | bit) <= square)
            side |= bit;
    return side;
}

uint32_t kni_hevc_level_ctu(const struct kni_hevc_level *l)
{
    return l->idc >= 150 ? 32 : 16;
}

uint64_t kni_hevc_level_unit_bytes(const struct kni_hevc_level *l, const struct kni_hevc_profile *p, bool nal)
{
    return (uint64_t)l->cpb * (nal ? p->cpb_nal : p->cpb_vcl) / 8;
}

/* A.4.2: MinCr. */
static double least_compression(const struct kni_hevc_level *l, const struct kni_hevc_profile *p)
{
    return l->min_cr * p->min_cr_scale / p->hbr;
}

uint64_t kni_hevc_level_first_bytes(const struct kni_hevc_level *l, const struct kni_hevc_profile *p, uint64_t luma_samples)
{
    double samples = (double)l->luma_rate / 300; /* fR: no picture counts as shorter than 1/300 s */
    if (samples < (double)luma_samples)
        samples = (double)luma_samples;
    return (uint64_t)(p->format_capability * samples / least_compression(l, p));
}

double kni_hevc_level_pictures_s(const struct kni_hevc_level *l, const struct kni_hevc_profile *p, uint64_t luma_samples, double mean_bytes, uint64_t most_bytes)
{
    const double by[3] = {luma_samples ? (double)l->luma_rate / (double)luma_samples : 300,
                          mean_bytes > 0 ? (double)l->bit_rate * p->cpb_vcl * p->hbr / (8 * mean_bytes) : 300,
                          most_bytes ? p->format_capability * (double)l->luma_rate / (least_compression(l, p) * (double)most_bytes) : 300};
    double least = 300;
    for (int i = 0; i < 3; i++)
        least = by[i] < least ? by[i] : least;
    return least;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a level and tier of HEVC allow, for the 4:4:4 profiles of the format range extensions: the encoder chooses the lowest level that
 * takes its stream, the reader compares a stream with the level that it declares.
 *
 *     picture size, sides, slice segments       A.4.1, table A.8
 *     bytes of an access unit                   it must fit into the coded picture buffer: C.2.2, tables A.8 and A.10
 *     bytes of the first access unit            least compression: A.4.2, tables A.9 and A.10
 *     bits of a coding tree unit                5/3 of its raw samples: A.3.5
 *     bins of a picture                         32/3 of its bytes, and 1/32 of its raw bits: 7.4.9.14 (cabac_zero_words)
 *
 * Kinema's streams declare no times (no VUI, no HRD), so nothing says how fast they are to be played. The limits that depend on time bound
 * only that: kni_hevc_level_pictures_s says how many pictures a second a level allows.
 *
 * Source: ITU-T H.265 (08/2021), annexes A and C. Tables and functions without state: any thread.
 */
#ifndef KNI_CODEC_HEVC_LIMITS_H
#define KNI_CODEC_HEVC_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* What a profile's factors are (table A.10): bits of buffer for a unit of MaxCPB, for slices only and for all NAL units; raw
 * bytes of a picture for a luma sample; what MinCrBase is multiplied by. hbr: HbrFactor, 1 or 2. */
struct kni_hevc_profile { uint32_t cpb_vcl, cpb_nal; double format_capability, min_cr_scale; uint32_t hbr; };

/* One level at one tier. idc: 30 times its number. */
struct kni_hevc_level {
    uint32_t idc;
    bool high;              /* tier */
    uint32_t luma_samples;  /* of a picture, MaxLumaPs */
    uint32_t cpb;           /* MaxCPB, times a factor of the profile: bits */
    uint32_t slices;        /* slice segments of a picture */
    uint64_t luma_rate;     /* MaxLumaSr, samples a second */
    uint32_t bit_rate;      /* MaxBR, times a factor of the profile: bits a second */
    uint32_t min_cr;        /* MinCrBase */
};

/* What a stream asks for. Sizes of access units count everything in them; 0: not known yet, or not to be asked for. */
struct kni_hevc_need { uint32_t width, height, n_slices; uint64_t unit_bytes, first_unit_bytes; };

/* Main 4:4:4 at 8 bits with general_lower_bit_rate_constraint_flag set: what Kinema's encoder declares. */
extern const struct kni_hevc_profile kni_hevc_main_444;
/* A 4:4:4 profile by its flags: the lowest of general_max_8bit, 10bit, 12bit_constraint_flag that is set (8, 10, 12; 16: none). */
struct kni_hevc_profile kni_hevc_profile_of(uint32_t max_bits, bool lower_bit_rate);

/* NULL: no such level. */
const struct kni_hevc_level *kni_hevc_level_find(uint32_t idc, bool high);
/* The first that takes a stream of profile Main 4:4:4, of levels 3 to 6.2 at the main tier, then 4 to 6.2 at the high tier. NULL: none does. */
const struct kni_hevc_level *kni_hevc_level_choose(const struct kni_hevc_need *need);

/* The longest side, in samples. */
uint32_t kni_hevc_level_side(const struct kni_hevc_level *level);
/* The least size of coding tree units. */
uint32_t kni_hevc_level_ctu(const struct kni_hevc_level *level);
/* Most bytes of an access unit: of its slices (nal false), or of all its NAL units. */
uint64_t kni_hevc_level_unit_bytes(const struct kni_hevc_level *level, const struct kni_hevc_profile *profile, bool nal);
/* Most bytes of the first access unit, of pictures of so many luma samples. */
uint64_t kni_hevc_level_first_bytes(const struct kni_hevc_level *level, const struct kni_hevc_profile *profile, uint64_t luma_samples);
/* How many pictures a second may be played, of so many luma samples, so many bytes in the mean, and at most so many (the first not counted). */
double kni_hevc_level_pictures_s(const struct kni_hevc_level *level, const struct kni_hevc_profile *profile, uint64_t luma_samples, double mean_bytes,
                                 uint64_t most_bytes);

/* Most bits of a coding tree unit of ctu x ctu samples, 8 bits, 4:4:4. */
static inline uint32_t kni_hevc_ctu_bits(uint32_t ctu)
{
    return 3 * ctu * ctu * 8 * 5 / 3;
}

/* Most bins of slices of n_bytes (NAL units, start codes not counted) that hold n_units of the least coding units, min_cu samples a side. */
static inline double kni_hevc_max_bins(uint64_t n_bytes, uint64_t n_units, uint32_t min_cu)
{
    return 32.0 / 3 * (double)n_bytes + (double)n_units * (3 * min_cu * min_cu * 8) / 32;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profile's file, by offset: what reading (profile.c) and writing (profile_write.c) share. doc/format-profile.md is the same in
 * words.
 *
 *     [ header 128 ][ freqs ][ rope of each layer ][ part table ][ part 0 ][ part 1 ] ... [ rANS model ][ texts ][ XXH3-64 of all before ]
 *     part: [ mean ][ weight ][ basis ][ exponents ][ gains ][ classes of 3 presets ]
 *
 * Each bracket starts at a multiple of 8; what fills up to it is zero. Offsets are not stored: sizes follow from the header and
 * the part table, and their sum must be the file's size to the byte.
 */
#ifndef KNI_CODEC_PROFILE_FORMAT_H
#define KNI_CODEC_PROFILE_FORMAT_H

#include "codec/profile/profile.h"

#define KNI_PROFILE_VERSION 2u /* 1 is the same without texts, and is written where there are none */

/* Bounds of what is read, far above real models. */
#define KNI_PROFILE_MAX_LAYERS 1024u
#define KNI_PROFILE_MAX_KV_HEADS 256u
#define KNI_PROFILE_MAX_D_HEAD 1024u
#define KNI_PROFILE_MAX_WIDTH 4096u
#define KNI_PROFILE_MAX_SINKS 16u
#define KNI_PROFILE_MAX_TEXTS 4096u
#define KNI_PROFILE_MAX_GAIN 32 /* quarter octaves, either way */
#define KNI_PROFILE_MIN_STEP 1e-4f /* keeps true integers of symbols far inside 32 bits */
#define KNI_PROFILE_MAX_STEP 64.0f

enum {
    KNI_PROFILE_AT_MAGIC = 0,          /* "KNP1" */
    KNI_PROFILE_AT_VERSION = 4,        /* u32 */
    KNI_PROFILE_AT_HEADER_BYTES = 8,   /* u32, 128 */
    KNI_PROFILE_AT_N_GROUP = 12,       /* u32 */
    KNI_PROFILE_AT_TOTAL_BYTES = 16,   /* u64 */
    KNI_PROFILE_AT_FINGERPRINT = 24,   /* 16 bytes */
    KNI_PROFILE_AT_N_LAYER = 40,       /* u32 */
    KNI_PROFILE_AT_N_KV_HEAD = 44,     /* u32 */
    KNI_PROFILE_AT_D_HEAD = 48,        /* u32 */
    KNI_PROFILE_AT_ROPE_DIM = 52,      /* u32 */
    KNI_PROFILE_AT_NEOX = 56,          /* u8 */
    KNI_PROFILE_AT_N_ROPES = 57,       /* u8 */
    KNI_PROFILE_AT_N_SINKS = 58,       /* u8 */
    KNI_PROFILE_AT_ZERO1 = 59,         /* u8, zero */
    KNI_PROFILE_AT_RANS_BYTES = 60,    /* u32 */
    KNI_PROFILE_AT_N_CALIBRATION = 64, /* u64 */
    KNI_PROFILE_AT_QUALITY = 72,       /* [3] of f32 ratio, kl, top1 */
    KNI_PROFILE_AT_N_TEXTS = 108,      /* u32; zero in version 1 */
    KNI_PROFILE_AT_ZERO2 = 112,        /* 16 bytes, zero */
    KNI_PROFILE_FIXED_BYTES = 128
};
_Static_assert(KNI_PROFILE_AT_QUALITY + 12 * KNI_PROFILE_N_PRESETS == KNI_PROFILE_AT_N_TEXTS, "no hole in the header");

/* An entry of the part table: rows and steps of the presets. */
enum { KNI_PROFILE_ENTRY_ROWS = 0 /* u32 each */, KNI_PROFILE_ENTRY_STEPS = 12 /* f32 each */, KNI_PROFILE_ENTRY_BYTES = 24 };
_Static_assert(KNI_PROFILE_ENTRY_STEPS == 4 * KNI_PROFILE_N_PRESETS && KNI_PROFILE_ENTRY_BYTES == 8 * KNI_PROFILE_N_PRESETS, "entry size");

/* A text. */
enum {
    KNI_PROFILE_TEXT_BYTES = 0,   /* u64 */
    KNI_PROFILE_TEXT_TOKENS = 8,  /* u32 */
    KNI_PROFILE_TEXT_HELD = 12,   /* u8: 0 learned from, 1 held back */
    KNI_PROFILE_TEXT_ZERO = 13,   /* 3 bytes, zero */
    KNI_PROFILE_TEXT_HASH = 16,   /* 16 bytes */
    KNI_PROFILE_TEXT_NAME = 32,   /* 64 bytes, filled up with zeros, one at least */
    KNI_PROFILE_TEXT_ENTRY = 96
};
_Static_assert(KNI_PROFILE_TEXT_NAME + KNI_PROFILE_NAME_BYTES == KNI_PROFILE_TEXT_ENTRY, "no hole in a text");

static inline size_t kni_profile_pad8(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

/* Shape of part i from kv and n_group: first_layer, n_layers, width. */
static inline void kni_profile_part_shape(const struct kni_profile *p, uint32_t i, struct kni_profile_part *part)
{
    part->first_layer = i / 2 * p->n_group;
    part->n_layers = p->kv.n_layer - part->first_layer < p->n_group ? p->kv.n_layer - part->first_layer : p->n_group;
    part->width = part->n_layers * p->kv.n_kv_head * p->kv.d_head;
}

/* Bytes of header, freqs, ropes and part table; of one part, whose shape, n_rows and rows are set. No overflow once the fields
 * are in range (kni_profile_check_shape). */
size_t kni_profile_front_bytes(const struct kni_profile *p);
size_t kni_profile_part_bytes(const struct kni_profile_part *part);

/* What is wrong with everything that sizes depend on: kv, rope (not its arrays), n_group, n_parts, n_sinks. NULL: nothing. */
const char *kni_profile_check_shape(const struct kni_profile *p);
/* With the rows and steps of one part. */
const char *kni_profile_check_rows(const struct kni_profile_part *part);
/* With all arrays. */
const char *kni_profile_check_values(const struct kni_profile *p);

#endif

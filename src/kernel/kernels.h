/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of CPU kernels: filled with the plain C references, then overridden by what the processor can do. Callers keep
 * one table each and never look at CPU flags themselves. Every pointer is set: there is no fallback at run time.
 *
 * Element-type tables are indexed by enum kni_dtype (NULL for ids that Kinema cannot read) and enum kn_kv_type.
 */
#ifndef KNI_KERNEL_KERNELS_H
#define KNI_KERNEL_KERNELS_H

#include "kernel/act.h"
#include "kernel/attn.h"
#include "kernel/convert.h"
#include "kernel/dequant.h"
#include "kernel/gemm.h"
#include "kernel/logits.h"
#include "kernel/norm.h"
#include "kernel/qgemm.h"
#include "kernel/rope.h"
#include "kernel/softmax.h"

#define KNI_KERNELS_N_DTYPE 31u
#define KNI_KERNELS_N_KV_TYPE 2u
#define KNI_KERNELS_N_ROPE_STYLE 2u
#define KNI_KERNELS_N_ACT 2u

struct kni_kernels {
    uint32_t cpu_flags; /* those that were used */
    kni_rmsnorm_fn rmsnorm;
    kni_rope_fn rope[KNI_KERNELS_N_ROPE_STYLE]; /* NORM, NEOX */
    kni_act_mul_fn act_mul[KNI_KERNELS_N_ACT]; /* SILU, GELU */
    kni_softmax_tile_fn softmax_tile;
    kni_scale_fn scale;
    kni_exp_fn exp;
    kni_logit_max_fn logit_max;
    kni_logit_sum_fn logit_sum;
    kni_logit_sum_above_fn logit_sum_above;
    kni_logit_count_above_fn logit_count_above;
    kni_logit_split_fn logit_split;
    kni_gemm_fn gemm;
    kni_pack16_fn pack16;
    kni_quantise_fn quantise;
    kni_qgemm_fn qgemm;
    kni_dequant_fn dequant[KNI_KERNELS_N_DTYPE];
    kni_to_half_fn to_half[KNI_KERNELS_N_KV_TYPE];
    kni_from_half_fn from_half[KNI_KERNELS_N_KV_TYPE];
    kni_is_finite16_fn is_finite16;
    kni_pack16_half_fn pack16_half[KNI_KERNELS_N_KV_TYPE];
    kni_attn_score16_fn attn_score16[KNI_KERNELS_N_KV_TYPE];
    kni_attn_mix16_fn attn_mix16[KNI_KERNELS_N_KV_TYPE];
};

/* cpu_flags: of enum kni_cpu_flag, any set; 0: references only. Only what the machine has may be called. */
void kni_kernels_init(struct kni_kernels *k, uint32_t cpu_flags);
/* The level that kernels for these flags have. */
enum kn_cpu_level kni_kernels_level(uint32_t cpu_flags);
/* Of flags, those that a level may use: all of the levels up to it. */
uint32_t kni_kernels_limit(uint32_t cpu_flags, enum kn_cpu_level highest);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/kernels.h"

#include "base/cpu.h"
#include "kernel/x86/dequant_avx2.h"

_Static_assert(KNI_DTYPE_BF16 < KNI_KERNELS_N_DTYPE, "the largest id has a slot");

static void fill_ref(struct kni_kernels *k)
{
    k->rmsnorm = kni_rmsnorm_ref;
    k->rope[0] = kni_rope_norm_ref;
    k->rope[1] = kni_rope_neox_ref;
    k->act_mul[0] = kni_silu_mul_ref;
    k->act_mul[1] = kni_gelu_mul_ref;
    k->softmax_tile = kni_softmax_tile_ref;
    k->scale = kni_scale_ref;
    k->exp = kni_exp_ref;
    k->logit_max = kni_logit_max_ref;
    k->logit_sum = kni_logit_sum_ref;
    k->logit_sum_above = kni_logit_sum_above_ref;
    k->logit_count_above = kni_logit_count_above_ref;
    k->logit_split = kni_logit_split_ref;
    k->gemm = kni_gemm_ref;
    k->pack16 = kni_pack16_ref;
    k->quantise = kni_quantise_ref;
    k->qgemm = kni_qgemm_ref;
    for (unsigned i = 0; i < KNI_KERNELS_N_DTYPE; i++)
        k->dequant[i] = kni_dtype_get_info(i) ? kni_dequant_ref_of((enum kni_dtype)i) : NULL;
    k->to_half[KN_KV_TYPE_F16] = kni_to_f16_ref;
    k->to_half[KN_KV_TYPE_BF16] = kni_to_bf16_ref;
    k->from_half[KN_KV_TYPE_F16] = kni_from_f16_ref;
    k->from_half[KN_KV_TYPE_BF16] = kni_from_bf16_ref;
    k->is_finite16 = kni_is_finite16_ref;
    k->pack16_half[KN_KV_TYPE_F16] = kni_pack16_f16_ref;
    k->pack16_half[KN_KV_TYPE_BF16] = kni_pack16_bf16_ref;
    k->attn_score16[KN_KV_TYPE_F16] = kni_attn_score16_f16_ref;
    k->attn_score16[KN_KV_TYPE_BF16] = kni_attn_score16_bf16_ref;
    k->attn_mix16[KN_KV_TYPE_F16] = kni_attn_mix16_f16_ref;
    k->attn_mix16[KN_KV_TYPE_BF16] = kni_attn_mix16_bf16_ref;
}

#if defined(__x86_64__)
static void fill_avx2(struct kni_kernels *k)
{
    k->rmsnorm = kni_rmsnorm_avx2;
    k->rope[0] = kni_rope_norm_avx2;
    k->rope[1] = kni_rope_neox_avx2;
    k->act_mul[0] = kni_silu_mul_avx2;
    k->act_mul[1] = kni_gelu_mul_avx2;
    k->softmax_tile = kni_softmax_tile_avx2;
    k->scale = kni_scale_avx2;
    k->exp = kni_exp_avx2;
    k->logit_max = kni_logit_max_avx2;
    k->logit_sum = kni_logit_sum_avx2;
    k->logit_sum_above = kni_logit_sum_above_avx2;
    k->logit_count_above = kni_logit_count_above_avx2;
    k->logit_split = kni_logit_split_avx2;
    k->gemm = kni_gemm_avx2;
    k->pack16 = kni_pack16_avx2;
    k->dequant[KNI_DTYPE_Q4_0] = kni_dequant_q4_0_avx2;
    k->dequant[KNI_DTYPE_Q4_1] = kni_dequant_q4_1_avx2;
    k->dequant[KNI_DTYPE_Q8_0] = kni_dequant_q8_0_avx2;
    k->dequant[KNI_DTYPE_F16] = kni_dequant_f16_avx2;
    k->dequant[KNI_DTYPE_BF16] = kni_dequant_bf16_avx2;
    k->quantise = kni_quantise_avx2;
    k->qgemm = kni_qgemm_avx2;
    k->to_half[KN_KV_TYPE_F16] = kni_to_f16_avx2;
    k->to_half[KN_KV_TYPE_BF16] = kni_to_bf16_avx2;
    k->from_half[KN_KV_TYPE_F16] = kni_from_f16_avx2;
    k->from_half[KN_KV_TYPE_BF16] = kni_from_bf16_avx2;
    k->is_finite16 = kni_is_finite16_avx2;
    k->pack16_half[KN_KV_TYPE_F16] = kni_pack16_f16_avx2;
    k->pack16_half[KN_KV_TYPE_BF16] = kni_pack16_bf16_avx2;
    k->attn_score16[KN_KV_TYPE_F16] = kni_attn_score16_f16_avx2;
    k->attn_score16[KN_KV_TYPE_BF16] = kni_attn_score16_bf16_avx2;
    k->attn_mix16[KN_KV_TYPE_F16] = kni_attn_mix16_f16_avx2;
    k->attn_mix16[KN_KV_TYPE_BF16] = kni_attn_mix16_bf16_avx2;
}

/* On top of AVX2. */
static void fill_avx512(struct kni_kernels *k, uint32_t cpu_flags)
{
    k->logit_sum = kni_logit_sum_avx512;
    k->logit_sum_above = kni_logit_sum_above_avx512;
    k->logit_split = kni_logit_split_avx512;
    k->gemm = kni_gemm_avx512;
    k->attn_score16[KN_KV_TYPE_F16] = kni_attn_score16_f16_avx512;
    k->attn_score16[KN_KV_TYPE_BF16] = kni_attn_score16_bf16_avx512;
    k->attn_mix16[KN_KV_TYPE_F16] = kni_attn_mix16_f16_avx512;
    k->attn_mix16[KN_KV_TYPE_BF16] = kni_attn_mix16_bf16_avx512;
    k->qgemm = cpu_flags & KNI_CPU_FLAG_AVX512_VNNI ? kni_qgemm_vnni_avx512 : kni_qgemm_avx512;
}
#endif

void kni_kernels_init(struct kni_kernels *k, uint32_t cpu_flags)
{
    *k = (struct kni_kernels){0};
    fill_ref(k);
    cpu_flags = kni_cpu_flags_usable(cpu_flags);
#if defined(__x86_64__)
    if (cpu_flags & KNI_CPU_FLAG_AVX2)
        fill_avx2(k);
    if (cpu_flags & KNI_CPU_FLAG_AVX512)
        fill_avx512(k, cpu_flags);
    k->cpu_flags = cpu_flags & ~(uint32_t)KNI_CPU_FLAG_AVX512_BF16; /* measured and left: doc/speed-log.md */
#endif
}

enum kn_cpu_level kni_kernels_level(uint32_t cpu_flags)
{
    cpu_flags = kni_cpu_flags_usable(cpu_flags);
#if !defined(__x86_64__)
    cpu_flags = 0;
#endif
    return cpu_flags & KNI_CPU_FLAG_AVX512 ? KN_CPU_LEVEL_AVX512 : cpu_flags & KNI_CPU_FLAG_AVX2 ? KN_CPU_LEVEL_AVX2 : KN_CPU_LEVEL_REF;
}

uint32_t kni_kernels_limit(uint32_t cpu_flags, enum kn_cpu_level highest)
{
    uint32_t allowed = highest >= KN_CPU_LEVEL_AVX512 ? UINT32_MAX : highest == KN_CPU_LEVEL_AVX2 ? KNI_CPU_FLAG_AVX2 : 0;
    return kni_cpu_flags_usable(cpu_flags & allowed);
}

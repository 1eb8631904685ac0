/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention over the paged pool, grouped queries. Two forms; both convert K and V from 16 bits on the fly and never
 * hold more than one tile of scores:
 *
 * kni_attn_tile, for prompts. All query heads of one KV head and some tokens form one matrix Q:
 *
 *     for each tile of KNI_ATTN_TILE_KEYS keys:   S = Q K^T    P = online softmax of S    O = alpha O + P V
 *
 *     row of Q, S, O:  token * group + head in group         columns of S: keys of the tile, whole blocks
 *
 * kni_attn_part, for decoding. One token against one part of the keys gives partials (max, sum, O) of some KV heads; parts run
 * in parallel and kni_attn_part_merge folds them in order of position. A cached key and value are read and converted once
 * for all query heads of a group. Heads of a block adjoin, so memory is read faster the more of them one call takes.
 *
 * Both give the same bits: tiles and parts of keys start at multiples of their size from position 0, the online softmax
 * starts afresh with each part in both, partials are folded in the same order, and every score and every component of O is
 * one chain of multiply-adds, over components or over keys in ascending order. So a token's result depends neither on the
 * chunk that it arrives in, nor on threads, nor (but for the references, which do not fuse) on the level of the processor.
 * For this d_head must be a multiple of 8; other sizes are right up to rounding.
 *
 * With a window, blocks, tiles and parts that no token sees are left out. Masked keys are not read as scores, and values
 * behind the last key count as 0: what lies in unused slots of a block (NaN included) has no effect. Source: Dao et al. 2022
 * (tiling), Dao 2023 (split KV). No errors. Any thread; scratch is the caller's, one a thread.
 */
#ifndef KNI_KERNEL_ATTN_H
#define KNI_KERNEL_ATTN_H

#include <stddef.h>
#include <stdint.h>

#include "device/kv_view.h"

#define KNI_ATTN_TILE_KEYS 128u
#define KNI_ATTN_PART_KEYS 256u /* whole tiles */

struct kni_kernels;

struct kni_attn_args {
    const struct kni_kernels *kernels;
    const struct kni_kv_host *kv;
    uint32_t layer, kv_head;
    uint32_t n_heads;     /* kni_attn_part: KV heads from kv_head on, their queries adjoin; kni_attn_tile: ignored, one */
    uint32_t group;       /* query heads a KV head, 1.. */
    float scale;          /* of scores: 1 / sqrt(d_head) in most models */
    float softcap;        /* scores become softcap * tanh(score / softcap); 0: they stay */
    uint32_t window;      /* a token sees so many positions, its own the last; 0: all. Older blocks are not read */
    const float *q;       /* [n_tokens][ldq]: group * d_head floats of each token count */
    size_t ldq;
    float *out;           /* [n_tokens][ldo], same shape; for kni_attn_tile */
    size_t ldo;
    uint32_t n_tokens;    /* kni_attn_tile: 1..kni_attn_tile_tokens(group); kni_attn_part: ignored, one */
    uint32_t first_pos;   /* of tokens[0]; it attends to positions 0..first_pos */
    float *scratch;       /* kni_attn_scratch_floats(), 64-byte aligned */
};

/* First position that a token at pos sees. */
static inline uint32_t kni_attn_first_key(uint32_t pos, uint32_t window)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

/* Query tokens of one tile. */
uint32_t kni_attn_tile_tokens(uint32_t group);
/* Floats of scratch for either form, the second one for up to n_heads KV heads. */
size_t kni_attn_scratch_floats(uint32_t group, uint32_t d_head, uint32_t n_heads);
void kni_attn_tile(const struct kni_attn_args *a);

/* A partial of rows query heads (n_heads * group): [rows] max, [rows] sum, [rows][d_head] O. */
static inline size_t kni_attn_part_floats(uint32_t rows, uint32_t d_head)
{
    return (size_t)rows * (d_head + 2);
}
/* Keys key0 .. key0 + n_keys - 1: key0 a multiple of KNI_ATTN_PART_KEYS, n_keys at most as many, the last one inside the
 * window. Overwrites part. Reads ahead: the token's later keys should be asked for next. */
void kni_attn_part(const struct kni_attn_args *a, uint32_t key0, uint32_t n_keys, float *part);
/* acc covers keys before those of part. */
void kni_attn_part_merge(const struct kni_kernels *kernels, float *acc, const float *part, uint32_t rows, uint32_t d_head);
/* out [rows][d_head] = O / sum. */
void kni_attn_part_finish(float *out, const float *acc, uint32_t rows, uint32_t d_head);

/* Leaf operations of kni_attn_part over one block of 16 keys, one instance a 16-bit type. d_head is a multiple of 8, but for
 * the references. ahead: 16 rows that will be wanted soon, a hint to read them into the cache. */
/* s[g * lds + t] = dot of q[g] and key t, for g < group and all 16 keys; q [group][d_head], k [16][d_head]. */
typedef void (*kni_attn_score16_fn)(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head, const void *ahead);
/* o[g][i] += sum over t < n_keys of p[g * ldp + t] * v[t][i]; o [group][d_head], v [16][d_head]. */
typedef void (*kni_attn_mix16_fn)(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head,
                                  const void *ahead);

void kni_attn_score16_f16_ref(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head, const void *ahead);
void kni_attn_score16_bf16_ref(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head, const void *ahead);
void kni_attn_mix16_f16_ref(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head,
                            const void *ahead);
void kni_attn_mix16_bf16_ref(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head,
                             const void *ahead);
#if defined(__x86_64__)
void kni_attn_score16_f16_avx2(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head, const void *ahead);
void kni_attn_score16_bf16_avx2(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head, const void *ahead);
void kni_attn_mix16_f16_avx2(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head,
                             const void *ahead);
void kni_attn_mix16_bf16_avx2(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head,
                              const void *ahead);
void kni_attn_score16_f16_avx512(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head, const void *ahead);
void kni_attn_score16_bf16_avx512(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head, const void *ahead);
void kni_attn_mix16_f16_avx512(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head,
                               const void *ahead);
void kni_attn_mix16_bf16_avx512(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head,
                                const void *ahead);
#endif

/* The plain form of both, for tests: one token at first_pos, in double. Uses q, out, kv, scale, softcap and window of a. */
void kni_attn_ref(const struct kni_attn_args *a);

#endif

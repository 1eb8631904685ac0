/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of `kinema bench engine`: what is measured, what is asked of it, and what the machine would allow at best.
 *
 *     prefill_4096     a prompt of 4096 tokens, tokens per second
 *     decode_4096      tokens after it, one by one
 *     decode_512_x8    8 sequences of 512 tokens decoding together, tokens per second of all
 *     resident_7168    bytes in memory after 7168 tokens and some decoding
 *     sampled_512_x16  16 sequences of 512 tokens decoding together, once greedily and once with each setting of the sampler, which take
 *                      turns: tokens per second, and the ratio to greedy. The vocabulary is the model's
 */
#ifndef KN_BENCH_WORK_H
#define KN_BENCH_WORK_H

#include "bench.h"

enum kn_work_kind { KN_WORK_KIND_PREFILL, KN_WORK_KIND_DECODE, KN_WORK_KIND_RESIDENT, KN_WORK_KIND_SAMPLED };
#define KN_WORK_N_KINDS 4
enum { KN_WORK_NAME_BYTES = 40, KN_WORK_MAX_SEQS = 32 };

struct kn_work {
    enum kn_work_kind kind;
    uint32_t n_tokens; /* of each prompt */
    uint32_t n_seqs;   /* 1 but for decodes */
};

/* Rows that are measured when none are named. */
#define KN_WORK_DEFAULT "prefill_512,prefill_4096,prefill_7168,decode_512,decode_4096,decode_7168,decode_512_x8,sampled_512_x16,resident_7168"

/* A name as above, 1 to 2^20 tokens. */
bool kn_work_parse(const char *name, struct kn_work *work);
void kn_work_name(const struct kn_work *work, char name[KN_WORK_NAME_BYTES]);
/* Ratio to llama.cpp that is asked for; 0: none. */
double kn_work_target(const struct kn_work *work);
/* Least that the work costs on a machine that reads read_bytes_s and makes flops: the highest speed in tokens per second, or the
 * fewest bytes. n_decode: tokens decoded after the prompt. */
double kn_work_floor(const struct kn_work *work, const struct kn_model_info *model, uint32_t n_decode, double read_bytes_s, double flops);

#endif

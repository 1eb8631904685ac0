/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmarks: prints the machine, the commit, the work and the rival, and ratios measured in one session.
 *
 * Probes measure what the machine can do at best, in the same session: how fast memory is read and how many fused
 * multiply-adds per second the cores make. From these follows the least time that a piece of work needs ("floor").
 */
#ifndef KN_BENCH_H
#define KN_BENCH_H

#include "app.h"

/* kinema bench engine. */
int kn_bench_engine(int argc, char **argv);
/* kinema bench quality. */
int kn_bench_quality(int argc, char **argv);
/* kinema bench codec. */
int kn_bench_codec(int argc, char **argv);
/* kinema bench serve. */
int kn_bench_serve(int argc, char **argv);

#define KN_BENCH_MAX_REPEAT 99

/* The middle one of n values, at most KN_BENCH_MAX_REPEAT; 0 of none. */
double kn_bench_median(const double *values, size_t n);

/* What it was asked for. */
struct kn_bench_codec_args {
    const char *model, *profile, *text, *only;
    const char *encoders, *tools; /* encoders: measure these of video, and no codecs; tools NULL: all sets */
    uint32_t prefix, n_threads, n_slices;
    float seconds; /* 0: not said */
    enum kn_kv_type kv_type;
    bool text_order, ablation, json, help;
};
/* The encoders' part of it (bench_hevc.c). Returns the program's exit status. */
int kn_bench_hevc(const struct kn_bench_codec_args *a, struct kn_model *model, const int32_t *tokens, size_t n_tokens);

/* Bytes read per second by n_threads threads from memory larger than the caches. 0: out of memory. */
double kn_probe_read_bytes_s(uint32_t n_threads);
/* Single-precision operations per second (a fused multiply-add counts two) of n_threads threads, best instruction level. */
double kn_probe_flops(uint32_t n_threads);
/* The same of the calling thread, by its processor time: for what is measured that way. */
double kn_probe_flops_processor(void);

/* Runs at least n_fma multiply-adds on registers; returns how many it did and a value that depends on all of them, so that
 * none is optimised away. One per instruction level; NULL pointers of levels that this build lacks. */
typedef uint64_t (*kn_probe_fn)(uint64_t n_fma, float *sink);
uint64_t kn_probe_fma_ref(uint64_t n_fma, float *sink);
uint64_t kn_probe_fma_avx2(uint64_t n_fma, float *sink);
uint64_t kn_probe_fma_avx512(uint64_t n_fma, float *sink);

#endif

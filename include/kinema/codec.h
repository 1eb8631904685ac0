/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring codecs: what each method makes of a real prefix's K and V, in bytes, in quality, in time.
 *
 *     [ prefix: through the codec and back ][ continue: teacher-forced, compared with the untouched cache ]
 *
 * Methods: "exact", "fine", "medium", "small" (by backend), "tiles", and rivals that exist only to be compared with: "raw",
 * "raw+zstd", "cachegen", "cachegen+sinks", "kvtc" (doc/benchmarks.md says how each was made).
 */
#ifndef KINEMA_CODEC_H
#define KINEMA_CODEC_H

#include "profile.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_eval_row {
    const char *method, *preset; /* borrowed for the call: "cachegen", "32/16" */
    uint64_t bytes;              /* of everything that must travel for the prefix: headers, side data, checksums */
    double ratio;                /* 16-bit values against bytes */
    double bits_k, bits_v;       /* a value; side data counted where it belongs, headers in neither */
    double kl;                   /* mean KL(untouched || coded), nats */
    double top1;                 /* share of positions with the same best token */
    double nll, nll_untouched;   /* mean -log p of the text's tokens */
    double encode_tok_s, decode_tok_s; /* K and V of tokens a second, one thread */
    uint64_t working_bytes;      /* peak scratch of decoding; 0 where unknown */
    bool exact;                  /* the pool's values came back bit for bit */
};
typedef void (*kn_eval_row_fn)(void *user, const struct kn_eval_row *row);

/* What methods other than a profile's have learned from texts that are not evaluated: kvtc its PCA, the ablation its bases. */
struct kn_eval_calibration;
struct kn_eval_calibration_opts {
    size_t size;                  /* sizeof(struct kn_eval_calibration_opts) */
    const int32_t *const *texts;  /* tokens, borrowed for the call */
    const size_t *n_tokens;
    size_t n_texts;
    uint32_t max_tokens;          /* of each text, 0: 2048; rounded down to whole blocks of 16 */
    enum kn_kv_type kv_type;      /* as in the evaluations */
    uint32_t n_threads;           /* 0: as many as the process may run on */
    kn_progress_fn progress;      /* may be NULL */
    void *user;
    bool ablation;                /* learn also what rows of an ablation need */
};
/* Errors: KN_E_ARG (too little text: says so), KN_E_UNSUPPORTED (no LAPACKE, or a shape), KN_E_NOMEM. References the model. One evaluation at a time may
 * use it. */
KN_API enum kn_status kn_eval_calibration_open(struct kn_eval_calibration **out, struct kn_model *model, const struct kn_eval_calibration_opts *opts, struct kn_err *err);
KN_API void kn_eval_calibration_close(struct kn_eval_calibration **calibration);

struct kn_eval_opts {
    size_t size;             /* sizeof(struct kn_eval_opts) */
    const int32_t *tokens;   /* at least prefix + continue_ of them; borrowed for the call */
    size_t n_tokens;
    uint32_t prefix;         /* a multiple of 256; 0: 3072 */
    uint32_t continue_;      /* 0: 1024 */
    const char *profile_path; /* NULL: methods that need one are left out */
    enum kn_kv_type kv_type;
    uint32_t n_threads;
    const char *only;        /* "cachegen,medium": method names; NULL: all */
    bool ablation;           /* rows that take preset medium apart as well: method "ablation", bytes of an ideal coder. They need a profile, and those with
                              * bases of their own a calibration for it */
    kn_eval_row_fn on_row;   /* called as rows are ready */
    kn_progress_fn progress; /* may be NULL */
    void *user;
    struct kn_eval_calibration *calibration; /* NULL: methods that need one are left out */
    struct kn_hevc_opts hevc; /* of methods that are video */
};

/* Errors: KN_E_ARG (too few tokens, an unknown method), KN_E_CONTEXT, KN_E_NOMEM, KN_E_UNSUPPORTED (an HEVC encoder that is not there),
 * and those of a profile. */
KN_API enum kn_status kn_codec_eval(struct kn_model *model, const struct kn_eval_opts *opts, struct kn_err *err);

/* Facts planted in a long text and asked for after the prefix went through a codec. */
struct kn_needle_row {
    const char *method, *preset;
    uint32_t n_facts, n_right; /* all tokens of the answer are the best ones */
    double mean_logprob;       /* of the answer, a fact, nats */
};
typedef void (*kn_needle_row_fn)(void *user, const struct kn_needle_row *row);

struct kn_needle_opts {
    size_t size;               /* sizeof(struct kn_needle_opts) */
    const char *text;          /* the haystack, long enough for n_facts different windows or less (they may overlap) */
    size_t text_bytes;
    uint32_t n_facts;          /* 0: 40 */
    uint32_t n_tokens;         /* of one haystack; 0: 4000 */
    const char *profile_path;
    enum kn_kv_type kv_type;
    uint32_t n_threads;
    const char *only;          /* NULL: untouched, fine, medium, small, and cachegen's presets with and without sinks */
    kn_needle_row_fn on_row;   /* once a method, at the end */
    kn_progress_fn progress;
    void *user;
    struct kn_eval_calibration *calibration; /* as in struct kn_eval_opts */
    struct kn_hevc_opts hevc;  /* of methods that are video */
};
KN_API enum kn_status kn_codec_needle(struct kn_model *model, const struct kn_needle_opts *opts, struct kn_err *err);

/* Which tiling of the tiles preset is smallest, over all pairs of divisors. */
struct kn_search_row {
    uint32_t tile_height, head_cols, tokens_per_picture;
    uint64_t bytes_intra, bytes; /* of the sampled tokens: every picture by itself; with prediction from the picture before */
    double ratio;
};
typedef void (*kn_search_row_fn)(void *user, const struct kn_search_row *row);
struct kn_search_opts {
    size_t size;             /* sizeof(struct kn_search_opts) */
    const int32_t *tokens;   /* borrowed for the call */
    size_t n_tokens;
    uint32_t sample_tokens;  /* the last so many are coded, a multiple of 256; 0: 256 */
    uint32_t levels;         /* 0: 64 */
    enum kn_kv_type kv_type;
    uint32_t n_threads;
    kn_search_row_fn on_row;
    kn_progress_fn progress;
    void *user;
    struct kn_hevc_opts hevc;
};
/* KN_E_UNSUPPORTED without the HEVC encoder asked for. */
KN_API enum kn_status kn_codec_search(struct kn_model *model, const struct kn_search_opts *opts, struct kn_err *err);

/* How fast codecs are on a real prefix's K and V: every method's two directions, the stages of the spectral presets, and for
 * comparison zstd and a plain copy of the same bytes, all in one call. */
struct kn_codec_bench_row {
    const char *what, *how;  /* borrowed for the call: "medium", "rans" */
    double ratio;            /* 16-bit values against all bytes that travel; 0: nothing is coded */
    double bytes_per_token;  /* what bytes a second count: 16-bit values, or symbols where what is "rans" */
    double flop_per_token;   /* "transform": two for each multiply-add of the dense product, both directions; else 0 */
    double encode_tok_s, decode_tok_s;           /* one thread, processor time, fastest round */
    double encode_wall_tok_s, decode_wall_tok_s; /* n_wall threads, wall clock, fastest round; 0: not measured */
    uint32_t n_wall;
    uint64_t working_bytes;  /* of one decoding handle; 0: unknown */
};
typedef void (*kn_codec_bench_row_fn)(void *user, const struct kn_codec_bench_row *row);

struct kn_codec_bench_opts {
    size_t size;              /* sizeof(struct kn_codec_bench_opts) */
    const int32_t *tokens;    /* at least prefix of them; borrowed for the call */
    size_t n_tokens;
    uint32_t prefix;          /* a multiple of 256; 0: 1024 */
    const char *profile_path; /* NULL: what needs one is left out, as is video where the HEVC encoder asked for is missing */
    enum kn_kv_type kv_type;
    uint32_t n_threads;       /* of wall clock figures and of the model, at most one a chunk of 256; 0: all */
    double seconds;           /* of each direction of each row, at least one round; 0: 1 */
    const char *only;         /* "exact,medium": names; NULL: exact, fine, medium, small, tiles, rans, transform, zstd, memcpy */
    kn_codec_bench_row_fn on_row;
    kn_progress_fn progress;  /* may be NULL */
    void *user;
    struct kn_hevc_opts hevc; /* of presets that are video */
};
/* Errors: KN_E_ARG (too few tokens, an unknown name), KN_E_CONTEXT, KN_E_NOMEM, and those of a profile. */
KN_API enum kn_status kn_codec_bench(struct kn_model *model, const struct kn_codec_bench_opts *opts, struct kn_err *err);

#ifdef __cplusplus
}
#endif
#endif

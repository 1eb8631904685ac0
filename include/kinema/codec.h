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

#include "model.h"

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
    const struct kn_hevc_opts *hevc; /* of methods that are video; borrowed for the call, NULL: defaults */
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
    const struct kn_hevc_opts *hevc; /* of methods that are video; borrowed for the call, NULL: defaults */
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
    const struct kn_hevc_opts *hevc; /* borrowed for the call, NULL: defaults */
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
    const struct kn_hevc_opts *hevc; /* of presets that are video; borrowed for the call, NULL: defaults */
};
/* Errors: KN_E_ARG (too few tokens, an unknown name), KN_E_CONTEXT, KN_E_NOMEM, and those of a profile. */
KN_API enum kn_status kn_codec_bench(struct kn_model *model, const struct kn_codec_bench_opts *opts, struct kn_err *err);

/* How well encoders of lossless video do on the pictures that the layouts draw of a real prefix: size, beside what the rows' own statistics
 * allow, and speed. Symbols are what the layout put into pictures, padding not counted, one byte each. */
struct kn_codec_bench_hevc_row {
    const char *preset;   /* "fine", "medium", "small", "tiles"; borrowed for the call, as all names */
    const char *part;     /* "K", "V", or "K+V": both, times added */
    const char *encoder;  /* "ours", "x265-ultrafast", "x265-medium" */
    const char *tools;    /* ours: "full", "basic"; of an ablation "none", "rice", "all but rice" and so on; NULL: not ours */
    uint64_t n_symbols;
    uint64_t n_bytes;     /* of all streams, their tables counted */
    uint64_t order_bytes; /* what travels besides to say how a picture's columns are ordered; 0: tiles, or the text's order */
    double entropy_bytes; /* sum over rows of the empirical zero-order entropy of each over a chunk's tokens: so few tokens make it too low; 0: tiles */
    double encode_mb_s, decode_mb_s; /* one thread, processor time, fastest round; decoding by libavcodec */
    /* Encoding by wall clock, fastest round: on one thread; on n_threads, streams side by side; slices of one picture after the other side by
     * side (ours). 0: not measured. */
    double encode_wall_mb_s, streams_mb_s, slices_mb_s;
    /* The same two by processor time of all threads together, fastest round: below encode_mb_s by what threads cost one another, not by waiting. */
    double streams_core_mb_s, slices_core_mb_s;
    uint64_t slices_bytes; /* as n_bytes, of those slices: more of them than usual, and each costs something */
    uint32_t n_threads;
    bool exact;           /* every stream, also those coded on several threads, came back bit for bit; if not, decode_mb_s is 0 */
};
typedef void (*kn_codec_bench_hevc_row_fn)(void *user, const struct kn_codec_bench_hevc_row *row);

struct kn_codec_bench_hevc_opts {
    size_t size;              /* sizeof(struct kn_codec_bench_hevc_opts) */
    const int32_t *tokens;    /* at least prefix of them; borrowed for the call */
    size_t n_tokens;
    uint32_t prefix;          /* a multiple of 256; 0: 1024 */
    const char *profile_path; /* NULL: spectral presets are left out */
    enum kn_kv_type kv_type;
    uint32_t n_threads;       /* of the figures of several threads, at most one a stream, and of the model; 0: 2; 1: those figures are left out */
    uint32_t n_slices;        /* of a picture where slices are coded side by side, 1..64; 0: four a thread */
    double seconds;           /* of each measurement, at least one round; 0: 0.3 */
    const char *encoders;     /* "ours,x265-medium": names; NULL: all. What is not there is left out, and logged */
    const char *tools;        /* of ours: "full,basic"; NULL: both */
    const char *only;         /* presets; NULL: fine, medium, small, tiles */
    bool text_order;          /* spectral pictures with columns as in the text, not ordered by loudness as chunks have them */
    bool ablation;            /* ours also with each tool of HEVC's range extensions alone, with all but one, and with none */
    kn_codec_bench_hevc_row_fn on_row; /* a preset's rows follow each other: each encoder's K, V, K+V */
    kn_progress_fn progress;  /* may be NULL */
    void *user;
};
/* Errors: KN_E_ARG (too few tokens, an unknown name), KN_E_CONTEXT, KN_E_NOMEM, and those of a profile. A stream that does not come back is no
 * error but a row's exact. */
KN_API enum kn_status kn_codec_bench_hevc(struct kn_model *model, const struct kn_codec_bench_hevc_opts *opts, struct kn_err *err);

/* ---- where the bits of lossless HEVC go
 *
 * What callbacks get belongs to the library, lives for the call, and may grow at its end. */

/* Classes of syntax elements of a slice. */
enum kn_hevc_element {
    KN_HEVC_ELEMENT_SPLIT = 0,  /* split_cu_flag, split_transform_flag */
    KN_HEVC_ELEMENT_SKIP,       /* cu_skip_flag */
    KN_HEVC_ELEMENT_MODE,       /* pred_mode_flag, part_mode, merge_flag, merge_idx */
    KN_HEVC_ELEMENT_INTRA,      /* intra modes of luma and chroma */
    KN_HEVC_ELEMENT_MOTION,     /* references, vector differences, predictors */
    KN_HEVC_ELEMENT_CBF,        /* rqt_root_cbf, cbf_luma, cbf_cb, cbf_cr */
    KN_HEVC_ELEMENT_RDPCM,      /* explicit_rdpcm_flag and its direction */
    KN_HEVC_ELEMENT_LAST,       /* position of the last coefficient */
    KN_HEVC_ELEMENT_SUB_BLOCK,  /* coded_sub_block_flag */
    KN_HEVC_ELEMENT_SIG,        /* sig_coeff_flag */
    KN_HEVC_ELEMENT_GREATER1,   /* coeff_abs_level_greater1_flag */
    KN_HEVC_ELEMENT_GREATER2,   /* coeff_abs_level_greater2_flag */
    KN_HEVC_ELEMENT_SIGN,       /* coeff_sign_flag */
    KN_HEVC_ELEMENT_REMAINING,  /* coeff_abs_level_remaining */
    KN_HEVC_ELEMENT_OTHER,      /* cu_transquant_bypass_flag, SAO, cu_qp_delta, ends of slices */
    KN_HEVC_ELEMENT_COUNT
};
/* "sig", "remaining": static text. */
KN_API const char *kn_hevc_element_name(enum kn_hevc_element element);

/* bits is what an ideal arithmetic coder spends: -log2 of the probability by the context's state, one for a bypass bin. */
struct kn_hevc_count { uint64_t n_coded, n_bypass; double bits; };
struct kn_hevc_counts {
    struct kn_hevc_count element[KN_HEVC_ELEMENT_COUNT];
    double plane_bits[3]; /* of which residuals of Y, Cb, Cr */
    uint64_t n_cu, n_cu_skipped, n_cu_intra; /* coding units: all, skipped, intra */
};

/* What parameter sets say. Sizes in samples. */
struct kn_hevc_params {
    uint32_t width, height;               /* as coded, before the window */
    uint32_t window_right, window_bottom; /* cut off for output */
    uint32_t profile_idc, level_idc;      /* level_idc: 30 times the level */
    bool high_tier;
    uint32_t max_bits;                    /* of a sample in the profile, by its constraint flags: 8, 10, 12, or 16 where none is set */
    bool lower_bit_rate;                  /* general_lower_bit_rate_constraint_flag */
    uint32_t ctu, min_cu, min_tu, max_tu;
    uint32_t depth_inter, depth_intra;    /* max_transform_hierarchy_depth */
    uint32_t tools;                       /* range extension: 1 transform_skip_context, 2 implicit_rdpcm, 4 explicit_rdpcm, 8 persistent_rice */
    uint32_t pcm_min, pcm_max;            /* sizes of units that may be PCM; 0: none may */
    bool amp, sao, deblocking, strong_intra_smoothing, temporal_mvp, sign_hiding, weighted_pred, wavefront, cu_qp_delta, constrained_intra;
};

struct kn_hevc_slice {
    uint32_t picture, index; /* of the stream; of the picture */
    char type;               /* 'I', 'P' */
    bool idr;
    uint32_t first_ctu, n_ctus, first_row, n_rows; /* rows of samples that its CTUs touch */
    int32_t qp;
    uint32_t n_refs;
    uint64_t n_bytes, header_bytes; /* of the NAL unit with its start code; of which before the slice's data, emulation prevention left out */
    uint64_t n_escapes, n_filler;   /* of which emulation prevention, and cabac_zero_words without it */
    struct kn_hevc_counts counts;
};

struct kn_hevc_picture {
    uint32_t index, n_slices;
    bool idr;
    uint64_t n_bytes;                   /* of all NAL units since the picture before, start codes and parameter sets counted */
    struct kn_hevc_counts counts;
    const struct kn_hevc_counts *bands; /* borrowed for the call; row bands from top to bottom */
    uint32_t n_bands, band_rows;
};

/* What a stream's level, tier and profile allow. */
enum kn_hevc_limit_kind {
    KN_HEVC_LIMIT_SAMPLES = 0, /* of a plane, as coded */
    KN_HEVC_LIMIT_SIDE,        /* the longer side, samples */
    KN_HEVC_LIMIT_CTU,         /* the coding tree unit's size, samples: at least this */
    KN_HEVC_LIMIT_SLICES,      /* slice segments of a picture */
    KN_HEVC_LIMIT_SLICE_BYTES, /* all slices of a picture: what the coded picture buffer holds */
    KN_HEVC_LIMIT_UNIT_BYTES,  /* the same with parameter sets and SEI */
    KN_HEVC_LIMIT_FIRST_BYTES, /* the first access unit: the least compression that is asked for */
    KN_HEVC_LIMIT_CTU_BITS,    /* a coding tree unit: 5/3 of its samples */
    KN_HEVC_LIMIT_BINS,        /* of a picture, for its bytes (cabac_zero_words) */
    KN_HEVC_LIMIT_COUNT
};
/* "slices", "bins": static text. */
KN_API const char *kn_hevc_limit_name(enum kn_hevc_limit_kind kind);
/* picture: where it is closest to what is allowed, or furthest beyond; 0 for what all have. known false: the level is none of H.265's at this tier. */
struct kn_hevc_limit { double value, allowed; uint32_t picture; bool known, exceeded; };

/* One stream: a whole Annex B file, or a section of a chunk. */
struct kn_hevc_stream {
    const char *section; /* "spectral-video", "tiles-video", or NULL: a file of its own */
    uint32_t index;      /* of the section */
    struct kn_hevc_params params;
    uint32_t n_pictures, n_slices;
    uint64_t n_bytes, n_samples;        /* of everything; of all planes of all pictures, as coded */
    struct kn_hevc_counts counts;
    const struct kn_hevc_counts *bands; /* of all pictures; borrowed for the call */
    uint32_t n_bands, band_rows;
    const char *hash;                   /* of pictures, "md5", "crc" or "checksum"; NULL: the stream has none */
    struct kn_hevc_limit limits[KN_HEVC_LIMIT_COUNT];
    double pictures_s;                  /* that may be played in a second by its level, 300 at most; 0: not known */
    uint32_t n_pcm;                     /* coding units that are PCM */
    uint32_t n_hashed, n_hash_checked;  /* pictures with one; those that were rebuilt and match it. One that does not is KN_E_FORMAT */
};

struct kn_hevc_inspect_opts {
    size_t size;        /* sizeof(struct kn_hevc_inspect_opts) */
    uint32_t band_rows; /* rows of a band, a multiple of 4; 0: 16 */
    void (*on_begin)(void *user, const struct kn_hevc_stream *stream); /* params are known, totals are zero; may be NULL, as the others */
    void (*on_slice)(void *user, const struct kn_hevc_slice *slice);
    void (*on_picture)(void *user, const struct kn_hevc_picture *picture);
    void (*on_end)(void *user, const struct kn_hevc_stream *stream);
    void *user;
};
/* Reads bytes, an Annex B stream of lossless HEVC or a chunk as stores hold it (then each of its HEVC sections), and reports.
 * Errors: KN_E_FORMAT (damaged), KN_E_UNSUPPORTED (a tool that Kinema's reader does not know, or a chunk without HEVC: says which),
 * KN_E_ARG, KN_E_NOMEM. Any thread. */
KN_API enum kn_status kn_hevc_inspect(const void *bytes, size_t n_bytes, const struct kn_hevc_inspect_opts *opts, struct kn_err *err);

#ifdef __cplusplus
}
#endif
#endif

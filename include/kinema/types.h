/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types that several public headers share: what a KV cache holds, how it is coded, how tokens are chosen; and the rule
 * by which public structs grow.
 *
 * A struct that the caller makes begins with `size_t size`, which the caller sets to sizeof the struct; the rest of it
 * starts as zeros. Later versions add members only behind the end of such a struct, so that a program and a library of
 * different versions understand each other:
 *
 * - Options. The library copies them. Zero means the default. A shorter struct, of an older program, is one whose
 *   missing members are zero. A longer one, of a newer program, is taken if all that this library does not know is
 *   zero, and refused with KN_E_ARG otherwise: no option is ever ignored. A size that is not set is KN_E_ARG as well.
 * - What the library fills in (statistics, infos, events). It writes as much as the smaller of both sizes holds. size
 *   stays; members that the library does not know stay as they were. A size that is not set is KN_E_ARG, and nothing is
 *   written.
 * - Options inside options are pointers to such structs; NULL stands for defaults.
 *
 * What the library makes (rows, pictures and items given to callbacks, struct kn_model_info) belongs to it and may grow
 * at its end: read it through the pointer and never copy it by its size into memory of a fixed layout. Elements of
 * arrays, and struct kn_err, never change.
 */
#ifndef KINEMA_TYPES_H
#define KINEMA_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* Options in place, in C: KN_OPTS(kn_model_opts, .path = "model.gguf") is a pointer to options with these members and
 * their size. They live until the end of the block. */
#ifndef __cplusplus
#define KN_OPTS(type, ...) (&(struct type){.size = sizeof(struct type), __VA_ARGS__})
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum kn_kv_type { KN_KV_TYPE_F16 = 0, KN_KV_TYPE_BF16 = 1 };

/* How published chunks are coded. Lossy presets are labelled so in what they print. */
enum kn_preset {
    KN_PRESET_DEFAULT = 0, /* what the engine was opened with; there: medium with a profile_path, exact without */
    KN_PRESET_EXACT = 1,   /* the pool's own 16-bit values, bit for bit */
    KN_PRESET_TILES = 2,   /* KVCodec's token-tiles layout, lossless HEVC of quantised integers: lossy */
    /* The spectral layout, lossy: points on a curve of size against quality. They need a profile of the model. */
    KN_PRESET_FINE = 3,
    KN_PRESET_MEDIUM = 4,
    KN_PRESET_SMALL = 5
};

/*
 * How far K and V are from what the model computes; a smaller value is better. Blocks of the pool carry it: what was
 * computed, or restored from exact chunks, is exact; what was restored from a lossy preset has the preset's; and what
 * was computed on top of lossy blocks descends from them and counts as the worst of them. The order of lossy ones is
 * that of their measured KL (README.md).
 */
enum kn_kv_quality {
    KN_KV_QUALITY_DEFAULT = 0, /* in options: what the preset gives (engine), what the engine takes (request) */
    KN_KV_QUALITY_EXACT = 1,
    KN_KV_QUALITY_FINE = 2,
    KN_KV_QUALITY_TILES = 3,   /* with 64 levels or more */
    KN_KV_QUALITY_MEDIUM = 4,
    KN_KV_QUALITY_SMALL = 5,
    KN_KV_QUALITY_ANY = 6      /* whatever there is: tiles of fewer than 64 levels have no measured quality */
};
#define KN_KV_QUALITY_COUNT 7

/* "exact", "fine", "tiles", "medium", "small", "any"; "default". Any thread. */
KN_API const char *kn_kv_quality_name(enum kn_kv_quality quality);
/* DEFAULT for an unknown name. Any thread. */
KN_API enum kn_kv_quality kn_kv_quality_from_name(const char *name);

/* How the spectral presets' symbols become bytes. The other presets have one way each. */
enum kn_backend {
    KN_BACKEND_DEFAULT = 0, /* rans */
    KN_BACKEND_RANS = 1,    /* entropy coder for processors */
    KN_BACKEND_HEVC = 2     /* lossless video, for video decoders; a fetch opens libavcodec, without which it misses */
};

/* Who codes video (presets tiles, and the spectral ones over KN_BACKEND_HEVC). Decoding is the same for all. */
enum kn_hevc_encoder {
    KN_HEVC_ENCODER_DEFAULT = 0, /* kinema */
    KN_HEVC_ENCODER_KINEMA = 1,  /* our own */
    KN_HEVC_ENCODER_X265_ULTRAFAST = 2, /* libx265 through the plugin libkinema_x265.so, to compare with */
    KN_HEVC_ENCODER_X265_MEDIUM = 3
};

/* Which tools of HEVC's range extensions our encoder may use. Every decoder of 4:4:4 knows basic's; full makes streams
 * smaller. A chunk's header says what it needs. */
enum kn_hevc_tools { KN_HEVC_TOOLS_DEFAULT = 0 /* full */, KN_HEVC_TOOLS_FULL = 1, KN_HEVC_TOOLS_BASIC = 2 };

struct kn_hevc_opts {
    size_t size; /* sizeof(struct kn_hevc_opts) */
    enum kn_hevc_encoder encoder;
    enum kn_hevc_tools tools;
    uint32_t n_slices; /* of a picture, each decodable on its own, 1..64; 0: chosen by size */
};

/* CPU levels that kernels may use: see cpu_level_max_plus_1 of struct kn_engine_opts. */
enum kn_cpu_level { KN_CPU_LEVEL_REF = 0, KN_CPU_LEVEL_AVX2 = 1, KN_CPU_LEVEL_AVX512 = 2 };

struct kn_tiles_opts {
    size_t size;                 /* sizeof(struct kn_tiles_opts) */
    uint32_t levels;             /* quantiser levels of K and V, 4..256; 0: 64 */
    uint32_t tokens_per_picture; /* "resolution", 1..chunk tokens, must divide the chunk; 0: chosen by shape */
    uint32_t tile_height;        /* rows of one head's tile, must divide d_head; 0: chosen (about square) */
};

struct kn_sampler_opts {
    size_t size;          /* sizeof(struct kn_sampler_opts) */
    float temperature;    /* 0: greedy (default) */
    uint32_t top_k;       /* 0: off */
    float top_p;          /* 0 or 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 0 or 1: off; divides positive and multiplies negative logits of recent tokens */
    uint32_t repeat_last; /* tokens looked back; 0: 64 */
    uint64_t seed;        /* same seed, same tokens */
};

/* A token and its log-probability: natural, of the model's own distribution, before penalty, temperature and cuts. */
struct kn_logprob { int32_t token; float logprob; };
#define KN_MAX_TOP_LOGPROBS 20u

/* Why a request has ended. */
enum kn_stop_reason {
    KN_STOP_REASON_NONE = 0, /* it has not */
    KN_STOP_REASON_STOP = 1,
    KN_STOP_REASON_LENGTH = 2,
    KN_STOP_REASON_CANCELLED = 3,
    KN_STOP_REASON_ERROR = 4
};

/* Told now and then during long work: what is done, in words, and how far that phase is, 0 to 1. user: the options'. */
typedef void (*kn_progress_fn)(void *user, const char *phase, double done);

#ifdef __cplusplus
}
#endif
#endif

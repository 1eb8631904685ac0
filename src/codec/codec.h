/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From KV to bytes and back. A chunk is a run of consecutive tokens, all layers, coded into one self-describing container
 * (doc/format-chunk.md). Encoding reads the pool through a kv view; restoring writes into it.
 *
 *     kv view --layout--> symbols/pictures --backend--> sections --container--> bytes
 *
 * A layout turns KV into sections and back; there is one table entry a preset and backend (exact, tiles; spectral: fine, medium,
 * small, each over rans or hevc).
 * A codec handle holds scratch memory and backend contexts: one thread at a time; open one a worker.
 */
#ifndef KNI_CODEC_CODEC_H
#define KNI_CODEC_CODEC_H

#include "base/hash.h"
#include "base/status.h"
#include "codec/profile/profile.h"
#include "device/kv_view.h"

enum kni_layout_id { KNI_LAYOUT_ID_EXACT = 1, KNI_LAYOUT_ID_TILES = 2, KNI_LAYOUT_ID_SPECTRAL = 3 };
enum kni_backend_id { KNI_BACKEND_ID_ZSTD = 1, KNI_BACKEND_ID_HEVC = 2, KNI_BACKEND_ID_RANS = 3 };

/* What a chunk is. Everything here is in the container's header; a mismatch with what is expected is a miss. */
struct kni_chunk_meta {
    uint8_t fingerprint[16];     /* of the model */
    uint8_t profile[16];         /* id of the profile; zero for exact and tiles. To encode a spectral preset: zero takes the handle's */
    struct kni_hash chain;       /* chain hash at the chunk's end */
    enum kn_preset preset;
    enum kni_backend_id backend; /* 0 when expected: any that the preset has */
    uint32_t first_token, n_tokens; /* positions covered; both multiples of 16 */
    struct kni_kv_layout kv;
};

struct kni_codec;

struct kni_codec_opts {
    enum kn_preset preset;      /* what to encode as; restore reads any */
    struct kn_tiles_opts tiles; /* zero: defaults */
    struct kni_profile *profile; /* of the spectral presets, to encode and to restore; the handle takes a reference. NULL: none */
    enum kn_backend backend;     /* of the spectral presets */
    uint32_t tokens_per_picture; /* of the spectral presets over HEVC, 64..1024; 0: the whole chunk, 1024 at most */
    bool text_order;             /* of the spectral presets over HEVC: a picture's columns stand as in the text, not by loudness; 1 % larger */
    struct kn_hevc_opts hevc;    /* of presets and backends that are video; zero: defaults. With basic tools, restore refuses chunks that use others */
    uint32_t cpu_without;        /* of enum kni_cpu_flag: the machine's flags that are not used; 0: all are */
};

/* Errors at open: KN_E_UNSUPPORTED when the preset cannot be encoded here (plugin missing), KN_E_ARG for a spectral preset
 * without a profile; restoring still works with a handle opened for exact (with the profile, for spectral chunks). */
enum kn_status kni_codec_open(struct kni_codec **out, const struct kni_codec_opts *opts, struct kn_err *err);
void kni_codec_close(struct kni_codec **codec);

/* Encodes positions meta->first_token .. + n_tokens of view. *data is allocated (kni_free by the caller), *n_bytes its size.
 * KN_E_NOT_FINITE when one of the values is infinite or NaN, which no preset codes and none restores. */
enum kn_status kni_chunk_encode(struct kni_codec *codec, const struct kni_chunk_meta *meta, const struct kni_kv_host *view,
                                void **data, size_t *n_bytes, struct kn_err *err);

/* Reads and checks a container's header: magic, version, sizes, header checksum. Section checksums are checked as each
 * is read. Hostile bytes: KN_E_FORMAT; another version: KN_E_MISMATCH. */
enum kn_status kni_chunk_read_meta(const void *data, size_t n_bytes, struct kni_chunk_meta *out, struct kn_err *err);

/* Checks the whole container: header and every section's checksum. */
enum kn_status kni_chunk_verify(const void *data, size_t n_bytes, struct kn_err *err);

/* Checks the container against expect (KN_E_MISMATCH names the field), then decodes it into view's blocks, piece by piece
 * (picture by picture for video). Values that come out infinite or NaN are KN_E_FORMAT: layouts find them as they make them. On failure
 * the covered positions hold rubbish and must not be used. Never trusts a length; working memory stays bounded and is reported by
 * kni_codec_working_bytes. */
enum kn_status kni_chunk_restore(struct kni_codec *codec, const void *data, size_t n_bytes, const struct kni_chunk_meta *expect,
                                 const struct kni_kv_host *view, struct kn_err *err);

/* Both refuse K and V that are not finite: encode with KN_E_NOT_FINITE, restore with KN_E_FORMAT. */

/* Peak bytes of scratch that this handle has held, backends' picture buffers counted. */
size_t kni_codec_working_bytes(const struct kni_codec *codec);

/* About the most that a handle will hold while it restores chunks like meta, coded with opts, so that the number of workers can be
 * chosen: what usual chunks need stays below it. Says whether such chunks can be encoded at all, so that a wrong
 * setting is refused at open and not at each publish: looks at shape, token count, tiling and profile, needs no plugin.
 * KN_E_ARG says which does not fit, KN_E_MISMATCH in what the profile is another model's; *n_bytes is 0 then. */
enum kn_status kni_codec_working_estimate(const struct kni_codec_opts *opts, const struct kni_chunk_meta *meta, size_t *n_bytes, struct kn_err *err);

/* "exact", "tiles", "fine", "medium", "small". */
const char *kni_preset_name(enum kn_preset preset);
/* Whether chunks of the preset are coded with a profile. */
bool kni_preset_needs_profile(enum kn_preset preset);
/* What restoring the preset's chunks gives. tiles: of KN_PRESET_TILES. preset is not DEFAULT. */
enum kn_kv_quality kni_preset_quality(enum kn_preset preset, const struct kn_tiles_opts *tiles);
/* What a preset is coded with. wanted counts for the spectral presets, the others have one way each. 0: unknown preset or backend. */
enum kni_backend_id kni_backend_of(enum kn_preset preset, enum kn_backend wanted);
/* "zstd", "hevc", "rans"; "unknown". */
const char *kni_backend_name(enum kni_backend_id backend);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The container of one chunk: a header that says everything about the chunk, a table of sections, a checksum over both,
 * and the sections one after the other without gaps (doc/format-chunk.md gives every offset).
 *
 *     [ fixed header 128 ][ table: n_sections x 32 ][ XXH3-64 of all before ][ section 0 ][ section 1 ] ...
 *
 * The checksum lies after the table so that one pass covers every header byte. Sections must touch: that alone excludes
 * overlaps, gaps that hide bytes, and offsets outside. Nothing of a container that comes from outside is trusted before
 * the checksum fits, and even then every number is bounded, since whoever writes to a store can also compute XXH3.
 *
 * Version policy: a reader knows one version. Anything else is KN_E_MISMATCH, which callers treat as a miss.
 */
#ifndef KNI_CODEC_CONTAINER_H
#define KNI_CODEC_CONTAINER_H

#include "codec/codec.h"

#define KNI_CONTAINER_VERSION 3u /* 2: spectral chunks; 3: HEVC tools named, order of spectral columns */
#define KNI_CONTAINER_FIXED_BYTES 128u
#define KNI_CONTAINER_ENTRY_BYTES 32u

/* Bounds of what a reader accepts, far above real models, so that no product of them overflows. Memory is asked for only
 * after kni_container_match: a forged header gets no more than a true one of the expected shape. */
#define KNI_CONTAINER_MAX_SECTIONS 8192u
#define KNI_CONTAINER_MAX_LAYERS 1024u
#define KNI_CONTAINER_MAX_KV_HEADS 256u
#define KNI_CONTAINER_MAX_D_HEAD 1024u
#define KNI_CONTAINER_MAX_TOKENS 65536u

enum kni_section_kind {
    KNI_SECTION_KIND_TILES_SCALE = 3, /* zstd; all per-token scales; index 0 */
    KNI_SECTION_KIND_TILES_VIDEO = 4, /* HEVC; one layer group's K or V; index group * 2 + is_v */
    KNI_SECTION_KIND_EXACT_MODEL = 10, /* zstd; what is said about every channel, and tables; index 0 */
    KNI_SECTION_KIND_EXACT_PART = 11,  /* rANS and raw bits; one layer's K or V; index layer * 2 + is_v */
    KNI_SECTION_KIND_SPECTRAL_SINKS = 16, /* exact values of the first tokens; index 0 */
    KNI_SECTION_KIND_SPECTRAL_RANS = 17,  /* all matrices of symbols; index 0 */
    KNI_SECTION_KIND_SPECTRAL_VIDEO = 18, /* HEVC; K or V of three groups; index triple * 2 + is_v */
    KNI_SECTION_KIND_SPECTRAL_ESCAPES = 19, /* integers that a symbol does not hold, all matrices; index 0 */
    KNI_SECTION_KIND_SPECTRAL_ORDER = 20   /* in which order tokens stand in every part's pictures, or nothing; index 0 */
};

/* How the tiles layout cut this chunk. The spectral layout over HEVC has a resolution only; all else is zero for other layouts. */
struct kni_tiling {
    uint32_t levels;             /* quantiser levels, 4..256 */
    uint32_t tokens_per_picture; /* the "resolution" */
    uint32_t tile_height;        /* rows of one head's tile */
    uint32_t head_cols;          /* heads side by side in a token's tile; divides n_kv_head */
    uint32_t grid_cols;          /* tokens side by side in a picture */
};

struct kni_container_header {
    struct kni_chunk_meta meta;
    enum kni_layout_id layout;
    enum kni_backend_id backend;
    struct kni_tiling tiling;
    uint32_t tools; /* bits of enum kni_hevc_tool (hevc_lossless.h) that the chunk's video uses; 0 without video */
    uint32_t n_sections;
};

/* ---- reading: a view into the caller's bytes, nothing allocated */

struct kni_container {
    struct kni_container_header header;
    const uint8_t *data;
    size_t n_bytes;
};

/* Checks magic, version, sizes, header checksum, table and the range of each field. data is borrowed while out is used. */
enum kn_status kni_container_open(struct kni_container *out, const void *data, size_t n_bytes, struct kn_err *err);
struct kni_section {
    enum kni_section_kind kind;
    uint32_t number, index; /* number: in the container's table */
    const uint8_t *bytes;   /* of the container's data */
    size_t n_bytes;
};

/* Goes through all sections, each after checking its checksum. Begin with *n_seen 0:
 *
 *     for (uint32_t n_seen = 0; kni_container_next(&c, &n_seen, &section, &status, err);)
 *
 * False after the last one, or when *status is not KN_OK: set here when a section is damaged, or by the caller, who may set it
 * before the first call (c is not read then) and in the loop. */
bool kni_container_next(const struct kni_container *c, uint32_t *n_seen, struct kni_section *out, enum kn_status *status,
                        struct kn_err *err);
/* Section i of the table (i < n_sections) after checking its checksum against its bytes. */
enum kn_status kni_container_section(const struct kni_container *c, uint32_t i, enum kni_section_kind *kind, uint32_t *index,
                                     const uint8_t **bytes, size_t *n_bytes, struct kn_err *err);
/* The same, and it must be of this kind and index: layouts write sections in one fixed order. */
enum kn_status kni_container_expect(const struct kni_container *c, uint32_t i, enum kni_section_kind kind, uint32_t index,
                                    const uint8_t **bytes, size_t *n_bytes, struct kn_err *err);
/* KN_E_MISMATCH naming the first field in which c is not what is expected. expect->preset KN_PRESET_DEFAULT and expect->backend 0: any. */
enum kn_status kni_container_match(const struct kni_container *c, const struct kni_chunk_meta *expect, struct kn_err *err);

/* ---- writing: one growing buffer, owned by the writer until finish */

struct kni_container_writer {
    struct kni_container_header header;
    uint8_t *data;
    size_t used_bytes, capacity_bytes;
    size_t section_at; /* where the open section began */
    uint32_t n_done;   /* sections ended */
};

/* KN_E_ARG naming the field of a chunk to encode that no container can hold. */
enum kn_status kni_container_check_header(const struct kni_container_header *header, struct kn_err *err);
/* Room for a header of header->n_sections sections is set aside: at most so many may follow. KN_E_NOMEM, KN_E_ARG (a field out
 * of range). */
enum kn_status kni_container_writer_init(struct kni_container_writer *w, const struct kni_container_header *header, struct kn_err *err);
/* Room for n_bytes more, or NULL when out of memory. The pointer lives until the next call. */
uint8_t *kni_container_writer_reserve(struct kni_container_writer *w, size_t n_bytes);
/* n_bytes of the room reserved are filled now. */
void kni_container_writer_commit(struct kni_container_writer *w, size_t n_bytes);
/* Ends the section that holds all bytes committed since the last end. */
void kni_container_writer_end_section(struct kni_container_writer *w, enum kni_section_kind kind, uint32_t index);
/* Writes header and checksum; gives the buffer to the caller (kni_free). Where fewer sections were written than planned, the
 * header is shortened. */
void kni_container_writer_finish(struct kni_container_writer *w, void **data, size_t *n_bytes);
/* Frees the buffer of a writer that was not finished. Zeroed writers are fine. */
void kni_container_writer_fini(struct kni_container_writer *w);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two backends of the spectral layout share (doc/format-chunk.md has the sections byte by byte). A chunk is cut in
 * time into runs and in layers into parts (profile.h); a run of a part is a matrix of symbols (spectral.h), and a matrix is
 * what the transform and its escapes know:
 *
 *     kv view --kni_spectral_layout_forward--> symbols[row][token], escapes --backend--> section
 *
 * Runs are at most KNI_SPECTRAL_RUN tokens, also where a picture is wider, so that the transform's scratch does not grow with
 * the picture. Escapes of all matrices lie in one section, in the order in which the backend codes its matrices: one cursor
 * writes them and one reads them. The first tokens of a sequence travel exactly (sinks.h); their columns in the matrices
 * are blank.
 *
 * Owner: the codec handle.
 */
#ifndef KNI_CODEC_LAYOUT_SPECTRAL_H
#define KNI_CODEC_LAYOUT_SPECTRAL_H

#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/layout.h"
#include "codec/spectral/spectral.h"

#define KNI_SPECTRAL_RUN 256u
#define KNI_SPECTRAL_MIN_SIDE 144u /* of a picture: the smallest that video decoders in hardware take */
#define KNI_SPECTRAL_MIN_PICTURE 64u
#define KNI_SPECTRAL_MAX_PICTURE 1024u /* tokens */
#define KNI_SPECTRAL_BLANK 128u /* the symbol of zero */

struct kni_spectral_layout {
    uint32_t cpu_flags; /* of kernels, of enum kni_cpu_flag */
    struct kni_spectral *transform; /* of the handle's profile; made on first use, as all below */
    uint8_t *symbols;               /* a matrix (rans, restoring HEVC), three planes (encoding HEVC) */
    size_t symbols_bytes;
    void *scratch;                  /* of the rANS coder; over HEVC a chunk's order of columns */
    size_t scratch_bytes;
    struct kni_escapes escapes;     /* of the current matrix */
    uint8_t *escape_bytes;          /* the section being written */
    size_t escape_used, escape_room;
    struct kni_hevc_encoder *encoders[2]; /* K, V: their pictures differ in height */
    struct kni_hevc_decoder *decoders[2];
    size_t counted_bytes;
};

/* One chunk on its way. */
struct kni_spectral_job {
    struct kni_spectral_layout *x;
    const struct kni_profile *profile;
    const struct kni_chunk_meta *meta;
    const struct kni_kv_host *view;
    enum kni_profile_preset preset;
    uint32_t n_sinks;            /* of this chunk: its first tokens that travel exactly */
    bool text_order;             /* encoding: columns of pictures are not to be ordered */
    uint8_t *order;              /* drawing: packed classes of all parts (spectral_order.h), written; NULL: columns stand as in the text */
    const uint8_t *escapes, *escapes_end; /* restoring: what is left of the section */
};

static inline enum kni_profile_preset kni_spectral_preset(enum kn_preset preset)
{
    return (enum kni_profile_preset)(preset - KN_PRESET_FINE);
}

/* Rows of a part's matrix. */
static inline uint32_t kni_spectral_rows_of(const struct kni_profile *p, uint32_t part, enum kni_profile_preset preset)
{
    return p->parts[part].n_layers + p->parts[part].rows[preset];
}

/* Most rows of any part of K (0), V (1). */
uint32_t kni_spectral_rows_max(const struct kni_profile *p, uint32_t is_v, enum kni_profile_preset preset);

static inline uint32_t kni_spectral_n_runs(const struct kni_chunk_meta *m)
{
    return (m->n_tokens + KNI_SPECTRAL_RUN - 1) / KNI_SPECTRAL_RUN;
}

/* Makes room for symbols. */
enum kn_status kni_spectral_layout_room(struct kni_spectral_layout *x, size_t symbols_bytes, size_t scratch_bytes, struct kn_err *err);

/* One matrix: tokens first .. + n_tokens of the chunk (n_tokens at most KNI_SPECTRAL_RUN) to symbols, and its escapes to the end of
 * escape_bytes. */
enum kn_status kni_spectral_layout_forward(struct kni_spectral_job *job, uint32_t first, uint32_t n_tokens, uint32_t part, uint8_t *symbols,
                                           size_t stride, struct kn_err *err);
/* And back into the view; takes the matrix's escapes from the job's cursor. */
enum kn_status kni_spectral_layout_inverse(struct kni_spectral_job *job, uint32_t first, uint32_t n_tokens, uint32_t part, const uint8_t *symbols,
                                           size_t stride, struct kn_err *err);

/* Exact tokens at the head of a chunk. */
static inline uint32_t kni_spectral_n_sinks(const struct kni_profile *p, const struct kni_chunk_meta *m)
{
    uint32_t n = m->first_token < p->n_sinks ? p->n_sinks - m->first_token : 0;
    return n < m->n_tokens ? n : m->n_tokens;
}

/* ---- pictures (layout_spectral_hevc.c), of K (is_v 0) or V of a chunk; also for those who measure encoders on them */

struct kni_spectral_geometry {
    uint32_t width, height, n_triples, n_pictures, tokens_per_picture; /* n_pictures without the flat ones */
};
struct kni_spectral_geometry kni_spectral_geometry_of(const struct kni_profile *p, const struct kni_container_header *header, uint32_t is_v);
/* out: [height], as row_scale in struct kni_hevc_lossless_opts; 0 where all is padding. */
void kni_spectral_row_scale(const struct kni_profile *p, uint32_t is_v, enum kni_profile_preset preset, uint32_t triple, uint32_t height, uint16_t *out);
/* Picture t of a triple into planes, three of width x height one after the other; its escapes go to the end of the layout's escape_bytes. Where
 * job->order is there, columns are ordered, and how is noted there. */
enum kn_status kni_spectral_draw(struct kni_spectral_job *job, const struct kni_spectral_geometry *g, uint32_t triple, uint32_t is_v, uint32_t t, uint8_t *planes,
                                 struct kn_err *err);

/* What the backends fill in: layout_spectral_rans.c, layout_spectral_hevc.c. */
struct kni_spectral_backend {
    enum kn_status (*open_encoder)(struct kni_codec *codec, struct kn_err *err);
    /* Fills header's tiling and returns the number of its sections; 0: KN_E_ARG with a sentence in err. */
    uint32_t (*plan)(const struct kni_codec *codec, struct kni_container_header *header, struct kn_err *err);
    /* Writes and ends its sections. */
    enum kn_status (*encode)(struct kni_spectral_job *job, struct kni_container_writer *w, struct kn_err *err);
    /* Number of the backend's sections that a chunk with this header has; 0: KN_E_FORMAT with a sentence in err. */
    uint32_t (*check)(const struct kni_profile *profile, const struct kni_container_header *header, struct kn_err *err);
    /* Reads its sections, the first of which has number section. */
    enum kn_status (*restore)(struct kni_spectral_job *job, const struct kni_container *c, uint32_t section, struct kn_err *err);
};
extern const struct kni_spectral_backend kni_spectral_backend_rans, kni_spectral_backend_hevc;

#endif

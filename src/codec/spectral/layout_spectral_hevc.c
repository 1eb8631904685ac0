/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spectral layout over lossless HEVC: three layer groups' matrices are the planes of 4:4:4 pictures, K and V apart.
 *
 *     section i = triple * 2 + is_v, picture t          plane k: part (triple * 3 + k) * 2 + is_v
 *         width:   P tokens, P t first, at least 144
 *         height:  the most rows of any part of K (of V), at least 144, a multiple of 16
 *
 * Everything that is no symbol is 128: rows below a part's last, columns beyond the last token, planes of groups that are not
 * there. Before each picture stands a flat one, all 128: symbols are noise around 128, so that prediction from neighbours
 * inside the picture makes them larger, and from the flat picture, with no motion, leaves them as they are. Measured on SmolLM2
 * (a licence text, three chunks, steps .2 and 1.25; bytes against intra only, which is 918 kB at 256):
 *
 *     tokens a picture    intra only    one flat picture first    one before each    the same, a stream each
 *     256                 1             .995                      .995               .995
 *     64                  1             .990                      .972               .978
 *
 * and encoding is 1.2 to 1.7 times as fast as without (decoding the same).
 *
 * Columns stand by their tokens' loudness (spectral_order.h), in each plane in an order of its own, which takes another 1 % off; the section after
 * the streams says how, or is empty: then they stand as in the text.
 *
 * The encoder is told how large each row's symbols are, from the classes that the profile gives rows for rANS.
 *
 * Restoring goes picture by picture, from the decoder's memory, a run's matrix at a time put back in the text's order. Owner: the codec handle.
 */
#include <math.h>
#include <string.h>

#include "codec/spectral/layout_spectral.h"
#include "codec/spectral/spectral_order.h"

static uint32_t pad(uint32_t n)
{
    n = n < KNI_SPECTRAL_MIN_SIDE ? KNI_SPECTRAL_MIN_SIDE : n;
    return (n + 15) / 16 * 16;
}

struct kni_spectral_geometry kni_spectral_geometry_of(const struct kni_profile *p, const struct kni_container_header *h, uint32_t is_v)
{
    uint32_t per = h->tiling.tokens_per_picture;
    return (struct kni_spectral_geometry){.width = pad(per),
                             .height = pad(kni_spectral_rows_max(p, is_v, kni_spectral_preset(h->meta.preset))),
                             .n_triples = (p->n_parts / 2 + 2) / 3,
                             .n_pictures = (h->meta.n_tokens + per - 1) / per,
                             .tokens_per_picture = per};
}

static enum kn_status hevc_open_encoder(struct kni_codec *codec, struct kn_err *err)
{
    enum kn_status s = kni_hevc_encoder_open(&codec->spectral->encoders[0], &codec->hevc, KNI_HEVC_CONTENT_NOISE,
                                             codec->cpu_without, err);
    return s == KN_OK ? kni_hevc_encoder_open(&codec->spectral->encoders[1], &codec->hevc, KNI_HEVC_CONTENT_NOISE,
                                              codec->cpu_without, err) : s;
}

static uint32_t hevc_plan(const struct kni_codec *codec, struct kni_container_header *header, struct kn_err *err)
{
    uint32_t per = codec->tokens_per_picture ? codec->tokens_per_picture : KNI_SPECTRAL_MAX_PICTURE;
    if (per < KNI_SPECTRAL_MIN_PICTURE || per > KNI_SPECTRAL_MAX_PICTURE || per % KNI_BLOCK_TOKENS) {
        kni_err_set(err, KN_E_ARG, "%u tokens a picture: use a multiple of %u from %u to %u", per, KNI_BLOCK_TOKENS, KNI_SPECTRAL_MIN_PICTURE,
                    KNI_SPECTRAL_MAX_PICTURE);
        return 0;
    }
    header->tiling.tokens_per_picture = per < header->meta.n_tokens ? per : header->meta.n_tokens;
    return kni_spectral_geometry_of(codec->profile, header, 0).n_triples * 2 + 1;
}

static uint32_t hevc_check(const struct kni_profile *profile, const struct kni_container_header *header, struct kn_err *err)
{
    uint32_t per = header->tiling.tokens_per_picture, n = header->meta.n_tokens;
    bool ok = per % KNI_BLOCK_TOKENS == 0 && per <= KNI_SPECTRAL_MAX_PICTURE && per <= n && (per >= KNI_SPECTRAL_MIN_PICTURE || (per == n && n));
    if (ok)
        return kni_spectral_geometry_of(profile, header, 0).n_triples * 2 + 1;
    kni_err_set(err, KN_E_FORMAT, "spectral chunk of %u tokens has %u tokens a picture", n, per);
    return 0;
}

/* Tokens of the chunk in picture t. */
static uint32_t picture_tokens(const struct kni_chunk_meta *m, const struct kni_spectral_geometry *g, uint32_t t)
{
    uint32_t left = m->n_tokens - t * g->tokens_per_picture;
    return left < g->tokens_per_picture ? left : g->tokens_per_picture;
}

/* What is left of them for the run that begins at token c. */
static uint32_t run_tokens(const struct kni_chunk_meta *m, const struct kni_spectral_geometry *g, uint32_t t, uint32_t c)
{
    uint32_t n = picture_tokens(m, g, t), left = c < n ? n - c : 0;
    return left < KNI_SPECTRAL_RUN ? left : KNI_SPECTRAL_RUN;
}

/* Where the packed classes of a part's tokens in picture t begin. */
static size_t order_at(const struct kni_chunk_meta *m, const struct kni_spectral_geometry *g, uint32_t part, uint32_t t)
{
    return kni_spectral_order_bytes(part, m->n_tokens) + kni_spectral_order_bytes(1, t * g->tokens_per_picture);
}

void kni_spectral_row_scale(const struct kni_profile *p, uint32_t is_v, enum kni_profile_preset preset, uint32_t triple, uint32_t height, uint16_t *out)
{
    memset(out, 0, height * sizeof *out);
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t part = (triple * 3 + k) * 2 + is_v, n = part < p->n_parts ? kni_spectral_rows_of(p, part, preset) : 0;
        for (uint32_t r = 0; r < n; r++) {
            double scale = rint(256 * kni_rans_class_mean(p->parts[part].classes[preset][r]));
            uint16_t bounded = (uint16_t)fmin(scale, 127 * 256);
            out[r] = bounded > out[r] ? bounded : out[r];
        }
    }
}

/* ---- encoding */

/* Finds an order for the part's tokens in picture t, notes it and puts its plane into it. */
static void order_plane(const struct kni_spectral_job *job, const struct kni_spectral_geometry *g, uint32_t part, uint32_t t, uint8_t *plane)
{
    uint8_t classes[KNI_SPECTRAL_MAX_PICTURE];
    uint16_t column[KNI_SPECTRAL_MAX_PICTURE];
    uint32_t n_tokens = picture_tokens(job->meta, g, t), n_rows = kni_spectral_rows_of(job->profile, part, job->preset);
    kni_spectral_order_classes(plane, g->width, n_rows, n_tokens, classes);
    kni_spectral_order_pack(classes, n_tokens, job->order + order_at(job->meta, g, part, t));
    kni_spectral_order_columns(classes, n_tokens, column);
    kni_spectral_order_apply(plane, g->width, n_rows, n_tokens, column);
}

enum kn_status kni_spectral_draw(struct kni_spectral_job *job, const struct kni_spectral_geometry *g, uint32_t triple, uint32_t is_v, uint32_t t, uint8_t *planes,
                                 struct kn_err *err)
{
    size_t plane_bytes = (size_t)g->width * g->height;
    memset(planes, KNI_SPECTRAL_BLANK, 3 * plane_bytes);
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t part = (triple * 3 + k) * 2 + is_v, n;
        for (uint32_t c = 0; part < job->profile->n_parts && (n = run_tokens(job->meta, g, t, c)); c += n) {
            enum kn_status s = kni_spectral_layout_forward(job, t * g->tokens_per_picture + c, n, part, planes + k * plane_bytes + c, g->width, err);
            if (s != KN_OK)
                return s;
        }
        if (job->order && part < job->profile->n_parts)
            order_plane(job, g, part, t, planes + k * plane_bytes);
    }
    return KN_OK;
}

static enum kn_status encode_stream(struct kni_spectral_job *job, struct kni_container_writer *w, const struct kni_spectral_geometry *g, uint32_t triple, uint32_t is_v,
                                    struct kn_err *err)
{
    struct kni_hevc_encoder *e = job->x->encoders[is_v];
    size_t plane_bytes = (size_t)g->width * g->height;
    enum kn_status s = kni_spectral_layout_room(job->x, 3 * plane_bytes + g->height * sizeof(uint16_t), 0, err);
    if (s != KN_OK)
        return s;
    uint16_t *row_scale = (void *)(job->x->symbols + 3 * plane_bytes); /* sides are multiples of 16 */
    kni_spectral_row_scale(job->profile, is_v, job->preset, triple, g->height, row_scale);
    s = kni_hevc_encode_begin(e, g->width, g->height, 2 * g->n_pictures, row_scale, err);
    const uint8_t *const planes[3] = {job->x->symbols, job->x->symbols + plane_bytes, job->x->symbols + 2 * plane_bytes};
    const size_t strides[3] = {g->width, g->width, g->width};
    for (uint32_t i = 0; s == KN_OK && i < 2 * g->n_pictures; i++) {
        if (i % 2)
            s = kni_spectral_draw(job, g, triple, is_v, i / 2, job->x->symbols, err);
        else
            memset(job->x->symbols, KNI_SPECTRAL_BLANK, 3 * plane_bytes);
        if (s == KN_OK)
            s = kni_hevc_encode_picture(e, planes, strides, err);
    }
    if (s == KN_OK)
        s = kni_hevc_encode_end(e, w, err);
    if (s == KN_OK)
        kni_container_writer_end_section(w, KNI_SECTION_KIND_SPECTRAL_VIDEO, triple * 2 + is_v);
    return s;
}

static enum kn_status write_order(const struct kni_spectral_job *job, struct kni_container_writer *w, struct kn_err *err)
{
    if (job->order) {
        size_t n_bytes = kni_spectral_order_bytes(job->profile->n_parts, job->meta->n_tokens);
        uint8_t *room = kni_container_writer_reserve(w, n_bytes);
        if (!room)
            return kni_err_set(err, KN_E_NOMEM, "no memory for a coded chunk");
        memcpy(room, job->order, n_bytes);
        kni_container_writer_commit(w, n_bytes);
    }
    kni_container_writer_end_section(w, KNI_SECTION_KIND_SPECTRAL_ORDER, 0);
    return KN_OK;
}

static enum kn_status hevc_encode(struct kni_spectral_job *job, struct kni_container_writer *w, struct kn_err *err)
{
    enum kn_status s = KN_OK;
    if (!job->text_order) {
        s = kni_spectral_layout_room(job->x, 0, kni_spectral_order_bytes(job->profile->n_parts, job->meta->n_tokens), err);
        job->order = s == KN_OK ? job->x->scratch : NULL; /* which nothing else uses while video is coded */
    }
    for (uint32_t i = 0, n = 2; s == KN_OK && i < n; i++) {
        struct kni_spectral_geometry g = kni_spectral_geometry_of(job->profile, &w->header, i % 2);
        n = g.n_triples * 2;
        s = encode_stream(job, w, &g, i / 2, i % 2, err);
    }
    return s == KN_OK ? write_order(job, w, err) : s;
}

/* ---- restoring */

struct picture_job {
    struct kni_spectral_job *job;
    const struct kni_spectral_geometry *g;
    uint32_t triple, is_v;
    const uint8_t *order; /* the chunk's, packed; NULL: columns stand as in the text */
};

static enum kn_status put_picture(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    const struct picture_job *j = user;
    struct kni_spectral_job *job = j->job;
    uint8_t classes[KNI_SPECTRAL_MAX_PICTURE];
    uint16_t column[KNI_SPECTRAL_MAX_PICTURE];
    uint32_t t = index / 2, n_tokens, n;
    enum kn_status s = KN_OK;
    if (index % 2 == 0)
        return KN_OK; /* flat */
    n_tokens = picture_tokens(job->meta, j->g, t);
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t part = (j->triple * 3 + k) * 2 + j->is_v;
        if (j->order && part < job->profile->n_parts) {
            kni_spectral_order_unpack(j->order + order_at(job->meta, j->g, part, t), n_tokens, classes);
            kni_spectral_order_columns(classes, n_tokens, column);
        }
        for (uint32_t c = 0; s == KN_OK && part < job->profile->n_parts && (n = run_tokens(job->meta, j->g, t, c)); c += n) {
            const uint8_t *rows = planes[k] + c;
            size_t stride = strides[k];
            if (j->order) {
                kni_spectral_order_undo(planes[k], stride, kni_spectral_rows_of(job->profile, part, job->preset), n, column + c, job->x->symbols,
                                        KNI_SPECTRAL_RUN);
                rows = job->x->symbols;
                stride = KNI_SPECTRAL_RUN;
            }
            s = kni_spectral_layout_inverse(job, t * j->g->tokens_per_picture + c, n, part, rows, stride, err);
        }
    }
    return s;
}

/* The chunk's order, borrowed from the container, or NULL; and room for a run's matrix in which it is undone. */
static enum kn_status read_order(struct kni_spectral_job *job, const struct kni_container *c, uint32_t section, const uint8_t **order, struct kn_err *err)
{
    uint32_t k = kni_spectral_rows_max(job->profile, 0, job->preset), v = kni_spectral_rows_max(job->profile, 1, job->preset), rows = k > v ? k : v;
    const uint8_t *bytes;
    size_t size, want = kni_spectral_order_bytes(job->profile->n_parts, job->meta->n_tokens);
    *order = NULL;
    enum kn_status s = kni_container_expect(c, section, KNI_SECTION_KIND_SPECTRAL_ORDER, 0, &bytes, &size, err);
    if (s != KN_OK || !size)
        return s;
    if (size != want)
        return kni_err_set(err, KN_E_FORMAT, "the order of the chunk's columns has %zu bytes; its tokens make %zu", size, want);
    *order = bytes;
    return kni_spectral_layout_room(job->x, (size_t)rows * KNI_SPECTRAL_RUN, 0, err);
}

static enum kn_status hevc_restore(struct kni_spectral_job *job, const struct kni_container *c, uint32_t section, struct kn_err *err)
{
    const uint8_t *order;
    enum kn_status s = read_order(job, c, section + kni_spectral_geometry_of(job->profile, &c->header, 0).n_triples * 2, &order, err);
    for (uint32_t i = 0, n = 2; s == KN_OK && i < n; i++) {
        struct kni_spectral_geometry g = kni_spectral_geometry_of(job->profile, &c->header, i % 2);
        struct picture_job j = {.job = job, .g = &g, .triple = i / 2, .is_v = i % 2, .order = order};
        struct kni_hevc_expect expect = {.width = g.width, .height = g.height, .n_pictures = 2 * g.n_pictures, .tools = c->header.tools};
        const uint8_t *bytes;
        size_t size;
        n = g.n_triples * 2;
        s = kni_container_expect(c, section + i, KNI_SECTION_KIND_SPECTRAL_VIDEO, i, &bytes, &size, err);
        if (s == KN_OK)
            s = kni_hevc_decode_expect(&job->x->decoders[i % 2], bytes, size, &expect, put_picture, &j, err);
        kni_hevc_decoder_rest(job->x->decoders[i % 2]); /* K and V have pictures of two sizes: only one is held at a time */
    }
    return s;
}

const struct kni_spectral_backend kni_spectral_backend_hevc = {
    .open_encoder = hevc_open_encoder,
    .plan = hevc_plan,
    .encode = hevc_encode,
    .check = hevc_check,
    .restore = hevc_restore,
};

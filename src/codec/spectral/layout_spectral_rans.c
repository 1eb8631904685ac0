/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spectral layout over rANS: all matrices of a chunk in one section, so that the table of sections stays short.
 *
 *     for each run, for each part:   varint n, n bytes of kni_rans_encode
 *
 * Memory is one matrix and the coder's scratch. Owner: the codec handle.
 */
#include <string.h>

#include "codec/spectral/layout_spectral.h"

static enum kn_status rans_open_encoder(struct kni_codec *codec, struct kn_err *err)
{
    (void)codec;
    (void)err;
    return KN_OK;
}

static uint32_t rans_plan(const struct kni_codec *codec, struct kni_container_header *header, struct kn_err *err)
{
    (void)codec;
    (void)header;
    (void)err;
    return 1;
}

static uint32_t rans_check(const struct kni_profile *profile, const struct kni_container_header *header, struct kn_err *err)
{
    (void)profile;
    if (!header->tiling.tokens_per_picture)
        return 1;
    kni_err_set(err, KN_E_FORMAT, "spectral chunk without pictures has %u tokens a picture", header->tiling.tokens_per_picture);
    return 0;
}

static uint32_t run_tokens(const struct kni_chunk_meta *m, uint32_t run)
{
    uint32_t left = m->n_tokens - run * KNI_SPECTRAL_RUN;
    return left < KNI_SPECTRAL_RUN ? left : KNI_SPECTRAL_RUN;
}

static enum kn_status make_room(struct kni_spectral_job *job, bool encoding, struct kn_err *err)
{
    uint32_t k = kni_spectral_rows_max(job->profile, 0, job->preset), v = kni_spectral_rows_max(job->profile, 1, job->preset), rows = k > v ? k : v;
    size_t scratch = encoding ? kni_rans_scratch_bytes(rows, KNI_SPECTRAL_RUN) : kni_rans_decode_scratch_bytes();
    return kni_spectral_layout_room(job->x, (size_t)rows * KNI_SPECTRAL_RUN, scratch, err);
}

static enum kn_status write_matrix(struct kni_spectral_job *job, struct kni_container_writer *w, uint32_t part, uint32_t n_tokens, struct kn_err *err)
{
    const struct kni_profile *p = job->profile;
    uint32_t n_rows = kni_spectral_rows_of(p, part, job->preset);
    uint8_t *room = kni_container_writer_reserve(w, 5 + kni_rans_bound(n_rows, n_tokens)), length[5];
    if (!room)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a coded chunk");
    size_t n = kni_rans_encode(p->rans, job->x->symbols, KNI_SPECTRAL_RUN, n_rows, n_tokens,
                               p->parts[part].classes[job->preset], room + 5, job->x->scratch,
                               job->x->cpu_flags);
    size_t n_length = 0;
    for (size_t left = n; n_length == 0 || left; left >>= 7)
        length[n_length++] = (uint8_t)(left & 127u) | (left >> 7 ? 128u : 0u);
    memcpy(room, length, n_length);
    memmove(room + n_length, room + 5, n);
    kni_container_writer_commit(w, n_length + n);
    return KN_OK;
}

static enum kn_status rans_encode(struct kni_spectral_job *job, struct kni_container_writer *w, struct kn_err *err)
{
    enum kn_status s = make_room(job, true, err);
    for (uint32_t run = 0; s == KN_OK && run < kni_spectral_n_runs(job->meta); run++)
        for (uint32_t part = 0; s == KN_OK && part < job->profile->n_parts; part++) {
            uint32_t n = run_tokens(job->meta, run);
            s = kni_spectral_layout_forward(job, run * KNI_SPECTRAL_RUN, n, part, job->x->symbols, KNI_SPECTRAL_RUN, err);
            if (s == KN_OK)
                s = write_matrix(job, w, part, n, err);
        }
    if (s == KN_OK)
        kni_container_writer_end_section(w, KNI_SECTION_KIND_SPECTRAL_RANS, 0);
    return s;
}

/* The next matrix's bytes; false when they do not lie in the section. */
static bool take_matrix(const uint8_t **at, const uint8_t *end, const uint8_t **bytes, size_t *n_bytes)
{
    size_t n = 0;
    for (unsigned shift = 0;; shift += 7) {
        if (*at == end || shift > 28)
            return false;
        uint8_t b = *(*at)++;
        n |= (size_t)(b & 127u) << shift;
        if (b < 128)
            break;
    }
    if (n > (size_t)(end - *at))
        return false;
    *bytes = *at;
    *n_bytes = n;
    *at += n;
    return true;
}

static enum kn_status rans_restore(struct kni_spectral_job *job, const struct kni_container *c, uint32_t section, struct kn_err *err)
{
    const struct kni_profile *p = job->profile;
    const uint8_t *at, *end, *bytes;
    size_t size;
    enum kn_status s = kni_container_expect(c, section, KNI_SECTION_KIND_SPECTRAL_RANS, 0, &at, &size, err);
    if (s == KN_OK)
        s = make_room(job, false, err);
    if (s != KN_OK)
        return s;
    end = at + size;
    for (uint32_t run = 0; run < kni_spectral_n_runs(job->meta); run++)
        for (uint32_t part = 0; part < p->n_parts; part++) {
            uint32_t n = run_tokens(job->meta, run);
            if (!take_matrix(&at, end, &bytes, &size))
                return kni_err_set(err, KN_E_FORMAT, "the chunk's symbols end before part %u of run %u", part, run);
            s = kni_rans_decode(p->rans, bytes, size, kni_spectral_rows_of(p, part, job->preset), n, p->parts[part].classes[job->preset], job->x->symbols,
                                KNI_SPECTRAL_RUN, job->x->scratch, job->x->cpu_flags);
            if (s != KN_OK)
                return kni_err_set(err, s, "part %u of run %u does not decode from its %zu bytes", part, run, size);
            s = kni_spectral_layout_inverse(job, run * KNI_SPECTRAL_RUN, n, part, job->x->symbols, KNI_SPECTRAL_RUN, err);
            if (s != KN_OK)
                return s;
        }
    return at == end ? KN_OK : kni_err_set(err, KN_E_FORMAT, "the chunk has %zu bytes after its last symbol", (size_t)(end - at));
}

const struct kni_spectral_backend kni_spectral_backend_rans = {
    .open_encoder = rans_open_encoder,
    .plan = rans_plan,
    .encode = rans_encode,
    .check = rans_check,
    .restore = rans_restore,
};

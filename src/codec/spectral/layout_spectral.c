/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout spectral: presets fine, medium and small, over backend rans or hevc. Sections of a chunk, in this order:
 *
 *     SPECTRAL_SINKS     the chunk that begins a sequence only: its first tokens, exactly (sinks.h)
 *     SPECTRAL_RANS, or SPECTRAL_VIDEO..., SPECTRAL_ORDER   the symbols, as the backend has it
 *     SPECTRAL_ESCAPES   where there are any: for every matrix, in the backend's order, a count and so many integers
 *
 * All numbers of the last section are varints (7 bits a byte, low ones first); an escape v is 2 (|v| - 127) + (v < 0).
 *
 * Columns of tokens that travel exactly hold the symbol of zero: what a rounded form of them would cost, their own large
 * magnitudes first, is saved. Restoring writes the exact tokens, then matrix after matrix straight from the decoder's memory into
 * the pool; a chunk that ends in an error leaves rubbish in the positions that it covers and nowhere else.
 * Owner: the codec handle.
 */
#include "codec/spectral/layout_spectral.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/room.h"
#include "codec/profile/profile_format.h"
#include "codec/sinks.h"

/* A part's rows always fit a picture: coefficients are at most its width, layers at most width / 32. */
_Static_assert(KNI_PROFILE_MAX_WIDTH + KNI_PROFILE_MAX_WIDTH / 32 + 15 <= KNI_HEVC_MAX_SIDE, "a part is too tall for a picture");

#define MAX_VARINT 5u

static const struct kni_spectral_backend *backend_of(enum kni_backend_id id)
{
    return id == KNI_BACKEND_ID_HEVC ? &kni_spectral_backend_hevc : &kni_spectral_backend_rans;
}

uint32_t kni_spectral_rows_max(const struct kni_profile *p, uint32_t is_v, enum kni_profile_preset preset)
{
    uint32_t most = 0;
    for (uint32_t part = is_v; part < p->n_parts; part += 2)
        if (kni_spectral_rows_of(p, part, preset) > most)
            most = kni_spectral_rows_of(p, part, preset);
    return most;
}

/* ---- memory */

static void count_memory(struct kni_codec *codec)
{
    struct kni_spectral_layout *x = codec->spectral;
    size_t now = sizeof *x + x->symbols_bytes + x->scratch_bytes + x->escape_room + (size_t)x->escapes.capacity * sizeof *x->escapes.values;
    if (x->transform)
        now += kni_spectral_bytes(x->transform);
    size_t k = kni_hevc_decoder_bytes(x->decoders[0]), v = kni_hevc_decoder_bytes(x->decoders[1]);
    now += kni_hevc_encoder_bytes(x->encoders[0]) + kni_hevc_encoder_bytes(x->encoders[1]) + (k > v ? k : v); /* one rests */
    kni_codec_working_add(codec, x->counted_bytes, now);
    x->counted_bytes = now;
}

static enum kn_status make_state(struct kni_codec *codec, struct kn_err *err)
{
    if (codec->spectral)
        return KN_OK;
    codec->spectral = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *codec->spectral, 0);
    if (!codec->spectral)
        return kni_err_set(err, KN_E_NOMEM, "no memory for the spectral layout");
    codec->spectral->cpu_flags = kni_cpu_flags_without(codec->cpu_without);
    return KN_OK;
}

static enum kn_status make_transform(struct kni_codec *codec, struct kn_err *err)
{
    enum kn_status s = make_state(codec, err);
    if (s == KN_OK && !codec->spectral->transform)
        s = kni_spectral_open(&codec->spectral->transform, codec->profile, KNI_SPECTRAL_RUN,
                              codec->spectral->cpu_flags, err);
    return s;
}

enum kn_status kni_spectral_layout_room(struct kni_spectral_layout *x, size_t symbols_bytes, size_t scratch_bytes, struct kn_err *err)
{
    x->symbols = kni_room(KNI_ALLOC_TAG_CODEC, x->symbols, &x->symbols_bytes, symbols_bytes, 1);
    x->scratch = kni_room(KNI_ALLOC_TAG_CODEC, x->scratch, &x->scratch_bytes, scratch_bytes, 1);
    if (x->symbols_bytes < symbols_bytes || x->scratch_bytes < scratch_bytes)
        return kni_err_set(err, KN_E_NOMEM, "no memory for the symbols of a chunk");
    return KN_OK;
}

static size_t spectral_estimate(const struct kni_codec *codec, const struct kni_container_header *h)
{
    const struct kni_profile *p = codec->profile;
    enum kni_profile_preset preset = kni_spectral_preset(h->meta.preset);
    size_t k = kni_spectral_rows_max(p, 0, preset), v = kni_spectral_rows_max(p, 1, preset), rows = k > v ? k : v, width = 0;
    for (uint32_t part = 0; part < p->n_parts; part++)
        width = p->parts[part].width > width ? p->parts[part].width : width;
    size_t transform = (KNI_SPECTRAL_RUN + 32) * width * sizeof(float) + rows * 192 + (3u << 18);
    if (h->backend != KNI_BACKEND_ID_HEVC)
        return transform + rows * KNI_SPECTRAL_RUN + kni_sinks_scratch_bytes();
    size_t side = h->tiling.tokens_per_picture < 192 ? 192 : h->tiling.tokens_per_picture + 63u, picture = 3 * side * (rows + 63);
    size_t run = rows * KNI_SPECTRAL_RUN;                             /* put back in the text's order */
    return transform + kni_sinks_scratch_bytes() + run + 4 * picture; /* the flat one, the one being decoded, one to spare; coded bytes */
}

/* ---- escapes */

static enum kn_status put_escapes(struct kni_spectral_layout *x, struct kn_err *err)
{
    const struct kni_escapes *e = &x->escapes;
    size_t need = x->escape_used + ((size_t)e->n + 1) * MAX_VARINT;
    uint8_t *bytes = kni_room_keep(KNI_ALLOC_TAG_CODEC, x->escape_bytes, &x->escape_room, need, 1);
    if (!bytes)
        return kni_err_set(err, KN_E_NOMEM, "no memory for %u escapes", e->n);
    x->escape_bytes = bytes;
    uint8_t *to = x->escape_bytes + x->escape_used;
    for (uint32_t i = 0; i <= e->n; i++) {
        uint64_t v = e->n;
        if (i) {
            int64_t y = e->values[i - 1];
            v = (uint64_t)((y < 0 ? -y : y) - 127) * 2 + (y < 0);
        }
        for (; v >= 128; v >>= 7)
            *to++ = (uint8_t)(v | 128);
        *to++ = (uint8_t)v;
    }
    x->escape_used = (size_t)(to - x->escape_bytes);
    return KN_OK;
}

/* False where the section ends or the number has more than five bytes. */
static bool take_varint(struct kni_spectral_job *job, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < MAX_VARINT; i++) {
        if (job->escapes == job->escapes_end)
            return false;
        uint8_t b = *job->escapes++;
        v |= (uint64_t)(b & 127u) << 7 * i;
        if (b < 128) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* The current matrix's escapes, at most n_symbols; none where the chunk has no section of them. */
static enum kn_status take_escapes(struct kni_spectral_job *job, uint64_t n_symbols, struct kn_err *err)
{
    struct kni_escapes *e = &job->x->escapes;
    uint64_t n = 0, v;
    e->n = 0;
    if (!job->escapes)
        return KN_OK;
    if (!take_varint(job, &n) || n > n_symbols || n > (uint64_t)(job->escapes_end - job->escapes))
        return kni_err_set(err, KN_E_FORMAT, "the chunk's escapes end early or are more than its symbols");
    if (n > e->capacity) {
        int32_t *values = kni_realloc(KNI_ALLOC_TAG_CODEC, e->values, (size_t)n * sizeof *values);
        if (!values)
            return kni_err_set(err, KN_E_NOMEM, "no memory for %llu escapes", (unsigned long long)n);
        e->values = values;
        e->capacity = (uint32_t)n;
    }
    for (; e->n < n; e->n++) {
        if (!take_varint(job, &v) || v / 2 > INT32_MAX - 127)
            return kni_err_set(err, KN_E_FORMAT, "the chunk's escapes end early or are too large");
        int32_t magnitude = (int32_t)(v / 2) + 127;
        e->values[e->n] = v % 2 ? -magnitude : magnitude;
    }
    return KN_OK;
}

/* ---- matrices */

/* Blanks the first n_tokens columns and drops their escapes. */
static void blank(const struct kni_spectral_job *job, uint32_t part, uint32_t n_blank, uint32_t n_tokens, uint8_t *symbols, size_t stride)
{
    struct kni_escapes *e = &job->x->escapes;
    uint32_t n_rows = kni_spectral_rows_of(job->profile, part, job->preset), n_exponents = job->profile->parts[part].n_layers, from = 0, to = 0;
    for (uint32_t r = 0; r < n_rows; r++, symbols += stride) {
        for (uint32_t t = 0; e->n && r >= n_exponents && t < n_tokens; t++) {
            if (symbols[t] != 1 && symbols[t] != 255)
                continue;
            if (t >= n_blank)
                e->values[to++] = e->values[from];
            from++;
        }
        memset(symbols, KNI_SPECTRAL_BLANK, n_blank);
    }
    assert(from == e->n);
    e->n = to;
}

enum kn_status kni_spectral_layout_forward(struct kni_spectral_job *job, uint32_t first, uint32_t n_tokens, uint32_t part, uint8_t *symbols,
                                           size_t stride, struct kn_err *err)
{
    struct kni_spectral_layout *x = job->x;
    x->escapes.n = 0;
    enum kn_status s = kni_spectral_forward(x->transform, job->view, job->meta->first_token + first, n_tokens, part, job->preset, symbols, stride, &x->escapes);
    if (s != KN_OK)
        return kni_err_set(err, s, "the spectral transform of part %u failed: %s", part, kn_status_message(s));
    if (first < job->n_sinks)
        blank(job, part, job->n_sinks - first < n_tokens ? job->n_sinks - first : n_tokens, n_tokens, symbols, stride);
    return put_escapes(x, err);
}

enum kn_status kni_spectral_layout_inverse(struct kni_spectral_job *job, uint32_t first, uint32_t n_tokens, uint32_t part, const uint8_t *symbols,
                                           size_t stride, struct kn_err *err)
{
    enum kn_status s = take_escapes(job, (uint64_t)job->profile->parts[part].rows[job->preset] * n_tokens, err);
    if (s != KN_OK)
        return s;
    s = kni_spectral_inverse(job->x->transform, job->view, job->meta->first_token + first, n_tokens, part, job->preset, symbols, stride, &job->x->escapes,
                             job->meta->first_token + job->n_sinks);
    if (s == KN_E_FORMAT)
        return kni_err_set(err, s, "part %u of the chunk has samples that are no symbols, or escapes that do not fit them", part);
    return s ? kni_err_set(err, s, "the spectral transform of part %u failed: %s", part, kn_status_message(s)) : KN_OK;
}

/* ---- encoding */

static enum kn_status no_profile(const struct kni_codec *codec, struct kn_err *err)
{
    return kni_err_set(err, KN_E_ARG, "preset %s needs a profile of the model: build one with `kinema profile build`", codec->encoder->name);
}

static enum kn_status spectral_open_encoder(struct kni_codec *codec, struct kn_err *err)
{
    if (!codec->profile)
        return no_profile(codec, err);
    enum kn_status s = make_state(codec, err);
    return s == KN_OK ? backend_of(codec->encoder->backend)->open_encoder(codec, err) : s;
}

static enum kn_status spectral_plan(const struct kni_codec *codec, struct kni_container_header *header, struct kn_err *err)
{
    static const uint8_t none[16];
    const struct kni_profile *p = codec->profile;
    struct kni_chunk_meta *m = &header->meta;
    if (!p)
        return no_profile(codec, err);
    enum kn_status s = kni_profile_match(p, m->fingerprint, &m->kv, err);
    if (s != KN_OK)
        return s;
    if (memcmp(m->profile, none, 16) && memcmp(m->profile, p->id, 16))
        return kni_err_set(err, KN_E_MISMATCH, "the chunk to encode names another profile than the one that is open");
    memcpy(m->profile, p->id, 16);
    uint32_t n = backend_of(header->backend)->plan(codec, header, err);
    header->n_sections = n + (kni_spectral_n_sinks(p, m) > 0) + 1;
    return n ? KN_OK : KN_E_ARG;
}

static enum kn_status write_sinks(struct kni_spectral_job *job, struct kni_container_writer *w, struct kn_err *err)
{
    const struct kni_kv_layout *kv = &job->meta->kv;
    enum kn_status s = kni_spectral_layout_room(job->x, 0, kni_sinks_scratch_bytes(), err);
    uint8_t *room = s == KN_OK ? kni_container_writer_reserve(w, kni_sinks_bound(kv, job->n_sinks)) : NULL;
    if (!room)
        return kni_err_set(err, KN_E_NOMEM, "no memory for the exact tokens of a chunk");
    kni_container_writer_commit(w, kni_sinks_encode(job->view, job->meta->first_token, job->n_sinks, room, job->x->scratch));
    kni_container_writer_end_section(w, KNI_SECTION_KIND_SPECTRAL_SINKS, 0);
    return KN_OK;
}

/* A section only where some count is not 0: all bytes of the section of none are. */
static enum kn_status write_escapes(const struct kni_spectral_layout *x, struct kni_container_writer *w, struct kn_err *err)
{
    size_t n = x->escape_used;
    while (n && !x->escape_bytes[n - 1])
        n--;
    if (!n)
        return KN_OK;
    uint8_t *room = kni_container_writer_reserve(w, x->escape_used);
    if (!room)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a coded chunk");
    memcpy(room, x->escape_bytes, x->escape_used);
    kni_container_writer_commit(w, x->escape_used);
    kni_container_writer_end_section(w, KNI_SECTION_KIND_SPECTRAL_ESCAPES, 0);
    return KN_OK;
}

static struct kni_spectral_job job_of(struct kni_codec *codec, const struct kni_chunk_meta *m, const struct kni_kv_host *view)
{
    return (struct kni_spectral_job){.x = codec->spectral,
                                     .profile = codec->profile,
                                     .meta = m,
                                     .view = view,
                                     .preset = kni_spectral_preset(m->preset),
                                     .n_sinks = kni_spectral_n_sinks(codec->profile, m),
                                     .text_order = codec->text_order};
}

static enum kn_status spectral_encode(struct kni_codec *codec, const struct kni_kv_host *view, struct kni_container_writer *w, struct kn_err *err)
{
    enum kn_status s = make_transform(codec, err);
    if (s != KN_OK)
        return s;
    struct kni_spectral_job job = job_of(codec, &w->header.meta, view);
    codec->spectral->escape_used = 0;
    if (job.n_sinks)
        s = write_sinks(&job, w, err);
    if (s == KN_OK)
        s = backend_of(w->header.backend)->encode(&job, w, err);
    if (s == KN_OK)
        s = write_escapes(codec->spectral, w, err);
    count_memory(codec);
    return s;
}

/* ---- restoring */

static enum kn_status check_profile(const struct kni_codec *codec, const struct kni_chunk_meta *m, struct kn_err *err)
{
    struct kni_hash id;
    char want[33], have[33] = "none";
    if (codec->profile && !memcmp(codec->profile->id, m->profile, 16))
        return kni_profile_match(codec->profile, m->fingerprint, &m->kv, err);
    memcpy(id.bytes, m->profile, 16);
    kni_hash_hex(&id, want);
    if (codec->profile) {
        memcpy(id.bytes, codec->profile->id, 16);
        kni_hash_hex(&id, have);
    }
    return kni_err_set(err, KN_E_MISMATCH, "chunk needs profile %s, open here is %s; treated as a miss", want, have);
}

static enum kn_status read_sinks(struct kni_spectral_job *job, const struct kni_container *c, struct kn_err *err)
{
    const uint8_t *bytes;
    size_t size;
    enum kn_status s = kni_container_expect(c, 0, KNI_SECTION_KIND_SPECTRAL_SINKS, 0, &bytes, &size, err);
    if (s == KN_OK)
        s = kni_spectral_layout_room(job->x, 0, kni_sinks_scratch_bytes(), err);
    if (s != KN_OK)
        return s;
    s = kni_sinks_decode(job->view, job->meta->first_token, job->n_sinks, bytes, size, job->x->scratch);
    if (s == KN_E_NOT_FINITE)
        return kni_err_set(err, KN_E_FORMAT, "the chunk's exact tokens hold values that are not finite");
    return s ? kni_err_set(err, s, "the chunk's exact tokens do not decode from their %zu bytes", size) : KN_OK;
}

static enum kn_status spectral_restore(struct kni_codec *codec, const struct kni_container *c, const struct kni_kv_host *view, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &c->header.meta;
    const struct kni_tiling *t = &c->header.tiling;
    const struct kni_spectral_backend *backend = backend_of(c->header.backend);
    enum kn_status s = check_profile(codec, m, err);
    if (s == KN_OK && (t->levels | t->tile_height | t->head_cols | t->grid_cols))
        s = kni_err_set(err, KN_E_FORMAT, "spectral chunk with the tiles' fields in its header");
    if (s == KN_OK)
        s = make_transform(codec, err);
    if (s != KN_OK)
        return s;
    struct kni_spectral_job job = job_of(codec, m, view);
    uint32_t first = job.n_sinks > 0, n = backend->check(codec->profile, &c->header, err);
    if (!n)
        return KN_E_FORMAT;
    bool has_escapes = c->header.n_sections == first + n + 1;
    if (!has_escapes && c->header.n_sections != first + n)
        return kni_err_set(err, KN_E_FORMAT, "spectral chunk has %u sections; its profile and token range make %u or %u", c->header.n_sections, first + n,
                           first + n + 1);
    if (has_escapes) {
        size_t size;
        s = kni_container_expect(c, first + n, KNI_SECTION_KIND_SPECTRAL_ESCAPES, 0, &job.escapes, &size, err);
        job.escapes_end = job.escapes + (s == KN_OK ? size : 0);
    }
    if (s == KN_OK && first)
        s = read_sinks(&job, c, err);
    if (s == KN_OK)
        s = backend->restore(&job, c, first, err);
    if (s == KN_OK && job.escapes != job.escapes_end)
        s = kni_err_set(err, KN_E_FORMAT, "the chunk has %zu bytes after its last escape", (size_t)(job.escapes_end - job.escapes));
    count_memory(codec);
    return s;
}

static void spectral_close(struct kni_codec *codec)
{
    struct kni_spectral_layout *x = codec->spectral;
    if (!x)
        return;
    for (int i = 0; i < 2; i++) {
        kni_hevc_encoder_close(&x->encoders[i]);
        kni_hevc_decoder_close(&x->decoders[i]);
    }
    kni_spectral_close(&x->transform);
    kni_free(x->symbols);
    kni_free(x->scratch);
    kni_free(x->escapes.values);
    kni_free(x->escape_bytes);
    kni_free(x);
    codec->spectral = NULL;
}

#define OPS(backend_id, preset_id, preset_name)                                                                                        \
    {                                                                                                                                  \
        .layout = KNI_LAYOUT_ID_SPECTRAL, .backend = backend_id, .preset = preset_id, .name = preset_name,                            \
        .open_encoder = spectral_open_encoder, .plan = spectral_plan, .encode = spectral_encode, .restore = spectral_restore,         \
        .estimate = spectral_estimate, .close = spectral_close                                                                        \
    }
const struct kni_layout_ops kni_layout_spectral_rans[KNI_PROFILE_N_PRESETS] = {
    OPS(KNI_BACKEND_ID_RANS, KN_PRESET_FINE, "fine"),
    OPS(KNI_BACKEND_ID_RANS, KN_PRESET_MEDIUM, "medium"),
    OPS(KNI_BACKEND_ID_RANS, KN_PRESET_SMALL, "small"),
};
const struct kni_layout_ops kni_layout_spectral_hevc[KNI_PROFILE_N_PRESETS] = {
    OPS(KNI_BACKEND_ID_HEVC, KN_PRESET_FINE, "fine"),
    OPS(KNI_BACKEND_ID_HEVC, KN_PRESET_MEDIUM, "medium"),
    OPS(KNI_BACKEND_ID_HEVC, KN_PRESET_SMALL, "small"),
};

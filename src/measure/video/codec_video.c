/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema/video.h: codec/hevc behind two public handles.
 *
 *     encoder   picture -> hevc_encode (a stream without end) -> access unit [-> hevc_decode -> compared with the picture]
 *     decoder   pieces -> kept until an access unit is whole (or a chunk, all of it) -> hevc_decode -> on_picture
 *
 * What is kept of a stream is bounded by the largest access unit, and that by MAX_UNIT; of a chunk, by its own size. A handle that has failed
 * stays failed. Owner: one thread a handle.
 */
#include "kinema/video.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/le.h"
#include "base/sized.h"
#include "base/status.h"
#include "codec/container.h"
#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/hevc/hevc_hash.h"
#include "measure/reader/hevc_reader.h"
#include "measure/video/hevc_seal.h"
#include "codec/hevc/hevc_syntax.h"

#define MAX_UNIT (1u << 30) /* bytes of one picture; more is refused instead of kept */
#define CHUNK_MAGIC "KNC1"

_Static_assert((int)KN_VIDEO_CONTENT_NOISE == (int)KNI_HEVC_CONTENT_NOISE && (int)KN_VIDEO_CONTENT_TILES == (int)KNI_HEVC_CONTENT_TILES, "contents");

/* ---- encoding */

struct kn_video_encoder {
    struct kn_video_encode_opts opts;
    struct kni_hevc_encoder *encoder;
    struct kni_hevc_decoder *decoder; /* to verify */
    struct kn_video_encode_stats stats;
    uint8_t *unit; /* with its hash, and the seal's opening */
    size_t unit_capacity;
    struct kni_hevc_seal seal;
    uint8_t closing[KNI_HEVC_SEAL_BYTES];
    bool failed, ended;
};

/* x265 codes pictures in whole blocks of this side, and what it puts beyond a picture's edge only it knows. 1: any side will do. */
static uint32_t block_side(enum kn_hevc_encoder encoder)
{
    return encoder == KN_HEVC_ENCODER_X265_ULTRAFAST ? 16 : encoder == KN_HEVC_ENCODER_X265_MEDIUM ? 8 : 1;
}

enum kn_status kn_video_encoder_open(struct kn_video_encoder **out, const struct kn_video_encode_opts *opts, struct kn_err *err)
{
    if (!out)
        return kni_err_set(err, KN_E_ARG, "kn_video_encoder_open needs a place for the encoder");
    *out = NULL;
    struct kn_video_encode_opts o;
    enum kn_status s = KNI_OPTS_READ(&o, opts, kn_video_encode_opts, err);
    struct kn_hevc_opts hevc;
    if (s == KN_OK)
        s = KNI_OPTS_READ_OR_DEFAULT(&hevc, o.hevc, kn_hevc_opts, err);
    if (s == KN_OK)
        s = kni_hevc_lossless_check_size(o.width, o.height, err);
    if (s != KN_OK)
        return s;
    if ((unsigned)o.content > KN_VIDEO_CONTENT_TILES)
        return kni_err_set(err, KN_E_ARG, "unknown content %d; use noise (%d) or tiles (%d)", (int)o.content, KN_VIDEO_CONTENT_NOISE, KN_VIDEO_CONTENT_TILES);
    if ((unsigned)o.hash > KN_VIDEO_HASH_NONE)
        return kni_err_set(err, KN_E_ARG, "unknown hash %d; use MD5 (%d), CRC (%d), checksum (%d) or none (%d)", (int)o.hash, KN_VIDEO_HASH_MD5, KN_VIDEO_HASH_CRC,
                           KN_VIDEO_HASH_CHECKSUM, KN_VIDEO_HASH_NONE);
    const uint32_t side = block_side(hevc.encoder);
    const bool unknown_edge = o.width % side || o.height % side;
    if (unknown_edge && o.hash && o.hash != KN_VIDEO_HASH_NONE)
        return kni_err_set(err, KN_E_UNSUPPORTED, "x265 codes samples beyond the edge of %u x %u that only it knows, so that no hash can be made: use sides that are multiples of %u, or no hash",
                           o.width, o.height, side);
    if (!o.hash)
        o.hash = unknown_edge ? KN_VIDEO_HASH_NONE : KN_VIDEO_HASH_MD5;
    struct kn_video_encoder *e = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *e, 0);
    if (!e)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a video encoder");
    e->opts = o;
    e->opts.hevc = NULL; /* the caller's */
    s = kni_hevc_encoder_open(&e->encoder, &hevc, (enum kni_hevc_content)o.content, 0, err);
    if (s == KN_OK)
        s = kni_hevc_encode_begin(e->encoder, o.width, o.height, 0, NULL, err);
    struct kni_hevc_expect expect = {.width = o.width, .height = o.height, .tools = kni_hevc_encoder_tools(&hevc),
                                     .hashes = true};
    if (s == KN_OK && o.verify)
        s = kni_hevc_decode_begin(&e->decoder, &expect, err);
    if (s != KN_OK)
        kn_video_encoder_close(&e);
    *out = e;
    return s;
}

void kn_video_encoder_close(struct kn_video_encoder **encoder)
{
    struct kn_video_encoder *e = encoder ? *encoder : NULL;
    if (!e)
        return;
    kni_hevc_encoder_close(&e->encoder);
    kni_hevc_decoder_close(&e->decoder);
    kni_free(e->unit);
    kni_free(e);
    *encoder = NULL;
}

struct compare { const struct kn_video_encoder *e; const uint8_t *samples; uint32_t n_seen; };

static enum kn_status compare_picture(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    struct compare *c = user;
    const uint32_t w = c->e->opts.width, h = c->e->opts.height;
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < h; y++) {
            const uint8_t *want = c->samples + ((size_t)k * h + y) * w, *have = planes[k] + y * strides[k];
            if (!memcmp(want, have, w))
                continue;
            uint32_t x = 0;
            while (want[x] == have[x])
                x++;
            return kni_err_set(err, KN_E_MISMATCH, "picture %u does not come back: plane %u, column %u, row %u is %u, was %u", index, k, x, y, have[x], want[x]);
        }
    c->n_seen++;
    return KN_OK;
}

static enum kn_status verify(struct kn_video_encoder *e, const uint8_t *samples, const uint8_t *unit, size_t n_bytes, struct kn_err *err)
{
    struct compare c = {.e = e, .samples = samples};
    enum kn_status s = kni_hevc_decode_unit(&e->decoder, unit, n_bytes, compare_picture, &c, err);
    if (s == KN_OK && c.n_seen != 1) /* nothing is reordered, so that each picture comes out at once */
        s = kni_err_set(err, KN_E_MISMATCH, "picture %llu does not come out of the decoder", (unsigned long long)e->stats.n_pictures);
    return s;
}

/* Puts the picture's hash behind its unit, and the seal's opening into the first. */
static enum kn_status add_messages(struct kn_video_encoder *e, const uint8_t *const planes[3], const size_t strides[3], const uint8_t **unit, size_t *n_bytes,
                               struct kn_err *err)
{
    const uint32_t width = e->opts.width, height = e->opts.height;
    const enum kn_video_hash hash = e->opts.hash;
    struct kni_hevc_digest digest;
    const bool first = !e->stats.n_pictures, opens = e->opts.sealed && first, hashed = hash != KN_VIDEO_HASH_NONE;
    uint8_t opening[KNI_HEVC_SEAL_BYTES];
    size_t n_opening = 0, at = 0;
    if (opens)
        n_opening = kni_hevc_seal_open(&e->seal, *unit, *n_bytes, width, height, opening, &at);
    if (e->opts.sealed)
        kni_hevc_seal_add(&e->seal, *unit, *n_bytes);
    if (!hashed && !opens)
        return KN_OK;
    size_t need = *n_bytes + n_opening + KNI_HEVC_DIGEST_BYTES;
    if (need > e->unit_capacity) {
        kni_free(e->unit);
        e->unit_capacity = 0;
        e->unit = kni_alloc(KNI_ALLOC_TAG_CODEC, need + need / 2, 0);
        e->unit_capacity = e->unit ? need + need / 2 : 0;
    }
    if (!e->unit || (hashed && !kni_hevc_digest_of(&digest, (enum kni_hevc_hash)(hash - KN_VIDEO_HASH_MD5), planes, strides, width, height, (width + 7) / 8 * 8, (height + 7) / 8 * 8)))
        return kni_err_set(err, KN_E_NOMEM, "no memory for a picture's hash");
    memcpy(e->unit, *unit, at);
    memcpy(e->unit + at, opening, n_opening);
    memcpy(e->unit + at + n_opening, *unit + at, *n_bytes - at);
    *unit = e->unit;
    *n_bytes += n_opening;
    if (hashed)
        *n_bytes += kni_hevc_digest_put(&digest, e->unit + *n_bytes);
    return KN_OK;
}

enum kn_status kn_video_encode(struct kn_video_encoder *e, const uint8_t *samples, const uint8_t **unit, size_t *n_bytes, struct kn_err *err)
{
    if (!e || !samples || !unit || !n_bytes)
        return kni_err_set(err, KN_E_ARG, "kn_video_encode needs an encoder, samples, and places for the unit");
    if (e->failed)
        return kni_err_set(err, KN_E_STATE, "this video encoder has %s before: open another one", e->ended ? "ended" : "failed");
    const size_t width = e->opts.width, plane = width * e->opts.height, strides[3] = {width, width, width};
    const uint8_t *const planes[3] = {samples, samples + plane, samples + 2 * plane};
    uint64_t t0 = kni_processor_ns();
    enum kn_status s = kni_hevc_encode_picture(e->encoder, planes, strides, err);
    e->stats.encode_ns += kni_processor_ns() - t0;
    if (s == KN_OK)
        kni_hevc_encode_take(e->encoder, unit, n_bytes);
    if (s == KN_OK)
        s = add_messages(e, planes, strides, unit, n_bytes, err);
    if (s == KN_OK && e->opts.verify)
        s = verify(e, samples, *unit, *n_bytes, err);
    e->failed = s != KN_OK;
    if (s == KN_OK) {
        e->stats.n_pictures++;
        e->stats.n_bytes += *n_bytes;
    }
    return s;
}

enum kn_video_hash kn_video_encoder_hash(const struct kn_video_encoder *e)
{
    return e->opts.hash;
}

enum kn_status kn_video_encoder_end(struct kn_video_encoder *e, const uint8_t **unit, size_t *n_bytes, struct kn_err *err)
{
    if (!e || !unit || !n_bytes)
        return kni_err_set(err, KN_E_ARG, "kn_video_encoder_end needs an encoder and places for the unit");
    if (e->failed)
        return kni_err_set(err, KN_E_STATE, "this video encoder has %s before: open another one", e->ended ? "ended" : "failed");
    *unit = e->closing;
    *n_bytes = e->opts.sealed && e->stats.n_pictures ? kni_hevc_seal_close(&e->seal, e->closing) : 0;
    e->stats.n_bytes += *n_bytes;
    e->failed = e->ended = true;
    return KN_OK;
}

enum kn_status kn_video_encoder_get_stats(const struct kn_video_encoder *e, struct kn_video_encode_stats *out)
{
    return kni_stats_write(out, &e->stats, sizeof e->stats);
}

/* ---- decoding */

#define N_ENDS 64u /* more than the pictures that a decoder holds back */

struct kn_video_decoder {
    struct kn_video_decode_opts opts;
    struct kni_hevc_decoder *decoder;
    struct kni_hevc_expect expect; /* of the current stream */
    struct kni_hevc_reader *reader; /* of a bare stream; NULL before it, and after it met what it does not know */
    struct kni_hevc_seal seal;      /* of the current stream */
    bool begun, failed, bare, chunk, followed, unsealed;
    uint64_t unit_end[N_ENDS];      /* bytes up to a unit's end, by its number in the stream */
    uint64_t n_fed, n_bytes;        /* units of the current stream; bytes of all */
    const uint8_t *sizes;           /* of a section's units */
    uint64_t n_hashed, n_hashed_now; /* pictures that match their hash: of streams before, of this one */
    uint64_t n_before;             /* pictures of streams before it */
    uint64_t n_pictures;
    uint8_t *kept;                 /* bytes that are no whole unit yet */
    size_t n_kept, capacity;
};

enum kn_status kn_video_decoder_open(struct kn_video_decoder **out, const struct kn_video_decode_opts *opts, struct kn_err *err)
{
    if (!out)
        return kni_err_set(err, KN_E_ARG, "kn_video_decoder_open needs a place for the decoder");
    *out = NULL;
    struct kn_video_decode_opts o;
    enum kn_status s = KNI_OPTS_READ(&o, opts, kn_video_decode_opts, err);
    if (s != KN_OK)
        return s;
    if (!o.on_picture)
        return kni_err_set(err, KN_E_ARG, "kn_video_decoder_open needs an on_picture");
    struct kn_video_decoder *d = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *d, 0);
    if (!d)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a video decoder");
    d->opts = o;
    *out = d;
    return KN_OK;
}

void kn_video_decoder_close(struct kn_video_decoder **decoder)
{
    struct kn_video_decoder *d = decoder ? *decoder : NULL;
    if (!d)
        return;
    kni_hevc_decoder_close(&d->decoder);
    kni_hevc_reader_close(&d->reader);
    kni_free(d->kept);
    kni_free(d);
    *decoder = NULL;
}

static enum kn_status hand_out(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    struct kn_video_decoder *d = user;
    struct kn_video_picture picture = {.index = d->n_before + index, .width = d->expect.width, .height = d->expect.height};
    for (int k = 0; k < 3; k++) {
        picture.plane[k] = planes[k];
        picture.stride[k] = strides[k];
    }
    d->n_pictures = picture.index + 1;
    d->n_hashed_now = kni_hevc_decoder_n_hashed(d->decoder); /* while it is there: it goes when the receiver has enough */
    if (d->sizes)
        d->n_bytes += kni_le32_get(d->sizes + 4 * (size_t)index);
    picture.n_stream_bytes = d->sizes ? d->n_bytes : d->unit_end[index % N_ENDS];
    enum kn_status s = d->opts.on_picture(d->opts.user, &picture);
    return s == KN_OK ? s : kni_err_set(err, s, "picture %llu was refused by its receiver", (unsigned long long)picture.index);
}

static enum kn_status end_stream(struct kn_video_decoder *d, struct kn_err *err)
{
    enum kn_status s = d->begun ? kni_hevc_decode_end(&d->decoder, hand_out, d, err) : KN_OK;
    d->n_hashed += d->n_hashed_now;
    d->n_hashed_now = 0;
    d->begun = false;
    d->n_fed = 0;
    d->n_before = d->n_pictures;
    return s;
}

/* Ends the stream before, if there is one, and begins with what the first unit's parameter set claims. */
static enum kn_status begin_stream(struct kn_video_decoder *d, const struct kni_hevc_claims *claims, struct kn_err *err)
{
    enum kn_status s = kni_hevc_seal_end(&d->seal, err);
    if (s == KN_OK)
        s = end_stream(d, err);
    if (s != KN_OK)
        return s;
    d->seal = (struct kni_hevc_seal){0};
    if (!claims->width || !claims->height || claims->width > KNI_HEVC_MAX_SIDE || claims->height > KNI_HEVC_MAX_SIDE)
        return kni_err_set(err, KN_E_FORMAT, "a stream of %u x %u: sides have at most %u samples here", claims->width, claims->height, KNI_HEVC_MAX_SIDE);
    if (d->n_pictures && (claims->width != d->expect.width || claims->height != d->expect.height))
        return kni_err_set(err, KN_E_FORMAT, "picture %llu begins a stream of %u x %u after one of %u x %u: decode them apart", (unsigned long long)d->n_pictures,
                           claims->width, claims->height, d->expect.width, d->expect.height);
    d->expect = (struct kni_hevc_expect){.width = claims->width, .height = claims->height, .tools = claims->tools, .hashes = !d->sizes};
    s = kni_hevc_decode_begin(&d->decoder, &d->expect, err);
    d->begun = s == KN_OK;
    return s;
}

static enum kn_status on_params(void *user, const struct kn_hevc_params *params, struct kn_err *err)
{
    struct kn_video_decoder *d = user;
    (void)params;
    (void)err;
    d->followed = true;
    return KN_OK;
}

/* Our reader goes first: it refuses damage that libavcodec conceals. What it does not know it leaves to libavcodec, but for a first picture without a hash
 * whose parameter sets it could follow: bits out of step look like what is not known. */
static enum kn_status read_unit(struct kn_video_decoder *d, const uint8_t *unit, size_t n_bytes, struct kn_err *err)
{
    const struct kni_hevc_reader_opts opts = {.on_params = on_params, .user = d};
    struct kni_hevc_digest digest;
    bool hashed;
    enum kn_status s = KN_OK;
    if (!d->bare)
        s = kni_hevc_reader_open(&d->reader, &opts, err);
    d->bare = true;
    if (s == KN_OK && d->reader)
        s = kni_hevc_reader_read(d->reader, unit, n_bytes, err);
    if (s != KN_E_UNSUPPORTED)
        return s;
    if (!d->n_fed && d->followed && !kni_hevc_digest_find(unit, n_bytes, &digest, &hashed) && !hashed)
        return s;
    kni_hevc_reader_close(&d->reader);
    if (err)
        *err = (struct kn_err){0};
    return KN_OK;
}

/* last: nothing follows, so that a picture that has been cut is known before any of it is decoded. */
static enum kn_status take_unit(struct kn_video_decoder *d, const uint8_t *unit, size_t n_bytes, bool last, struct kn_err *err)
{
    struct kni_hevc_claims claims;
    const char *why = kni_hevc_read_claims(unit, n_bytes, &claims);
    enum kn_status s = KN_OK;
    if (!why)
        s = begin_stream(d, &claims, err);
    else if (!d->begun)
        s = kni_err_set(err, KN_E_FORMAT, "no stream that can be decoded here: it %s", why);
    if (s == KN_OK)
        s = read_unit(d, unit, n_bytes, err);
    if (s == KN_OK && last && d->reader)
        s = kni_hevc_reader_end(d->reader, NULL, err);
    if (s == KN_OK)
        s = kni_hevc_seal_follow(&d->seal, unit, n_bytes, d->expect.width, d->expect.height, err);
    d->unsealed |= !d->seal.opened;
    if (s == KN_OK && last)
        s = kni_hevc_seal_end(&d->seal, err);
    d->n_bytes += n_bytes;
    d->unit_end[d->n_fed++ % N_ENDS] = d->n_bytes;
    return s == KN_OK ? kni_hevc_decode_unit(&d->decoder, unit, n_bytes, hand_out, d, err) : s;
}

/* ---- chunks */

static enum kn_status find_section(const struct kni_container *c, uint32_t wanted_plus_1, const uint8_t **bytes, size_t *n_bytes, struct kn_err *err)
{
    uint32_t first = 0, last = 0; /* numbers + 1 of sections that are video */
    enum kn_status s = KN_OK;
    struct kni_section section;
    for (uint32_t n_seen = 0; kni_container_next(c, &n_seen, &section, &s, err);) {
        if (section.kind != KNI_SECTION_KIND_TILES_VIDEO && section.kind != KNI_SECTION_KIND_SPECTRAL_VIDEO)
            continue;
        last = section.number + 1;
        first = first ? first : last;
        *bytes = section.bytes;
        *n_bytes = section.n_bytes;
        if (!wanted_plus_1 || wanted_plus_1 == last)
            return KN_OK;
    }
    if (s != KN_OK)
        return s;
    if (!first)
        return kni_err_set(err, KN_E_UNSUPPORTED, "this chunk has no video: its preset is %s over %s", kni_preset_name(c->header.meta.preset),
                           kni_backend_name(c->header.backend));
    return kni_err_set(err, KN_E_ARG, "section %u of this chunk is no video: use %u to %u", wanted_plus_1 - 1, first - 1, last - 1);
}

static enum kn_status decode_chunk(struct kn_video_decoder *d, struct kn_err *err)
{
    struct kni_container c;
    const uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    enum kn_status s = kni_container_open(&c, d->kept, d->n_kept, err);
    if (s == KN_OK)
        s = find_section(&c, d->opts.section_plus_1, &bytes, &n_bytes, err);
    if (s != KN_OK)
        return s;
    uint32_t n = n_bytes >= 4 ? kni_le32_get(bytes) : 0;
    size_t at = 4 + 4 * (size_t)n;
    if (!n || at > n_bytes)
        return kni_err_set(err, KN_E_FORMAT, "HEVC section of %zu bytes does not hold its %u pictures", n_bytes, n);
    d->chunk = true;
    d->sizes = bytes + 4;
    struct kni_hevc_claims claims;
    const char *why = kni_hevc_read_claims(bytes + at, n_bytes - at, &claims);
    if (why)
        return kni_err_set(err, KN_E_FORMAT, "HEVC section %s", why);
    if (claims.tools & ~c.header.tools)
        return kni_err_set(err, KN_E_FORMAT, "HEVC section uses tools %#x, the chunk's header names %#x", claims.tools, c.header.tools);
    s = begin_stream(d, &claims, err);
    if (s != KN_OK)
        return s;
    struct kni_hevc_expect expect = d->expect;
    expect.n_pictures = n;
    d->begun = false; /* a section is decoded as a whole */
    return kni_hevc_decode_expect(&d->decoder, bytes, n_bytes, &expect, hand_out, d, err);
}

/* ---- pieces */

static enum kn_status keep(struct kn_video_decoder *d, const void *bytes, size_t n_bytes, struct kn_err *err)
{
    size_t need;
    if (!n_bytes)
        return KN_OK;
    if (!kni_add_size(d->n_kept, n_bytes, &need))
        return kni_err_set(err, KN_E_NOMEM, "no memory for a stream");
    if (need > d->capacity) {
        size_t grown = need + need / 2;
        uint8_t *kept = kni_realloc(KNI_ALLOC_TAG_CODEC, d->kept, grown);
        if (!kept)
            return kni_err_set(err, KN_E_NOMEM, "no memory for %zu bytes of a stream", grown);
        d->kept = kept;
        d->capacity = grown;
    }
    memcpy(d->kept + d->n_kept, bytes, n_bytes);
    d->n_kept = need;
    return KN_OK;
}

/* Decodes the whole units of what is kept; the rest moves to the front. */
static enum kn_status decode_units(struct kn_video_decoder *d, bool last, struct kn_err *err)
{
    enum kn_status s = KN_OK;
    size_t at = 0;
    bool ended = false;
    while (s == KN_OK && at < d->n_kept) {
        size_t end = kni_hevc_unit_end(d->kept, d->n_kept, at);
        if (end == d->n_kept && !last)
            break;
        ended = last && end == d->n_kept;
        s = take_unit(d, d->kept + at, end - at, ended, err);
        at = end;
    }
    if (at) {
        memmove(d->kept, d->kept + at, d->n_kept - at);
        d->n_kept -= at;
    }
    if (s == KN_OK && d->n_kept > MAX_UNIT)
        s = kni_err_set(err, KN_E_FORMAT, "picture %llu does not end within %u bytes", (unsigned long long)d->n_pictures, MAX_UNIT);
    if (s == KN_OK && last && !ended && d->reader) /* the last bytes were given before they were known to be the last */
        s = kni_hevc_reader_end(d->reader, NULL, err);
    if (s == KN_OK && last)
        s = kni_hevc_seal_end(&d->seal, err);
    if (s == KN_OK && last)
        s = end_stream(d, err);
    if (s == KN_OK && last && !d->n_pictures)
        s = kni_err_set(err, KN_E_FORMAT, "an empty stream: there is no picture");
    return s;
}

enum kn_status kn_video_decode(struct kn_video_decoder *d, const void *bytes, size_t n_bytes, bool last, struct kn_err *err)
{
    if (!d || (!bytes && n_bytes))
        return kni_err_set(err, KN_E_ARG, "kn_video_decode needs a decoder and bytes");
    if (d->failed)
        return kni_err_set(err, KN_E_STATE, "this video decoder has ended before: open another one");
    enum kn_status s = keep(d, bytes, n_bytes, err);
    bool undecided = d->n_kept < sizeof CHUNK_MAGIC - 1 && !d->n_pictures;
    bool chunk = !undecided && !d->begun && !memcmp(d->kept, CHUNK_MAGIC, sizeof CHUNK_MAGIC - 1);
    if (s == KN_OK && (last || (!chunk && !undecided))) {
        if (!chunk && d->opts.section_plus_1)
            s = kni_err_set(err, KN_E_ARG, "only chunks have sections, and this is none");
        else
            s = chunk ? decode_chunk(d, err) : decode_units(d, last, err);
    }
    d->failed = last || s != KN_OK;
    return s;
}

enum kn_status kn_video_decoder_get_stats(const struct kn_video_decoder *d, struct kn_video_decode_stats *out)
{
    struct kn_video_decode_stats now = {.n_pictures = d->n_pictures, .read = d->reader != NULL, .chunk = d->chunk,
                                        .sealed = d->bare && !d->unsealed};
    now.n_hashed = d->n_hashed + d->n_hashed_now;
    return kni_stats_write(out, &now, sizeof now);
}

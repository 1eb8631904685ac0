/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libavcodec's HEVC decoder, fed one access unit at a time.
 *
 *     section -> sizes checked -> unit checked (hevc_syntax) -> packet with padding -> decoder -> frame checked -> fn
 *
 * Frames lie in our own buffers (get_buffer2): counted, bounded, and refused when a stream asks for another size. Buffers
 * that the decoder gives back wait in a short list for the next picture. One context serves many streams: it is flushed
 * between them, which costs far less than opening one. libavcodec is opened when the first one is made: hevc_avcodec.h.
 */
#include "codec/hevc/hevc_decode.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/le.h"
#include "codec/hevc/hevc_avcodec.h"
#include "codec/hevc/hevc_hash.h"
#include "codec/hevc/hevc_lossless.h"
#include "codec/hevc/hevc_syntax.h"

/* Added to the level of all that a context says, which lifts it above AV_LOG_TRACE, the least important level there is:
 * libavcodec stays silent here, and the process's log callback and level, which are not ours, stay as they are. */
#define QUIET 100
#define MAX_PICTURES 24u /* held at once: 17 by the decoder at most, plus the ones in our hands */
#define MAX_DIGESTS 64u  /* more than pictures that a decoder holds */

struct kni_hevc_decoder {
    const struct kni_avcodec *av;
    AVCodecContext *context;
    AVPacket *packet;
    AVFrame *frame;
    uint8_t *unit; /* the current access unit and its padding */
    size_t unit_capacity;
    struct kni_hevc_expect expect; /* of the current stream */
    uint32_t n_in, n_out;          /* its units and pictures so far */
    size_t picture_bytes;   /* of each buffer */
    int line_bytes, lines;  /* of a plane, padded */
    uint8_t *spare[MAX_PICTURES];
    uint32_t n_spare, n_held; /* buffers that wait, and those out */
    uint32_t n_peak;
    size_t peak_bytes;
    struct kni_hevc_digest digest[MAX_DIGESTS]; /* of the units last sent, by number */
    bool has_digest;                            /* this stream's units have them */
    uint32_t n_hashed;
};

static void drop_spare(struct kni_hevc_decoder *d)
{
    while (d->n_spare)
        kni_free(d->spare[--d->n_spare]);
}

/* libavcodec is done with a buffer. */
static void give_back(void *opaque, uint8_t *data)
{
    struct kni_hevc_decoder *d = opaque;
    assert(d->n_held > 0 && d->n_spare < MAX_PICTURES);
    d->n_held--;
    d->spare[d->n_spare++] = data;
}

static int get_buffer(struct AVCodecContext *context, AVFrame *frame, int flags)
{
    struct kni_hevc_decoder *d = context->opaque;
    (void)flags;
    if (frame->format != AV_PIX_FMT_YUV444P || frame->width > d->line_bytes || frame->height > d->lines)
        return AVERROR_INVALIDDATA;
    if (!d->n_spare && d->n_held == MAX_PICTURES) /* held and spare together never exceed it */
        return AVERROR_INVALIDDATA;
    uint8_t *data = d->n_spare ? d->spare[--d->n_spare] : kni_alloc(KNI_ALLOC_TAG_CODEC, d->picture_bytes, 64);
    if (!data)
        return AVERROR(ENOMEM);
    frame->buf[0] = d->av->av_buffer_create(data, d->picture_bytes, give_back, d, 0);
    if (!frame->buf[0]) {
        kni_free(data);
        return AVERROR(ENOMEM);
    }
    if (++d->n_held > d->n_peak)
        d->n_peak = d->n_held;
    for (int i = 0; i < 3; i++) {
        frame->data[i] = data + (size_t)i * (size_t)d->line_bytes * (size_t)d->lines;
        frame->linesize[i] = d->line_bytes;
    }
    frame->extended_data = frame->data;
    return 0;
}

void kni_hevc_decoder_close(struct kni_hevc_decoder **decoder)
{
    struct kni_hevc_decoder *d = *decoder;
    if (!d)
        return;
    d->av->av_frame_free(&d->frame);
    d->av->av_packet_free(&d->packet);
    d->av->avcodec_free_context(&d->context); /* gives all buffers back */
    assert(d->n_held == 0);
    drop_spare(d);
    kni_free(d->unit);
    kni_free(d);
    *decoder = NULL;
}

void kni_hevc_decoder_rest(struct kni_hevc_decoder *d)
{
    if (!d)
        return;
    d->av->avcodec_flush_buffers(d->context); /* gives back what it kept for prediction */
    drop_spare(d);
    kni_free(d->unit);
    d->unit = NULL;
    d->unit_capacity = 0;
}

uint32_t kni_hevc_decoder_n_hashed(const struct kni_hevc_decoder *d)
{
    return d ? d->n_hashed : 0;
}

size_t kni_hevc_decoder_bytes(const struct kni_hevc_decoder *d)
{
    return d ? d->peak_bytes : 0;
}

static enum kn_status no_memory(struct kn_err *err)
{
    return kni_err_set(err, KN_E_NOMEM, "no memory while decoding HEVC");
}

enum kn_status kni_hevc_decode_prepare(struct kn_err *err)
{
    const struct kni_avcodec *av;
    return kni_avcodec_load(&av, err);
}

static enum kn_status make_decoder(struct kni_hevc_decoder **out, struct kn_err *err)
{
    const struct kni_avcodec *av;
    enum kn_status s = kni_avcodec_load(&av, err);
    if (s != KN_OK)
        return s;
    const AVCodec *codec = av->avcodec_find_decoder(AV_CODEC_ID_HEVC);
    if (!codec)
        return kni_err_set(err, KN_E_UNSUPPORTED, "this libavcodec has no HEVC decoder: install one that has, or use preset exact");
    struct kni_hevc_decoder *d = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *d, 0);
    if (!d)
        return no_memory(err);
    *out = d;
    d->av = av;
    d->packet = d->av->av_packet_alloc();
    d->frame = d->av->av_frame_alloc();
    d->context = d->av->avcodec_alloc_context3(codec);
    if (!d->packet || !d->frame || !d->context)
        return no_memory(err);
    d->context->opaque = d;
    d->context->get_buffer2 = get_buffer;
    d->context->log_level_offset = QUIET;
    d->context->thread_count = 1;
    d->context->flags = AV_CODEC_FLAG_LOW_DELAY;
    d->context->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER | AV_EF_EXPLODE;
    d->context->max_pixels = (int64_t)KNI_HEVC_MAX_SIDE * KNI_HEVC_MAX_SIDE;
    int r = d->av->avcodec_open2(d->context, codec, NULL);
    if (r == AVERROR(ENOMEM))
        return no_memory(err);
    return r < 0 ? kni_err_set(err, KN_E_UNSUPPORTED, "libavcodec could not open its HEVC decoder (%d)", r) : KN_OK;
}

static void set_stream(struct kni_hevc_decoder *d, const struct kni_hevc_expect *expect)
{
    d->expect = *expect;
    d->n_in = d->n_out = d->n_hashed = 0;
    d->has_digest = false;
    d->line_bytes = (int)((expect->width + 63) / 64 * 64);
    d->lines = (int)((expect->height + 63) / 64 * 64);
    d->picture_bytes = 3 * (size_t)d->line_bytes * (size_t)d->lines + 128; /* SIMD may read a little past the end */
}

static enum kn_status bad(struct kn_err *err, uint32_t i, const char *what)
{
    return kni_err_set(err, KN_E_FORMAT, "HEVC picture %u %s; drop the chunk and recompute", i, what);
}

static enum kn_status copy_unit(struct kni_hevc_decoder *d, const uint8_t *bytes, size_t n_bytes, struct kn_err *err)
{
    if (n_bytes > INT32_MAX / 2)
        return kni_err_set(err, KN_E_FORMAT, "HEVC access unit of %zu bytes", n_bytes);
    size_t need = n_bytes + AV_INPUT_BUFFER_PADDING_SIZE;
    if (need > d->unit_capacity) {
        kni_free(d->unit);
        d->unit_capacity = 0;
        d->unit = kni_alloc(KNI_ALLOC_TAG_CODEC, need + need / 2, 64);
        if (!d->unit)
            return no_memory(err);
        d->unit_capacity = need + need / 2;
    }
    memcpy(d->unit, bytes, n_bytes);
    memset(d->unit + n_bytes, 0, AV_INPUT_BUFFER_PADDING_SIZE);
    d->packet->data = d->unit;
    d->packet->size = (int)n_bytes;
    d->packet->buf = NULL; /* not reference counted: libavcodec copies it, with padding */
    return KN_OK;
}

static enum kn_status keep_digest(struct kni_hevc_decoder *d, const uint8_t *unit, size_t n_bytes, struct kn_err *err)
{
    bool found;
    const char *why = kni_hevc_digest_find(unit, n_bytes, &d->digest[d->n_in % MAX_DIGESTS], &found);
    if (why)
        return bad(err, d->n_in, why);
    if (!d->n_in)
        d->has_digest = found;
    return found == d->has_digest ? KN_OK : bad(err, d->n_in, found ? "has a hash, and those before it have none" : "has no hash, and those before it have one");
}

/* As coded: the window's right and bottom edge are cut off by sizes only. A picture carries the number of its unit as its time. */
static enum kn_status check_digest(struct kni_hevc_decoder *d, const AVFrame *f, struct kn_err *err)
{
    static const char *const names[] = {"MD5", "CRC", "checksum"};
    const uint32_t width = (uint32_t)d->context->coded_width, height = (uint32_t)d->context->coded_height;
    struct kni_hevc_digest now;
    if (f->pts < 0 || f->pts >= d->n_in || d->n_in - (uint32_t)f->pts > MAX_DIGESTS || (int)width > d->line_bytes || (int)height > d->lines)
        return bad(err, d->n_out, "cannot be held against its hash");
    const struct kni_hevc_digest *want = &d->digest[(uint32_t)f->pts % MAX_DIGESTS];
    const uint8_t *const planes[3] = {f->data[0], f->data[1], f->data[2]};
    const size_t strides[3] = {(size_t)f->linesize[0], (size_t)f->linesize[1], (size_t)f->linesize[2]};
    if (!kni_hevc_digest_of(&now, want->kind, planes, strides, width, height, width, height))
        return no_memory(err);
    if (!kni_hevc_digest_equal(&now, want))
        return kni_err_set(err, KN_E_FORMAT, "HEVC picture %u is not what its %s in the stream says: the stream is damaged", d->n_out, names[want->kind]);
    d->n_hashed++;
    return KN_OK;
}

/* Hands out what the decoder has finished. */
static enum kn_status take_pictures(struct kni_hevc_decoder *d, kni_hevc_picture_fn fn, void *user, struct kn_err *err)
{
    const struct kni_hevc_expect *x = &d->expect;
    for (;;) {
        int r = d->av->avcodec_receive_frame(d->context, d->frame);
        if (r == AVERROR(EAGAIN) || r == AVERROR_EOF)
            return KN_OK;
        if (r == AVERROR(ENOMEM))
            return no_memory(err);
        if (r < 0)
            return bad(err, d->n_out, "cannot be decoded");
        const AVFrame *f = d->frame;
        enum kn_status s = KN_OK;
        if (f->format != AV_PIX_FMT_YUV444P || f->width != (int)x->width || f->height != (int)x->height)
            s = bad(err, d->n_out, "has the wrong size or format");
        else if (f->decode_error_flags || f->flags & AV_FRAME_FLAG_CORRUPT)
            s = bad(err, d->n_out, "is damaged");
        else if (d->n_out >= d->n_in || (x->n_pictures && d->n_out >= x->n_pictures))
            s = bad(err, d->n_out, "is one too many");
        if (s == KN_OK && d->has_digest)
            s = check_digest(d, f, err);
        if (s == KN_OK) {
            const uint8_t *const planes[3] = {f->data[0], f->data[1], f->data[2]};
            const size_t strides[3] = {(size_t)f->linesize[0], (size_t)f->linesize[1], (size_t)f->linesize[2]};
            s = fn(user, d->n_out, planes, strides, err);
        }
        d->av->av_frame_unref(d->frame);
        if (s != KN_OK)
            return s;
        d->n_out++;
    }
}

/* Sends a unit, or the end, and hands out what is finished. On failure the decoder goes. */
static enum kn_status feed(struct kni_hevc_decoder **decoder, AVPacket *packet, kni_hevc_picture_fn fn, void *user, struct kn_err *err)
{
    struct kni_hevc_decoder *d = *decoder;
    int r = d->av->avcodec_send_packet(d->context, packet);
    enum kn_status s = r == AVERROR(ENOMEM) ? no_memory(err) : r < 0 ? bad(err, d->n_in - !!packet, "cannot be decoded") : take_pictures(d, fn, user, err);
    size_t held = sizeof *d + d->unit_capacity + d->n_peak * d->picture_bytes;
    if (held > d->peak_bytes)
        d->peak_bytes = held;
    if (s != KN_OK)
        kni_hevc_decoder_close(decoder);
    return s;
}

enum kn_status kni_hevc_decode_begin(struct kni_hevc_decoder **decoder, const struct kni_hevc_expect *expect, struct kn_err *err)
{
    uint32_t width = expect->width, height = expect->height;
    assert(width && height && width <= KNI_HEVC_MAX_SIDE && height <= KNI_HEVC_MAX_SIDE);
    if (*decoder && ((*decoder)->expect.width != width || (*decoder)->expect.height != height))
        kni_hevc_decoder_close(decoder); /* rare, and simpler than buffers of two sizes */
    enum kn_status s = KN_OK;
    if (*decoder)
        (*decoder)->av->avcodec_flush_buffers((*decoder)->context);
    else
        s = make_decoder(decoder, err);
    if (s == KN_OK)
        set_stream(*decoder, expect);
    else
        kni_hevc_decoder_close(decoder);
    return s;
}

enum kn_status kni_hevc_decode_unit(struct kni_hevc_decoder **decoder, const uint8_t *bytes, size_t n_bytes, kni_hevc_picture_fn fn, void *user,
                                    struct kn_err *err)
{
    struct kni_hevc_decoder *d = *decoder;
    const char *why = kni_hevc_check_unit_tools(bytes, n_bytes, d->n_in == 0, d->expect.width, d->expect.height, d->expect.tools);
    enum kn_status s = why ? bad(err, d->n_in, why) : copy_unit(d, bytes, n_bytes, err);
    if (s == KN_OK && d->expect.hashes)
        s = keep_digest(d, bytes, n_bytes, err);
    if (s != KN_OK) {
        kni_hevc_decoder_close(decoder);
        return s;
    }
    d->packet->pts = d->n_in++;
    return feed(decoder, d->packet, fn, user, err);
}

enum kn_status kni_hevc_decode_end(struct kni_hevc_decoder **decoder, kni_hevc_picture_fn fn, void *user, struct kn_err *err)
{
    enum kn_status s = feed(decoder, NULL, fn, user, err);
    if (s != KN_OK || (*decoder)->n_out == (*decoder)->n_in)
        return s;
    s = bad(err, (*decoder)->n_out, "is missing");
    kni_hevc_decoder_close(decoder);
    return s;
}

enum kn_status kni_hevc_decode_expect(struct kni_hevc_decoder **decoder, const uint8_t *bytes, size_t n_bytes, const struct kni_hevc_expect *expect,
                                      kni_hevc_picture_fn fn, void *user, struct kn_err *err)
{
    uint32_t n_pictures = expect->n_pictures;
    uint64_t at = 4 + 4 * (uint64_t)n_pictures;
    assert(n_pictures);
    enum kn_status s = kni_hevc_decode_begin(decoder, expect, err);
    if (s != KN_OK)
        return s;
    if (n_bytes < at || kni_le32_get(bytes) != n_pictures)
        s = kni_err_set(err, KN_E_FORMAT, "HEVC section of %zu bytes does not hold the %u pictures expected", n_bytes, n_pictures);
    for (uint32_t i = 0; s == KN_OK && i < n_pictures; i++) {
        uint32_t size = kni_le32_get(bytes + 4 + 4 * (size_t)i);
        s = size > n_bytes - at ? bad(err, i, "reaches past its section") : kni_hevc_decode_unit(decoder, bytes + at, size, fn, user, err);
        at += size;
    }
    if (s == KN_OK)
        s = kni_hevc_decode_end(decoder, fn, user, err);
    if (s == KN_OK && at != n_bytes)
        s = kni_err_set(err, KN_E_FORMAT, "HEVC section has %llu bytes after its last picture", (unsigned long long)(n_bytes - at));
    if (s != KN_OK)
        kni_hevc_decoder_close(decoder);
    return s;
}

enum kn_status kni_hevc_decode(struct kni_hevc_decoder **decoder, const uint8_t *bytes, size_t n_bytes, uint32_t width, uint32_t height,
                               uint32_t n_pictures, kni_hevc_picture_fn fn, void *user, struct kn_err *err)
{
    struct kni_hevc_expect expect = {.width = width, .height = height, .n_pictures = n_pictures, .tools = KNI_HEVC_TOOLS_ALL};
    return kni_hevc_decode_expect(decoder, bytes, n_bytes, &expect, fn, user, err);
}

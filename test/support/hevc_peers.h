/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Judges of an HEVC stream: other people's decoders, libavcodec and, where the machine has it (TEST_DE265), libde265; and Kinema's own reader,
 * which was written from the standard apart from the encoder. A judge decodes one stream in memory, access unit by access unit, and compares every
 * sample of every picture:
 *
 *     hevc_stream (Annex B units) + hevc_film (what must come out) -> NULL, or a sentence that says what is wrong
 *
 * Nothing is tolerated: a wrong size, a picture too few or too many, any error flag, any warning. Each stream gets a fresh
 * decoder, so that a verdict depends on the stream alone. One thread: libavcodec's log callback is the process's.
 */
#ifndef KN_TEST_HEVC_PEERS_H
#define KN_TEST_HEVC_PEERS_H

#include <libavcodec/avcodec.h>
#include <libavutil/log.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if TEST_DE265
#include <libde265/de265.h>
#endif

#include "measure/reader/hevc_reader.h"

/* libde265 1.0.11 as its source reads: every tool that Kinema's encoder may set is decoded in blocks without transform:
 * the single significance context, implicit and explicit RDPCM, persistent Rice parameters (not carried over between dependent
 * slice segments or into a new row of coding tree units, which Kinema's streams have neither of). So it is asked for all. */
#define HEVC_DE265_TOOLS 15u

/* Samples of a short film. Row y of plane k of picture t begins at hevc_film_row; no byte follows the last row. */
struct hevc_film {
    uint32_t width, height, n_pictures;
    size_t stride;
    uint8_t *samples;
};

#define HEVC_STREAM_UNITS 300u
struct hevc_stream {
    uint8_t *bytes;
    size_t n_bytes;
    size_t unit_bytes[HEVC_STREAM_UNITS];
    uint32_t n_units;
};

static inline uint8_t *hevc_film_row(const struct hevc_film *f, uint32_t t, uint32_t k, uint32_t y)
{
    return f->samples + (((size_t)t * 3 + k) * f->height + y) * f->stride;
}

static inline struct hevc_film hevc_film_alloc(uint32_t width, uint32_t height, uint32_t n_pictures, size_t stride)
{
    struct hevc_film f = {width, height, n_pictures, stride, malloc(((size_t)n_pictures * 3 * height - 1) * stride + width)};
    if (!f.samples)
        abort();
    return f;
}

static inline void hevc_film_free(struct hevc_film *f)
{
    free(f->samples);
    f->samples = NULL;
}

static inline void hevc_stream_add(struct hevc_stream *s, const uint8_t *unit, size_t n)
{
    uint8_t *grown = realloc(s->bytes, s->n_bytes + n + AV_INPUT_BUFFER_PADDING_SIZE);
    if (!grown || s->n_units == HEVC_STREAM_UNITS)
        abort();
    s->bytes = grown;
    memcpy(grown + s->n_bytes, unit, n);
    s->n_bytes += n;
    s->unit_bytes[s->n_units++] = n;
}

static inline void hevc_stream_free(struct hevc_stream *s)
{
    free(s->bytes);
    *s = (struct hevc_stream){0};
}

static char hevc_verdict[400]; /* the sentence that a judge returned last */

__attribute__((format(printf, 1, 2))) static inline const char *hevc_wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(hevc_verdict, sizeof hevc_verdict, format, args);
    va_end(args);
    return hevc_verdict;
}

/* The first sample that differs, as a sentence. */
static inline const char *hevc_compare(const char *who, const struct hevc_film *f, uint32_t t, uint32_t k, const uint8_t *plane, size_t stride)
{
    for (uint32_t y = 0; y < f->height; y++) {
        const uint8_t *want = hevc_film_row(f, t, k, y), *got = plane + y * stride;
        if (!memcmp(want, got, f->width))
            continue;
        uint32_t x = 0;
        while (want[x] == got[x])
            x++;
        return hevc_wrong("%s: picture %u, plane %u, x %u, y %u is %u instead of %u", who, t, k, x, y, got[x], want[x]);
    }
    return NULL;
}

/* ---- libavcodec */

static char hevc_complaint[200]; /* the first thing that libavcodec logged at level warning or worse */

static inline void hevc_hear(void *about, int level, const char *format, va_list args)
{
    (void)about;
    if (level <= AV_LOG_WARNING && !hevc_complaint[0])
        vsnprintf(hevc_complaint, sizeof hevc_complaint, format, args);
}

static inline const char *hevc_avcodec_take(AVCodecContext *c, AVFrame *f, const struct hevc_film *want, uint32_t *n_seen)
{
    for (;;) {
        int r = avcodec_receive_frame(c, f);
        if (r == AVERROR(EAGAIN) || r == AVERROR_EOF)
            return NULL;
        if (r < 0)
            return hevc_wrong("libavcodec: picture %u: error %d", *n_seen, r);
        const char *bad = NULL;
        if (f->format != AV_PIX_FMT_YUV444P || f->width != (int)want->width || f->height != (int)want->height)
            bad = hevc_wrong("libavcodec: picture %u is %d x %d, format %d", *n_seen, f->width, f->height, f->format);
        else if (f->decode_error_flags || f->flags & AV_FRAME_FLAG_CORRUPT)
            bad = hevc_wrong("libavcodec: picture %u has error flags %d", *n_seen, f->decode_error_flags);
        else if (*n_seen >= want->n_pictures)
            bad = hevc_wrong("libavcodec: a picture too many");
        for (uint32_t k = 0; k < 3 && !bad; k++)
            bad = hevc_compare("libavcodec", want, *n_seen, k, f->data[k], (size_t)f->linesize[k]);
        av_frame_unref(f);
        if (bad)
            return bad;
        ++*n_seen;
    }
}

static inline const char *hevc_judge_avcodec(const struct hevc_stream *s, const struct hevc_film *want)
{
    const AVCodec *codec = avcodec_find_decoder(AV_CODEC_ID_HEVC);
    AVCodecContext *c = codec ? avcodec_alloc_context3(codec) : NULL;
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    const char *bad = NULL;
    uint32_t n_seen = 0;
    if (!c || !packet || !frame)
        abort();
    hevc_complaint[0] = 0;
    av_log_set_callback(hevc_hear);
    c->thread_count = 1;
    c->flags = AV_CODEC_FLAG_LOW_DELAY;
    c->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER | AV_EF_EXPLODE;
    if (avcodec_open2(c, codec, NULL) < 0)
        abort();
    size_t at = 0;
    for (uint32_t i = 0; i <= s->n_units && !bad; i++) {
        int r;
        if (i < s->n_units) {
            if (av_new_packet(packet, (int)s->unit_bytes[i]) < 0)
                abort();
            memcpy(packet->data, s->bytes + at, s->unit_bytes[i]);
            at += s->unit_bytes[i];
            r = avcodec_send_packet(c, packet);
            av_packet_unref(packet);
        } else {
            r = avcodec_send_packet(c, NULL);
        }
        bad = r < 0 ? hevc_wrong("libavcodec: access unit %u: error %d (%s)", i, r, hevc_complaint) : hevc_avcodec_take(c, frame, want, &n_seen);
    }
    av_frame_free(&frame);
    av_packet_free(&packet);
    avcodec_free_context(&c);
    av_log_set_callback(av_log_default_callback);
    if (!bad && hevc_complaint[0])
        bad = hevc_wrong("libavcodec says: %s", hevc_complaint);
    if (!bad && n_seen != want->n_pictures)
        bad = hevc_wrong("libavcodec: %u pictures instead of %u", n_seen, want->n_pictures);
    return bad;
}

/* ---- libde265 */

#if TEST_DE265
static inline const char *hevc_de265_take(de265_decoder_context *c, const struct hevc_film *want, uint32_t *n_seen)
{
    for (const struct de265_image *image; (image = de265_get_next_picture(c)); ++*n_seen) {
        if (*n_seen >= want->n_pictures)
            return hevc_wrong("libde265: a picture too many");
        if (de265_get_chroma_format(image) != de265_chroma_444)
            return hevc_wrong("libde265: picture %u is not 4:4:4", *n_seen);
        for (int k = 0; k < 3; k++) {
            int stride, width = de265_get_image_width(image, k), height = de265_get_image_height(image, k);
            const uint8_t *plane = de265_get_image_plane(image, k, &stride);
            if (width != (int)want->width || height != (int)want->height || de265_get_bits_per_pixel(image, k) != 8)
                return hevc_wrong("libde265: picture %u, plane %d is %d x %d", *n_seen, k, width, height);
            const char *bad = hevc_compare("libde265", want, *n_seen, (uint32_t)k, plane, (size_t)stride);
            if (bad)
                return bad;
        }
    }
    return NULL;
}
#endif

/* NULL, too, where libde265 is missing or would not know one of tools (bits of enum kni_hevc_tool). */
static inline const char *hevc_judge_de265(const struct hevc_stream *s, const struct hevc_film *want, uint32_t tools)
{
    const char *bad = NULL;
#if TEST_DE265
    if (tools & ~HEVC_DE265_TOOLS)
        return NULL;
    de265_decoder_context *c = de265_new_decoder();
    if (!c)
        abort();
    uint32_t n_seen = 0;
    if (de265_push_data(c, s->bytes, (int)s->n_bytes, 0, NULL) != DE265_OK || de265_flush_data(c) != DE265_OK)
        abort();
    for (int more = 1; more && !bad;) {
        more = 0;
        de265_error e = de265_decode(c, &more);
        if (e != DE265_OK && e != DE265_ERROR_WAITING_FOR_INPUT_DATA)
            bad = hevc_wrong("libde265: %s", de265_get_error_text(e));
        de265_error w = de265_get_warning(c);
        if (!bad && w != DE265_OK)
            bad = hevc_wrong("libde265 warns: %s", de265_get_error_text(w));
        if (!bad)
            bad = hevc_de265_take(c, want, &n_seen);
    }
    de265_free_decoder(c);
    if (!bad && n_seen != want->n_pictures)
        bad = hevc_wrong("libde265: %u pictures instead of %u", n_seen, want->n_pictures);
#else
    (void)s, (void)want, (void)tools;
#endif
    return bad;
}

/* ---- Kinema's reader */

struct hevc_reader_state {
    const struct hevc_film *want;
    uint32_t tools, n_slices; /* what the stream may use, and has a picture (0: any number) */
    uint32_t n_seen;
    bool has_params;
    const char *bad;
};

static inline enum kn_status hevc_reader_params(void *user, const struct kn_hevc_params *p, struct kn_err *err)
{
    struct hevc_reader_state *r = user;
    (void)err;
    r->has_params = true;
    if (p->tools & ~r->tools)
        r->bad = hevc_wrong("reader: the parameter sets name tools %u, the encoder was given %u", p->tools, r->tools);
    else if (p->width - p->window_right != r->want->width || p->height - p->window_bottom != r->want->height || p->width % 8 || p->height % 8)
        r->bad = hevc_wrong("reader: %u x %u less a window of %u, %u", p->width, p->height, p->window_right, p->window_bottom);
    return r->bad ? KN_E_FORMAT : KN_OK;
}

static inline enum kn_status hevc_reader_picture(void *user, const struct kn_hevc_picture *picture, const struct kni_hevc_rebuilt *rebuilt,
                                                 struct kn_err *err)
{
    struct hevc_reader_state *r = user;
    (void)err;
    if (r->n_seen >= r->want->n_pictures)
        r->bad = hevc_wrong("reader: a picture too many");
    else if (r->n_slices && picture->n_slices != r->n_slices)
        r->bad = hevc_wrong("reader: picture %u has %u slices instead of %u", r->n_seen, picture->n_slices, r->n_slices);
    else if (picture->idr != (r->n_seen == 0))
        r->bad = hevc_wrong("reader: picture %u is %san IDR picture", r->n_seen, picture->idr ? "" : "not ");
    for (uint32_t k = 0; k < 3 && !r->bad; k++)
        r->bad = rebuilt->plane[k] ? hevc_compare("reader", r->want, r->n_seen, k, rebuilt->plane[k], rebuilt->stride)
                                   : hevc_wrong("reader: picture %u is not rebuilt: %s", r->n_seen, rebuilt->why);
    r->n_seen++;
    return r->bad ? KN_E_FORMAT : KN_OK;
}

/* Limits that no level changes: bits of a coding tree unit, bins of a picture. Levels are declared where streams end (hevc_limits_test). */
static inline const char *hevc_beyond_limits(const struct kn_hevc_stream *s)
{
    static const enum kn_hevc_limit_kind kinds[] = {KN_HEVC_LIMIT_CTU_BITS, KN_HEVC_LIMIT_BINS};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct kn_hevc_limit *l = &s->limits[kinds[i]];
        if (!l->known || l->exceeded)
            return hevc_wrong("reader: picture %u has %.0f %s, at most %.0f are allowed", l->picture, l->value, kinds[i] == KN_HEVC_LIMIT_BINS ? "bins" : "bits in a coding tree unit",
                              l->allowed);
    }
    return NULL;
}

static inline const char *hevc_judge_reader(const struct hevc_stream *s, const struct hevc_film *want, uint32_t tools, uint32_t n_slices)
{
    struct hevc_reader_state state = {.want = want, .tools = tools, .n_slices = n_slices};
    struct kni_hevc_reader_opts opts = {.rebuild = true, .on_params = hevc_reader_params, .on_picture = hevc_reader_picture, .user = &state};
    struct kni_hevc_reader *r;
    struct kn_hevc_stream stream = {0};
    struct kn_err err = {0};
    size_t at = 0;
    enum kn_status status = kni_hevc_reader_open(&r, &opts, &err);
    for (uint32_t i = 0; i < s->n_units && status == KN_OK; at += s->unit_bytes[i++])
        status = kni_hevc_reader_read(r, s->bytes + at, s->unit_bytes[i], &err);
    if (status == KN_OK)
        status = kni_hevc_reader_end(r, &stream, &err);
    kni_hevc_reader_close(&r);
    if (state.bad)
        return state.bad;
    if (status != KN_OK)
        return hevc_wrong("reader: %s", err.text);
    if (!state.has_params || state.n_seen != want->n_pictures)
        return hevc_wrong("reader: %u pictures instead of %u", state.n_seen, want->n_pictures);
    return hevc_beyond_limits(&stream);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kn_video_decode on arbitrary bytes: streams and chunks that arrive in pieces. The first byte gives the length of the pieces, the rest is the
 * input. The same bytes in one piece must give as many pictures and the same verdict, wherever pieces are cut. (Not the same
 * samples: a damaged stream may leave some unsaid.)
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <kinema/video.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen { uint32_t n; volatile uint32_t sum; };

static enum kn_status on_picture(void *user, const struct kn_video_picture *p)
{
    struct seen *s = user;
    if (p->index != s->n || !p->width || !p->height)
        abort();
    for (int k = 0; k < 3; k++) /* reads every corner: sanitizers see planes that are too small */
        s->sum = s->sum * 31 + p->plane[k][0] + p->plane[k][p->width - 1] + p->plane[k][(p->height - 1) * p->stride[k] + p->width - 1];
    s->n++;
    return KN_OK;
}

static enum kn_status decode(const uint8_t *data, size_t size, size_t piece, struct seen *seen)
{
    struct kn_video_decoder *d;
    struct kn_video_decode_opts o = {.size = sizeof o, .on_picture = on_picture, .user = seen};
    struct kn_err err = {0};
    enum kn_status s = kn_video_decoder_open(&d, &o, &err);
    for (size_t at = 0; s == KN_OK && at < size; at += piece)
        s = kn_video_decode(d, data + at, size - at < piece ? size - at : piece, false, &err);
    if (s == KN_OK)
        s = kn_video_decode(d, NULL, 0, true, &err);
    if (s != KN_OK && !err.text[0])
        abort();
    kn_video_decoder_close(&d);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen whole = {0}, pieces = {0};
    if (size < 2)
        return 0;
    enum kn_status a = decode(data + 1, size - 1, size, &whole), b = decode(data + 1, size - 1, 1u + data[0], &pieces);
    if (a != b || whole.n != pieces.n)
        abort();
    return 0;
}

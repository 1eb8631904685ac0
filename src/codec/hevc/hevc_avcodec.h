/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The border to libavcodec and libavutil: a table of the functions that hevc_decode.c calls, filled when the first
 * decoder is made.
 *
 *     headers, when Kinema is built -> types, fields, the number in the soname     libraries, at run time -> the table
 *
 * Not linked, because Debian's libavcodec brings ninety other libraries into every process that merely loads libkinema,
 * and most of these never meet video. Fields of AVFrame, AVCodecContext and AVPacket are read as the headers have them:
 * within one major version, which the soname states and the load checks, libavcodec keeps their places.
 */
#ifndef KNI_CODEC_HEVC_AVCODEC_H
#define KNI_CODEC_HEVC_AVCODEC_H

#include <libavcodec/avcodec.h>

#include "base/status.h"

#define KNI_AVCODEC_SYMBOLS(x) \
    x(avcodec_version)         \
    x(avcodec_find_decoder)    \
    x(avcodec_alloc_context3)  \
    x(avcodec_free_context)    \
    x(avcodec_open2)           \
    x(avcodec_flush_buffers)   \
    x(avcodec_send_packet)     \
    x(avcodec_receive_frame)   \
    x(av_packet_alloc)         \
    x(av_packet_free)
#define KNI_AVUTIL_SYMBOLS(x) \
    x(avutil_version)         \
    x(av_frame_alloc)         \
    x(av_frame_free)          \
    x(av_frame_unref)         \
    x(av_buffer_create)

/* Each has the name and the type of its declaration. */
struct kni_avcodec {
#define KNI_AVCODEC_POINTER(name) __typeof__(name) *name;
    KNI_AVCODEC_SYMBOLS(KNI_AVCODEC_POINTER)
    KNI_AVUTIL_SYMBOLS(KNI_AVCODEC_POINTER)
#undef KNI_AVCODEC_POINTER
};

/* The table, loaded by the first call that succeeds and never unloaded; a later call costs a lock. KN_E_UNSUPPORTED
 * with a sentence, and *out is NULL, when a library is missing or is of another version than the headers. Any
 * thread. */
enum kn_status kni_avcodec_load(const struct kni_avcodec **out, struct kn_err *err);

#endif

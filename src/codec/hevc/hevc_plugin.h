/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The border to an HEVC encoder that is opened at run time (libkinema_x265.so): libx265 is GPL, so Kinema never links it.
 * Plain C types only; a plugin needs nothing of Kinema but this file.
 *
 * What goes in: 8-bit pictures of three planes of equal size (4:4:4). What comes out: one Annex-B access unit a picture, at
 * once, lossless. A stream begins with a picture marked first: an IDR with its parameter sets; later ones are predicted from
 * the one before. Decoders need no more than one reference picture. One encoder codes many streams one after the other
 * (opening x265 costs a millisecond, and x265 3.5 loses some kilobytes each time).
 *
 * Versions: abi_version changes with any change of these structs; the host refuses another version.
 * Threads: an encoder belongs to one thread; several may run at once.
 */
#ifndef KNI_CODEC_HEVC_PLUGIN_H
#define KNI_CODEC_HEVC_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#define KN_HEVC_PLUGIN_ABI 2u /* 2: params have a preset */
#define KN_HEVC_PLUGIN_SYMBOL "kn_hevc_plugin"

enum kn_hevc_result { KN_HEVC_RESULT_OK = 0, KN_HEVC_RESULT_NOMEM = 1, KN_HEVC_RESULT_FAILED = 2 };

struct kn_hevc_params {
    uint32_t width, height; /* 16 to 8192 */
    const char *preset;     /* "ultrafast" or "medium": how hard to search; open fails for any other */
};
struct kn_hevc_unit { const uint8_t *bytes; size_t n_bytes; }; /* borrowed until the encoder's next call */

struct kn_hevc_plugin {
    uint32_t abi_version;
    uint32_t struct_bytes; /* sizeof(struct kn_hevc_plugin) */
    const char *name;      /* encoder and version, for messages */
    enum kn_hevc_result (*open)(void **encoder, const struct kn_hevc_params *params);
    /* Codes one picture; first (0 or 1): it begins a stream. After a failure only close may follow. */
    enum kn_hevc_result (*encode)(void *encoder, int first, const uint8_t *const planes[3], const size_t strides[3], struct kn_hevc_unit *unit);
    void (*close)(void *encoder); /* NULL is fine */
};

/* The one symbol that a plugin exports: const struct kn_hevc_plugin *kn_hevc_plugin(void). */
typedef const struct kn_hevc_plugin *(*kn_hevc_plugin_fn)(void);

#endif

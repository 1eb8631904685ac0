/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library in the place of libavcodec, built twice: with every function that Kinema looks for and a version that is
 * none of Kinema's (OTHER_WHOLE), and with the version alone. Nothing but the version may be called.
 */
unsigned avcodec_version(void);

__attribute__((visibility("default"))) unsigned avcodec_version(void)
{
    return 7u << 16;
}

#ifdef OTHER_WHOLE
#define NEVER(name)                                           \
    void name(void);                                          \
    __attribute__((visibility("default"))) void name(void)    \
    {                                                         \
        __builtin_trap();                                     \
    }
NEVER(avcodec_find_decoder)
NEVER(avcodec_alloc_context3)
NEVER(avcodec_free_context)
NEVER(avcodec_open2)
NEVER(avcodec_flush_buffers)
NEVER(avcodec_send_packet)
NEVER(avcodec_receive_frame)
NEVER(av_packet_alloc)
NEVER(av_packet_free)
#endif

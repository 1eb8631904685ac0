/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: an HEVC section. The first three bytes give what is expected: width and height in units of 16 (1..16) and
 * the number of pictures (1..32); the rest is the section.
 */
#include <stdlib.h>

#include "codec/hevc/hevc_decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct want { uint32_t width, height, next; volatile uint32_t sum; };

static enum kn_status look(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    struct want *w = user;
    (void)err;
    if (index != w->next++)
        abort();
    for (int k = 0; k < 3; k++)
        for (uint32_t y = 0; y < w->height; y++)
            w->sum += planes[k][y * strides[k]] + planes[k][y * strides[k] + w->width - 1]; /* both ends must be readable */
    return KN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    struct want w = {.width = (data[0] % 16 + 1u) * 16, .height = (data[1] % 16 + 1u) * 16};
    uint32_t n = data[2] % 32 + 1u;
    struct kni_hevc_decoder *d = NULL;
    struct kn_err err = {0};
    for (int twice = 0; twice < 2; twice++) { /* a used decoder must behave like a fresh one */
        w.next = 0;
        enum kn_status s = kni_hevc_decode(&d, data + 3, size - 3, w.width, w.height, n, look, &w, &err);
        if ((s == KN_OK) != (d != NULL) || (s == KN_OK && w.next != n) || (s != KN_OK && s != KN_E_FORMAT && s != KN_E_NOMEM))
            abort();
    }
    kni_hevc_decoder_close(&d);
    return 0;
}

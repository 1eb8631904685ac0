/* SPDX-License-Identifier: Apache-2.0 */
/* The one way in which all parts of the reader fail; see hevc_reader_state.h. */
#include <stdarg.h>
#include <stdio.h>

#include "measure/reader/hevc_reader_state.h"

bool kni_hevc_reader_fail(struct kni_hevc_reader *r, enum kn_status status, const char *format, ...)
{
    if (r->status == KN_OK) {
        char text[200];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        r->status = kni_err_set(r->err, status, "the HEVC stream %s (picture %u)", text, r->stream.n_pictures);
    }
    return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Names and messages of status codes, generated from the one list in status.h, and the sentence writer. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

const char *kn_status_name(enum kn_status status)
{
    switch (status) {
#define CASE(name, value, message) case KN_##name: return "KN_" #name;
        KN_STATUS_LIST(CASE)
#undef CASE
    }
    return "KN_?";
}

const char *kn_status_message(enum kn_status status)
{
    switch (status) {
#define CASE(name, value, message) case KN_##name: return message;
        KN_STATUS_LIST(CASE)
#undef CASE
    }
    return "unknown status";
}

enum kn_status kni_err_set(struct kn_err *err, enum kn_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        err->status = status;
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return status;
}

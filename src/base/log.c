/* SPDX-License-Identifier: Apache-2.0 */
/* The one way out for messages. The callback is set before threads start, so plain reads are enough. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static kn_log_fn log_fn;
static void *log_user;
static enum kn_log_level log_lowest = KN_LOG_LEVEL_INFO;

void kn_log_set(kn_log_fn fn, void *user, enum kn_log_level lowest)
{
    log_fn = fn;
    log_user = user;
    log_lowest = lowest;
}

void kni_log(enum kn_log_level level, const char *area, const char *format, ...)
{
    if (!log_fn || level < log_lowest)
        return;
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    log_fn(log_user, level, area, line);
}

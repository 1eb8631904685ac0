/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library never prints: whatever it has to say goes through one callback, set once by the program.
 * Without a callback nothing is said. The callback may be called from any thread, never while a lock is held.
 */
#ifndef KINEMA_LOG_H
#define KINEMA_LOG_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum kn_log_level { KN_LOG_LEVEL_DEBUG = 0, KN_LOG_LEVEL_INFO = 1, KN_LOG_LEVEL_WARN = 2, KN_LOG_LEVEL_ERROR = 3 };

/* area: the folder that speaks ("store", "fetch", ...); text: one line without a newline, borrowed for the call. */
typedef void (*kn_log_fn)(void *user, enum kn_log_level level, const char *area, const char *text);

/* Sets the callback and the lowest level that reaches it. NULL silences. Call before other threads use the library. */
KN_API void kn_log_set(kn_log_fn fn, void *user, enum kn_log_level lowest);

#ifdef __cplusplus
}
#endif
#endif

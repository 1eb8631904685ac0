/* SPDX-License-Identifier: Apache-2.0 */
/* Everything public, and the version. */
#ifndef KINEMA_KINEMA_H
#define KINEMA_KINEMA_H

#include "codec.h"
#include "engine.h"
#include "log.h"
#include "model.h"
#include "profile.h"
#include "server.h"
#include "status.h"
#include "store.h"
#include "types.h"
#include "video.h"

#define KN_VERSION_MAJOR 0
#define KN_VERSION_MINOR 1
#define KN_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0" of the library that is loaded. */
KN_API const char *kn_version(void);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Internal side of kinema/status.h: fills the caller's struct kn_err. */
#ifndef KNI_BASE_STATUS_H
#define KNI_BASE_STATUS_H

#include "kinema/status.h"

/* Writes one sentence into err (which may be NULL) and returns status, so that "return kni_err_set(...)" reads well. */
__attribute__((format(printf, 3, 4))) enum kn_status kni_err_set(struct kn_err *err, enum kn_status status, const char *format, ...);

#endif

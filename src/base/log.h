/* SPDX-License-Identifier: Apache-2.0 */
/* Internal side of kinema/log.h. Any thread. Lines are cut at 1023 bytes. */
#ifndef KNI_BASE_LOG_H
#define KNI_BASE_LOG_H

#include "kinema/log.h"

__attribute__((format(printf, 3, 4))) void kni_log(enum kn_log_level level, const char *area, const char *format, ...);

#endif

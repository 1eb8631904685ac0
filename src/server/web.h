/* SPDX-License-Identifier: Apache-2.0 */
/* Files of web/ as bytes in the library; tools/embed.cmake writes their definitions into the build folder. */
#ifndef KNI_SERVER_WEB_H
#define KNI_SERVER_WEB_H

#include <stddef.h>

extern const unsigned char kni_web_dashboard[]; /* HTML, not NUL-terminated */
extern const size_t kni_web_dashboard_bytes;

#endif

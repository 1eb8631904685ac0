/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files, mapped read-only. */
#ifndef KNI_BASE_FILE_H
#define KNI_BASE_FILE_H

#include <stddef.h>

#include "base/status.h"

struct kni_file_map { const void *data; size_t n_bytes; };

/* Maps path. An empty file, a directory or a pipe is KN_E_FORMAT. The map outlives the file's name; a file truncated while
 * mapped raises SIGBUS on access, as for every program that maps its model. */
enum kn_status kni_file_map_open(struct kni_file_map *out, const char *path, struct kn_err *err);
/* Says that the whole pages inside [at, at + n_bytes) are not needed for now: they leave resident memory and come back from
 * the file when they are read. */
void kni_file_map_release(const struct kni_file_map *map, const void *at, size_t n_bytes);
void kni_file_map_close(struct kni_file_map *map);

#endif

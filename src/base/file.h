/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files: mapped read-only, or written so that a reader sees the old one or the new one and never a part. */
#ifndef KNI_BASE_FILE_H
#define KNI_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* By what a change of a file shows without reading it. Times are nanoseconds since 1970 as the file system keeps them; ctime_ns cannot
 * be set back, but a new name or mode changes it, too. */
struct kni_file_stamp {
    uint64_t device, inode, n_bytes;
    int64_t mtime_ns, ctime_ns;
};

/* fd is open while data is set. stamp: as of before the map was made. */
struct kni_file_map {
    const void *data;
    size_t n_bytes;
    int fd;
    struct kni_file_stamp stamp;
};

/* Maps path. An empty file, a directory or a pipe is KN_E_FORMAT. The map outlives the file's name; a file truncated while
 * mapped raises SIGBUS on access, as for every program that maps its model: kn_sigbus_report says which file it was. */
enum kn_status kni_file_map_open(struct kni_file_map *out, const char *path, struct kn_err *err);
/* Says that the whole pages inside [at, at + n_bytes) are not needed for now: they leave resident memory and come back from
 * the file when they are read. */
void kni_file_map_release(const struct kni_file_map *map, const void *at, size_t n_bytes);
/* The stamp of the file that is mapped, whatever its path names by now: one system call. KN_E_IO. Any thread. */
enum kn_status kni_file_map_stamp(const struct kni_file_map *map, struct kni_file_stamp *out);
/* Reads [at, at + n_bytes) of the mapped file by its descriptor, so that a file that was cut is an error and no signal. KN_E_IO.
 * Any thread. */
enum kn_status kni_file_map_read(const struct kni_file_map *map, uint64_t at, void *out, size_t n_bytes);
void kni_file_map_close(struct kni_file_map *map);

/* A file to be: begin finds out before the work that it cannot be written, commit writes PATH.PID.NUMBER.tmp beside it and gives that
 * its name. Between the two nothing is on disk, so that a program that is stopped leaves nothing behind. A link stays and what it leads to
 * is replaced; an existing file keeps its mode, and is refused when it is write-protected. */
struct kni_file_save {
    char *path, *temp_path;
    size_t temp_bytes;
    uint32_t mode; /* of the file that is replaced, 0: there is none */
};

/* Makes the temporary file and removes it again. KN_E_IO, KN_E_NOMEM. */
enum kn_status kni_file_save_begin(struct kni_file_save *save, const char *path, struct kn_err *err);
/* Writes data, waits for the disk, renames. Ends the save: on failure the temporary file is gone and path is as it was. */
enum kn_status kni_file_save_commit(struct kni_file_save *save, const void *data, size_t n_bytes, struct kn_err *err);
/* Ends the save without a file. A zeroed or ended one is fine. */
void kni_file_save_end(struct kni_file_save *save);

#endif

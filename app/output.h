/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that commands write. A regular one is written beside its name and takes it only when it is complete, so that whatever goes wrong,
 * a signal included, what was there before is still there, whole. The input may be the file that is replaced.
 *
 *     kn_app_output_open(&o, "codec", path)    .kinema-PID-N.tmp in the folder of the file that path leads to
 *     kn_app_output_write(&o, ...)             or anything of stdio on o.file
 *     kn_app_output_close(&o, "codec", status) 0: on the disk, then renamed; anything else: removed
 *
 * Links are followed and stay. A device, a pipe, or what the standard output already is (/dev/stdout), is written as it comes: there is
 * nothing to replace. Owner: the main thread.
 */
#ifndef KN_APP_OUTPUT_H
#define KN_APP_OUTPUT_H

#include "app.h"

struct kn_app_output {
    FILE *file;       /* to write to; NULL: not open */
    const char *name; /* as messages say it; borrowed */
    char *path, *temp; /* both NULL: written as it comes */
    int why;           /* errno of the first kn_app_output_write that failed */
};

/* path NULL or "-": the standard output. An existing file keeps its mode, and is refused when it is write-protected. 0, or
 * KN_APP_EXIT_FAILED after a message of the command. */
int kn_app_output_open(struct kn_app_output *o, const char *command, const char *path);
/* n_bytes of bytes; a failure shows, with its reason, when it is closed. */
void kn_app_output_write(struct kn_app_output *o, const void *bytes, size_t n_bytes);
/* Ends it: with exit_status 0 the file is there afterwards, or KN_APP_EXIT_FAILED is returned after a message; else exit_status is returned and all is as
 * before. A zeroed or closed one is fine. */
int kn_app_output_close(struct kn_app_output *o, const char *command, int exit_status);

#endif

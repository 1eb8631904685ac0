/* SPDX-License-Identifier: Apache-2.0 */
/* A tiny model (tiny_model.h), opened through a file that is gone again at once. For tests that need a tokenizer and a template. */
#ifndef KN_TEST_OPEN_TINY_H
#define KN_TEST_OPEN_TINY_H

#include <stdlib.h>
#include <unistd.h>

#include "kinema/model.h"
#include "support/tiny_model.h"

/* NULL when it cannot be written or opened; close with kn_model_close. */
static inline struct kn_model *kn_open_tiny(const struct kn_tiny_opts *opts)
{
    char path[] = "/tmp/kn_tiny_XXXXXX";
    struct kn_model *model = NULL;
    int fd = mkstemp(path);
    if (fd < 0)
        return NULL;
    close(fd);
    if (kn_tiny_model_write(path, opts) == 0)
        kn_model_open(&model, &(struct kn_model_opts){.size = sizeof(struct kn_model_opts), .path = path}, NULL);
    unlink(path);
    return model;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The tiny model of tests of request bodies, as their group's fixture. Include it in one test file a program. */
#ifndef KN_TEST_PARAMS_BED_H
#define KN_TEST_PARAMS_BED_H

#include "support/open_tiny.h"

static struct kn_model *model;

static int open_model(void **state)
{
    (void)state;
    model = kn_open_tiny(&(struct kn_tiny_opts){.n_layer = 1, .n_ctx = 512});
    return model ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    kn_model_close(&model);
    return 0;
}

#endif

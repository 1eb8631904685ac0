/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real model for tests that need one. Without it they fail and say what to do: a test that passes because it had nothing to
 * look at proves nothing.
 */
#ifndef KN_TEST_REAL_MODEL_H
#define KN_TEST_REAL_MODEL_H

#include <stdlib.h>

#include "kinema/model.h"

/* Opens the GGUF that KN_MODEL names; fails the running test or fixture when there is none. Close with kn_model_close. */
static inline struct kn_model *kn_real_model_open(void)
{
    const char *path = getenv("KN_MODEL");
    struct kn_model *model = NULL;
    struct kn_err err = {0};
    struct kn_model_opts o = {.size = sizeof o, .path = path};
    if (!path || !*path)
        fail_msg("this test needs SmolLM2-135M-Instruct Q4_1: `make model` downloads it and prints its path; give that to cmake as -DKN_MODEL=PATH, or to the test in the environment variable KN_MODEL");
    else if (kn_model_open(&model, &o, &err))
        fail_msg("%s (KN_MODEL; `make model` downloads the model of the tests)", err.text);
    return model;
}

#endif

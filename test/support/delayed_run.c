/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked into a test with --wrap=kni_run_open: every run of the program, the engine's too, has steps that are under way
 * for a while (delayed_run.h). test/CMakeLists.txt says of which tests there is such a second program, named *_delayed.
 */
#include <stdio.h>

#include "support/delayed_run.h"

enum kn_status __real_kni_run_open(struct kni_run **out, const struct kni_run_opts *opts, struct kn_err *err);
enum kn_status __wrap_kni_run_open(struct kni_run **out, const struct kni_run_opts *opts, struct kn_err *err);

/* A second program that delays nothing would test nothing. */
__attribute__((destructor)) static void must_have_delayed(void)
{
    kn_delayed_must(kn_delayed_seen > 0, "no step was under way in a test that is there for it");
}

enum kn_status __wrap_kni_run_open(struct kni_run **out, const struct kni_run_opts *opts, struct kn_err *err)
{
    struct kni_run_opts o = *opts;
    kn_delayed_inner = o.ops ? o.ops : &kni_run_ops_cpu;
    o.ops = &kn_delayed_ops;
    return __real_kni_run_open(out, &o, err);
}

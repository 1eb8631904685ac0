/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much work a call has done, and whether anybody still wants its result. Loops over a caller's text add their steps (a byte looked at, a
 * candidate taken off a heap, a character put in its place); every KNI_EFFORT_STRIDE of them the caller is asked. Tests bound the
 * steps of hostile texts, since they are the same on every machine.
 *
 * Scratch of one call.
 */
#ifndef KNI_MODEL_EFFORT_H
#define KNI_MODEL_EFFORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_EFFORT_STRIDE 65536u /* some milliseconds */

struct kni_effort {
    uint64_t n_steps, ask_at; /* zero-initialised: asked with the first step */
    bool (*stop)(void *user); /* NULL: nobody is asked */
    void *user;
    bool stopped;             /* it has said stop, and is not asked again */
};

/* False: give up. */
static inline bool kni_effort_add(struct kni_effort *e, uint64_t n)
{
    e->n_steps += n;
    if (e->n_steps >= e->ask_at && !e->stopped) {
        e->ask_at = e->n_steps + KNI_EFFORT_STRIDE;
        e->stopped = e->stop && e->stop(e->user);
    }
    return !e->stopped;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that the demo and the benchmark start: arguments in, one JSON object from their standard output back. */
#ifndef KN_CHILD_H
#define KN_CHILD_H

#include "app.h"

enum { KN_CHILD_ARGS_MAX = 48 };

/* Arguments of a child; texts are borrowed until kn_child_json returns. */
struct kn_child {
    const char *args[KN_CHILD_ARGS_MAX + 1];
    size_t n_args;
};

/* Adds one argument; asserts that there is room. */
void kn_child_add(struct kn_child *child, const char *arg);
/* Starts program (a path) in a fresh process, waits for it, and returns the object that it printed, or NULL after a message
 * on stderr (it failed, printed something else, or was interrupted). Its stderr is ours. Release with json_decref(). */
json_t *kn_child_json(const char *command, const char *program, const struct kn_child *child);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a body's JSON would cost as a tree, and the body without what nobody reads.
 *
 *     body -> measure: depth <= 64; a strict walk; bytes by kind, of what is read and of what is not (params_table.h)
 *          -> prune: a copy in which members that nobody reads are blanks, so that positions stay
 *
 * The tree is jansson's; what a value costs there is counted below, with the allocator's overhead, as it is in the worst moment of the
 * parse (a table that has just grown, and its predecessor). A test holds the counts against what jansson really takes.
 *
 *     object 240   array 144   member 144 + its name   element 24   string 96 + its text   number 32   true, false, null 0
 *
 * A body that is no JSON is not pruned: jansson says what is wrong with it, and is given room for all of it. Members that are blanked
 * have been checked for their grammar, escapes and UTF-8, but not for names that occur twice or numbers too large. Pure; any thread.
 */
#ifndef KNI_SERVER_PARAMS_JSON_H
#define KNI_SERVER_PARAMS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/api/params_table.h"

#define KNI_JSON_MAX_DEPTH 64u

struct kni_json_cost {
    bool is_json;      /* the walk came to its end */
    size_t too_deep;   /* where it gets deeper than KNI_JSON_MAX_DEPTH, plus one; 0: nowhere */
    uint64_t n_values; /* that are read */
    uint64_t bytes;    /* of a tree of what is read; where the body is no JSON: of all */
    uint64_t ignored;  /* of what is not read */
};

void kni_json_measure(struct kni_json_cost *out, enum kni_params_route route, const char *body, size_t n_body);
/* Blanks what is not read, in place. body is JSON. */
void kni_json_prune(enum kni_params_route route, char *body, size_t n_body);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From tokens to text: bytes of tokens put together, never half a UTF-8 character given out, and nothing given out that may
 * turn out to be the beginning of a stop string.
 *
 *     tokens -> bytes [ given out | held back: may be a stop string's beginning, or half a character ]
 *
 * One choice each; one thread. Sequences that are no UTF-8 at the answer's end become U+FFFD.
 */
#ifndef KNI_SERVER_ANSWER_H
#define KNI_SERVER_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct kn_model;

struct kni_answer {
    const struct kn_model *model;
    char *const *stops; /* borrowed */
    uint32_t n_stops;
    bool include_stop;    /* the stop string stays; set after init */
    struct kni_buf bytes; /* all text so far, the stop string cut off */
    size_t n_given;       /* of it, may be shown */
    bool stopped;         /* a stop string was met: later tokens are ignored */
};

void kni_answer_init(struct kni_answer *answer, const struct kn_model *model, char *const *stops, uint32_t n_stops);
/* Returns true when this token completed a stop string. Special tokens have no text. */
bool kni_answer_push(struct kni_answer *answer, int32_t token);
/* No token follows: what was held back may be shown. */
void kni_answer_finish(struct kni_answer *answer);
void kni_answer_fini(struct kni_answer *answer);

#endif

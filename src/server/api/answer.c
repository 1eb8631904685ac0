/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for stop strings goes byte by byte in effect, whatever the tokens are: of all occurrences the one that ends first counts,
 * of those that end together the one that begins first. So the same text stops at the same place however it was cut into tokens.
 *
 *     bytes: [ ............................ | tail: longest stop - 1 | new token ]
 *                                             <---------- searched ----------->
 *
 * What is held back is the longest end of the text that begins a stop string, and before that a character's first bytes.
 * Owner: one thread. Failure: bytes.failed, which the reader of the text must look at.
 */
#include "server/api/answer.h"

#include <string.h>

#include "base/utf8.h"
#include "kinema/model.h"

void kni_answer_init(struct kni_answer *answer, const struct kn_model *model, char *const *stops, uint32_t n_stops)
{
    *answer = (struct kni_answer){.model = model, .stops = stops, .n_stops = n_stops};
}

/* Looks for stop strings that end behind `old` bytes; cuts the text there. */
static bool find_stop(struct kni_answer *a, size_t old)
{
    size_t best_end = 0, best_at = 0;
    bool found = false;
    for (uint32_t i = 0; i < a->n_stops; i++) {
        size_t n = strlen(a->stops[i]), from = old >= n ? old - n + 1 : 0;
        const char *hit = a->bytes.n - from >= n ? memmem(a->bytes.data + from, a->bytes.n - from, a->stops[i], n) : NULL;
        if (!hit)
            continue;
        size_t at = (size_t)(hit - a->bytes.data);
        if (!found || at + n < best_end || (at + n == best_end && at < best_at)) {
            best_at = at;
            best_end = at + n;
        }
        found = true;
    }
    if (found) {
        a->bytes.n = a->include_stop ? best_end : best_at;
        a->bytes.data[a->bytes.n] = '\0';
    }
    return found;
}

/* Bytes at the end that begin a stop string. */
static size_t held_for_stops(const struct kni_answer *a)
{
    size_t held = 0;
    for (uint32_t i = 0; i < a->n_stops; i++) {
        size_t n = strlen(a->stops[i]) - 1;
        for (n = n < a->bytes.n ? n : a->bytes.n; n > held; n--)
            if (!memcmp(a->bytes.data + a->bytes.n - n, a->stops[i], n))
                held = n;
    }
    return held;
}

bool kni_answer_push(struct kni_answer *answer, int32_t token)
{
    struct kni_answer *a = answer;
    const char *bytes;
    size_t n, old = a->bytes.n;
    if (a->stopped || kn_model_token_is_special(a->model, token) || kn_model_token_bytes(a->model, token, &bytes, &n) != KN_OK || !n)
        return false;
    kni_buf_add(&a->bytes, bytes, n);
    if (a->bytes.failed)
        return false;
    if (a->n_stops && find_stop(a, old)) {
        a->stopped = true;
        a->n_given = a->bytes.n;
        return true;
    }
    size_t shown = a->bytes.n - held_for_stops(a);
    shown -= kni_utf8_tail(a->bytes.data, shown);
    a->n_given = shown > a->n_given ? shown : a->n_given;
    return false;
}

void kni_answer_finish(struct kni_answer *answer)
{
    answer->n_given = answer->bytes.n;
}

void kni_answer_fini(struct kni_answer *answer)
{
    kni_buf_fini(&answer->bytes);
    *answer = (struct kni_answer){0};
}

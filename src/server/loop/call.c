/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's memory: the call with its choices, and two slabs.
 *
 *     events [n_choices][max_tokens]           choices[i].events = events + i * max_tokens
 *     tops   [n_choices][max_tokens][n_top]    choices[i].tops   = tops + i * max_tokens * n_top
 *
 * and, for a prompt that is scored, prompt_logprobs and prompt_tops.
 *
 * The slabs are as large as the longest answers may get and are mostly never touched: they are taken from the allocator
 * unzeroed, so that the system gives pages only as tokens arrive. The last reference frees all, on whichever thread.
 */
#include "server/loop/call.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

/* Two slabs, or none. */
static enum kn_status open_slabs(struct kni_call *call)
{
    size_t n, n_bytes;
    if (!kni_mul_size(call->n_choices, call->max_tokens ? call->max_tokens : 1, &n) || !kni_mul_size(n, sizeof(struct kni_call_event), &n_bytes))
        return KN_E_NOMEM;
    struct kni_call_event *events = kni_alloc(KNI_ALLOC_TAG_REQUEST, n_bytes, 0);
    struct kni_call_top *tops = NULL;
    if (call->n_top && kni_mul_size(n, call->n_top, &n) && kni_mul_size(n, sizeof *tops, &n_bytes))
        tops = kni_alloc(KNI_ALLOC_TAG_REQUEST, n_bytes, 0);
    if (!events || (call->n_top && !tops)) {
        kni_free(events);
        kni_free(tops);
        return KN_E_NOMEM;
    }
    for (uint32_t i = 0; i < call->n_choices; i++) {
        call->choices[i].events = events + (size_t)i * call->max_tokens;
        call->choices[i].tops = tops ? tops + (size_t)i * call->max_tokens * call->n_top : NULL;
    }
    return KN_OK;
}

enum kn_status kni_call_open(struct kni_call **out, int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens, uint32_t n_choices,
                             bool want_logprobs, uint32_t n_top)
{
    assert(n_choices && n_top <= KNI_CALL_MAX_TOP);
    *out = NULL;
    size_t n_bytes;
    struct kni_call *call = NULL;
    if (kni_mul_size(n_choices, sizeof *call->choices, &n_bytes) && kni_add_size(n_bytes, sizeof *call, &n_bytes))
        call = kni_calloc(KNI_ALLOC_TAG_REQUEST, n_bytes, 0);
    if (!call) {
        kni_free(tokens);
        return KN_E_NOMEM;
    }
    call->tokens = tokens;
    call->n_tokens = n_tokens;
    call->max_tokens = max_tokens;
    call->n_choices = n_choices;
    call->want_logprobs = want_logprobs;
    call->n_top = want_logprobs ? n_top : 0;
    call->n_open = n_choices;
    atomic_init(&call->state, KNI_CALL_STATE_QUEUED);
    atomic_init(&call->n_refs, 1);
    enum kn_status status = open_slabs(call);
    call->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!status && call->event_fd < 0)
        status = KN_E_IO;
    if (status)
        kni_call_unref(call);
    else
        *out = call;
    return status;
}

enum kn_status kni_call_score_prompt(struct kni_call *call)
{
    size_t n, n_bytes = 0;
    call->prompt_logprobs = kni_mul_size(call->n_tokens, sizeof *call->prompt_logprobs, &n_bytes) ? kni_alloc(KNI_ALLOC_TAG_REQUEST, n_bytes, 0) : NULL;
    if (call->n_top && kni_mul_size(call->n_tokens, call->n_top, &n) && kni_mul_size(n, sizeof *call->prompt_tops, &n_bytes))
        call->prompt_tops = kni_alloc(KNI_ALLOC_TAG_REQUEST, n_bytes, 0);
    call->score_prompt = call->prompt_logprobs && (!call->n_top || call->prompt_tops);
    return call->score_prompt ? KN_OK : KN_E_NOMEM;
}

void kni_call_ref(struct kni_call *call)
{
    atomic_fetch_add_explicit(&call->n_refs, 1, memory_order_relaxed); /* who refs has a reference already */
}

void kni_call_unref(struct kni_call *call)
{
    if (!call || atomic_fetch_sub_explicit(&call->n_refs, 1, memory_order_acq_rel) != 1)
        return; /* acq_rel: whoever frees sees what the others did before they let go */
    for (uint32_t i = 0; i < call->n_choices; i++)
        assert(!call->choices[i].request);
    if (call->event_fd >= 0)
        close(call->event_fd);
    kni_free(call->choices[0].events); /* the slabs' beginnings */
    kni_free(call->choices[0].tops);
    kni_free(call->prompt_logprobs);
    kni_free(call->prompt_tops);
    kni_free(call->tokens);
    kni_free(call->salt);
    kni_free(call);
}

void kni_call_signal(struct kni_call *call)
{
    const uint64_t one = 1;
    ssize_t n;
    do
        n = write(call->event_fd, &one, sizeof one); /* EAGAIN: readable already */
    while (n < 0 && errno == EINTR);
}

/* Reading makes an eventfd zero, however often it was written. */
static void drain(const struct kni_call *call)
{
    uint64_t count;
    while (read(call->event_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

bool kni_call_wait(struct kni_call *call, struct kni_peer *peer, uint32_t timeout_ms)
{
    struct pollfd fds[2] = {{.fd = call->event_fd, .events = POLLIN}, kni_peer_pollfd(peer)};
    const uint64_t end_ns = kni_now_ns() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        uint64_t now = kni_now_ns(), left_ms = now < end_ns ? (end_ns - now + 999999u) / 1000000u : 0;
        int n = poll(fds, 2, left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
        if (n < 0 && errno == EINTR)
            continue;
        if (n > 0 && fds[0].revents)
            drain(call);
        return n <= 0 || !fds[1].revents || kni_peer_take(peer, fds[1].revents);
    }
}

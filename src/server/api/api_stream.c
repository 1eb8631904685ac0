/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events, pulled by the connection: each pull takes what there is, and waits only when there is nothing.
 *
 *     read: text left? -> give it.  over? -> end.  else take tokens of every choice -> chunks;  nothing? -> wait
 *
 * While nothing comes, a comment goes out every keep_alive_ms, so that proxies keep the line, and sooner where it is to show whether a
 * client that has said all still reads (server_peer.h); clients skip comments. A stop string ends
 * its choice in the engine at once; its last chunk does not wait for that, but the stream's end does (usage is known then).
 * Thread: the connection's. Failure: a choice that fails becomes an error event and ends the stream; a client that has gone cancels.
 */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/api/api_state.h"

enum { KEEP_ALIVE_MS = 15000, ENOUGH_BYTES = 32768 };

/* Turns what has arrived into events; several choices take turns, a token each. */
static void pump(struct kni_exchange *x)
{
    bool more = true;
    while (more && x->text.n < ENOUGH_BYTES && !x->text.failed) {
        more = false;
        for (uint32_t i = 0; i < x->n_outs; i++) {
            struct kni_out *out = &x->outs[i];
            bool finished;
            if (!kni_out_take(out, &finished))
                continue;
            more = true;
            if (finished)
                kni_loop_finish(x->api->loop, out->call, (uint32_t)(out->choice - out->call->choices));
            if (out->answer.bytes.failed)
                x->text.failed = true;
            if (out->ended && out->reason != KN_STOP_REASON_STOP && out->reason != KN_STOP_REASON_LENGTH) {
                struct kni_failure failure = kni_failure_of(out->reason, out->status);
                kni_render_failure(&failure, &x->text);
                x->over = true;
                return;
            }
            kni_render_events(x, out, &x->text);
        }
    }
    bool done = true;
    for (uint32_t i = 0; i < x->n_outs && done; i++) /* done: pairs with the engine's release; its statistics are there */
        done = x->outs[i].closed && atomic_load_explicit(&x->outs[i].choice->done, memory_order_acquire);
    if (done) {
        kni_render_end(x, &x->text);
        x->over = true;
    }
}

static ssize_t read_events(void *user, char *bytes, size_t room)
{
    struct kni_exchange *x = user;
    for (;;) {
        size_t n = x->text.n - x->n_text_sent;
        if (n) {
            n = n < room ? n : room;
            memcpy(bytes, x->text.data + x->n_text_sent, n);
            x->n_text_sent += n;
            x->quiet_ns = kni_now_ns();
            return (ssize_t)n;
        }
        if (x->over)
            return -1;
        kni_buf_reset(&x->text);
        x->n_text_sent = 0;
        pump(x);
        if (x->text.failed) {
            kni_log(KN_LOG_LEVEL_ERROR, "server", "out of memory for an answer: its connection is cut");
            return -2;
        }
        if (x->text.n || x->over)
            continue;
        const uint64_t quiet_ms = (kni_now_ns() - x->quiet_ns) / 1000000u;
        const uint32_t keep_alive_ms = x->api->keep_alive_ms ? x->api->keep_alive_ms : KEEP_ALIVE_MS;
        if (quiet_ms >= keep_alive_ms || kni_peer_due(x->peer))
            kni_buf_text(&x->text, ": waiting\n\n");
        else if (!kni_exchange_wait(x, keep_alive_ms - (uint32_t)quiet_ms))
            return -2;
    }
}

static void close_events(void *user)
{
    struct kni_exchange *x = user;
    kni_exchange_close(&x);
}

void kni_stream_begin(struct kni_exchange *x, struct kni_http_reply *reply)
{
    x->quiet_ns = kni_now_ns();
    *reply = (struct kni_http_reply){.status = 200, .content_type = "text/event-stream", .read = read_events, .close = close_events, .user = x,
                                     .cache_control = "no-cache"};
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of the server: one thread that takes calls from an inbox, steps the engine, and hands tokens out.
 *
 *     inbox (base/ring.h) --> submit | finish | cancel --> kn_engine_step --> events of every open request --> calls
 *                                                              |
 *                                                              `--> metrics, and a snapshot for /metrics, /stats, /health
 *
 * When nothing can be done it sleeps on an eventfd of its own. What comes in during a step waits for that step only.
 * Owner thread: the one in kni_loop_run. Functions marked "any thread" talk to it through the inbox.
 */
#ifndef KNI_SERVER_LOOP_H
#define KNI_SERVER_LOOP_H

#include "server/loop/call.h"
#include "server/metrics/metrics.h"

struct kni_loop;

struct kni_loop_opts {
    struct kn_engine *engine;     /* borrowed, as are model and metrics */
    struct kn_model *model;
    struct kni_metrics *metrics;
    uint32_t max_queue;           /* choices that wait for a place in the engine's steps; see kni_loop_submit */
    uint32_t drain_timeout_ms;
};

enum kn_status kni_loop_open(struct kni_loop **out, const struct kni_loop_opts *opts, struct kn_err *err);
/* After kni_loop_run has returned and nobody submits any more. */
void kni_loop_close(struct kni_loop **loop);
/* Serves until stopped, then drains: see kn_server_run. */
enum kn_status kni_loop_run(struct kni_loop *loop);
/* Any thread, async-signal-safe. The second call cancels what is under way. */
void kni_loop_stop(struct kni_loop *loop);

/* Any thread. How often it was stopped. */
uint32_t kni_loop_n_stops(const struct kni_loop *loop);

/* Any thread. Takes a reference of its own. KN_E_FULL: max_queue choices wait already beyond the max_running that may run (counted
 * in refused_queue); KN_E_STATE: draining. What the engine objects to comes later, as state REFUSED. */
enum kn_status kni_loop_submit(struct kni_loop *loop, struct kni_call *call);
/* Any thread. Ends one choice as stopped: for stop strings. */
void kni_loop_finish(struct kni_loop *loop, struct kni_call *call, uint32_t choice);
/* Any thread. Ends the call's requests now. Harmless when they have ended. */
void kni_loop_cancel(struct kni_loop *loop, struct kni_call *call);

#define KNI_SNAPSHOT_MAX_FETCHES 16u
#define KNI_SNAPSHOT_MAX_CELLS 1024u

/* A fetch under way. */
struct kni_snapshot_fetch { uint64_t id, n_prompt, n_wanted, n_fetched, n_bytes, elapsed_ns; };

/* What others may see of the engine; taken by the loop at most every 100 ms while it works. */
struct kni_snapshot {
    uint64_t taken_ns;
    struct kn_engine_stats engine;
    uint32_t n_calls, n_inbox; /* open; not yet taken in */
    bool draining;
    struct kn_err fault; /* why nothing is answered any more: kn_model_check's; status KN_OK: none. As of kni_loop_get_snapshot */
    struct kni_snapshot_fetch fetches[KNI_SNAPSHOT_MAX_FETCHES];
    uint32_t n_fetches; /* listed */
    /* Pool map: cell i stands for blocks [i * cell_blocks, ...); its bytes count blocks by enum kn_block_state, scaled to 0..255. */
    uint32_t n_cells, cell_blocks;
    uint8_t cells[KNI_SNAPSHOT_MAX_CELLS][5];
};

/* Any thread. Copies the last snapshot, and looks after the model's files. When it is old because the loop sleeps, waits a moment for a new one. */
void kni_loop_get_snapshot(struct kni_loop *loop, struct kni_snapshot *out);

#endif

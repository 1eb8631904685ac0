/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others may see of the engine, without touching it: the loop makes a draft on its own thread and copies it to where any
 * thread may read it, under a lock that is held for the copy only.
 *
 *     engine, calls --owner--> draft --lock--> snapshot --lock--> a reader's copy
 *
 * The pool map looks at every block. In a large pool that costs more than the rest of a snapshot, so it is made less often.
 */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "server/loop/loop_state.h"

#define OLD_NS 100000000u
#define RENEW_WAIT_NS 100000000u
#define MAP_STATES 4096u
#define LARGE_POOL 65536u        /* blocks */
#define LARGE_POOL_NS 1000000000u

static void map_pool(struct kni_loop *loop, struct kni_snapshot *s, uint64_t now_ns)
{
    const uint32_t n_blocks = s->engine.n_blocks;
    if (n_blocks > LARGE_POOL && loop->map_ns && now_ns - loop->map_ns < LARGE_POOL_NS)
        return; /* the draft keeps the map before */
    loop->map_ns = now_ns;
    s->cell_blocks = n_blocks / KNI_SNAPSHOT_MAX_CELLS + (n_blocks % KNI_SNAPSHOT_MAX_CELLS != 0);
    s->n_cells = s->cell_blocks ? n_blocks / s->cell_blocks + (n_blocks % s->cell_blocks != 0) : 0;
    uint8_t states[MAP_STATES];
    uint32_t first = 0, n_states = 0; /* of the window that states holds */
    for (uint32_t cell = 0; cell < s->n_cells; cell++) {
        uint32_t counts[5] = {0}, begin = cell * s->cell_blocks, end = n_blocks - begin < s->cell_blocks ? n_blocks : begin + s->cell_blocks;
        for (uint32_t b = begin; b < end; b++) {
            if (b >= first + n_states) {
                first = b;
                n_states = n_blocks - b < MAP_STATES ? n_blocks - b : MAP_STATES;
                kn_engine_get_blocks(loop->opts.engine, first, n_states, states);
            }
            if (states[b - first] < 5)
                counts[states[b - first]]++;
        }
        for (uint32_t k = 0; k < 5; k++)
            s->cells[cell][k] = (uint8_t)((uint64_t)counts[k] * 255u / (end - begin));
    }
}

static void list_fetches(struct kni_loop *loop, struct kni_snapshot *s, uint64_t now_ns)
{
    s->n_fetches = 0;
    if (!s->engine.n_fetching)
        return;
    for (struct kni_call *call = loop->calls; call; call = call->next)
        for (uint32_t i = 0; i < call->n_choices && s->n_fetches < KNI_SNAPSHOT_MAX_FETCHES; i++) {
            struct kni_call_choice *c = &call->choices[i];
            struct kn_request_stats r = {.size = sizeof r};
            if (!c->request)
                continue;
            kn_request_get_stats(c->request, &r);
            if (r.state != KN_REQUEST_STATE_FETCHING)
                continue;
            if (!c->fetch_begin_ns)
                c->fetch_begin_ns = now_ns;
            uint64_t seen_ns = now_ns - c->fetch_begin_ns;
            s->fetches[s->n_fetches++] = (struct kni_snapshot_fetch){.id = c->id,
                                                                    .n_prompt = r.n_prompt,
                                                                    .n_wanted = r.fetch_wanted,
                                                                    .n_fetched = r.n_fetched,
                                                                    .n_bytes = r.fetch_bytes,
                                                                    .elapsed_ns = r.fetch_ns > seen_ns ? r.fetch_ns : seen_ns};
        }
}

void kni_loop_take_snapshot(struct kni_loop *loop, uint64_t now_ns)
{
    struct kni_snapshot *s = &loop->draft;
    s->taken_ns = now_ns;
    s->engine.size = sizeof s->engine;
    kn_engine_get_stats(loop->opts.engine, &s->engine);
    s->n_calls = loop->n_calls;
    s->n_inbox = atomic_load_explicit(&loop->n_inbox, memory_order_relaxed); /* a count */
    s->draining = loop->draining;
    list_fetches(loop, s, now_ns);
    map_pool(loop, s, now_ns);
    pthread_mutex_lock(&loop->lock);
    loop->snapshot = *s;
    pthread_cond_broadcast(&loop->renewed);
    pthread_mutex_unlock(&loop->lock);
}

void kni_loop_get_snapshot(struct kni_loop *loop, struct kni_snapshot *out)
{
    const uint64_t begin_ns = kni_now_ns(), end_ns = begin_ns + RENEW_WAIT_NS;
    /* A sleeper takes none by itself; a loop at work does so after its step, for which a reader does not wait. */
    bool is_asleep = atomic_load_explicit(&loop->is_asleep, memory_order_acquire); /* a hint: nothing depends on it */
    pthread_mutex_lock(&loop->lock);
    bool is_old = is_asleep && begin_ns > loop->snapshot.taken_ns + OLD_NS;
    pthread_mutex_unlock(&loop->lock);
    if (is_old) {
        atomic_fetch_add_explicit(&loop->n_wanting, 1, memory_order_relaxed); /* seen with attention, which wake raises */
        kni_loop_wake(loop);
    }
    pthread_mutex_lock(&loop->lock);
    const struct timespec end = {.tv_sec = (time_t)(end_ns / 1000000000u), .tv_nsec = (long)(end_ns % 1000000000u)};
    while (is_old && loop->snapshot.taken_ns < begin_ns && !pthread_cond_timedwait(&loop->renewed, &loop->lock, &end))
        ;
    *out = loop->snapshot;
    pthread_mutex_unlock(&loop->lock);
    kn_model_check(loop->opts.model, &out->fault); /* asked here, since an idle engine asks for nothing */
    if (is_old)
        atomic_fetch_sub_explicit(&loop->n_wanting, 1, memory_order_relaxed);
}

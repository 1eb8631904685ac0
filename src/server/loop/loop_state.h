/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the loop share: its fields, and the steps that one file does for another. */
#ifndef KNI_SERVER_LOOP_STATE_H
#define KNI_SERVER_LOOP_STATE_H

#include <pthread.h>

#include "base/ring.h"
#include "server/loop/loop.h"

struct kni_loop {
    struct kni_loop_opts opts; /* constant, as the next four */
    uint32_t max_load;
    struct kni_ring *inbox; /* of struct kni_call; each holds a reference */
    int event_fd;           /* wakes the sleeping loop */

    /* any thread; the partners are named where they are used */
    _Atomic uint32_t n_stops;
    _Atomic uint32_t n_submitting; /* threads inside kni_loop_submit */
    _Atomic uint32_t load;         /* choices that were submitted and have not ended */
    _Atomic uint32_t n_inbox;      /* calls that were submitted and not yet taken in */
    _Atomic bool attention;        /* something was posted since the last look */
    _Atomic bool look_at_all;      /* a call could not be posted because the inbox was full: its flags say what it wants */
    _Atomic bool is_asleep;
    _Atomic uint32_t n_wanting;    /* readers that wait for a new snapshot */

    /* owner thread */
    struct kni_call *calls, *last; /* that the engine has, in order of arrival */
    uint32_t n_calls;
    uint64_t next_id;
    uint64_t step_begin_ns;        /* of the last step */
    uint64_t map_ns;               /* when the pool map was made */
    enum kn_status step_status;    /* of the last step that failed, so that it is said once */
    bool draining;
    struct kni_snapshot draft;

    pthread_mutex_t lock;          /* guards snapshot */
    pthread_cond_t renewed;        /* snapshot is a new one */
    struct kni_snapshot snapshot;
};

/* loop_events.c: owner thread */
/* Gives the engine a call's requests, all or none. */
void kni_loop_take(struct kni_loop *loop, struct kni_call *call);
/* Does what the call's flags ask for. */
void kni_loop_attend(struct kni_loop *loop, struct kni_call *call);
/* Hands out what the engine has for the call. False: it has ended, was taken off the list, and the loop's reference is gone. */
bool kni_loop_fan_out(struct kni_loop *loop, struct kni_call *call);
/* Ends every open choice of the call, and so the call: as CANCELLED, or as ERROR with a status other than KN_OK. */
void kni_loop_drop(struct kni_loop *loop, struct kni_call *call, enum kn_status status);

/* loop_snapshot.c: owner thread */
void kni_loop_take_snapshot(struct kni_loop *loop, uint64_t now_ns);

/* loop.c */
/* Any thread: makes the loop look at its flags soon. */
void kni_loop_wake(struct kni_loop *loop);

#endif

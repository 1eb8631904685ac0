/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving KV between the pool and a store, beside the engine's steps.
 *
 *   fetch:    lookup -> (engine reserves blocks) -> per chunk: download -> decode -> restore, overlapping, in order
 *   publish:  blocks -> encode -> put chunk -> put manifest entry (last), in the background
 *
 * The owner thread (the engine's) begins, polls and ends; workers inside do the rest and talk through small rings. Nothing
 * here blocks the owner except the flush.
 * A failed, late or refused chunk ends the job there: what arrived in order counts, the rest is recomputed by the caller.
 */
#ifndef KNI_FETCH_FETCH_H
#define KNI_FETCH_FETCH_H

#include <stdbool.h>

#include "codec/codec.h"

struct kni_fetcher;
struct kni_fetch; /* one job */

struct kni_fetcher_opts {
    const char *store_url; /* borrowed for the call, as are all below */
    uint64_t max_bytes, ttl_s;
    enum kn_preset preset; /* never DEFAULT */
    struct kn_tiles_opts tiles;
    uint32_t chunk_tokens; /* multiple of 16 */
    uint32_t n_workers;    /* decode and encode threads, 1..64 */
    uint32_t deadline_ms;  /* of one fetch */
    uint8_t fingerprint[16];
    struct kni_kv_layout kv;
    struct kni_profile *profile; /* of the spectral presets; the fetcher takes a reference. NULL: none */
    enum kn_backend backend;     /* of the spectral presets */
    struct kn_hevc_opts hevc;    /* of presets and backends that are video */
    uint32_t cpu_without;        /* as struct kni_codec_opts */
    bool store_read_only;        /* nothing is written to it; without this, too, where that is not permitted */
    bool store_optional;         /* a store that cannot be opened is no error: it is tried again */
    enum kn_status (*check)(void *of); /* KN_OK as long as what fingerprint names is what computes; any thread, may take long. NULL: always */
    void *check_of;
    /* Bounds on the store, for tests; 0: the defaults. */
    uint32_t lookup_ms;          /* a job waits at most so long for its lookup; 2000, and never more than deadline_ms */
    uint32_t hang_ms;            /* a call that is out for longer hangs: lookup_ms or deadline_ms, at least 1000; writes at most 10000 */
    uint32_t close_wait_ms;      /* close waits so long for calls that hang, then leaves their threads to themselves; 10000 */
};

enum kn_status kni_fetcher_open(struct kni_fetcher **out, const struct kni_fetcher_opts *opts, struct kn_err *err);
/* Ends the workers; queued publishes that have not begun are dropped (flush first to keep them). Waits for what they do with blocks, and
 * close_wait_ms at most for calls of the store that hang in the kernel: their threads, detached, then end when those return, free what is
 * left, touch no block, but may still log a line. */
void kni_fetcher_close(struct kni_fetcher **fetcher);

enum kni_fetch_state {
    KNI_FETCH_STATE_LOOKUP,  /* asking the store */
    KNI_FETCH_STATE_READY,   /* n_wanted is known; waits for kni_fetch_extend */
    KNI_FETCH_STATE_RUNNING,
    KNI_FETCH_STATE_DONE     /* n_restored is final; 0 when nothing was there */
};

struct kni_fetch_progress {
    enum kni_fetch_state state;
    uint32_t n_wanted;   /* tokens of the prefix, from position 0, that the store can bring (whole chunks; counts first_token) */
    uint32_t n_restored; /* tokens from position 0 that are in the pool, in order; at least first_token */
    uint64_t n_bytes;    /* container bytes read so far */
    uint64_t n_misses;   /* chunks that were listed but refused or gone */
    uint64_t elapsed_ns;
};

/* Looks for stored chunks that continue positions 0..first_token (already in the pool; rounded down to a chunk by us) of
 * this prompt. Only whole chunks below n_tokens count, and at least one token is left to the engine. Copies tokens. */
enum kn_status kni_fetch_begin(struct kni_fetch **out, struct kni_fetcher *fetcher, const int32_t *tokens, uint32_t n_tokens,
                               uint32_t first_token, const char *salt);
/* Starts a READY job, or moves the end of a RUNNING one further, never back. view: blocks for positions 0..n_tokens of
 * the job are there and writable beyond first_token, and begin with the blocks that earlier views had; its table is
 * copied. Fetches at most up to n_tokens (less than n_wanted when the engine could not reserve all). more: the owner
 * may come back with further blocks, so the job is not DONE when it has restored all it may; a call without more ends
 * that, also with n_tokens of 0. The deadline goes on while a job waits for blocks. Allocates only for a READY job.
 * KN_E_STATE when the job is DONE. */
enum kn_status kni_fetch_extend(struct kni_fetch *fetch, const struct kni_kv_view *view, uint32_t n_tokens, bool more);
void kni_fetch_poll(struct kni_fetch *fetch, struct kni_fetch_progress *out);
/* Cancels, and ends the job if no worker writes into its blocks: true, *fetch is NULL. False: they must stay untouched until a
 * later call is true; its end is news for kni_fetcher_wait. */
bool kni_fetch_try_end(struct kni_fetch **fetch);
/* Sleeps until any job or publish has news, at most timeout_ms: for an owner that has nothing else to do. */
void kni_fetcher_wait(struct kni_fetcher *fetcher, uint32_t timeout_ms);
/* Any thread: ends the owner's kni_fetcher_wait, now or the next time. */
void kni_fetcher_wake(struct kni_fetcher *fetcher);

/* Publishes the whole chunks of positions 0..n_tokens that the store does not have yet. The blocks in view must stay
 * untouched until kni_publish_poll has returned cookie (the caller holds references). qualities: [view->n_blocks], enum kn_kv_quality of
 * each block; NULL: all are exact. A chunk with a block that is worse than the preset's name is not written, nor what lies behind it, and
 * counts in n_refused; that is no error. Copies tokens, table and qualities.
 * KN_E_STATE: the store is read-only, which is said when it is opened and no error of the request's. check is asked before each chunk is
 * encoded and again before it is put: what fails it is not written, and ends the publish with its status. */
enum kn_status kni_publish_submit(struct kni_fetcher *fetcher, const int32_t *tokens, uint32_t n_tokens, const char *salt,
                                  const struct kni_kv_view *view, const uint8_t *qualities, void *cookie);
/* Returns finished publishes one by one: true and *cookie. *status tells how it went. */
bool kni_publish_poll(struct kni_fetcher *fetcher, void **cookie, enum kn_status *status);

/* Takes back the publish queued last, if none of it has begun: true and *cookie, which kni_publish_poll will not return. For an
 * owner that needs the blocks. */
bool kni_publish_withdraw(struct kni_fetcher *fetcher, void **cookie);

/* n_refused: chunks that were not written because what the pool holds is worse than the preset's name. */
struct kni_publish_stats { uint64_t n_chunks, n_bytes, raw_bytes, n_errors, n_refused, busy_ns, n_queued; };
void kni_publish_get_stats(struct kni_fetcher *fetcher, struct kni_publish_stats *out);

struct kni_fetcher_health {
    uint64_t read_errors, write_errors; /* calls of the store that failed or hung, since open */
    bool is_open;                       /* false while an optional store could not be opened */
    bool read_only;                     /* nothing is published */
    bool read_ok, write_ok;             /* false while it is left alone */
};
void kni_fetcher_get_health(struct kni_fetcher *fetcher, struct kni_fetcher_health *out);

/* Peak bytes of scratch that decoding held, all workers together. */
uint64_t kni_fetcher_working_bytes(struct kni_fetcher *fetcher);

#endif

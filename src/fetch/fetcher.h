/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of fetch/ share: the fetcher, its jobs, and who may touch which field.
 *
 *     owner thread                fetcher (one lock)              fetch workers x n       publishers (nice)
 *     begin  ------------------>  jobs: LOOKUP  ----------------> chain hashes, lookup
 *     poll   <------------------        READY   <---------------
 *     start  ------------------>        RUNNING ----------------> get | restore, chunk by chunk
 *     poll   <------------------  n_prefix      <---------------  done, in any order
 *     submit ------------------>  publishes    ----------------------------------------> encode | put
 *     publish_poll <-----------   finished     <----------------------------------------
 *
 * One mutex guards everything below that is marked (lock). It is never held over a store call, the codec or a log line.
 * A job is reference counted: the owner holds one, each worker that is busy with it another, so that ending a job waits
 * for restores (they write into the caller's blocks) but never for a slow download.
 */
#ifndef KNI_FETCH_FETCHER_H
#define KNI_FETCH_FETCHER_H

#include <pthread.h>

#include "fetch/breaker.h"
#include "fetch/fetch.h"
#include "store/store.h"

enum kni_store_use { KNI_STORE_USE_READ = 0, KNI_STORE_USE_WRITE = 1 };

#define KNI_FETCH_MAX_PUBLISHES 256u /* queued; more are refused, so that memory and pinned blocks stay bounded */

struct kni_publish {
    struct kni_publish *next;
    int32_t *tokens;
    uint32_t *table;
    uint32_t n_tokens;
    struct kni_hash seed;
    struct kni_kv_view view;
    void *cookie;
    enum kn_status status;
};

struct kni_publish_list { struct kni_publish *first, **last; uint32_t n; };

/* A chunk of a job. key and chain are written by the lookup, then constant. */
struct kni_fetch_chunk {
    struct kni_hash chain;
    bool restored; /* (lock) */
};

struct kni_fetch {
    struct kni_fetcher *fetcher;
    /* constant after begin */
    int32_t *tokens;
    uint32_t n_tokens, first_token, first_chunk, n_chunks; /* chunks: absolute indices; n_chunks: as many as are worth asking for */
    struct kni_hash seed;
    uint64_t begin_ns;
    /* written by the lookup before READY, then constant; indexed by chunk */
    struct kni_fetch_chunk *chunks;
    struct kni_store_key *keys;
    /* constant after start, but for the entries of chunks from end_chunk on: written before end_chunk moves */
    struct kni_kv_view view;
    uint32_t *table; /* for all that was found */
    /* (lock) */
    struct kni_fetch *next;
    enum kni_fetch_state state;
    bool lookup_begun, cut, cancelled;
    bool more; /* end_chunk may move up yet */
    uint32_t found_chunk; /* end of what the store has */
    uint32_t next_chunk;  /* first not begun */
    uint32_t end_chunk;   /* end of what is still wanted; lowered to a failed chunk */
    uint32_t n_prefix;    /* end of what is restored without a gap */
    uint32_t n_restoring; /* workers that write into the blocks */
    uint32_t n_refs;
    uint64_t n_bytes, n_misses, deadline_ns, end_ns;
};

struct kni_fetcher {
    /* constant after open */
    struct kni_fetcher_opts opts; /* store_url is not kept; profile is a reference */
    struct kn_store *store;
    uint32_t n_workers, n_publishers;
    pthread_t *threads; /* workers, then publishers */
    uint32_t n_threads; /* started */
    /* (lock) */
    pthread_mutex_t lock;
    pthread_cond_t work;     /* for workers: a job has something to do */
    pthread_cond_t publish;  /* for publishers: queue, flush, or the workers fell idle */
    pthread_cond_t news;     /* for the owner: something finished */
    pthread_cond_t restored; /* for kni_fetch_end: a restore ended */
    bool stopping;
    struct kni_fetch *jobs; /* all that have not ended, oldest first */
    struct kni_breaker breakers[2]; /* of enum kni_store_use: a store that cannot be written may still be read */
    struct kni_publish_list queued, finished;
    uint32_t n_publishing;
    bool flush_wanted; /* last-use times wait to be written */
    uint64_t n_news;
    uint32_t logged_kinds; /* bit per status: publish errors already said */
    struct kni_publish_stats stats;
    uint64_t working_bytes; /* sum of the workers' peaks */
    /* owner only */
    uint64_t n_news_seen;
};

/* As kni_fetcher_open, on a store that the caller has opened; takes it, also on failure. Tests bring stores that fail. */
enum kn_status kni_fetcher_open_on(struct kni_fetcher **out, const struct kni_fetcher_opts *opts, struct kn_store *store, struct kn_err *err);

/* Threads' bodies; arg is the fetcher. */
void *kni_fetch_worker_main(void *arg);
void *kni_publisher_main(void *arg);

/* Ends the state RUNNING or LOOKUP when the job is over or late. (lock) held. */
void kni_fetch_settle(struct kni_fetch *job, uint64_t now_ns);
/* Drops a reference; frees with the last. (lock) held. */
void kni_fetch_unref(struct kni_fetch *job);
/* True when a worker could begin something now. (lock) held. */
bool kni_fetcher_has_work(struct kni_fetcher *f);
/* Wakes the owner. (lock) held. */
void kni_fetcher_tell(struct kni_fetcher *f);
/* Notes how a call of the store went; logs when the breaker opens or closes. Lock not held. failed: not a mere miss. */
void kni_fetcher_note_store(struct kni_fetcher *f, enum kni_store_use use, bool failed, const struct kn_err *err);
/* Whether the store may be asked. Lock not held. */
bool kni_fetcher_may_ask(struct kni_fetcher *f, enum kni_store_use use);
/* Fills meta of chunk number chunk, whose end has this chain hash. */
void kni_fetcher_meta(const struct kni_fetcher *f, uint32_t chunk, const struct kni_hash *chain, struct kni_chunk_meta *out);
/* Moves *state from the end of chunk - 1 (anything, for chunk 0) to the end of chunk. */
void kni_fetcher_chain(const struct kni_fetcher *f, const struct kni_hash *seed, const int32_t *tokens, uint32_t chunk, struct kni_hash *state);
/* pthread_cond_timedwait on the monotonic clock. (lock) held. */
void kni_fetcher_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);
void kni_publish_free(struct kni_publish *p);

#endif

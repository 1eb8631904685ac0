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
 *     kept healthy by the keeper, one thread more: lookups at any time, so that none waits behind a download; when there is
 *     none, it asks a store that is being left alone whether it is back, and opens one that is not there yet (store_watch.c)
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
enum kni_store_call { KNI_STORE_CALL_LOOKUP = 0, KNI_STORE_CALL_GET = 1, KNI_STORE_CALL_WRITE = 2 };

enum kni_fetch_role { KNI_FETCH_ROLE_WORKER = 0, KNI_FETCH_ROLE_KEEPER = 1, KNI_FETCH_ROLE_PUBLISHER = 2 };

/* A thread, and the call of the store that it is in. */
struct kni_fetch_thread {
    /* constant after open */
    struct kni_fetcher *fetcher;
    enum kni_fetch_role role;
    pthread_t id; /* of the fetcher's closer */
    /* (lock) */
    uint64_t call_begin_ns; /* 0: none is out */
    enum kni_store_call call;
    bool hung;     /* it has been out for longer than it may, and has been counted as a failure */
    bool disowned; /* a publisher's: its publish was given back to the owner meanwhile; it must not touch it any more */
    struct kni_publish *publish; /* a publisher's, while it works on one */
};

#define KNI_FETCH_MAX_PUBLISHES 256u /* queued; more are refused, so that memory and pinned blocks stay bounded */

struct kni_publish {
    struct kni_publish *next;
    int32_t *tokens;
    uint32_t *table;
    uint8_t *qualities; /* of the table's blocks; NULL: all exact */
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
    struct kni_fetch_thread *threads; /* workers, the keeper, publishers */
    uint32_t n_threads; /* started */
    uint64_t limit_ns[3]; /* by enum kni_store_call: a call that is out for longer hangs */
    /* (lock) */
    pthread_mutex_t lock;
    pthread_cond_t work;     /* for workers and the keeper: a job has something to do, or the store has begun to fail */
    pthread_cond_t publish;  /* for publishers: queue, flush, or the workers fell idle */
    pthread_cond_t news;     /* for the owner: something finished */
    pthread_cond_t ended;    /* for the closer: a thread has ended */
    bool stopping, abandoned; /* abandoned: the closer has gone, the last thread frees everything */
    uint32_t n_alive;        /* threads */
    struct kni_fetch *jobs; /* all that have not ended, oldest first */
    struct kni_breaker breakers[2]; /* of enum kni_store_use: a store that cannot be written may still be read */
    uint64_t n_store_errors[2];     /* likewise; calls that failed or hung */
    uint32_t n_hung[2];             /* threads whose call of that use hangs */
    uint64_t retry_ns;              /* when the keeper may try next to open the store */
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

/* Threads' bodies; arg is the thread's struct kni_fetch_thread. */
void *kni_fetch_worker_main(void *arg);
void *kni_publisher_main(void *arg);

/* The last words of a thread: from here on it touches nothing of the fetcher, which may be freed. (lock) held; releases it. */
void kni_fetcher_thread_end(struct kni_fetch_thread *t);
/* Frees what fetcher and threads shared. No thread but the caller is left. */
void kni_fetcher_free(struct kni_fetcher *f);

/* Ends the state RUNNING or LOOKUP when the job is over or late. (lock) held. */
void kni_fetch_settle(struct kni_fetch *job, uint64_t now_ns);
/* Drops a reference; frees with the last. (lock) held. */
void kni_fetch_unref(struct kni_fetch *job);
/* Whether what fingerprint names still computes. Lock not held, and no call of the store out: a thread that the closer has left behind
 * must not ask what is gone. */
enum kn_status kni_fetcher_check(const struct kni_fetcher *f);
/* True when a worker could begin something now. (lock) held. */
bool kni_fetcher_has_work(struct kni_fetcher *f);
/* Wakes the owner. (lock) held. */
void kni_fetcher_tell(struct kni_fetcher *f);

/* ---- store_watch.c. Every call of the store by a thread of the fetcher lies between ask and told. */

/* Whether the store may be asked; if so, the thread's call begins now. Lock not held. */
bool kni_fetcher_ask(struct kni_fetch_thread *t, enum kni_store_call call);
/* The call has ended; failed: not a mere miss. Logs when the breaker opens or closes. Lock not held. False when the thread's publish was
 * given back to the owner meanwhile. */
bool kni_fetcher_told(struct kni_fetch_thread *t, bool failed, const struct kn_err *err);
/* Looks for calls that hang, counts them, and frees those who wait for them. For the owner. Lock not held. */
void kni_fetcher_watch(struct kni_fetcher *f);
/* Whether the store is healthy enough to be asked. (lock) held. */
bool kni_fetcher_may_ask(const struct kni_fetcher *f, enum kni_store_use use);
/* True when every publisher is in a call that hangs. (lock) held. */
bool kni_fetcher_publishers_hang(const struct kni_fetcher *f);
/* The keeper, with no lookup to do: probes a store that is due, or sleeps until something happens. (lock) held, not meanwhile. */
void kni_fetcher_keep(struct kni_fetch_thread *t);
/* Hands a publish back to the owner, and its error, if any, to the count. (lock) held. */
void kni_publish_finish(struct kni_fetcher *f, struct kni_publish *p, enum kn_status s);
/* Does so with what t publishes while its call of the store is out: t does not touch it again, kni_fetcher_told tells it. (lock) held. */
void kni_publish_disown(struct kni_fetch_thread *t, enum kn_status s);
/* Does so with all that are queued. (lock) held. */
void kni_publish_drop_queued(struct kni_fetcher *f, enum kn_status s);

/* Fills meta of chunk number chunk, whose end has this chain hash. */
void kni_fetcher_meta(const struct kni_fetcher *f, uint32_t chunk, const struct kni_hash *chain, struct kni_chunk_meta *out);
/* Moves *state from the end of chunk - 1 (anything, for chunk 0) to the end of chunk. */
void kni_fetcher_chain(const struct kni_fetcher *f, const struct kni_hash *seed, const int32_t *tokens, uint32_t chunk, struct kni_hash *state);
/* pthread_cond_timedwait on the monotonic clock. (lock) held. */
void kni_fetcher_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);
void kni_publish_free(struct kni_publish *p);

#endif

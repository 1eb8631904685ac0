/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: a model, a paged KV pool, a store, and requests that run on them.
 *
 * Requests are streams: submit, then alternate between kn_engine_step (does one batch of work) and kn_request_next
 * (returns the next event or KN_AGAIN). Several requests may be open at once; one step serves all of them.
 *
 *     kn_engine_open(&e, model, &eo, &err);
 *     kn_request_submit(&r, e, &ro, &err);
 *     for (;;) {
 *         struct kn_event ev = {.size = sizeof ev};
 *         enum kn_status s = kn_request_next(r, &ev);
 *         if (s == KN_AGAIN) s = kn_engine_step(e);
 *         else if (s == KN_OK && ev.kind == KN_EVENT_KIND_TOKEN) emit(ev.token);
 *         else if (s == KN_OK && ev.kind == KN_EVENT_KIND_DONE) break;
 *         if (s != KN_OK && s != KN_AGAIN) break;
 *     }
 *     kn_request_close(&r);
 *     kn_engine_flush(e, 0);    // wait for background publishing
 *     kn_engine_close(&e);
 *
 * Threads: an engine and its requests belong to one thread, the one that steps. Publishing runs on a thread inside.
 */
#ifndef KINEMA_ENGINE_H
#define KINEMA_ENGINE_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_engine;
struct kn_request;

struct kn_engine_opts {
    size_t size;              /* sizeof(struct kn_engine_opts) */
    uint32_t n_ctx;           /* longest sequence, tokens; 0: the model's */
    uint32_t n_threads;       /* compute threads, 1..256; 0: as many as the process may run on */
    uint32_t prefill_chunk;   /* prompt tokens per step, 1..8192; 0: 256 */
    uint64_t pool_bytes;      /* KV pool; 0: enough for one sequence of n_ctx tokens */
    enum kn_kv_type kv_type;  /* f16 by default */
    uint32_t cpu_level_max_plus_1; /* 0: best that the machine has; otherwise 1 + the highest enum kn_cpu_level
                               allowed. Engines of different levels may be open at once */
    bool no_prefix_cache;     /* do not reuse blocks between requests */
    const char *store_url;    /* NULL: no store */
    uint64_t store_max_bytes; /* as struct kn_store_opts */
    uint64_t store_ttl_s;
    enum kn_preset preset;    /* for publishing and fetching; default medium with a profile_path, else exact */
    const struct kn_tiles_opts *tiles; /* of preset tiles; borrowed for the call, NULL: defaults */
    uint32_t chunk_tokens;    /* tokens per stored chunk, a multiple of 16, 16..65536; 0: 256 */
    const char *profile_path; /* of the spectral presets (kinema/profile.h); borrowed for the call; NULL for the others */
    enum kn_backend backend;  /* of the spectral presets */
    uint32_t fetch_deadline_ms; /* a fetch that takes longer is cut: what arrived is used; 0: 30000 */
    const struct kn_hevc_opts *hevc; /* of presets and backends that are video; borrowed for the call, NULL: defaults */
    uint32_t max_running;     /* requests that share a step, 1..256; 0: 32. Others wait */
    uint32_t fetch_pool_percent; /* most of the pool that fetches may hold together, unless one is alone in the engine, 1..100; 0: 50 */
    bool fetch_inline;        /* experiment: a step waits for the fetches that it meets, as engines without a queue for them do */
    bool store_optional;      /* a store that cannot be opened is no error: it is tried again, and its requests are computed */
    enum kn_kv_quality kv_quality; /* least that a request takes when it does not say; default: what the preset gives */
    bool store_read_only;     /* fetch from the store and never write to it, last-use times included: it needs no permission to, and
                               is not made where there is none. A store that turns out so is used so, with one warning */
};

struct kn_request_opts {
    size_t size;             /* sizeof(struct kn_request_opts) */
    const int32_t *tokens;   /* the prompt; copied; at least one */
    size_t n_tokens;
    uint32_t max_tokens;     /* generated at most; 0: to the end of the context (no_generate: none) */
    const struct kn_sampler_opts *sampler; /* borrowed for the call, NULL: defaults, which are greedy */
    bool no_fetch;           /* do not look into the store, and take nothing that came lossy out of it: kv_quality is EXACT */
    bool no_publish;         /* do not write to the store */
    bool ignore_stop;        /* generate past stop tokens (benchmarks) */
    bool want_logits;        /* events carry the logits that chose each token */
    const char *salt;        /* tenant: requests with different salts never share a prefix; NULL: "" */
    uint32_t wait_ms;        /* to the first token; later the request ends as ERROR with KN_E_TIMEOUT; 0: for ever */
    uint32_t deadline_ms;    /* to the last token, likewise; 0: for ever */
    enum kn_kv_quality kv_quality; /* least that is taken from the prefix cache and the store; default: what the engine takes */
    bool want_logprobs;      /* TOKEN events carry logprob and top */
    bool score_prompt;       /* a PROMPT event for each token of the prompt from score_first on, before the first TOKEN */
    bool no_generate;        /* ends, as LENGTH, once the prompt has been computed (and published) */
    uint32_t n_top_logprobs; /* likeliest tokens in these events, 0..KN_MAX_TOP_LOGPROBS */
    uint32_t score_first;    /* position below n_tokens; 0: the whole prompt. What lies before score_first - 1 may come from the
                              * prefix cache or the store; everything after it is computed */
};

enum kn_event_kind { KN_EVENT_KIND_TOKEN = 0, KN_EVENT_KIND_DONE = 1, KN_EVENT_KIND_PROMPT = 2 };

struct kn_event {
    size_t size;                /* sizeof(struct kn_event), set by the caller */
    enum kn_event_kind kind;
    int32_t token;              /* of TOKEN and PROMPT */
    const float *logits;        /* n_vocab floats, borrowed until the next step; NULL unless wanted and read before it */
    enum kn_stop_reason reason; /* of DONE */
    enum kn_status status;      /* of DONE with reason ERROR */
    /* Of PROMPT, and of TOKEN with want_logprobs. NaN where there is none: at the prompt's position 0, which nothing precedes. */
    float logprob;
    const struct kn_logprob *top; /* [n_top] likeliest first, of equals the lower id; borrowed until the request is closed */
    uint32_t n_top;               /* 0 at position 0; less than n_top_logprobs in a tiny vocabulary */
};

enum kn_request_state {
    KN_REQUEST_STATE_WAITING = 0,  /* for blocks or a place in the step */
    KN_REQUEST_STATE_FETCHING = 1, /* for KV from the store */
    KN_REQUEST_STATE_RUNNING = 2,
    KN_REQUEST_STATE_DONE = 3
};

/* Where a request stands. Times in nanoseconds from submit; 0 while not reached. */
struct kn_request_stats {
    size_t size; /* sizeof(struct kn_request_stats), set by the caller */
    uint64_t n_prompt;         /* tokens */
    uint64_t n_done;           /* prompt tokens in the pool by now */
    uint64_t n_cached;         /* of which from the prefix cache */
    uint64_t n_fetched;        /* of which from the store */
    uint64_t n_generated;
    uint64_t fetch_wanted;     /* tokens that the running fetch will bring */
    uint64_t fetch_bytes;      /* container bytes fetched so far */
    uint64_t fetch_ns;         /* in lookup, download, decode, restore */
    uint64_t n_misses;         /* chunks refused or missing although listed */
    uint64_t ttft_ns;          /* submit to first token */
    uint64_t total_ns;
    enum kn_request_state state;
    uint32_t n_preempted;      /* times its blocks were taken for an older request */
    enum kn_kv_quality quality; /* worst of the blocks that its steps have read: EXACT while the answer depends on nothing lossy */
    /* n_cached and n_fetched by the quality of the blocks, from the first step on; indexed by enum kn_kv_quality */
    uint64_t n_cached_by[KN_KV_QUALITY_COUNT], n_fetched_by[KN_KV_QUALITY_COUNT];
};

struct kn_engine_stats {
    size_t size; /* sizeof(struct kn_engine_stats), set by the caller */
    uint32_t n_blocks, n_free_blocks, n_cached_blocks; /* blocks of the pool: all; unused; unreferenced but holding a prefix */
    uint32_t block_tokens;
    uint64_t block_bytes;
    uint64_t published_chunks, published_bytes, published_raw_bytes; /* by this engine */
    uint64_t publish_errors, publish_ns;
    uint64_t n_steps, n_step_tokens;
    uint32_t n_threads;
    enum kn_cpu_level cpu_level; /* of the kernels in use */
    uint64_t fetch_working_bytes; /* most scratch that decoding fetched chunks has held, all threads together */

    uint32_t n_waiting, n_fetching, n_running; /* requests now */
    uint32_t n_fetch_blocks;         /* held by requests that wait for a fetch */
    uint32_t n_publish_blocks;       /* kept for publishes that have not ended; other requests may share them */
    uint64_t n_publishing;           /* publishes queued or running */
    /* since open: */
    uint64_t n_prompt_tokens;        /* of admitted requests; each is counted in one of the next three */
    uint64_t n_cached_tokens, n_fetched_tokens, n_computed_tokens;
    uint64_t n_generated_tokens;
    uint64_t n_preemptions;
    uint64_t n_fetches, n_fetches_cut; /* that found something to fetch; of which cut by deadline or failure */
    uint64_t fetch_bytes, fetch_ns;  /* container bytes brought; time requests spent waiting for fetches, summed */
    uint64_t n_fetch_misses;         /* chunks refused or missing although listed */
    uint64_t store_read_errors, store_write_errors; /* calls of the store that failed; a mere miss is none */
    bool has_store, store_open;      /* store_open: false while a store_optional one could not be opened yet */
    uint32_t max_running;            /* requests that share a step at most */
    bool store_read_ok, store_write_ok; /* false while it is being left alone after repeated errors */
    uint64_t n_cached_by[KN_KV_QUALITY_COUNT], n_fetched_by[KN_KV_QUALITY_COUNT]; /* n_cached_tokens, n_fetched_tokens by quality */
    uint64_t n_publish_refused; /* chunks not published because the pool held them in a worse quality than the preset's */
    bool store_read_only;            /* nothing is published: asked for, or the store may not be written */
};

/* Opens an engine on a model (which it references). Errors: KN_E_NOMEM, KN_E_ARG, KN_E_IO (store, profile; said with its path),
 * KN_E_FORMAT (a damaged profile), KN_E_MISMATCH (a profile of another model or version). The profile is read only where
 * there is a store and the preset needs it. */
KN_API enum kn_status kn_engine_open(struct kn_engine **out, struct kn_model *model, const struct kn_engine_opts *opts, struct kn_err *err);
/* Cancels open requests, waits for the running publish, releases everything. Requests are best closed before; one that
 * is not ends as CANCELLED, can still be read, and must still be closed. */
KN_API void kn_engine_close(struct kn_engine **engine);
/* One step: fetch, prefill or decode for every request that can move. KN_AGAIN when there is nothing to do. */
KN_API enum kn_status kn_engine_step(struct kn_engine *engine);
/* Waits until everything queued for publishing is written; timeout_ms 0 waits for ever. KN_E_TIMEOUT, or the first
 * publish error since the last flush. */
KN_API enum kn_status kn_engine_flush(struct kn_engine *engine, uint32_t timeout_ms);
/* KN_E_ARG when the size of *out is not set. */
KN_API enum kn_status kn_engine_get_stats(const struct kn_engine *engine, struct kn_engine_stats *out);
/* Ends the wait of a kn_engine_step that has nothing to do but to wait for a fetch, now or the next time. The only function of an
 * engine that any thread may call. */
KN_API void kn_engine_wake(struct kn_engine *engine);

enum kn_block_state {
    KN_BLOCK_STATE_FREE = 0,
    KN_BLOCK_STATE_CACHED = 1, /* holds a prefix, nobody refers to it */
    KN_BLOCK_STATE_HELD = 2,   /* of a running, waiting or finished request, or of a publish */
    KN_BLOCK_STATE_SHARED = 3, /* held more than once */
    KN_BLOCK_STATE_FETCHING = 4 /* of a request that waits for a fetch */
};

/* Writes the enum kn_block_state of blocks first .. first + n - 1 as bytes; what lies beyond the pool is FREE. */
KN_API void kn_engine_get_blocks(const struct kn_engine *engine, uint32_t first, uint32_t n, uint8_t *states);
/* Verifies the pool's book-keeping, and that with no open request and no publish under way nothing is held. KN_E_STATE and a
 * sentence otherwise. */
KN_API enum kn_status kn_engine_check(const struct kn_engine *engine, struct kn_err *err);

/* Queues a request. Errors: KN_E_ARG (empty prompt, unknown token, an option out of range), KN_E_NOMEM, KN_E_CONTEXT (prompt
 * longer than n_ctx), KN_E_FULL (cannot ever fit the pool). A request whose logits are nowhere finite ends as ERROR with
 * KN_E_NOT_FINITE. */
KN_API enum kn_status kn_request_submit(struct kn_request **out, struct kn_engine *engine, const struct kn_request_opts *opts, struct kn_err *err);
/* The next event: the prompt's tokens if it is scored, tokens in order, then one DONE, then KN_END. KN_AGAIN: run a step. A stop
 * token is not an event. Events wait for their reader as long as it likes. KN_E_ARG, and no event is
 * taken, when the size of *event is not set. */
KN_API enum kn_status kn_request_next(struct kn_request *request, struct kn_event *event);
/* Ends the request now; its DONE event says CANCELLED. Nothing of it is published. Harmless once it is done. */
KN_API void kn_request_cancel(struct kn_request *request);
/* Ends the request as if it had chosen a stop token: reason STOP, and it is published. For stop strings. Harmless once it is done. */
KN_API void kn_request_finish(struct kn_request *request);
/* KN_E_ARG when the size of *out is not set. */
KN_API enum kn_status kn_request_get_stats(const struct kn_request *request, struct kn_request_stats *out);
/* BLAKE2b-128 of the 16-bit K and V that the pool holds for the request's first n_tokens positions, to prove that two
 * caches are bit for bit the same. Order: position, layer, K then V, head, component. Valid until close. KN_E_ARG beyond
 * what is there; KN_E_STATE when cancelled, or when other requests needed the blocks of this finished one. */
KN_API enum kn_status kn_request_kv_digest(const struct kn_request *request, uint64_t n_tokens, uint8_t digest[16]);
KN_API void kn_request_close(struct kn_request **request);

/* Takes the logits [n_vocab] that follow tokens[0..position]; borrowed for the call. Anything but KN_OK ends the scoring. It
 * must not call the engine. */
typedef enum kn_status (*kn_score_fn)(void *user, uint64_t position, const float *logits);

struct kn_score_opts {
    size_t size;           /* sizeof(struct kn_score_opts) */
    const int32_t *tokens; /* borrowed for the call; at least one */
    size_t n_tokens;
    size_t first;          /* positions first .. n_tokens - 1 are scored, in order */
    uint32_t step_tokens;  /* scored positions a step, 1..32; 0: 32. With 1 the steps are those of decoding */
    kn_score_fn on_row;
    void *user;            /* given to on_row */
    const char *salt;      /* as struct kn_request_opts */
    enum kn_kv_quality kv_quality; /* likewise */
};

/* Teacher forcing: runs given tokens and hands out the logits of each position from `first` on, instead of choosing tokens.
 * What comes before `first` is taken from the prefix cache as far as it is there (a request that fetched or computed it leaves
 * it there) and computed otherwise; *n_reused (may be NULL) tells how much. Scored positions are always computed. Blocks until
 * done; open requests stand still and keep their blocks.
 * Errors: KN_E_ARG (no tokens, an unknown one, first beyond them, no on_row, step_tokens above 32), KN_E_CONTEXT (more than
 * n_ctx), KN_E_FULL (open requests hold too much of the pool), KN_E_NOMEM, KN_E_NOT_FINITE (no logit of a row is finite), or
 * what on_row returned. */
KN_API enum kn_status kn_engine_score(struct kn_engine *engine, const struct kn_score_opts *opts, uint64_t *n_reused, struct kn_err *err);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the stages in the order in which they need each other and closes them in reverse. The fetcher closes before the
 * scheduler: its workers read blocks on which the scheduler holds references.
 */
#include "kinema/engine.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"
#include "codec/codec.h"
#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_encode.h"
#include "engine/engine_state.h"
#include "kernel/kernels.h"

#define DEFAULT_PREFILL_CHUNK 256u
#define DEFAULT_CHUNK_TOKENS 256u
#define DEFAULT_DEADLINE_MS 30000u
#define DEFAULT_RUNNING 32u
#define MAX_RUNNING 256u
#define DEFAULT_FETCH_POOL_PERCENT 50u
#define MAX_FETCH_WORKERS 8u
#define MIN_FETCH_WINDOW 8u /* chunks */
#define MAX_DECODE_BYTES (68u << 20) /* of all workers that decode, together */

static enum kn_status check_opts(const struct kn_engine_opts *o, const struct kn_model *model, struct kn_err *err)
{
    const struct kni_hparams *h = &model->hparams;
    if (o->n_ctx > h->n_ctx_train)
        return kni_err_set(err, KN_E_ARG, "n_ctx is %u but the model was made for %u tokens: use at most that", o->n_ctx, h->n_ctx_train);
    if (o->n_threads > 256)
        return kni_err_set(err, KN_E_ARG, "n_threads is %u: use 1 to 256, or 0 for all", o->n_threads);
    if (o->prefill_chunk > 8192)
        return kni_err_set(err, KN_E_ARG, "prefill_chunk is %u: use 1 to 8192 tokens, or 0 for %u", o->prefill_chunk, DEFAULT_PREFILL_CHUNK);
    if (o->kv_type != KN_KV_TYPE_F16 && o->kv_type != KN_KV_TYPE_BF16)
        return kni_err_set(err, KN_E_ARG, "kv_type is %d: use f16 (0) or bf16 (1)", (int)o->kv_type);
    if ((unsigned)o->cpu_level_max_plus_1 > 1 + KN_CPU_LEVEL_AVX512)
        return kni_err_set(err, KN_E_ARG, "cpu_level_max_plus_1 is %d: use 0 to %d", (int)o->cpu_level_max_plus_1, 1 + KN_CPU_LEVEL_AVX512);
    if ((unsigned)o->preset > KN_PRESET_SMALL)
        return kni_err_set(err, KN_E_ARG, "preset %d is unknown: use exact (%d), tiles (%d), fine (%d), medium (%d) or small (%d)", (int)o->preset,
                           KN_PRESET_EXACT, KN_PRESET_TILES, KN_PRESET_FINE, KN_PRESET_MEDIUM, KN_PRESET_SMALL);
    if ((unsigned)o->backend > KN_BACKEND_HEVC)
        return kni_err_set(err, KN_E_ARG, "backend %d is unknown: use rans (%d) or hevc (%d)", (int)o->backend, KN_BACKEND_RANS, KN_BACKEND_HEVC);
    enum kn_status status = kni_engine_check_quality(o->kv_quality, "preset gives", err);
    if (status)
        return status;
    if (o->chunk_tokens % KNI_BLOCK_TOKENS)
        return kni_err_set(err, KN_E_ARG, "chunk_tokens is %u: use a multiple of %u", o->chunk_tokens, KNI_BLOCK_TOKENS);
    if (o->max_running > MAX_RUNNING)
        return kni_err_set(err, KN_E_ARG, "max_running is %u: use 1 to %u requests, or 0 for %u", o->max_running, MAX_RUNNING, DEFAULT_RUNNING);
    if (o->fetch_pool_percent > 100)
        return kni_err_set(err, KN_E_ARG, "fetch_pool_percent is %u: use 1 to 100, or 0 for %u", o->fetch_pool_percent, DEFAULT_FETCH_POOL_PERCENT);
    return kni_hevc_opts_check(o->hevc, err);
}

static enum kn_status open_pool(struct kn_engine *e, const struct kn_engine_opts *o, const struct kni_kv_layout *layout, struct kn_err *err)
{
    uint64_t n_blocks = kni_blocks_for_tokens(e->n_ctx);
    if (o->pool_bytes) {
        n_blocks = o->pool_bytes / kni_kv_block_bytes(layout);
        if (!n_blocks)
            return kni_err_set(err, KN_E_ARG, "pool_bytes is %llu but one block of %u tokens takes %zu: give the pool more",
                               (unsigned long long)o->pool_bytes, KNI_BLOCK_TOKENS, kni_kv_block_bytes(layout));
    }
    if (n_blocks > UINT32_MAX / KNI_BLOCK_TOKENS)
        n_blocks = UINT32_MAX / KNI_BLOCK_TOKENS; /* positions are 32 bits wide */
    struct kni_pool_opts po = {.layout = *layout, .n_blocks = (uint32_t)n_blocks, .no_prefix_index = o->no_prefix_cache};
    return kni_pool_open(&e->pool, &po, err);
}

static enum kn_status check_model(void *model)
{
    return kn_model_check(model, NULL);
}

static enum kn_status check_engine(void *engine)
{
    return kn_model_check(((const struct kn_engine *)engine)->model, NULL);
}

/* What is published as video will be fetched as video: libavcodec is opened now and not in the first fetch. Without it
 * an engine still computes, publishes, and fetches what is no video. */
static void prepare_video(const struct kn_engine_opts *o)
{
    struct kn_err why = {0};
    if (kni_backend_of(o->preset, o->backend) == KNI_BACKEND_ID_HEVC && kni_hevc_decode_prepare(&why))
        kni_log(KN_LOG_LEVEL_WARN, "fetch",
                "what is published here as video cannot be fetched here, it will be recomputed: %s", why.text);
}

/* *window_chunks: how far a fetch may reserve ahead of what has arrived. */
static enum kn_status open_fetcher(struct kn_engine *e, const struct kn_engine_opts *o, const struct kni_kv_layout *layout, uint32_t *window_chunks,
                                   struct kn_err *err)
{
    uint32_t n_threads = kni_threads_count(e->threads);
    struct kni_fetcher_opts fo = {.store_url = o->store_url,
                                  .max_bytes = o->store_max_bytes,
                                  .ttl_s = o->store_ttl_s,
                                  .preset = o->preset,
                                  .tiles = *o->tiles,
                                  .chunk_tokens = o->chunk_tokens,
                                  .n_workers = n_threads < MAX_FETCH_WORKERS ? n_threads : MAX_FETCH_WORKERS,
                                  .deadline_ms = o->fetch_deadline_ms,
                                  .kv = *layout,
                                  .backend = o->backend,
                                  .hevc = *o->hevc,
                                  .cpu_without = e->cpu_without,
                                  .store_read_only = o->store_read_only,
                                  .store_optional = o->store_optional};
    memcpy(fo.fingerprint, e->model->info.fingerprint, sizeof fo.fingerprint);
    fo.check = check_model;
    fo.check_of = e->model; /* lives as long as any thread of the fetcher asks: fetcher.h */
    struct kni_codec_opts co = {.preset = o->preset, .tiles = *o->tiles, .backend = o->backend, .hevc = *o->hevc};
    struct kni_chunk_meta chunk = {.n_tokens = o->chunk_tokens, .kv = *layout};
    memcpy(chunk.fingerprint, fo.fingerprint, sizeof chunk.fingerprint);
    enum kn_status status = KN_OK;
    if (o->profile_path && kni_preset_needs_profile(o->preset))
        status = kni_profile_open(&co.profile, o->profile_path, err);
    fo.profile = co.profile;
    size_t n_bytes;
    if (!status)
        status = kni_codec_working_estimate(&co, &chunk, &n_bytes, err); /* checks the options, here and not at each publish */
    if (!status && fo.n_workers > MAX_DECODE_BYTES / n_bytes)
        fo.n_workers = MAX_DECODE_BYTES / n_bytes ? (uint32_t)(MAX_DECODE_BYTES / n_bytes) : 1;
    /* Workers must find a next chunk while the owner is in a long step. */
    *window_chunks = fo.n_workers * 2 < MIN_FETCH_WINDOW ? MIN_FETCH_WINDOW : fo.n_workers * 2;
    if (!status)
        status = kni_fetcher_open(&e->fetcher, &fo, err);
    if (co.profile)
        kni_profile_close(&co.profile);
    if (!status)
        prepare_video(o);
    return status;
}

static enum kn_status open_stages(struct kn_engine *e, const struct kn_engine_opts *o, struct kn_err *err)
{
    const struct kni_hparams *h = &e->model->hparams;
    struct kni_kv_layout layout = {.n_layer = h->n_layer, .n_kv_head = h->n_kv_head, .d_head = h->d_head, .type = o->kv_type};
    enum kn_status status = kni_threads_open(&e->threads, o->n_threads);
    if (status)
        return kni_err_set(err, status, "cannot start %u compute threads: ask for fewer", o->n_threads);
    if ((status = open_pool(e, o, &layout, err)))
        return status;
    e->max_running = o->max_running;
    e->kv_quality = o->kv_quality ? o->kv_quality : kni_preset_quality(o->preset, o->tiles);
    uint32_t n_rows = o->max_running > KNI_ENGINE_SCORE_ROWS ? o->max_running : KNI_ENGINE_SCORE_ROWS; /* with logits; scoring uses the same run */
    uint32_t chunk = e->prefill_chunk = o->prefill_chunk < e->n_ctx ? o->prefill_chunk : e->n_ctx;
    struct kni_run_opts ro = {.model = e->model,
                              .threads = e->threads,
                              .max_tokens = kni_sched_max_rows(chunk, n_rows),
                              .max_logits = kni_sched_max_logits(o->max_running),
                              .n_ctx = e->n_ctx,
                              .kv_type = o->kv_type,
                              .cpu_without = e->cpu_without};
    if ((status = kni_run_open(&e->run, &ro, err)))
        return status;
    e->cpu_level = kni_kernels_level(kni_cpu_flags_without(e->cpu_without));
    uint32_t window_chunks = 0;
    if (o->store_url && (status = open_fetcher(e, o, &layout, &window_chunks, err)))
        return status;
    struct kni_sched_opts so = {.pool = e->pool,
                                .run = e->run,
                                .fetcher = e->fetcher,
                                .prefill_chunk = chunk,
                                .chunk_tokens = o->chunk_tokens,
                                .max_running = o->max_running,
                                .fetch_pool_percent = o->fetch_pool_percent,
                                .fetch_window_chunks = window_chunks,
                                .fetch_inline = o->fetch_inline,
                                .fetch_quality = kni_preset_quality(o->preset, o->tiles),
                                .n_vocab = h->n_vocab,
                                .take = kni_request_take,
                                .check = check_engine,
                                .user = e};
    if ((status = kni_sched_open(&e->sched, &so)))
        return kni_err_set(err, status, "no memory for the logits of %u requests: lower max_running", o->max_running);
    return KN_OK;
}

enum kn_status kn_engine_open(struct kn_engine **out, struct kn_model *model, const struct kn_engine_opts *opts, struct kn_err *err)
{
    if (!out)
        return kni_err_set(err, KN_E_ARG, "kn_engine_open needs a place for the engine");
    *out = NULL;
    if (!model)
        return kni_err_set(err, KN_E_ARG, "kn_engine_open needs a model");
    struct kn_engine_opts o;
    struct kn_tiles_opts tiles;
    struct kn_hevc_opts hevc;
    enum kn_status status = KNI_OPTS_READ(&o, opts, kn_engine_opts, err);
    if (!status)
        status = KNI_OPTS_READ_OR_DEFAULT(&tiles, o.tiles, kn_tiles_opts, err);
    if (!status)
        status = KNI_OPTS_READ_OR_DEFAULT(&hevc, o.hevc, kn_hevc_opts, err);
    o.tiles = &tiles;
    o.hevc = &hevc;
    if (status || (status = check_opts(&o, model, err)))
        return status;
    if (!o.prefill_chunk)
        o.prefill_chunk = DEFAULT_PREFILL_CHUNK;
    if (!o.chunk_tokens)
        o.chunk_tokens = DEFAULT_CHUNK_TOKENS;
    if (!o.max_running)
        o.max_running = DEFAULT_RUNNING;
    if (!o.fetch_pool_percent)
        o.fetch_pool_percent = DEFAULT_FETCH_POOL_PERCENT;
    if (!o.fetch_deadline_ms)
        o.fetch_deadline_ms = DEFAULT_DEADLINE_MS;
    if (o.preset == KN_PRESET_DEFAULT)
        o.preset = o.profile_path ? KN_PRESET_MEDIUM : KN_PRESET_EXACT;

    struct kn_engine *e = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *e, 0);
    if (!e)
        return kni_err_set(err, KN_E_NOMEM, "no memory for an engine");
    e->model = kni_model_ref(model);
    e->n_ctx = o.n_ctx ? o.n_ctx : model->hparams.n_ctx_train;
    if (o.cpu_level_max_plus_1)
        e->cpu_without = ~kni_kernels_limit(UINT32_MAX, (enum kn_cpu_level)(o.cpu_level_max_plus_1 - 1));
    status = open_stages(e, &o, err);
    if (!status)
        status = kn_model_check(model, err); /* the run has packed the weights: they are what the fingerprint names */
    if (status)
        kn_engine_close(&e);
    *out = e;
    return status;
}

void kn_engine_close(struct kn_engine **engine)
{
    struct kn_engine *e = engine ? *engine : NULL;
    if (!e)
        return;
    while (e->requests)
        kni_request_detach(e->requests);
    if (e->sched)
        kni_sched_drain(e->sched);
    kni_fetcher_close(&e->fetcher);
    kni_sched_close(&e->sched);
    kni_run_close(&e->run);
    kni_pool_close(&e->pool);
    kni_threads_close(&e->threads);
    kn_model_close(&e->model);
    kni_free(e);
    *engine = NULL;
}

enum kn_status kn_engine_step(struct kn_engine *engine)
{
    return kni_sched_step(engine->sched);
}

enum kn_status kn_engine_flush(struct kn_engine *engine, uint32_t timeout_ms)
{
    return kni_sched_flush(engine->sched, timeout_ms);
}

void kn_engine_wake(struct kn_engine *engine)
{
    if (engine->fetcher) /* without one no step waits */
        kni_fetcher_wake(engine->fetcher);
}

void kn_engine_get_blocks(const struct kn_engine *engine, uint32_t first, uint32_t n, uint8_t *states)
{
    kni_sched_get_blocks(engine->sched, first, n, states);
}

enum kn_status kn_engine_check(const struct kn_engine *engine, struct kn_err *err)
{
    const char *why = kni_sched_check(engine->sched);
    return why ? kni_err_set(err, KN_E_STATE, "the pool's book-keeping is wrong (%s): please report it", why) : KN_OK;
}

enum kn_status kn_engine_get_stats(const struct kn_engine *engine, struct kn_engine_stats *out)
{
    struct kni_pool_stats pool = kni_pool_get_stats(engine->pool);
    struct kni_sched_stats sched = kni_sched_get_stats(engine->sched);
    struct kni_kv_layout layout = kni_pool_layout(engine->pool);
    struct kn_engine_stats now = {
        .n_blocks = pool.n_blocks,
        .n_free_blocks = pool.n_free_blocks,
        .n_cached_blocks = pool.n_cached_blocks,
        .block_tokens = KNI_BLOCK_TOKENS,
        .block_bytes = kni_kv_block_bytes(&layout),
        .n_steps = sched.n_steps,
        .n_step_tokens = sched.n_step_tokens,
        .n_threads = kni_threads_count(engine->threads),
        .cpu_level = engine->cpu_level,
        .max_running = engine->max_running,
        .n_waiting = sched.n_waiting,
        .n_fetching = sched.n_fetching,
        .n_running = sched.n_running,
        .n_fetch_blocks = sched.n_fetch_blocks,
        .n_publish_blocks = sched.n_publish_blocks,
        .n_publishing = sched.n_publishing,
        .n_prompt_tokens = sched.n_prompt_tokens,
        .n_cached_tokens = sched.n_cached_tokens,
        .n_fetched_tokens = sched.n_fetched_tokens,
        .n_computed_tokens = sched.n_computed_tokens,
        .n_generated_tokens = sched.n_generated_tokens,
        .n_preemptions = sched.n_preemptions,
        .n_fetches = sched.n_fetches,
        .n_fetches_cut = sched.n_fetches_cut,
        .fetch_bytes = sched.fetch_bytes,
        .fetch_ns = sched.fetch_ns,
        .n_fetch_misses = sched.n_fetch_misses,
    };
    memcpy(now.n_cached_by, sched.n_cached_by, sizeof now.n_cached_by);
    memcpy(now.n_fetched_by, sched.n_fetched_by, sizeof now.n_fetched_by);
    if (engine->fetcher) {
        struct kni_publish_stats p;
        struct kni_fetcher_health health;
        kni_fetcher_get_health(engine->fetcher, &health);
        now.has_store = true;
        now.store_open = health.is_open;
        now.store_read_ok = health.is_open && health.read_ok;
        now.store_write_ok = health.is_open && health.write_ok;
        now.store_read_only = health.read_only;
        now.store_read_errors = health.read_errors;
        now.store_write_errors = health.write_errors;
        kni_publish_get_stats(engine->fetcher, &p);
        now.published_chunks = p.n_chunks;
        now.published_bytes = p.n_bytes;
        now.published_raw_bytes = p.raw_bytes;
        now.publish_errors = p.n_errors;
        now.publish_ns = p.busy_ns;
        now.n_publish_refused = p.n_refused;
        now.fetch_working_bytes = kni_fetcher_working_bytes(engine->fetcher);
    }
    return kni_stats_write(out, &now, sizeof now);
}

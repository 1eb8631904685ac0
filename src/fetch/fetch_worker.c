/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workers' side of fetching. A worker takes the oldest job that has something to begin: a lookup (all of them before
 * any chunk: they are short and somebody waits to reserve blocks), or the next chunk, which it downloads into its own
 * buffer and restores into the job's blocks. Several workers serve one job; chunks finish in any order and count in order.
 * The keeper is a worker that takes lookups only, so that they are answered while all others download.
 *
 * A first chunk that begins before first_token. Its early positions are in the pool already, in blocks that others may
 * share. Such a chunk is restored into the worker's scratch blocks, and only positions from first_token on are copied.
 *
 * A bad chunk ends its job there and is removed from the store, so that the next publish heals it: a store that keeps
 * promising what it cannot give would cost every later request a failed fetch.
 */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "fetch/fetcher.h"

/* Of one worker; lives as long as its thread, freed at its end. */
struct worker {
    struct kni_fetcher *f;
    struct kni_fetch_thread *t;
    struct kni_codec *codec; /* opened at the first chunk */
    size_t working_bytes;    /* of it, as told to the fetcher */
    struct kni_store_buf buf;
    uint16_t *scratch;        /* chunk_tokens / 16 blocks */
    uint32_t *scratch_table;  /* positions 0 .. end of the chunk */
    uint32_t scratch_entries;
};

#define LOOKUP UINT32_MAX

/* The oldest job with something to begin, and what: LOOKUP or a chunk, which the keeper leaves to others. (lock) held. */
static struct kni_fetch *pick(struct kni_fetcher *f, bool keeper, uint32_t *chunk)
{
    uint64_t now = kni_now_ns();
    for (struct kni_fetch *j = f->jobs; j; j = j->next) {
        if (j->state != KNI_FETCH_STATE_LOOKUP || j->lookup_begun || j->cancelled)
            continue;
        kni_fetch_settle(j, now);
        if (j->state != KNI_FETCH_STATE_LOOKUP)
            continue;
        j->lookup_begun = true;
        *chunk = LOOKUP;
        return j;
    }
    for (struct kni_fetch *j = f->jobs; j && !keeper; j = j->next) {
        kni_fetch_settle(j, now);
        if (j->state != KNI_FETCH_STATE_RUNNING || j->cut || j->cancelled || j->next_chunk >= j->end_chunk)
            continue;
        *chunk = j->next_chunk++;
        return j;
    }
    return NULL;
}

static void run_lookup(struct kni_fetch_thread *t, struct kni_fetch *job)
{
    struct kni_fetcher *f = t->fetcher;
    struct kn_err err = {0};
    struct kni_chunk_meta meta;
    struct kni_hash chain = {{0}};
    uint32_t n_found = 0;
    for (uint32_t c = 0; c < job->n_chunks; c++) {
        kni_fetcher_chain(f, &job->seed, job->tokens, c, &chain);
        job->chunks[c].chain = chain;
        kni_fetcher_meta(f, c, &chain, &meta);
        kni_store_key_make(&job->keys[c], &meta, &f->opts.tiles, &f->opts.hevc);
    }
    enum kn_status s = kni_fetcher_check(f);
    if (!s && kni_fetcher_ask(t, KNI_STORE_CALL_LOOKUP)) {
        s = kni_store_lookup(f->store, job->keys + job->first_chunk, job->n_chunks - job->first_chunk, &n_found, &err);
        (void)kni_fetcher_told(t, s != KN_OK, &err);
    }
    pthread_mutex_lock(&f->lock);
    if (job->state == KNI_FETCH_STATE_LOOKUP) { /* else it was too late */
        uint64_t now = kni_now_ns();
        job->found_chunk = job->first_chunk + (s ? 0 : n_found);
        kni_fetch_settle(job, now);
        if (job->state == KNI_FETCH_STATE_LOOKUP) {
            job->state = n_found && !s ? KNI_FETCH_STATE_READY : KNI_FETCH_STATE_DONE;
            job->end_ns = now; /* for READY: where the fetch's own clock stops */
            kni_fetcher_tell(f);
        }
    }
    pthread_mutex_unlock(&f->lock);
}

/* Restores a chunk whose early positions must stay as they are. */
static enum kn_status restore_partly(struct worker *w, const struct kni_fetch *job, const struct kni_chunk_meta *meta, struct kn_err *err)
{
    const struct kni_kv_layout *l = &job->view.layout;
    uint32_t n_blocks = meta->n_tokens / KNI_BLOCK_TOKENS, first_block = meta->first_token / KNI_BLOCK_TOKENS, n_entries = first_block + n_blocks;
    size_t bytes;
    if (!w->scratch && (!kni_mul_size(kni_kv_block_bytes(l), n_blocks, &bytes) || !(w->scratch = kni_alloc(KNI_ALLOC_TAG_FETCH, bytes, 64))))
        return kni_err_set(err, KN_E_NOMEM, "no memory for a chunk's scratch blocks");
    if (w->scratch_entries < n_entries) {
        uint32_t *table = kni_realloc(KNI_ALLOC_TAG_FETCH, w->scratch_table, n_entries * sizeof *table);
        if (!table)
            return kni_err_set(err, KN_E_NOMEM, "no memory for a block table");
        w->scratch_table = table;
        w->scratch_entries = n_entries;
    }
    memset(w->scratch_table, 0, n_entries * sizeof *w->scratch_table);
    for (uint32_t i = 0; i < n_blocks; i++)
        w->scratch_table[first_block + i] = i;
    const struct kni_kv_host scratch = kni_kv_host_by_block(l, w->scratch, w->scratch_table, n_entries), to = kni_kv_host_of(&job->view);
    enum kn_status s = kni_chunk_restore(w->codec, w->buf.data, w->buf.n_bytes, meta, &scratch, err);
    if (s)
        return s;
    for (uint32_t p = job->first_token; p < meta->first_token + meta->n_tokens;) {
        if (p % KNI_BLOCK_TOKENS == 0) {
            kni_kv_block_copy(&to, p / KNI_BLOCK_TOKENS, &scratch, p / KNI_BLOCK_TOKENS);
            p += KNI_BLOCK_TOKENS;
            continue;
        }
        for (uint32_t layer = 0; layer < l->n_layer; layer++)
            for (uint32_t head = 0; head < l->n_kv_head; head++)
                for (uint32_t is_v = 0; is_v < 2; is_v++)
                    memcpy(kni_kv_row(&to, layer, is_v, head, p), kni_kv_row(&scratch, layer, is_v, head, p), l->d_head * 2u);
        p++;
    }
    return KN_OK;
}

static enum kn_status restore(struct worker *w, const struct kni_fetch *job, uint32_t chunk, struct kn_err *err)
{
    struct kni_chunk_meta meta;
    kni_fetcher_meta(w->f, chunk, &job->chunks[chunk].chain, &meta);
    if (!w->codec) {
        struct kni_codec_opts o = {.preset = KN_PRESET_EXACT, .profile = w->f->opts.profile, .hevc = w->f->opts.hevc,
                                   .cpu_without = w->f->opts.cpu_without}; /* restores every preset */
        enum kn_status s = kni_codec_open(&w->codec, &o, err);
        if (s)
            return s;
    }
    if (meta.first_token < job->first_token)
        return restore_partly(w, job, &meta, err);
    const struct kni_kv_host to = kni_kv_host_of(&job->view);
    return kni_chunk_restore(w->codec, w->buf.data, w->buf.n_bytes, &meta, &to, err);
}

/* Says why a chunk was refused and removes it where removal heals. Lock not held; the job's memory is still referenced. */
static void report(struct kni_fetch_thread *t, const struct kni_fetch *job, uint32_t chunk, enum kn_status s, const struct kn_err *why,
                   const struct kni_store_entry *entry)
{
    struct kni_fetcher *f = t->fetcher;
    const char *key = job->keys[chunk].text;
    bool half_gone = s == KN_E_NOT_FOUND && entry->n_bytes; /* wholly gone, there is nothing to mend */
    bool heals = s == KN_E_FORMAT || s == KN_E_MISMATCH || half_gone;
    bool drop = heals && !kn_store_is_read_only(f->store) && kni_fetcher_ask(t, KNI_STORE_CALL_WRITE);
    struct kn_err err = {0};
    if (drop) {
        enum kn_status dropped = kni_store_drop(f->store, key, entry, &err);
        drop = !dropped;
        (void)kni_fetcher_told(t, dropped != KN_OK, &err);
    }
    kni_log(KN_LOG_LEVEL_WARN, "fetch", "chunk %u of a prompt is not used, its tokens are recomputed: %s (%s); key %s%s", chunk, why->text[0] ? why->text : "no reason given",
            kn_status_name(s), key, drop ? "; removed from the store" : "");
}

static void run_chunk(struct worker *w, struct kni_fetch *job, uint32_t chunk)
{
    struct kni_fetcher *f = w->f;
    struct kn_err err = {0};
    struct kni_store_entry entry = {0};
    enum kn_status s = kni_fetcher_check(f);
    bool wanted, asked = !s && kni_fetcher_ask(w->t, KNI_STORE_CALL_GET);
    if (asked) {
        s = kni_store_get(f->store, job->keys[chunk].text, &entry, &w->buf, &err);
        bool store_failed = s && s != KN_E_NOT_FOUND && s != KN_E_FORMAT && s != KN_E_MISMATCH && s != KN_E_NOMEM;
        (void)kni_fetcher_told(w->t, store_failed, &err);
    } else if (!s)
        s = kni_err_set(&err, KN_E_IO, "the store has failed and is being left alone");

    pthread_mutex_lock(&f->lock);
    wanted = job->state == KNI_FETCH_STATE_RUNNING && !job->cut && !job->cancelled && chunk < job->end_chunk && kni_now_ns() < job->deadline_ns;
    job->n_bytes += s ? 0 : w->buf.n_bytes;
    job->n_restoring += wanted; /* from here on kni_fetch_try_end refuses */
    pthread_mutex_unlock(&f->lock);
    if (wanted && !s)
        s = restore(w, job, chunk, &err);

    pthread_mutex_lock(&f->lock);
    if (w->codec) {
        size_t now = kni_codec_working_bytes(w->codec);
        f->working_bytes += now - w->working_bytes;
        w->working_bytes = now;
    }
    if (wanted) {
        job->n_restoring--;
        if (s) {
            job->n_misses++;
            job->more = false;
            if (chunk < job->end_chunk)
                job->end_chunk = chunk;
        } else
            job->chunks[chunk].restored = true;
        while (job->n_prefix < job->end_chunk && job->chunks[job->n_prefix].restored)
            job->n_prefix++;
    }
    kni_fetch_settle(job, kni_now_ns());
    kni_fetcher_tell(f);
    pthread_mutex_unlock(&f->lock);
    if (s && s != KN_E_CHANGED && (wanted || asked)) /* a change has been said */
        report(w->t, job, chunk, s, &err, &entry);
}

void *kni_fetch_worker_main(void *arg)
{
    struct kni_fetch_thread *t = arg;
    struct kni_fetcher *f = t->fetcher;
    struct worker w = {.f = f, .t = t};
    pthread_mutex_lock(&f->lock);
    while (!f->stopping) {
        uint32_t chunk;
        struct kni_fetch *job = pick(f, t->role == KNI_FETCH_ROLE_KEEPER, &chunk);
        if (!job && t->role == KNI_FETCH_ROLE_KEEPER) {
            kni_fetcher_keep(t);
            continue;
        }
        if (!job) {
            pthread_cond_broadcast(&f->publish); /* publishers give way while there is work here */
            pthread_cond_wait(&f->work, &f->lock);
            continue;
        }
        job->n_refs++;
        pthread_mutex_unlock(&f->lock);
        if (chunk == LOOKUP)
            run_lookup(t, job);
        else
            run_chunk(&w, job, chunk);
        pthread_mutex_lock(&f->lock);
        kni_fetch_unref(job);
    }
    pthread_mutex_unlock(&f->lock);
    kni_codec_close(&w.codec);
    kni_store_buf_fini(&w.buf);
    kni_free(w.scratch);
    kni_free(w.scratch_table);
    pthread_mutex_lock(&f->lock);
    kni_fetcher_thread_end(t);
    return NULL;
}

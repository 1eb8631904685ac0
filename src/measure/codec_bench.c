/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kn_codec_bench: how fast each codec and each stage of one is, both ways, over the same prefix's chunks.
 *
 *     a round   every chunk once, in one direction; the fastest of those that fit into the time counts
 *     one thread    processor time, so other programs matter little
 *     all threads   wall clock; chunk c belongs to worker c mod n, each with handles of its own
 *
 * What a direction starts from is made before: coded chunks for decoding, symbols for the rANS stage. Decoding writes into the bed's
 * coded copy, chunks apart, so workers never meet. Owner thread: the caller's.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"
#include "measure/baseline/baseline.h"
#include "codec/spectral/spectral.h"
#include "measure/eval_method.h"

#define DEFAULT_PREFIX 1024u
#define DEFAULT_SECONDS 1.0
#define CHUNK KNI_EVAL_CHUNK
#define STAGE_PRESET KNI_PROFILE_PRESET_MEDIUM /* of the stages */

enum kind { KIND_CODEC, KIND_RANS, KIND_TRANSFORM, KIND_ZSTD, KIND_COPY };

struct work {
    const char *what, *how;
    enum kind kind;
    enum kn_preset preset;
    enum kn_backend backend;
};

static const struct work works[] = {
    {"exact", "rans", KIND_CODEC, KN_PRESET_EXACT, 0},
    {"fine", "rans", KIND_CODEC, KN_PRESET_FINE, KN_BACKEND_RANS},
    {"fine", "hevc", KIND_CODEC, KN_PRESET_FINE, KN_BACKEND_HEVC},
    {"medium", "rans", KIND_CODEC, KN_PRESET_MEDIUM, KN_BACKEND_RANS},
    {"medium", "hevc", KIND_CODEC, KN_PRESET_MEDIUM, KN_BACKEND_HEVC},
    {"small", "rans", KIND_CODEC, KN_PRESET_SMALL, KN_BACKEND_RANS},
    {"small", "hevc", KIND_CODEC, KN_PRESET_SMALL, KN_BACKEND_HEVC},
    {"tiles", "hevc", KIND_CODEC, KN_PRESET_TILES, 0},
    {"rans", "medium's symbols", KIND_RANS, 0, 0},
    {"transform", "medium's rows", KIND_TRANSFORM, 0, 0},
    {"zstd", "level 3", KIND_ZSTD, 0, 0},
    {"memcpy", "blocks", KIND_COPY, 0, 0},
};
#define N_WORKS (sizeof works / sizeof *works)

/* One matrix of a chunk: a part's symbols, and what became of them. */
struct matrix {
    uint8_t *symbols, *coded; /* [rows][CHUNK]; kni_rans_bound */
    size_t n_coded;
    struct kni_escapes escapes;
};

/* A worker's own. */
struct station {
    struct kni_codec *encoder, *decoder;
    struct kni_spectral *transform;
    struct kni_buffer buffer;
    struct kni_escapes escapes;
    uint8_t *symbols, *coded; /* the largest matrix */
    void *scratch;
    enum kn_status status;
};

struct bench {
    struct kn_codec_bench_opts opts;
    struct kn_hevc_opts hevc;
    struct kni_eval_bed bed;
    struct kni_profile *profile;
    const struct work *work;
    uint32_t n_chunks, n_wall;
    struct kni_buffer *chunks;  /* [n_chunks] coded; data of KIND_CODEC as well */
    struct matrix *matrices;    /* [n_chunks][n_parts] */
    struct station *stations;   /* [n_wall] */
    bool decode;                /* of the running round */
    uint32_t n_workers, n_used; /* of it: workers, chunks */
};

static uint32_t rows_of(const struct bench *b, uint32_t part)
{
    return b->profile->parts[part].n_layers + b->profile->parts[part].rows[STAGE_PRESET];
}

static struct kni_chunk_meta meta_of(const struct bench *b, uint32_t chunk)
{
    struct kni_chunk_meta meta = {.preset = b->work->preset, .first_token = chunk * CHUNK, .n_tokens = CHUNK, .kv = b->bed.kv};
    memcpy(meta.fingerprint, b->bed.model->info.fingerprint, sizeof meta.fingerprint);
    if (b->work->preset >= KN_PRESET_FINE)
        memcpy(meta.profile, b->profile->id, sizeof meta.profile);
    return meta;
}

/* ---- one chunk, one direction */

static enum kn_status code_container(struct bench *b, struct station *s, uint32_t chunk)
{
    struct kni_chunk_meta meta = meta_of(b, chunk);
    struct kni_kv_host clean = kni_eval_bed_clean(&b->bed), coded = kni_eval_bed_coded(&b->bed);
    if (b->decode)
        return kni_chunk_restore(s->decoder, b->chunks[chunk].data, b->chunks[chunk].used, &meta, &coded, NULL);
    void *data;
    size_t n_bytes;
    enum kn_status status = kni_chunk_encode(s->encoder, &meta, &clean, &data, &n_bytes, NULL);
    kni_free(data);
    return status;
}

static enum kn_status code_symbols(struct bench *b, struct station *s, uint32_t chunk)
{
    for (uint32_t part = 0; part < b->profile->n_parts; part++) {
        const struct kni_profile_part *p = &b->profile->parts[part];
        struct matrix *m = &b->matrices[(size_t)chunk * b->profile->n_parts + part];
        if (!b->decode)
            kni_rans_encode(b->profile->rans, m->symbols, CHUNK, rows_of(b, part), CHUNK, p->classes[STAGE_PRESET],
                            s->coded, s->scratch, kni_cpu_flags());
        else if (kni_rans_decode(b->profile->rans, m->coded, m->n_coded, rows_of(b, part), CHUNK,
                                 p->classes[STAGE_PRESET], s->symbols, CHUNK, s->scratch, kni_cpu_flags()) != KN_OK)
            return KN_E_FORMAT;
    }
    return KN_OK;
}

static enum kn_status transform(struct bench *b, struct station *s, uint32_t chunk)
{
    struct kni_kv_host clean = kni_eval_bed_clean(&b->bed), coded = kni_eval_bed_coded(&b->bed);
    enum kn_status status = KN_OK;
    for (uint32_t part = 0; part < b->profile->n_parts && status == KN_OK; part++) {
        struct matrix *m = &b->matrices[(size_t)chunk * b->profile->n_parts + part];
        status = b->decode ? kni_spectral_inverse(s->transform, &coded, chunk * CHUNK, CHUNK, part, STAGE_PRESET, m->symbols, CHUNK, &m->escapes, 0)
                           : kni_spectral_forward(s->transform, &clean, chunk * CHUNK, CHUNK, part, STAGE_PRESET, s->symbols, CHUNK, &s->escapes);
    }
    return status;
}

static enum kn_status code_zstd(struct bench *b, struct station *s, uint32_t chunk)
{
    struct kni_kv_host clean = kni_eval_bed_clean(&b->bed), coded = kni_eval_bed_coded(&b->bed);
    struct kni_span span = {.first_token = chunk * CHUNK, .n_tokens = CHUNK};
    struct kni_account account = {0};
    if (b->decode)
        return kni_raw_zstd_decode(&coded, span, b->chunks[chunk].data, b->chunks[chunk].used);
    s->buffer.used = 0;
    return kni_raw_zstd_encode(&clean, span, &s->buffer, &account);
}

/* Encoding: from the clean copy to the coded one. Decoding: back, which changes nothing. */
static enum kn_status copy(struct bench *b, uint32_t chunk)
{
    const struct kni_kv_host coded = kni_eval_bed_coded(&b->bed), clean = kni_eval_bed_clean(&b->bed);
    for (uint32_t i = chunk * (CHUNK / KNI_BLOCK_TOKENS); i < (chunk + 1) * (CHUNK / KNI_BLOCK_TOKENS); i++)
        kni_kv_block_copy(b->decode ? &clean : &coded, i, b->decode ? &coded : &clean, i);
    return KN_OK;
}

/* On every worker. */
static void pass(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct bench *b = arg;
    (void)n_workers;
    if (worker >= b->n_workers)
        return;
    struct station *s = &b->stations[worker];
    s->status = KN_OK;
    for (uint32_t chunk = worker; chunk < b->n_used && s->status == KN_OK; chunk += b->n_workers)
        switch (b->work->kind) {
        case KIND_CODEC: s->status = code_container(b, s, chunk); break;
        case KIND_RANS: s->status = code_symbols(b, s, chunk); break;
        case KIND_TRANSFORM: s->status = transform(b, s, chunk); break;
        case KIND_ZSTD: s->status = code_zstd(b, s, chunk); break;
        case KIND_COPY: s->status = copy(b, chunk); break;
        }
}

/* Tokens a second of the fastest round. */
static enum kn_status measure(struct bench *b, bool decode, bool wall, double *tok_s)
{
    uint64_t best = UINT64_MAX, begin = kni_now_ns();
    b->decode = decode;
    b->n_workers = wall ? b->n_wall : 1;
    b->n_used = b->n_chunks / b->n_workers * b->n_workers;
    do {
        uint64_t t = wall ? kni_now_ns() : kni_processor_ns();
        if (wall)
            kni_threads_run(b->bed.threads, pass, b);
        else
            pass(b, 0, 1);
        t = (wall ? kni_now_ns() : kni_processor_ns()) - t;
        best = t < best ? t : best;
        for (uint32_t i = 0; i < b->n_workers; i++)
            if (b->stations[i].status)
                return b->stations[i].status;
    } while ((double)(kni_now_ns() - begin) < b->opts.seconds * 1e9);
    *tok_s = (double)b->n_used * CHUNK * 1e9 / (double)(best ? best : 1);
    return KN_OK;
}

/* ---- what a work needs */

static void close_stations(struct bench *b)
{
    for (uint32_t i = 0; b->stations && i < b->n_wall; i++) {
        struct station *s = &b->stations[i];
        kni_codec_close(&s->encoder);
        kni_codec_close(&s->decoder);
        kni_spectral_close(&s->transform);
        kni_free(s->buffer.data);
        kni_free(s->escapes.values);
        kni_free(s->symbols);
        kni_free(s->coded);
        kni_free(s->scratch);
        *s = (struct station){0};
    }
    for (uint32_t i = 0; b->chunks && i < b->n_chunks; i++) {
        kni_free(b->chunks[i].data);
        b->chunks[i] = (struct kni_buffer){0};
    }
}

static enum kn_status open_station(struct bench *b, struct station *s, struct kn_err *err)
{
    const struct work *w = b->work;
    enum kn_status status = KN_OK;
    if (w->kind == KIND_CODEC) {
        struct kni_codec_opts eo = {.preset = w->preset, .profile = b->profile, .backend = w->backend, .hevc = b->hevc};
        struct kni_codec_opts d_o = {.preset = KN_PRESET_EXACT, .profile = b->profile};
        status = kni_codec_open(&s->encoder, &eo, err);
        return status ? status : kni_codec_open(&s->decoder, &d_o, err);
    }
    if (w->kind != KIND_RANS && w->kind != KIND_TRANSFORM)
        return KN_OK;
    uint32_t rows = 0;
    for (uint32_t part = 0; part < b->profile->n_parts; part++)
        rows = rows_of(b, part) > rows ? rows_of(b, part) : rows;
    s->symbols = kni_alloc(KNI_ALLOC_TAG_SCRATCH, (size_t)rows * CHUNK, 64);
    s->coded = kni_alloc(KNI_ALLOC_TAG_SCRATCH, kni_rans_bound(rows, CHUNK), 64);
    s->scratch = kni_alloc(KNI_ALLOC_TAG_SCRATCH, kni_rans_scratch_bytes(rows, CHUNK), 64);
    if (!s->symbols || !s->coded || !s->scratch)
        return kni_err_set(err, KN_E_NOMEM, "no memory for symbols of %u rows", rows);
    return w->kind == KIND_TRANSFORM ? kni_spectral_open(&s->transform, b->profile, CHUNK, kni_cpu_flags(),
                                                         err) : KN_OK;
}

/* Every part's symbols of every chunk, and their streams, once. */
static enum kn_status make_matrices(struct bench *b, struct kn_err *err)
{
    const uint32_t n_parts = b->profile->n_parts;
    struct kni_kv_host clean = kni_eval_bed_clean(&b->bed);
    struct kni_spectral *transform_handle = NULL;
    if (b->matrices)
        return KN_OK;
    b->matrices = kni_calloc(KNI_ALLOC_TAG_SCRATCH, (size_t)b->n_chunks * n_parts * sizeof *b->matrices, 0);
    enum kn_status status = b->matrices ? kni_spectral_open(&transform_handle, b->profile, CHUNK, kni_cpu_flags(),
                                                            err) : KN_E_NOMEM;
    for (uint32_t i = 0; i < b->n_chunks * n_parts && status == KN_OK; i++) {
        struct matrix *m = &b->matrices[i];
        const uint32_t part = i % n_parts, rows = rows_of(b, part);
        uint8_t *coded = kni_alloc(KNI_ALLOC_TAG_SCRATCH, kni_rans_bound(rows, CHUNK), 64);
        void *scratch = kni_alloc(KNI_ALLOC_TAG_SCRATCH, kni_rans_scratch_bytes(rows, CHUNK), 64);
        m->symbols = kni_alloc(KNI_ALLOC_TAG_SCRATCH, (size_t)rows * CHUNK, 64);
        status = coded && scratch && m->symbols ? KN_OK : KN_E_NOMEM;
        if (status == KN_OK)
            status = kni_spectral_forward(transform_handle, &clean, i / n_parts * CHUNK, CHUNK, part, STAGE_PRESET, m->symbols, CHUNK, &m->escapes);
        if (status == KN_OK) {
            m->n_coded = kni_rans_encode(b->profile->rans, m->symbols, CHUNK, rows, CHUNK,
                                         b->profile->parts[part].classes[STAGE_PRESET], coded, scratch,
                                         kni_cpu_flags());
            m->coded = kni_alloc(KNI_ALLOC_TAG_SCRATCH, m->n_coded, 0);
            status = m->coded ? KN_OK : KN_E_NOMEM;
        }
        if (status == KN_OK)
            memcpy(m->coded, coded, m->n_coded);
        kni_free(coded);
        kni_free(scratch);
    }
    kni_spectral_close(&transform_handle);
    return status ? kni_err_set(err, status, "symbols of %u chunks: %s", b->n_chunks, kn_status_message(status)) : KN_OK;
}

/* What decoding starts from, and how much it is. */
static enum kn_status make_coded(struct bench *b, uint64_t *n_bytes, struct kn_err *err)
{
    struct kni_kv_host clean = kni_eval_bed_clean(&b->bed);
    enum kn_status status = KN_OK;
    if (b->work->kind == KIND_RANS || b->work->kind == KIND_TRANSFORM)
        return make_matrices(b, err);
    for (uint32_t chunk = 0; chunk < b->n_chunks && status == KN_OK; chunk++) {
        struct kni_buffer *out = &b->chunks[chunk];
        if (b->work->kind == KIND_CODEC) {
            struct kni_chunk_meta meta = meta_of(b, chunk);
            void *data = NULL;
            status = kni_chunk_encode(b->stations[0].encoder, &meta, &clean, &data, &out->used, err);
            out->data = data;
        } else if (b->work->kind == KIND_ZSTD) {
            struct kni_account account = {0};
            status = kni_raw_zstd_encode(&clean, (struct kni_span){.first_token = chunk * CHUNK, .n_tokens = CHUNK}, out, &account);
        }
        *n_bytes += out->used;
    }
    return status;
}

static bool wanted(const struct bench *b, const struct work *w)
{
    bool needs_profile = w->kind == KIND_RANS || w->kind == KIND_TRANSFORM || w->preset >= KN_PRESET_FINE;
    return kni_eval_is_named(b->opts.only, w->what) && (b->profile || !needs_profile);
}

static enum kn_status do_work(struct bench *b, struct kn_err *err)
{
    const struct work *w = b->work;
    const double token_bytes = (double)kni_kv_token_bytes(&b->bed.kv);
    struct kn_codec_bench_row row = {.what = w->what, .how = w->how, .bytes_per_token = token_bytes, .n_wall = b->n_wall};
    uint64_t n_bytes = 0;
    enum kn_status status = KN_OK;
    for (uint32_t i = 0; i < b->n_wall && status == KN_OK; i++)
        status = open_station(b, &b->stations[i], err);
    if (status == KN_E_UNSUPPORTED) {
        kni_log(KN_LOG_LEVEL_WARN, "bench", "%s over %s is left out: %s", w->what, w->how, err ? err->text : "not supported here");
        close_stations(b);
        return KN_OK;
    }
    if (status == KN_OK)
        status = make_coded(b, &n_bytes, err);
    if (status == KN_OK)
        status = measure(b, false, false, &row.encode_tok_s);
    if (status == KN_OK)
        status = measure(b, true, false, &row.decode_tok_s);
    if (status == KN_OK)
        status = measure(b, false, true, &row.encode_wall_tok_s);
    if (status == KN_OK)
        status = measure(b, true, true, &row.decode_wall_tok_s);
    if (status == KN_OK) {
        row.ratio = n_bytes ? token_bytes * CHUNK * b->n_chunks / (double)n_bytes : 0;
        row.working_bytes = w->kind == KIND_CODEC ? kni_codec_working_bytes(b->stations[0].decoder) : 0;
        for (uint32_t part = 0; w->kind == KIND_RANS && part < b->profile->n_parts; part++)
            row.bytes_per_token = (part ? row.bytes_per_token : 0) + rows_of(b, part);
        for (uint32_t part = 0; w->kind == KIND_TRANSFORM && part < b->profile->n_parts; part++)
            row.flop_per_token += 2.0 * b->profile->parts[part].rows[STAGE_PRESET] * b->profile->parts[part].width;
        b->opts.on_row(b->opts.user, &row);
    } else if (!err || !err->text[0]) {
        status = kni_err_set(err, status, "%s over %s: %s", w->what, w->how, kn_status_message(status));
    }
    close_stations(b);
    return status;
}

/* ---- the whole */

static enum kn_status check(struct kn_codec_bench_opts *o, const struct kn_model *model, const struct kn_codec_bench_opts *opts, struct kn_err *err)
{
    if (!model)
        return kni_err_set(err, KN_E_ARG, "kn_codec_bench needs a model");
    enum kn_status status = KNI_OPTS_READ(o, opts, kn_codec_bench_opts, err);
    if (status)
        return status;
    o->prefix = o->prefix ? o->prefix : DEFAULT_PREFIX;
    o->seconds = o->seconds > 0 ? o->seconds : DEFAULT_SECONDS;
    if (!o->on_row || !o->tokens)
        return kni_err_set(err, KN_E_ARG, "kn_codec_bench needs tokens and an on_row");
    if (o->prefix % CHUNK || o->n_tokens < o->prefix)
        return kni_err_set(err, KN_E_ARG, "a prefix of %u of %zu tokens: use a multiple of %u that the text has", o->prefix, o->n_tokens, CHUNK);
    status = kni_eval_check_tokens(model, o->tokens, o->prefix, err);
    return status ? status : kni_eval_check_names(o->only, "row", "exact,fine,medium,small,tiles,rans,transform,zstd,memcpy", err);
}

enum kn_status kn_codec_bench(struct kn_model *model, const struct kn_codec_bench_opts *opts, struct kn_err *err)
{
    struct bench b = {0};
    struct kn_err local = {0};
    err = err ? err : &local; /* sentences are logged as well */
    enum kn_status status = check(&b.opts, model, opts, err);
    if (!status)
        status = KNI_OPTS_READ_OR_DEFAULT(&b.hevc, b.opts.hevc, kn_hevc_opts, err);
    if (status)
        return status;
    struct kni_eval_bed_opts bo = {.model = model, .n_prefix = b.opts.prefix, .n_after = 1, .n_threads = b.opts.n_threads, .kv_type = b.opts.kv_type};
    status = kni_eval_bed_open(&b.bed, &bo, err);
    if (status == KN_OK)
        status = kni_eval_open_profile(&b.profile, b.opts.profile_path, &b.bed, err);
    if (status)
        goto done;
    b.n_chunks = b.opts.prefix / CHUNK;
    b.n_wall = kni_threads_count(b.bed.threads) < b.n_chunks ? kni_threads_count(b.bed.threads) : b.n_chunks;
    b.chunks = kni_calloc(KNI_ALLOC_TAG_SCRATCH, b.n_chunks * sizeof *b.chunks, 0);
    b.stations = kni_calloc(KNI_ALLOC_TAG_SCRATCH, b.n_wall * sizeof *b.stations, 0);
    status = b.chunks && b.stations ? kni_eval_bed_prefill(&b.bed, b.opts.tokens, b.opts.progress, b.opts.user, "prefix", err)
                                    : kni_err_set(err, KN_E_NOMEM, "no memory to measure %u chunks", b.n_chunks);
    for (size_t i = 0; i < N_WORKS && status == KN_OK; i++) {
        b.work = &works[i];
        if (!wanted(&b, b.work))
            continue;
        if (b.opts.progress)
            b.opts.progress(b.opts.user, b.work->what, (double)i / (double)N_WORKS);
        status = do_work(&b, err);
    }
done:
    for (size_t i = 0; b.matrices && i < (size_t)b.n_chunks * b.profile->n_parts; i++) {
        kni_free(b.matrices[i].symbols);
        kni_free(b.matrices[i].coded);
        kni_free(b.matrices[i].escapes.values);
    }
    kni_free(b.matrices);
    kni_free(b.chunks);
    kni_free(b.stations);
    kni_profile_close(&b.profile);
    kni_eval_bed_close(&b.bed);
    return status;
}

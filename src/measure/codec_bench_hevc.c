/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kn_codec_bench_hevc: encoders of lossless video on the pictures that the layouts draw of a real prefix (bench_film.h).
 *
 *     preset -> films of K and V -> encoder and tools -> encode, on one thread and on several -> decode, compare -> three rows
 *
 * A round codes every stream of a film once; the fastest round of those that fit into the time counts. One thread is timed by processor
 * time (and by the clock, to have what several threads' clock is held against). Streams are dealt out to threads one by one, each thread with
 * an encoder of its own; where the encoder is ours, the slices of each picture as well (bench_slices.h).
 *
 * A round's streams are kept: those of one thread are decoded by libavcodec and compared, sample by sample, with the pictures; those of several
 * threads need that only when their bytes differ. Owner thread: the caller's.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sized.h"
#include "codec/hevc/hevc_encode.h"
#include "measure/bench_slices.h"

#define DEFAULT_PREFIX 1024u
#define DEFAULT_SECONDS 0.3
#define DEFAULT_THREADS 2u
#define SLICES_A_THREAD 4u /* the upper ones are louder: with one a thread, half of the threads wait */
#define MAX_SLICES 64u
#define CHUNK KNI_EVAL_CHUNK

static const enum kn_preset presets[] = {KN_PRESET_FINE, KN_PRESET_MEDIUM, KN_PRESET_SMALL, KN_PRESET_TILES};
#define N_PRESETS (sizeof presets / sizeof *presets)

struct coder {
    const char *encoder, *tools;
    struct kn_hevc_opts opts;
    uint32_t flags; /* ours: enum kni_hevc_tool */
    bool ablation;
};

#define SIG KNI_HEVC_TOOL_SIG_CONTEXT
#define IMPLICIT KNI_HEVC_TOOL_IMPLICIT_RDPCM
#define EXPLICIT KNI_HEVC_TOOL_EXPLICIT_RDPCM
#define RICE KNI_HEVC_TOOL_RICE
#define OURS(name, tool_set) {.encoder = "ours", .tools = name, .opts = {.encoder = KN_HEVC_ENCODER_KINEMA, .tools = tool_set}}
#define ABLATION(name, bits) {.encoder = "ours", .tools = name, .flags = bits, .ablation = true}

static const struct coder coders[] = {
    OURS("full", KN_HEVC_TOOLS_FULL),
    OURS("basic", KN_HEVC_TOOLS_BASIC),
    {.encoder = "x265-ultrafast", .opts = {.encoder = KN_HEVC_ENCODER_X265_ULTRAFAST}},
    {.encoder = "x265-medium", .opts = {.encoder = KN_HEVC_ENCODER_X265_MEDIUM}},
    ABLATION("none", 0),
    ABLATION("sig-context", SIG),
    ABLATION("implicit-rdpcm", IMPLICIT),
    ABLATION("explicit-rdpcm", EXPLICIT),
    ABLATION("rice", RICE),
    ABLATION("all but sig-context", KNI_HEVC_TOOLS_ALL ^ SIG),
    ABLATION("all but implicit-rdpcm", KNI_HEVC_TOOLS_ALL ^ IMPLICIT),
    ABLATION("all but explicit-rdpcm", KNI_HEVC_TOOLS_ALL ^ EXPLICIT),
    ABLATION("all but rice", KNI_HEVC_TOOLS_ALL ^ RICE),
    ABLATION("all", KNI_HEVC_TOOLS_ALL),
};
#define N_CODERS (sizeof coders / sizeof *coders)

/* A thread's own. */
struct station {
    struct kni_hevc_encoder *encoder;
    enum kn_status status;
    struct kn_err err;
};

enum how { HOW_ONE, HOW_STREAMS, HOW_SLICES };

struct bench {
    struct kn_codec_bench_hevc_opts opts;
    struct kni_eval_bed bed;
    struct kni_profile *profile;
    struct kni_film films[2];  /* K and V of the current preset */
    const char *preset;
    uint32_t n_steps, step;
    bool is_missing[N_CODERS];
    /* of the current film and coder */
    const struct kni_film *film;
    const struct coder *coder;
    struct station *stations;  /* [n_threads] */
    uint32_t n_workers;
    struct kni_slices *slices; /* NULL: the stations' encoders code */
    struct kni_container_writer *coded; /* [n_coded] each stream's section, last coded; no header */
    uint64_t *digests;         /* [n_coded] of those of one thread */
    uint32_t n_coded;          /* room: the most streams of any film */
    atomic_uint next;          /* stream to code; workers take numbers, order does not matter */
};

/* What became of a film. */
struct result { uint64_t n_bytes, slices_bytes, encode_ns, encode_wall_ns, streams_ns, streams_core_ns, slices_ns, slices_core_ns, decode_ns; bool exact; };

/* ---- encoding */

static enum kn_status code_stream(struct bench *b, struct kni_hevc_encoder *e, uint32_t stream, struct kn_err *err)
{
    const struct kni_film *f = b->film;
    const size_t strides[3] = {f->width, f->width, f->width};
    const uint8_t *planes[3];
    b->coded[stream].used_bytes = 0;
    if (b->slices)
        return kni_slices_code(b->slices, stream, &b->coded[stream], err);
    enum kn_status status = kni_hevc_encode_begin(e, f->width, f->height, f->n_pictures, kni_film_row_scale(f, stream), err);
    for (uint32_t i = 0; status == KN_OK && i < f->n_pictures; i++) {
        kni_film_planes(f, stream, i, planes);
        status = kni_hevc_encode_picture(e, planes, strides, err);
    }
    return status ? status : kni_hevc_encode_end(e, &b->coded[stream], err);
}

static void pass(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct bench *b = arg;
    (void)n_workers;
    if (worker >= b->n_workers)
        return;
    struct station *s = &b->stations[worker];
    s->status = KN_OK;
    for (uint32_t i; s->status == KN_OK && (i = atomic_fetch_add_explicit(&b->next, 1, memory_order_relaxed)) < b->film->n_streams;)
        s->status = code_stream(b, s->encoder, i, &s->err);
}

/* The fastest round, by processor time and by the clock. */
static enum kn_status encode(struct bench *b, enum how how, uint64_t *processor_ns, uint64_t *wall_ns, struct kn_err *err)
{
    const uint64_t begin = kni_now_ns();
    b->n_workers = how == HOW_STREAMS ? b->opts.n_threads : 1;
    *processor_ns = *wall_ns = UINT64_MAX;
    do {
        atomic_store_explicit(&b->next, 0, memory_order_relaxed); /* kni_threads_run publishes it */
        uint64_t wall = kni_now_ns(), processor = kni_processor_ns();
        if (how == HOW_STREAMS)
            kni_threads_run(b->bed.threads, pass, b);
        else
            pass(b, 0, 1);
        processor = kni_processor_ns() - processor;
        wall = kni_now_ns() - wall;
        *processor_ns = processor < *processor_ns ? processor : *processor_ns;
        *wall_ns = wall < *wall_ns ? wall : *wall_ns;
        for (uint32_t i = 0; i < b->n_workers; i++)
            if (b->stations[i].status)
                return kni_err_set(err, b->stations[i].status, "%s", b->stations[i].err.text);
    } while ((double)(kni_now_ns() - begin) < b->opts.seconds * 1e9);
    return KN_OK;
}

/* ---- decoding */

/* All streams once: what was coded last against the pictures. Comparing takes a hundredth of the time. */
static enum kn_status decode_all(const struct bench *b, bool *same, struct kn_err *err)
{
    const struct kni_film *f = b->film;
    struct kni_hevc_decoder *decoder = NULL;
    enum kn_status status = KN_OK;
    uint32_t i = 0;
    for (; i < f->n_streams && status == KN_OK; i++)
        status = kni_film_compare(f, i, b->coded[i].data, b->coded[i].used_bytes, &decoder, err);
    kni_hevc_decoder_close(&decoder);
    *same = status == KN_OK;
    if (status != KN_E_FORMAT)
        return status;
    const char *tools = b->coder->tools;
    kni_log(KN_LOG_LEVEL_WARN, "bench", "%s of %s%s%s, stream %u of %s, does not come back: %s", b->preset, b->coder->encoder, tools ? ", tools " : "",
            tools ? tools : "", i - 1, f == b->films ? "K" : "V", err->text);
    *err = (struct kn_err){0};
    return KN_OK;
}

/* The fastest round; *ns is 0 when a stream does not come back. */
static enum kn_status decode(const struct bench *b, uint64_t *ns, bool *same, struct kn_err *err)
{
    const uint64_t begin = kni_now_ns();
    uint64_t best = UINT64_MAX;
    enum kn_status status;
    do {
        uint64_t t = kni_processor_ns();
        status = decode_all(b, same, err);
        t = kni_processor_ns() - t;
        best = t < best ? t : best;
    } while (status == KN_OK && *same && (double)(kni_now_ns() - begin) < b->opts.seconds * 1e9);
    *ns = status == KN_OK && *same ? best : 0;
    return status;
}

/* Whether the streams are those of one thread, whose digests are kept when first. */
static bool is_known(struct bench *b, bool first)
{
    bool same = true;
    for (uint32_t i = 0; i < b->film->n_streams; i++) {
        uint64_t digest = kni_xxh3(b->coded[i].data, b->coded[i].used_bytes);
        same = same && b->digests[i] == digest;
        b->digests[i] = first ? digest : b->digests[i];
    }
    return same;
}

/* Several threads' streams need decoding only when they are other bytes. */
static enum kn_status check_again(struct bench *b, struct result *r, struct kn_err *err)
{
    bool same = true;
    enum kn_status status = is_known(b, false) ? KN_OK : decode_all(b, &same, err);
    r->exact = r->exact && same;
    return status;
}

/* ---- one encoder on one film */

static void close_stations(struct bench *b)
{
    for (uint32_t i = 0; i < b->opts.n_threads; i++)
        kni_hevc_encoder_close(&b->stations[i].encoder);
    kni_slices_close(&b->slices);
}

static uint64_t coded_bytes(const struct bench *b)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->film->n_streams; i++)
        sum += b->coded[i].used_bytes;
    return sum;
}

static enum kn_status measure(struct bench *b, struct result *r, struct kn_err *err)
{
    const bool ours = b->coder->opts.encoder == KN_HEVC_ENCODER_KINEMA, several = b->opts.n_threads > 1 && !b->coder->ablation;
    enum kn_status status = KN_OK;
    if (b->coder->ablation)
        status = kni_slices_open(&b->slices, b->film, b->coder->flags, 0, NULL, err);
    for (uint32_t i = 0; i < b->opts.n_threads && !b->coder->ablation && status == KN_OK; i++)
        status = kni_hevc_encoder_open(&b->stations[i].encoder, &b->coder->opts, b->film->content, 0, err);
    if (status == KN_OK)
        status = encode(b, HOW_ONE, &r->encode_ns, &r->encode_wall_ns, err);
    if (status)
        goto done;
    r->n_bytes = coded_bytes(b);
    is_known(b, true);
    status = decode(b, &r->decode_ns, &r->exact, err);
    if (several && status == KN_OK)
        status = encode(b, HOW_STREAMS, &r->streams_core_ns, &r->streams_ns, err);
    if (several && status == KN_OK)
        status = check_again(b, r, err);
    if (!several || !ours || status)
        goto done;
    status = kni_slices_open(&b->slices, b->film, kni_hevc_encoder_tools(&b->coder->opts), b->opts.n_slices, b->bed.threads, err);
    if (status == KN_OK)
        status = encode(b, HOW_SLICES, &r->slices_core_ns, &r->slices_ns, err);
    r->slices_bytes = coded_bytes(b);
    if (status == KN_OK)
        status = check_again(b, r, err);
done:
    close_stations(b);
    return status;
}

static double mb_s(uint64_t n_symbols, uint64_t ns)
{
    return ns ? (double)n_symbols * 1e3 / (double)ns : 0;
}

/* film: of the part, or of both together as far as it is about sums. */
static void emit(const struct bench *b, const char *part, const struct kni_film *film, const struct result *r)
{
    const uint64_t n_symbols = film->n_symbols;
    const struct kn_codec_bench_hevc_row row = {.preset = b->preset,
                                                .part = part,
                                                .encoder = b->coder->encoder,
                                                .tools = b->coder->tools,
                                                .n_symbols = n_symbols,
                                                .n_bytes = r->n_bytes,
                                                .order_bytes = film->order_bytes,
                                                .entropy_bytes = film->entropy_bytes,
                                                .encode_mb_s = mb_s(n_symbols, r->encode_ns),
                                                .decode_mb_s = mb_s(n_symbols, r->decode_ns),
                                                .encode_wall_mb_s = mb_s(n_symbols, r->encode_wall_ns),
                                                .streams_mb_s = mb_s(n_symbols, r->streams_ns),
                                                .slices_mb_s = mb_s(n_symbols, r->slices_ns),
                                                .streams_core_mb_s = mb_s(n_symbols, r->streams_core_ns),
                                                .slices_core_mb_s = mb_s(n_symbols, r->slices_core_ns),
                                                .slices_bytes = r->slices_bytes,
                                                .n_threads = b->opts.n_threads,
                                                .exact = r->exact};
    b->opts.on_row(b->opts.user, &row);
}

/* K, V, and both. An encoder that is not there is left out. */
static enum kn_status do_coder(struct bench *b, size_t coder, struct kn_err *err)
{
    struct result r[2] = {{0}, {0}}, sum;
    enum kn_status status = KN_OK;
    b->coder = &coders[coder];
    for (uint32_t is_v = 0; is_v < 2 && status == KN_OK && !b->is_missing[coder]; is_v++) {
        char phase[96];
        const char *tools = b->coder->tools;
        snprintf(phase, sizeof phase, "%s, %s, %s%s%s", b->preset, is_v ? "V" : "K", b->coder->encoder, tools ? ", tools " : "", tools ? tools : "");
        if (b->opts.progress)
            b->opts.progress(b->opts.user, phase, (double)b->step / b->n_steps);
        b->step++;
        b->film = &b->films[is_v];
        status = measure(b, &r[is_v], err);
    }
    if (status == KN_E_UNSUPPORTED) {
        kni_log(KN_LOG_LEVEL_WARN, "bench", "%s is left out: %s", b->coder->encoder, err->text);
        b->is_missing[coder] = true;
        return KN_OK;
    }
    if (status || b->is_missing[coder])
        return status;
    sum = (struct result){.n_bytes = r[0].n_bytes + r[1].n_bytes,
                          .slices_bytes = r[0].slices_bytes + r[1].slices_bytes,
                          .encode_ns = r[0].encode_ns + r[1].encode_ns,
                          .encode_wall_ns = r[0].encode_wall_ns + r[1].encode_wall_ns,
                          .streams_ns = r[0].streams_ns + r[1].streams_ns,
                          .streams_core_ns = r[0].streams_core_ns + r[1].streams_core_ns,
                          .slices_ns = r[0].slices_ns + r[1].slices_ns,
                          .slices_core_ns = r[0].slices_core_ns + r[1].slices_core_ns,
                          .exact = r[0].exact && r[1].exact};
    sum.decode_ns = sum.exact ? r[0].decode_ns + r[1].decode_ns : 0;
    const struct kni_film *k = &b->films[0], *v = &b->films[1];
    const struct kni_film both = {.n_symbols = k->n_symbols + v->n_symbols,
                                  .order_bytes = k->order_bytes + v->order_bytes,
                                  .entropy_bytes = k->entropy_bytes + v->entropy_bytes};
    emit(b, "K", k, &r[0]);
    emit(b, "V", v, &r[1]);
    emit(b, "K+V", &both, &sum);
    return KN_OK;
}

/* ---- the whole */

static bool is_chosen(const struct bench *b, const struct coder *c)
{
    if (!kni_eval_is_named(b->opts.encoders, c->encoder))
        return false;
    return c->ablation ? b->opts.ablation : !c->tools || kni_eval_is_named(b->opts.tools, c->tools);
}

static void free_coded(struct bench *b)
{
    for (uint32_t i = 0; b->coded && i < b->n_coded; i++)
        kni_container_writer_fini(&b->coded[i]);
    kni_free(b->coded);
    kni_free(b->digests);
    b->coded = NULL;
    b->digests = NULL;
    b->n_coded = 0;
}

static enum kn_status do_preset(struct bench *b, enum kn_preset preset, struct kn_err *err)
{
    enum kn_status status = KN_OK;
    uint32_t most = 0;
    b->preset = kni_preset_name(preset);
    for (uint32_t is_v = 0; is_v < 2 && status == KN_OK; is_v++) {
        status = kni_film_make(&b->films[is_v], &b->bed, b->profile, preset, is_v, b->opts.text_order, err);
        most = b->films[is_v].n_streams > most ? b->films[is_v].n_streams : most;
    }
    if (status == KN_OK) {
        b->coded = kni_calloc(KNI_ALLOC_TAG_SCRATCH, most * sizeof *b->coded, 0);
        b->digests = kni_calloc(KNI_ALLOC_TAG_SCRATCH, most * sizeof *b->digests, 0);
        b->n_coded = b->coded ? most : 0;
        status = b->coded && b->digests ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for %u streams", most);
    }
    for (size_t i = 0; i < N_CODERS && status == KN_OK; i++)
        if (is_chosen(b, &coders[i]))
            status = do_coder(b, i, err);
    free_coded(b);
    kni_film_free(&b->films[0]);
    kni_film_free(&b->films[1]);
    return status;
}

static enum kn_status check(struct kn_codec_bench_hevc_opts *o, const struct kn_model *model, const struct kn_codec_bench_hevc_opts *opts, struct kn_err *err)
{
    if (!model)
        return kni_err_set(err, KN_E_ARG, "kn_codec_bench_hevc needs a model");
    enum kn_status status = KNI_OPTS_READ(o, opts, kn_codec_bench_hevc_opts, err);
    if (status)
        return status;
    o->prefix = o->prefix ? o->prefix : DEFAULT_PREFIX;
    o->seconds = o->seconds > 0 ? o->seconds : DEFAULT_SECONDS;
    o->n_threads = o->n_threads ? o->n_threads : DEFAULT_THREADS;
    o->n_slices = o->n_slices ? o->n_slices : o->n_threads < MAX_SLICES / SLICES_A_THREAD ? o->n_threads * SLICES_A_THREAD : MAX_SLICES;
    if (o->n_slices > MAX_SLICES)
        return kni_err_set(err, KN_E_ARG, "%u slices a picture: use 1 to %u, or 0 for %u a thread", o->n_slices, MAX_SLICES, SLICES_A_THREAD);
    if (!o->on_row || !o->tokens)
        return kni_err_set(err, KN_E_ARG, "kn_codec_bench_hevc needs tokens and an on_row");
    if (o->prefix % CHUNK || o->n_tokens < o->prefix)
        return kni_err_set(err, KN_E_ARG, "a prefix of %u of %zu tokens: use a multiple of %u that the text has", o->prefix, o->n_tokens, CHUNK);
    status = kni_eval_check_tokens(model, o->tokens, o->prefix, err);
    if (status == KN_OK)
        status = kni_eval_check_names(o->encoders, "encoder", "ours,x265-ultrafast,x265-medium", err);
    if (status == KN_OK)
        status = kni_eval_check_names(o->tools, "set of tools", "full,basic", err);
    return status ? status : kni_eval_check_names(o->only, "preset over video", "fine,medium,small,tiles", err);
}

enum kn_status kn_codec_bench_hevc(struct kn_model *model, const struct kn_codec_bench_hevc_opts *opts, struct kn_err *err)
{
    struct bench b = {0};
    struct kn_err local = {0};
    err = err ? err : &local; /* sentences are logged as well */
    enum kn_status status = check(&b.opts, model, opts, err);
    if (status)
        return status;
    struct kni_eval_bed_opts bo = {.model = model, .n_prefix = b.opts.prefix, .n_after = 1, .n_threads = b.opts.n_threads, .kv_type = b.opts.kv_type};
    status = kni_eval_bed_open(&b.bed, &bo, err);
    if (status == KN_OK)
        status = kni_eval_open_profile(&b.profile, b.opts.profile_path, &b.bed, err);
    if (status)
        goto done;
    b.stations = kni_calloc(KNI_ALLOC_TAG_SCRATCH, b.opts.n_threads * sizeof *b.stations, 0);
    status = b.stations ? kni_eval_bed_prefill(&b.bed, b.opts.tokens, b.opts.progress, b.opts.user, "prefix", err)
                        : kni_err_set(err, KN_E_NOMEM, "no memory for %u threads", b.opts.n_threads);
    bool wanted[N_PRESETS];
    for (size_t i = 0; i < N_PRESETS; i++)
        wanted[i] = kni_eval_is_named(b.opts.only, kni_preset_name(presets[i])) && (b.profile || !kni_preset_needs_profile(presets[i]));
    for (size_t i = 0; i < N_PRESETS * N_CODERS; i++)
        b.n_steps += wanted[i / N_CODERS] && is_chosen(&b, &coders[i % N_CODERS]) ? 2 : 0;
    for (size_t i = 0; i < N_PRESETS && status == KN_OK; i++)
        if (wanted[i])
            status = do_preset(&b, presets[i], err);
done:
    kni_free(b.stations);
    kni_profile_close(&b.profile);
    kni_eval_bed_close(&b.bed);
    return status;
}

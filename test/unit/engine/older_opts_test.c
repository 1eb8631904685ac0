/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs of other versions: every public function that takes options is called with structs that end early and have
 * garbage behind them, and with longer ones. An early end must do what zeros there do, to the last word of the error;
 * zeros behind the end change nothing; anything else there is refused.
 *
 * Every version of a struct ends at a multiple of 8 bytes, since each begins with a size_t; all of these ends are
 * tried.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/engine_bed.h"
#include "support/tiny_profile.h"
#include "unit/store/store_support.h"

#define MAX_BYTES 512u
#define LONGER 64u

static struct kn_model *model;
static struct kn_engine *engine;
static char model_path[256], profile_path[256];
static struct folder folder;
static const int32_t tokens[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
static const char *const texts[] = {"too little text"};
static const size_t text_bytes[] = {15};
static const int32_t *const token_texts[] = {tokens};
static const size_t n_text_tokens[] = {16};

#define N_TOKENS (sizeof tokens / sizeof *tokens)

static enum kn_status open_model(const void *opts, struct kn_err *err)
{
    struct kn_model *m = NULL;
    enum kn_status status = kn_model_open(&m, opts, err);
    kn_model_close(&m);
    return status;
}

static enum kn_status tokenize(const void *opts, struct kn_err *err)
{
    (void)err;
    int32_t ids[64];
    size_t n = sizeof ids / sizeof *ids;
    return kn_model_tokenize_with(model, "<|im_end|> and so on", 20, opts, ids, &n);
}

static enum kn_status open_engine(const void *opts, struct kn_err *err)
{
    struct kn_engine *e = NULL;
    enum kn_status status = kn_engine_open(&e, model, opts, err);
    kn_engine_close(&e);
    return status;
}

static enum kn_status open_engine_with_tiles(const void *opts, struct kn_err *err)
{
    return open_engine(KN_OPTS(kn_engine_opts, .n_ctx = 64, .n_threads = 1, .store_url = folder.url,
                               .preset = KN_PRESET_TILES, .chunk_tokens = 32, .tiles = opts), err);
}

static enum kn_status open_engine_with_hevc(const void *opts, struct kn_err *err)
{
    return open_engine(KN_OPTS(kn_engine_opts, .n_ctx = 64, .n_threads = 1, .hevc = opts), err);
}

static enum kn_status submit(const void *opts, struct kn_err *err)
{
    struct kn_request *r = NULL;
    enum kn_status status = kn_request_submit(&r, engine, opts, err);
    kn_request_close(&r);
    return status;
}

static enum kn_status submit_sampled(const void *opts, struct kn_err *err)
{
    return submit(KN_OPTS(kn_request_opts, .tokens = tokens, .n_tokens = N_TOKENS, .sampler = opts), err);
}

static enum kn_status score(const void *opts, struct kn_err *err)
{
    uint64_t n;
    return kn_engine_score(engine, opts, &n, err);
}

static enum kn_status open_server(const void *opts, struct kn_err *err)
{
    struct kn_server *s = NULL;
    enum kn_status status = kn_server_open(&s, model, opts, err);
    kn_server_close(&s);
    return status;
}

static enum kn_status open_store(const void *opts, struct kn_err *err)
{
    struct kn_store *s = NULL;
    enum kn_status status = kn_store_open(&s, opts, err);
    kn_store_close(&s);
    return status;
}

static enum kn_status open_video_encoder(const void *opts, struct kn_err *err)
{
    struct kn_video_encoder *e = NULL;
    enum kn_status status = kn_video_encoder_open(&e, opts, err);
    kn_video_encoder_close(&e);
    return status;
}

static enum kn_status open_video_encoder_with_hevc(const void *opts, struct kn_err *err)
{
    return open_video_encoder(KN_OPTS(kn_video_encode_opts, .width = 64, .height = 32, .hevc = opts), err);
}

static enum kn_status open_video_decoder(const void *opts, struct kn_err *err)
{
    struct kn_video_decoder *d = NULL;
    enum kn_status status = kn_video_decoder_open(&d, opts, err);
    kn_video_decoder_close(&d);
    return status;
}

static enum kn_status inspect(const void *opts, struct kn_err *err)
{
    return kn_hevc_inspect("\0\0\0\1", 4, opts, err); /* a stream of nothing: read, and refused */
}

static enum kn_status build_profile(const void *opts, struct kn_err *err)
{
    return kn_profile_build(model, profile_path, opts, err);
}

static enum kn_status calibrate(const void *opts, struct kn_err *err)
{
    struct kn_eval_calibration *c = NULL;
    enum kn_status status = kn_eval_calibration_open(&c, model, opts, err);
    kn_eval_calibration_close(&c);
    return status;
}

static enum kn_status eval(const void *opts, struct kn_err *err)
{
    return kn_codec_eval(model, opts, err);
}

static enum kn_status needle(const void *opts, struct kn_err *err)
{
    return kn_codec_needle(model, opts, err);
}

static enum kn_status search(const void *opts, struct kn_err *err)
{
    return kn_codec_search(model, opts, err);
}

static enum kn_status bench(const void *opts, struct kn_err *err)
{
    return kn_codec_bench(model, opts, err);
}

static enum kn_status bench_hevc(const void *opts, struct kn_err *err)
{
    return kn_codec_bench_hevc(model, opts, err);
}

static enum kn_status on_score(void *user, uint64_t position, const float *logits)
{
    (void)user, (void)position, (void)logits;
    return KN_OK;
}

static enum kn_status on_picture(void *user, const struct kn_video_picture *picture)
{
    (void)user, (void)picture;
    return KN_OK;
}

static void on_eval(void *user, const struct kn_eval_row *row)
{
    (void)user, (void)row;
}

static void on_needle(void *user, const struct kn_needle_row *row)
{
    (void)user, (void)row;
}

static void on_search(void *user, const struct kn_search_row *row)
{
    (void)user, (void)row;
}

static void on_bench(void *user, const struct kn_codec_bench_row *row)
{
    (void)user, (void)row;
}

static void on_bench_hevc(void *user, const struct kn_codec_bench_hevc_row *row)
{
    (void)user, (void)row;
}

typedef enum kn_status (*call_fn)(const void *opts, struct kn_err *err);

/* With the first n_set of opts' bytes, and `behind` up to n bytes. The size says n_set where that is garbage, n where
 * it is zeros. */
static enum kn_status call(call_fn fn, const void *opts, size_t n_set, size_t n, int behind, struct kn_err *err)
{
    const size_t size = behind ? n_set : n;
    uint8_t *copy = malloc(n);
    assert_non_null(copy);
    memset(copy, behind, n);
    memcpy(copy, opts, n_set);
    memcpy(copy, &size, sizeof size);
    enum kn_status status = fn(copy, err);
    free(copy);
    return status;
}

/* opts: whole and valid, or refused for a reason that its last members do not change. n: its bytes. */
static void check(const char *name, call_fn fn, const void *opts, size_t n)
{
    assert_true(n % sizeof(size_t) == 0 && n <= MAX_BYTES);
    for (size_t size = sizeof size; size <= n; size += sizeof size) {
        struct kn_err older = {0}, zeros = {0};
        enum kn_status s = call(fn, opts, size, n, 0xff, &older), want = call(fn, opts, size, n, 0, &zeros);
        if (s != want || strcmp(older.text, zeros.text))
            fail_msg("%s of %zu bytes, not %zu: %s \"%s\"; with zeros: %s \"%s\"", name, size, n, kn_status_name(s),
                     older.text, kn_status_name(want), zeros.text);
    }
    struct kn_err whole = {0}, newer = {0};
    enum kn_status want = call(fn, opts, n, n, 0, &whole), s = call(fn, opts, n, n + LONGER, 0, &newer);
    if (s != want || strcmp(newer.text, whole.text))
        fail_msg("%s and %u zeros: %s \"%s\", not %s \"%s\"", name, LONGER, kn_status_name(s), newer.text,
                 kn_status_name(want), whole.text);
    const bool has_text = fn != tokenize; /* the only one that gives no sentence */
    uint8_t longer[MAX_BYTES + LONGER] = {0};
    memcpy(longer, opts, n);
    for (size_t at = n; at < n + LONGER; at += LONGER - 1) {
        longer[at] = 1;
        s = call(fn, longer, n + LONGER, n + LONGER, 0, &newer);
        longer[at] = 0;
        if (s != KN_E_ARG || (has_text && (!strstr(newer.text, name) || !strstr(newer.text, "newer"))))
            fail_msg("%s with an unknown member at %zu: %s \"%s\"", name, at, kn_status_name(s), newer.text);
    }
    static const size_t bad[] = {0, 7, (size_t)1 << 40};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(longer, &bad[i], sizeof bad[i]);
        s = fn(longer, &newer);
        if (s != KN_E_ARG || (has_text && (!strstr(newer.text, name) || !strstr(newer.text, "size"))))
            fail_msg("%s of size %zu: %s \"%s\"", name, bad[i], kn_status_name(s), newer.text);
    }
}

/* Options that must be given. */
#define CHECK(type, fn, ...) \
    do { \
        check(#type, fn, KN_OPTS(type, __VA_ARGS__), sizeof(struct type)); \
        assert_int_equal(fn(NULL, NULL), KN_E_ARG); \
    } while (0)

/* Options inside others, which may be left out. */
#define CHECK_INNER(type, fn, ...) \
    do { \
        check(#type, fn, KN_OPTS(type, __VA_ARGS__), sizeof(struct type)); \
        assert_int_equal(fn(NULL, NULL), KN_OK); \
    } while (0)

static void handles(void **state)
{
    (void)state;
    CHECK(kn_model_opts, open_model, .path = model_path, .chat_template = "llama3");
    CHECK(kn_tokenize_opts, tokenize, .flags = KN_TOKENIZE_SPECIAL, .plain = &(struct kn_text_range){0, 3},
          .n_plain = 1, .max_ids = 40);
    CHECK(kn_store_opts, open_store, .url = folder.url, .max_bytes = 1 << 20, .ttl_s = 9, .may_read_only = true);
    CHECK(kn_engine_opts, open_engine, .n_ctx = 64, .n_threads = 1, .prefill_chunk = 32, .kv_type = KN_KV_TYPE_BF16,
          .store_url = folder.url, .store_max_bytes = 1 << 20, .store_ttl_s = 9, .preset = KN_PRESET_TILES,
          .chunk_tokens = 32, .fetch_deadline_ms = 1000, .max_running = 2, .fetch_pool_percent = 60,
          .store_optional = true, .kv_quality = KN_KV_QUALITY_TILES);
    CHECK(kn_server_opts, open_server, .engine = KN_OPTS(kn_engine_opts, .n_threads = 1, .n_ctx = 64),
          .host = "127.0.0.1", .model_name = "tiny", .keys = &(struct kn_server_key){.key = "secret"}, .n_keys = 1,
          .max_queue = 3, .max_choices = 2, .max_parse_bytes = 1 << 24);
}

static void requests(void **state)
{
    (void)state;
    CHECK(kn_request_opts, submit, .tokens = tokens, .n_tokens = N_TOKENS, .max_tokens = 3, .salt = "somebody",
          .wait_ms = 1000, .deadline_ms = 1000, .kv_quality = KN_KV_QUALITY_EXACT, .want_logprobs = true,
          .score_prompt = true, .n_top_logprobs = 2, .score_first = 4);
    CHECK(kn_score_opts, score, .tokens = tokens, .n_tokens = N_TOKENS, .first = 10, .step_tokens = 2,
          .on_row = on_score, .salt = "somebody", .kv_quality = KN_KV_QUALITY_EXACT);
}

/* The last member of each is one that is refused, so that what is read of it shows. */
static void inner(void **state)
{
    (void)state;
    CHECK_INNER(kn_tiles_opts, open_engine_with_tiles, .levels = 32, .tokens_per_picture = 16, .tile_height = 3);
    CHECK_INNER(kn_hevc_opts, open_engine_with_hevc, .tools = KN_HEVC_TOOLS_BASIC, .n_slices = 65);
    CHECK_INNER(kn_hevc_opts, open_video_encoder_with_hevc, .tools = KN_HEVC_TOOLS_BASIC, .n_slices = 65);
    CHECK_INNER(kn_sampler_opts, submit_sampled, .temperature = 1, .top_p = 0.5f, .repeat_last = 1 << 20);
    /* of measuring functions, which read them before any work */
    static int32_t many[320];
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        many[i] = tokens[i % N_TOKENS];
    const struct kn_hevc_opts bad = {.size = 1};
    struct kn_err errs[4] = {0};
    assert_int_equal(eval(KN_OPTS(kn_eval_opts, .tokens = many, .n_tokens = 320, .prefix = 256, .continue_ = 16,
                                  .on_row = on_eval, .hevc = &bad), &errs[0]), KN_E_ARG);
    assert_int_equal(needle(KN_OPTS(kn_needle_opts, .text = texts[0], .text_bytes = text_bytes[0],
                                    .on_row = on_needle, .hevc = &bad), &errs[1]), KN_E_ARG);
    assert_int_equal(search(KN_OPTS(kn_search_opts, .tokens = many, .n_tokens = 320, .on_row = on_search,
                                    .hevc = &bad), &errs[2]), KN_E_ARG);
    assert_int_equal(bench(KN_OPTS(kn_codec_bench_opts, .tokens = many, .n_tokens = 320, .prefix = 256,
                                   .on_row = on_bench, .hevc = &bad), &errs[3]), KN_E_ARG);
    for (unsigned i = 0; i < 4; i++)
        assert_non_null(strstr(errs[i].text, "kn_hevc_opts"));
}

static void video(void **state)
{
    (void)state;
    CHECK(kn_video_encode_opts, open_video_encoder, .width = 64, .height = 32, .content = KN_VIDEO_CONTENT_TILES,
          .hash = KN_VIDEO_HASH_CRC, .sealed = true);
    CHECK(kn_video_decode_opts, open_video_decoder, .on_picture = on_picture, .section_plus_1 = 1);
    CHECK(kn_hevc_inspect_opts, inspect, .band_rows = 3); /* not a multiple of 4 */
}

/* Refused, by what is the last to be checked, before any long work. */
static void measuring(void **state)
{
    (void)state;
    CHECK(kn_profile_opts, build_profile, .texts = texts, .text_bytes = text_bytes, .n_texts = 1, .n_threads = 1,
          .text_names = texts);
    CHECK(kn_eval_calibration_opts, calibrate, .texts = token_texts, .n_tokens = n_text_tokens, .n_texts = 1,
          .n_threads = 1);
    CHECK(kn_eval_opts, eval, .tokens = tokens, .n_tokens = N_TOKENS, .prefix = 256, .only = "nothing",
          .on_row = on_eval);
    CHECK(kn_needle_opts, needle, .text = texts[0], .text_bytes = text_bytes[0], .n_facts = 2, .n_tokens = 256,
          .n_threads = 1, .only = "untouched", .on_row = on_needle);
    CHECK(kn_search_opts, search, .tokens = tokens, .n_tokens = N_TOKENS, .levels = 32, .on_row = on_search);
    CHECK(kn_codec_bench_opts, bench, .tokens = tokens, .n_tokens = N_TOKENS, .prefix = 256, .only = "nothing",
          .on_row = on_bench);
    CHECK(kn_codec_bench_hevc_opts, bench_hevc, .tokens = tokens, .n_tokens = N_TOKENS, .prefix = 256, .n_slices = 65,
          .on_row = on_bench_hevc);
}

/* What the library fills in: of a whole struct's bytes, as many as the size says, the rest of garbage. */
typedef enum kn_status (*fill_fn)(void *out);

static struct kn_request *request;
static struct kn_store *store;
static struct kn_video_encoder *encoder;
static struct kn_video_decoder *decoder;
static char learned_path[256];

static enum kn_status fill_engine(void *out)
{
    return kn_engine_get_stats(engine, out);
}

static enum kn_status fill_request(void *out)
{
    return kn_request_get_stats(request, out);
}

static enum kn_status fill_event(void *out)
{
    return kn_request_next(request, out);
}

static enum kn_status fill_store(void *out)
{
    return kn_store_stat(store, out);
}

static enum kn_status fill_tensor(void *out)
{
    return kn_model_get_tensor(model, 1, out);
}

static enum kn_status fill_profile(void *out)
{
    return kn_profile_read_info(learned_path, out, NULL);
}

static enum kn_status fill_encoder(void *out)
{
    return kn_video_encoder_get_stats(encoder, out);
}

static enum kn_status fill_decoder(void *out)
{
    return kn_video_decoder_get_stats(decoder, out);
}

/* status: what fill answers. */
static void check_filled(const char *name, fill_fn fill, size_t n, enum kn_status status)
{
    uint8_t whole[MAX_BYTES + LONGER] = {0}, out[MAX_BYTES + LONGER];
    assert_true(n % sizeof(size_t) == 0 && n <= MAX_BYTES);
    memcpy(whole, &n, sizeof n);
    if (fill(whole) != status)
        fail_msg("%s cannot be filled", name);
    for (size_t size = sizeof size; size <= n + LONGER; size += sizeof size) {
        memset(out, 0xa5, sizeof out);
        memcpy(out, &size, sizeof size);
        if (fill(out) != status || memcmp(out, &size, sizeof size))
            fail_msg("%s of %zu bytes is refused, or has lost its size", name, size);
        for (size_t i = sizeof size; i < sizeof out; i++)
            if (out[i] != (i < size && i < n ? whole[i] : 0xa5))
                fail_msg("%s of %zu bytes: byte %zu is %02x", name, size, i, out[i]);
    }
    for (size_t size = 0; size < sizeof size; size++) {
        memset(out, 0xa5, sizeof out);
        memcpy(out, &size, sizeof size);
        if (fill(out) != KN_E_ARG)
            fail_msg("%s of size %zu is taken", name, size);
        for (size_t i = sizeof size; i < sizeof out; i++)
            assert_int_equal(out[i], 0xa5);
    }
    assert_int_equal(fill(NULL), KN_E_ARG);
}

#define CHECK_FILLED(type, fill, status) check_filled(#type, fill, sizeof(struct type), status)

static void filled(void **state)
{
    (void)state;
    struct kni_profile *profile = kn_tiny_profile_make(&(struct kn_tiny_profile_opts){0});
    void *data;
    size_t n_bytes;
    kn_bed_path(learned_path, "older_opts_learned.knp");
    assert_int_equal(kni_profile_write(profile, &data, &n_bytes, NULL), KN_OK);
    assert_int_equal(kn_file_write(learned_path, data, n_bytes), 0);
    kni_free(data);
    kni_profile_close(&profile);
    assert_int_equal(kn_request_submit(&request, engine, KN_OPTS(kn_request_opts, .tokens = tokens, .n_tokens = 9,
                                                                 .max_tokens = 1), NULL), KN_OK);
    assert_int_equal(kn_store_open(&store, KN_OPTS(kn_store_opts, .url = folder.url), NULL), KN_OK);
    assert_int_equal(kn_video_encoder_open(&encoder, KN_OPTS(kn_video_encode_opts, .width = 64, .height = 32), NULL),
                     KN_OK);
    assert_int_equal(kn_video_decoder_open(&decoder, KN_OPTS(kn_video_decode_opts, .on_picture = on_picture), NULL),
                     KN_OK);
    CHECK_FILLED(kn_event, fill_event, KN_AGAIN);
    while (kn_engine_step(engine) == KN_OK)
        ;
    CHECK_FILLED(kn_engine_stats, fill_engine, KN_OK);
    CHECK_FILLED(kn_request_stats, fill_request, KN_OK);
    CHECK_FILLED(kn_store_stat, fill_store, KN_OK);
    CHECK_FILLED(kn_tensor_info, fill_tensor, KN_OK);
    CHECK_FILLED(kn_profile_info, fill_profile, KN_OK);
    CHECK_FILLED(kn_video_encode_stats, fill_encoder, KN_OK);
    CHECK_FILLED(kn_video_decode_stats, fill_decoder, KN_OK);
    /* an event without a size takes none */
    struct kn_event ev = {0};
    assert_int_equal(kn_request_next(request, &ev), KN_E_ARG);
    ev.size = sizeof ev;
    assert_int_equal(kn_request_next(request, &ev), KN_OK);
    assert_int_equal(ev.kind, KN_EVENT_KIND_TOKEN);
    assert_int_equal(kn_request_next(request, &ev), KN_OK);
    assert_int_equal(ev.kind, KN_EVENT_KIND_DONE);
    assert_int_equal(kn_request_next(request, &ev), KN_END);
    kn_video_decoder_close(&decoder);
    kn_video_encoder_close(&encoder);
    kn_store_close(&store);
    kn_request_close(&request);
    unlink(learned_path);
}

static int set_up(void **state)
{
    (void)state;
    kn_bed_path(model_path, "older_opts.gguf");
    kn_bed_path(profile_path, "older_opts.knp");
    folder_make(&folder);
    if (kn_tiny_model_write(model_path, NULL) || kn_model_open(&model, KN_OPTS(kn_model_opts, .path = model_path),
                                                               NULL))
        return -1;
    return kn_engine_open(&engine, model, KN_OPTS(kn_engine_opts, .n_threads = 1), NULL) != KN_OK;
}

static int tear_down(void **state)
{
    (void)state;
    kn_engine_close(&engine);
    kn_model_close(&model);
    unlink(model_path);
    unlink(profile_path);
    folder_remove(&folder);
    return 0;
}

int main(int n, char **args)
{
    (void)n, (void)args;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handles),
        cmocka_unit_test(requests),
        cmocka_unit_test(inner),
        cmocka_unit_test(video),
        cmocka_unit_test(measuring),
        cmocka_unit_test(filled),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

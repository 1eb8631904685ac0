/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine where libavcodec cannot be loaded: presets that are no video are published and fetched as ever; chunks that
 * are video are published, and a fetch of them is a miss that says why and leaves them in the store, where an engine
 * with libavcodec finds them. Video is coded, and neither decoded nor verified.
 */
#include "unit/store/store_support.h"

#include <kinema/video.h>

#include <pthread.h>

#include "codec/hevc/hevc_avcodec.h"
#include "support/engine_bed.h"
#include "support/hide_library.h"
#include "support/tiny_profile.h"

enum { N_PROMPT = 100, N_NEW = 6, CHUNK = 32, N_CHUNKS = 3, SIDE = 64 };

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define AVCODEC "libavcodec.so." TEXT(LIBAVCODEC_VERSION_MAJOR)

static char model_path[256], profile_path[256];
static struct kn_model *model;
static struct kn_answer computed;
static pthread_mutex_t warnings_lock = PTHREAD_MUTEX_INITIALIZER; /* guards warnings: fetch workers log too */
static char warnings[8192];

static void note_warning(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user, (void)area;
    if (level < KN_LOG_LEVEL_WARN)
        return;
    pthread_mutex_lock(&warnings_lock);
    size_t n = strlen(warnings);
    snprintf(warnings + n, sizeof warnings - n, "%s\n", text);
    pthread_mutex_unlock(&warnings_lock);
}

static void warned(const char *text, bool wanted)
{
    pthread_mutex_lock(&warnings_lock);
    if (!strstr(warnings, text) == wanted)
        fail_msg("%s \"%s\" in: %s", wanted ? "no" : "there is", text, warnings);
    pthread_mutex_unlock(&warnings_lock);
}

static struct kn_engine *engine_open(const char *url, enum kn_preset preset, enum kn_backend backend)
{
    struct kn_engine_opts o = {.size = sizeof o, .n_threads = 1, .no_prefix_cache = true, .store_url = url,
                               .preset = preset,
                               .backend = backend, .profile_path = profile_path, .prefill_chunk = CHUNK,
                               .chunk_tokens = CHUNK};
    struct kn_engine *e;
    struct kn_err err = {0};
    if (kn_engine_open(&e, model, &o, &err))
        fail_msg("%s", err.text);
    return e;
}

static void ask(struct kn_engine *e, bool publish, struct kn_answer *out)
{
    int32_t prompt[N_PROMPT];
    struct kn_request *r = NULL;
    kn_bed_prompt(prompt, N_PROMPT, 11);
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = N_PROMPT, .max_tokens = N_NEW,
                                 .ignore_stop = true, .no_fetch = publish, .no_publish = !publish};
    assert_int_equal(kn_request_submit(&r, e, &ro, NULL), KN_OK);
    kn_bed_run(e, &r, out, 1, kn_tiny_n_vocab());
    kn_request_close(&r);
}

static int set_up(void **state)
{
    (void)state;
    struct kn_tiny_profile_opts po = {.seed = 1, .n_sinks = 4, .step_k = {.004f, .2f, .4f}, .step_v = {.004f, .5f, 1}};
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    void *data;
    size_t n;
    kn_bed_path(model_path, "no-avcodec.gguf");
    kn_bed_path(profile_path, "no-avcodec.knp");
    if (kn_tiny_model_write(model_path, NULL) || kn_model_open(&model, &mo, NULL))
        return -1;
    memcpy(po.fingerprint, kn_model_info(model)->fingerprint, 16);
    struct kni_profile *p = kn_tiny_profile_make(&po);
    if (kni_profile_write(p, &data, &n, NULL) || kn_file_write(profile_path, data, n))
        return -1;
    kni_free(data);
    kni_profile_close(&p);
    struct kn_engine *e = engine_open(NULL, KN_PRESET_EXACT, KN_BACKEND_DEFAULT);
    ask(e, false, &computed);
    kn_engine_close(&e);
    kn_log_set(note_warning, NULL, KN_LOG_LEVEL_WARN);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_WARN);
    kn_model_close(&model);
    unlink(model_path);
    unlink(profile_path);
    return 0;
}

static void publish(const char *url, enum kn_preset preset, enum kn_backend backend)
{
    struct kn_answer answer;
    struct kn_engine_stats s;
    struct kn_engine *e = engine_open(url, preset, backend);
    ask(e, true, &answer);
    assert_memory_equal(answer.tokens, computed.tokens, sizeof *computed.tokens * N_NEW);
    assert_int_equal(kn_engine_flush(e, 0), KN_OK);
    kn_engine_get_stats(e, &s);
    assert_int_equal(s.published_chunks, N_CHUNKS);
    kn_engine_close(&e);
}

static void fetch(const char *url, enum kn_preset preset, enum kn_backend backend, struct kn_answer *out)
{
    struct kn_engine *e = engine_open(url, preset, backend);
    ask(e, false, out);
    kn_engine_close(&e);
}

static void what_is_no_video(void **state)
{
    (void)state;
    static const struct { enum kn_preset preset; enum kn_backend backend; } cases[] = {
        {KN_PRESET_EXACT, KN_BACKEND_DEFAULT},
        {KN_PRESET_EXACT, KN_BACKEND_HEVC},
        {KN_PRESET_FINE, KN_BACKEND_RANS},
        {KN_PRESET_SMALL, KN_BACKEND_DEFAULT}};
    hide_library(AVCODEC);
    warnings[0] = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        struct kn_answer answer;
        folder_make(&f);
        publish(f.url, cases[i].preset, cases[i].backend);
        fetch(f.url, cases[i].preset, cases[i].backend, &answer);
        assert_int_equal(answer.stats.n_fetched, N_CHUNKS * CHUNK);
        assert_int_equal(answer.stats.n_misses, 0);
        folder_remove(&f);
    }
    assert_string_equal(warnings, "");
    hide_nothing(AVCODEC);
}

static enum kn_status never(void *user, const struct kn_video_picture *picture)
{
    (void)user, (void)picture;
    fail_msg("a picture without a decoder");
    return KN_OK;
}

static void video_is_coded_only(void **state)
{
    (void)state;
    static uint8_t samples[3 * SIDE * SIDE];
    struct kn_video_encode_opts o = {.size = sizeof o, .width = SIDE, .height = SIDE};
    struct kn_video_encoder *e = NULL;
    struct kn_video_decoder *d = NULL;
    struct kn_err err = {0};
    const uint8_t *unit;
    size_t n;
    hide_library(AVCODEC);
    o.verify = true;
    assert_int_equal(kn_video_encoder_open(&e, &o, &err), KN_E_UNSUPPORTED);
    assert_null(e);
    assert_non_null(strstr(err.text, AVCODEC));
    o.verify = false;
    assert_int_equal(kn_video_encoder_open(&e, &o, &err), KN_OK); /* with its MD5 */
    assert_int_equal(kn_video_encode(e, samples, &unit, &n, &err), KN_OK);
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    memcpy(bytes, unit, n);
    kn_video_encoder_close(&e);
    struct kn_video_decode_opts vo = {.size = sizeof vo, .on_picture = never};
    assert_int_equal(kn_video_decoder_open(&d, &vo, &err), KN_OK);
    assert_int_equal(kn_video_decode(d, bytes, n, true, &err), KN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, AVCODEC));
    kn_video_decoder_close(&d);
    free(bytes);
    hide_nothing(AVCODEC);
}

static void missed(const struct folder *f, enum kn_preset preset, enum kn_backend backend)
{
    struct kn_answer answer;
    warnings[0] = 0;
    publish(f->url, preset, backend);
    warned("published here as video cannot be fetched here", true);
    warned("is not used", false);
    fetch(f->url, preset, backend, &answer);
    assert_int_equal(answer.stats.n_fetched, 0);
    assert_int_equal(answer.stats.n_misses, 1);
    assert_memory_equal(answer.tokens, computed.tokens, sizeof *computed.tokens * N_NEW);
    warned("chunk 0 of a prompt is not used, its tokens are recomputed: " AVCODEC " cannot be loaded", true);
    warned("KN_E_UNSUPPORTED", true);
    warned("removed", false);
}

static void found(const struct folder *f, enum kn_preset preset, enum kn_backend backend)
{
    struct kn_answer answer;
    warnings[0] = 0;
    fetch(f->url, preset, backend, &answer);
    assert_int_equal(answer.stats.n_fetched, N_CHUNKS * CHUNK);
    assert_int_equal(answer.stats.n_misses, 0);
    assert_string_equal(warnings, "");
}

/* Last: it ends with libavcodec loaded. */
static void chunks_that_are_video(void **state)
{
    (void)state;
    struct folder tiles, fine;
    folder_make(&tiles);
    folder_make(&fine);
    hide_library(AVCODEC);
    missed(&tiles, KN_PRESET_TILES, KN_BACKEND_DEFAULT);
    missed(&fine, KN_PRESET_FINE, KN_BACKEND_HEVC);
    hide_nothing(AVCODEC);
    found(&tiles, KN_PRESET_TILES, KN_BACKEND_DEFAULT);
    found(&fine, KN_PRESET_FINE, KN_BACKEND_HEVC);
    folder_remove(&tiles);
    folder_remove(&fine);
}

int main(int argc, char **argv)
{
    (void)argc;
    hide_begin(argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_no_video), cmocka_unit_test(video_is_coded_only),
                                       cmocka_unit_test(chunks_that_are_video)};
    int n_failed = cmocka_run_group_tests(tests, set_up, tear_down);
    hide_end();
    return n_failed;
}

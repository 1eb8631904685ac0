/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spectral presets through the engine: published by one, fetched by another, over both backends; what comes back is the same
 * whichever backend carried it, and close enough with fine steps that the answer is the computed one. A profile that cannot be used
 * is refused at open, a chunk that cannot be is a miss.
 */
#include "unit/store/store_support.h"

#include <stdatomic.h>

#include "codec/container.h"
#include "support/engine_bed.h"
#include "support/refresh_checksums.h"
#include "support/tiny_profile.h"

#define N_PROMPT 100u
#define N_NEW 6u
#define CHUNK 32u /* three chunks lie below the prompt's last token */

static char model_path[256], profile_path[256], other_path[256];
static struct kn_model *model;
static struct kn_answer computed;
static uint8_t computed_digest[16];
static _Atomic unsigned n_warnings;
static char last_warning[512];

static void note_warning(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user, (void)area;
    if (level < KN_LOG_LEVEL_WARN)
        return;
    snprintf(last_warning, sizeof last_warning, "%s", text);
    atomic_fetch_add(&n_warnings, 1);
}

static void profile_write(const char *path, const uint8_t fingerprint[16], uint64_t seed)
{
    struct kn_tiny_profile_opts o = {.seed = seed, .n_sinks = 4, .step_k = {.004f, .2f, .4f}, .step_v = {.004f, .5f, 1}};
    void *data;
    size_t n;
    memcpy(o.fingerprint, fingerprint, 16);
    struct kni_profile *p = kn_tiny_profile_make(&o);
    assert_int_equal(kni_profile_write(p, &data, &n, NULL), KN_OK);
    assert_int_equal(kn_file_write(path, data, n), 0);
    kni_free(data);
    kni_profile_close(&p);
}

static struct kn_engine_opts opts_of(const char *url, enum kn_preset preset, enum kn_backend backend)
{
    return (struct kn_engine_opts){.size = sizeof(struct kn_engine_opts), .n_threads = 1, .no_prefix_cache = true, .store_url = url, .preset = preset,
                                   .backend = backend, .profile_path = profile_path, .prefill_chunk = CHUNK, .chunk_tokens = CHUNK};
}

static struct kn_engine *engine_open(const struct kn_engine_opts *o)
{
    struct kn_engine *e;
    struct kn_err err = {0};
    if (kn_engine_open(&e, model, o, &err))
        fail_msg("%s", err.text);
    return e;
}

static void ask(struct kn_engine *e, bool publish, struct kn_answer *out, uint8_t digest[16])
{
    int32_t prompt[N_PROMPT];
    struct kn_request *r = NULL;
    kn_bed_prompt(prompt, N_PROMPT, 11);
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = N_PROMPT, .max_tokens = N_NEW, .ignore_stop = true, .want_logits = true, .no_fetch = publish,
                                 .no_publish = !publish};
    assert_int_equal(kn_request_submit(&r, e, &ro, NULL), KN_OK);
    kn_bed_run(e, &r, out, 1, kn_tiny_n_vocab());
    assert_int_equal(kn_request_kv_digest(r, N_PROMPT - 4, digest), KN_OK);
    kn_request_close(&r);
}

static int set_up(void **state)
{
    (void)state;
    uint8_t other[16] = {1, 2, 3};
    kn_bed_path(model_path, "spectral.gguf");
    kn_bed_path(profile_path, "spectral.knp");
    kn_bed_path(other_path, "other.knp");
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    if (kn_tiny_model_write(model_path, NULL) || kn_model_open(&model, &mo, NULL))
        return -1;
    profile_write(profile_path, kn_model_info(model)->fingerprint, 1);
    profile_write(other_path, other, 1);
    struct kn_engine_opts o = opts_of(NULL, KN_PRESET_DEFAULT, KN_BACKEND_DEFAULT);
    struct kn_engine *e = engine_open(&o);
    ask(e, false, &computed, computed_digest);
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
    unlink(other_path);
    return 0;
}

/* ---- */

struct listing { const char *ending, *preset; uint32_t n; };

static void check_item(void *user, const struct kn_store_item *item)
{
    struct listing *l = user;
    assert_string_equal(item->preset, l->preset);
    assert_string_equal(item->key + strlen(item->key) - strlen(l->ending), l->ending);
    l->n++;
}

static void count_bad(void *user, const struct kn_store_item *item, enum kn_status status, const char *text)
{
    (void)item, (void)text;
    *(unsigned *)user += status != KN_OK;
}

/* Publishes, fetches with another engine, and returns the fetched cache's digest. */
static uint64_t through(enum kn_preset preset, enum kn_backend backend, const char *name, const char *ending, struct kn_answer *answer, uint8_t digest[16])
{
    struct folder f;
    folder_make(&f);
    struct kn_engine_opts o = opts_of(f.url, preset, backend);
    struct kn_engine *e = engine_open(&o);
    struct kn_engine_stats s = {.size = sizeof s};
    ask(e, true, answer, digest);
    assert_memory_equal(answer->tokens, computed.tokens, sizeof *computed.tokens * N_NEW); /* publishing changes nothing */
    assert_int_equal(kn_engine_flush(e, 0), KN_OK);
    kn_engine_get_stats(e, &s);
    assert_int_equal(s.published_chunks, 3);
    assert_true(s.published_bytes > 0);
    assert_int_equal(s.fetch_working_bytes, 0);
    kn_engine_close(&e);

    struct kn_store *store = store_open(&f, 0, 0, true);
    struct listing l = {ending, name, 0};
    assert_int_equal(kn_store_ls(store, check_item, &l), KN_OK);
    assert_int_equal(l.n, 3);
    unsigned n_bad = 0;
    assert_int_equal(kn_store_verify(store, count_bad, &n_bad), KN_OK);
    assert_int_equal(n_bad, 0);
    kn_store_close(&store);

    e = engine_open(&o);
    ask(e, false, answer, digest);
    assert_int_equal(answer->stats.n_fetched, 3 * CHUNK);
    assert_int_equal(answer->stats.n_misses, 0);
    assert_int_equal(answer->stats.fetch_bytes, s.published_bytes);
    kn_engine_get_stats(e, &s);
    assert_true(s.fetch_working_bytes > 0 && s.fetch_working_bytes < 8u << 20);
    kn_engine_close(&e);
    folder_remove(&f);
    return answer->stats.fetch_bytes;
}

static void fetched_is_what_was_published(void **state)
{
    (void)state;
    static const char *const names[] = {"fine", "medium", "small"};
    uint64_t before = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        struct kn_answer rans, hevc;
        uint8_t a[16], b[16];
        char ending[2][48];
        snprintf(ending[0], sizeof ending[0], ":%s-f16-32-v3-rans", names[i]);
        snprintf(ending[1], sizeof ending[1], ":%s-f16-32-v3-hevc", names[i]);
        uint64_t n = through((enum kn_preset)(KN_PRESET_FINE + i), i ? KN_BACKEND_RANS : KN_BACKEND_DEFAULT, names[i], ending[0], &rans, a);
        through((enum kn_preset)(KN_PRESET_FINE + i), KN_BACKEND_HEVC, names[i], ending[1], &hevc, b);
        assert_memory_equal(a, b, 16);
        assert_memory_not_equal(a, computed_digest, 16); /* lossy */
        assert_memory_equal(rans.tokens, hevc.tokens, sizeof *rans.tokens * N_NEW);
        assert_true(n < before);
        before = n;
        for (uint32_t k = 0; i == 0 && k < N_NEW; k++) /* fine steps move logits a little: only a near tie may fall the other way */
            if (rans.tokens[k] != computed.tokens[k]) {
                assert_true(computed.gaps[k] < 0.05f);
                break;
            }
    }
}

/* A profile alone means medium; neither means exact. */
static void defaults(void **state)
{
    (void)state;
    struct kn_answer answer;
    uint8_t digest[16];
    through(KN_PRESET_DEFAULT, KN_BACKEND_DEFAULT, "medium", "medium-f16-32-v3-rans", &answer, digest);
    struct folder f;
    folder_make(&f);
    struct kn_engine_opts o = opts_of(f.url, KN_PRESET_DEFAULT, KN_BACKEND_DEFAULT);
    o.profile_path = NULL;
    struct kn_engine *e = engine_open(&o);
    ask(e, true, &answer, digest);
    assert_int_equal(kn_engine_flush(e, 0), KN_OK);
    kn_engine_close(&e);
    e = engine_open(&o);
    ask(e, false, &answer, digest);
    assert_int_equal(answer.stats.n_fetched, 3 * CHUNK);
    assert_memory_equal(digest, computed_digest, 16);
    kn_engine_close(&e);
    folder_remove(&f);
}

static void bad_profiles_are_refused(void **state)
{
    (void)state;
    char damaged[256], missing[300], url[300];
    kn_bed_path(damaged, "damaged.knp");
    snprintf(missing, sizeof missing, "%s.missing", profile_path);
    snprintf(url, sizeof url, "lmdb:%s.never", model_path);
    assert_int_equal(kn_file_write(damaged, "KNP1 and then nothing of use", 28), 0);
    const struct { const char *path; enum kn_status status; const char *text; } bad[] = {
        {NULL, KN_E_ARG, "kinema profile build"}, {missing, KN_E_IO, "missing"}, {damaged, KN_E_FORMAT, "damaged.knp"}, {other_path, KN_E_MISMATCH, "model"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kn_engine_opts o = opts_of(url, KN_PRESET_SMALL, KN_BACKEND_DEFAULT);
        struct kn_engine *e;
        struct kn_err err = {0};
        o.profile_path = bad[i].path;
        assert_int_equal(kn_engine_open(&e, model, &o, &err), bad[i].status);
        assert_null(e);
        assert_int_equal(err.status, bad[i].status);
        if (!strstr(err.text, bad[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
        assert_int_not_equal(access(url + 5, F_OK), 0); /* refused before the store's folder was made */
    }
    struct kn_engine_opts o = opts_of(url, KN_PRESET_SMALL, (enum kn_backend)3);
    struct kn_engine *e;
    struct kn_err err = {0};
    assert_int_equal(kn_engine_open(&e, model, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "backend 3"));
    unlink(damaged);
}

/* With a profile as kn_profile_build makes it, of the model's own K and V: smaller than with random bases, and nothing is missed. */
static void with_a_built_profile(void **state)
{
    (void)state;
    enum { N_TEXTS = 4, BYTES = 3000 };
    char built[256];
    const char *texts[N_TEXTS];
    size_t bytes[N_TEXTS];
    kn_bed_path(built, "built.knp");
    for (uint32_t i = 0, seed = 5; i < N_TEXTS; i++) {
        char *text = malloc(BYTES);
        assert_non_null(text);
        for (uint32_t k = 0; k < BYTES; k++) {
            seed = seed * 1664525u + 1013904223u;
            text[k] = (char)(' ' + (seed >> 24) % (20 + 18 * i));
        }
        texts[i] = text;
        bytes[i] = BYTES;
    }
    struct kn_profile_opts po = {.size = sizeof po, .texts = texts, .text_bytes = bytes, .n_texts = N_TEXTS, .n_threads = 1, .max_tokens = 384};
    struct kn_err err = {0};
    if (kn_profile_build(model, built, &po, &err))
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < N_TEXTS; i++)
        free((void *)(uintptr_t)texts[i]);
    struct kn_answer answer;
    uint8_t digest[16];
    char random_path[256];
    memcpy(random_path, profile_path, sizeof random_path);
    uint64_t n_random = through(KN_PRESET_FINE, KN_BACKEND_RANS, "fine", "fine-f16-32-v3-rans", &answer, digest);
    memcpy(profile_path, built, sizeof profile_path);
    uint64_t n_built = through(KN_PRESET_FINE, KN_BACKEND_RANS, "fine", "fine-f16-32-v3-rans", &answer, digest);
    through(KN_PRESET_SMALL, KN_BACKEND_HEVC, "small", "small-f16-32-v3-hevc", &answer, digest);
    memcpy(profile_path, random_path, sizeof profile_path);
    assert_true(n_built < n_random);
    unlink(built);
}

static void find_first(void *user, const struct kn_store_item *item)
{
    if (!item->first_token)
        snprintf(user, KNI_STORE_KEY_BYTES, "%s", item->key);
}

/* Under the right key lies a chunk that was coded with another profile, or whose symbols do not decode: a miss, said, and healed. */
static void bad_chunks_are_misses(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct folder f;
        char key[KNI_STORE_KEY_BYTES] = "";
        struct kn_answer answer;
        uint8_t digest[16];
        folder_make(&f);
        struct kn_engine_opts o = opts_of(f.url, KN_PRESET_MEDIUM, KN_BACKEND_RANS);
        struct kn_engine *e = engine_open(&o);
        ask(e, true, &answer, digest);
        assert_int_equal(kn_engine_flush(e, 0), KN_OK);
        kn_engine_close(&e);
        struct kn_store *store = store_open(&f, 0, 0, false);
        struct kni_store_buf buf = {0};
        struct kni_store_entry entry;
        struct kni_chunk_meta m;
        assert_int_equal(kn_store_ls(store, find_first, key), KN_OK);
        assert_int_equal(kni_store_get(store, key, &entry, &buf, NULL), KN_OK);
        assert_int_equal(kni_chunk_read_meta(buf.data, buf.n_bytes, &m, NULL), KN_OK);
        if (kind == 0)
            buf.data[40] ^= 1; /* profile id */
        else
            memset(buf.data + buf.n_bytes - 400, 0xff, 400);
        kn_refresh_checksums(buf.data, buf.n_bytes);
        assert_int_equal(kni_store_drop(store, key, NULL, NULL), KN_OK);
        assert_int_equal(kni_store_put(store, key, &m, buf.data, buf.n_bytes, NULL), KN_OK);
        kni_store_buf_fini(&buf);
        unsigned before = atomic_load(&n_warnings);
        e = engine_open(&o);
        ask(e, false, &answer, digest);
        assert_int_equal(answer.stats.n_misses, 1);
        assert_int_equal(answer.stats.n_fetched, 0);
        assert_memory_equal(digest, computed_digest, 16);
        kn_engine_close(&e);
        assert_true(atomic_load(&n_warnings) > before);
        if (kind == 0)
            assert_non_null(strstr(last_warning, "profile"));
        assert_int_equal(kni_store_get(store, key, &entry, &buf, NULL), KN_E_NOT_FOUND);
        kni_store_buf_fini(&buf);
        kn_store_close(&store);
        folder_remove(&f);
    }
}

/* One engine, the prefix cache on: whoever comes first, a request that takes only exact K and V gets the computed answer, and nothing
 * that came lossy is published as exact. */
static void lossy_blocks_serve_only_who_takes_them(void **state)
{
    (void)state;
    struct folder f;
    struct kn_answer answer;
    uint8_t digest[16];
    int32_t prompt[N_PROMPT];
    folder_make(&f);
    kn_bed_prompt(prompt, N_PROMPT, 11);
    struct kn_engine_opts o = opts_of(f.url, KN_PRESET_SMALL, KN_BACKEND_RANS);
    struct kn_engine *e = engine_open(&o);
    ask(e, true, &answer, digest);
    assert_int_equal(kn_engine_flush(e, 0), KN_OK);
    kn_engine_close(&e);
    static const struct { bool no_fetch; enum kn_kv_quality least; } asks[] = {
        {false, KN_KV_QUALITY_DEFAULT}, {true, KN_KV_QUALITY_DEFAULT}, {true, KN_KV_QUALITY_ANY}, {false, KN_KV_QUALITY_EXACT}, {false, KN_KV_QUALITY_MEDIUM},
        {false, KN_KV_QUALITY_SMALL}};
    enum { N = sizeof asks / sizeof *asks };
    for (unsigned first = 0; first < N; first++) {
        o.no_prefix_cache = false;
        e = engine_open(&o);
        bool exact_known = false;
        for (unsigned i = 0; i < N; i++) {
            const unsigned k = (first + i) % N;
            struct kn_request *r;
            struct kn_request_stats s = {.size = sizeof s};
            struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = N_PROMPT, .max_tokens = N_NEW, .ignore_stop = true, .want_logits = true,
                                         .no_fetch = asks[k].no_fetch, .kv_quality = asks[k].least, .no_publish = true};
            const bool lossy = !asks[k].no_fetch && (!asks[k].least || asks[k].least >= KN_KV_QUALITY_SMALL);
            assert_int_equal(kn_request_submit(&r, e, &ro, NULL), KN_OK);
            kn_bed_run(e, &r, &answer, 1, kn_tiny_n_vocab());
            kn_request_get_stats(r, &s);
            assert_int_equal(s.n_fetched_by[KN_KV_QUALITY_SMALL], lossy && !i ? 96 : 0); /* later ones find it in the pool */
            assert_int_equal(s.quality, lossy && !exact_known ? KN_KV_QUALITY_SMALL : KN_KV_QUALITY_EXACT);
            if (s.quality == KN_KV_QUALITY_EXACT) {
                exact_known = true;
                assert_memory_equal(answer.tokens, computed.tokens, sizeof *computed.tokens * N_NEW);
                assert_int_equal(kn_request_kv_digest(r, N_PROMPT - 4, digest), KN_OK);
                assert_memory_equal(digest, computed_digest, sizeof digest);
            }
            kn_request_close(&r);
        }
        kn_engine_close(&e);
    }
    struct kn_request_opts bad = {.size = sizeof bad, .tokens = prompt, .n_tokens = N_PROMPT, .kv_quality = KN_KV_QUALITY_COUNT};
    struct kn_request *r;
    struct kn_err err = {0};
    o.kv_quality = KN_KV_QUALITY_MEDIUM; /* of the engine: what the store has is worse */
    e = engine_open(&o);
    assert_int_equal(kn_request_submit(&r, e, &bad, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "kv_quality is 7"));
    ask(e, false, &answer, digest);
    assert_memory_equal(digest, computed_digest, sizeof digest);
    kn_engine_close(&e);
    o.kv_quality = KN_KV_QUALITY_COUNT;
    assert_int_equal(kn_engine_open(&e, model, &o, &err), KN_E_ARG);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetched_is_what_was_published),
        cmocka_unit_test(defaults),
        cmocka_unit_test(with_a_built_profile),
        cmocka_unit_test(bad_profiles_are_refused),
        cmocka_unit_test(bad_chunks_are_misses),
        cmocka_unit_test(lossy_blocks_serve_only_who_takes_them),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

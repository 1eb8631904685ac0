/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store whose chunk restores to NaN or infinity though all its checksums are right: the request that meets it counts a miss, computes
 * what the chunk would have held and answers as without a store; the chunk is dropped, and one that can be used takes its place.
 */
#include "unit/store/store_support.h"

#include <stdatomic.h>

#include "codec/exact/exact_model.h"
#include "codec/sinks.h"
#include "support/chunk_sections.h"
#include "support/engine_bed.h"
#include "support/tiny_profile.h"

#define N_PROMPT 100u
#define N_NEW 6u
#define CHUNK 32u
#define N_CHUNKS 3u /* they lie below the prompt's last token */
#define N_SINKS 4u

static char model_path[256], profile_path[256];
static struct kn_model *model;
static struct kni_kv_layout kv = {.n_layer = 3, .n_kv_head = 2, .d_head = 32, .type = KN_KV_TYPE_F16}; /* of the tiny model */
static struct kn_answer computed;
static uint8_t computed_digest[16];
static _Atomic unsigned n_not_finite;

static void note_warning(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user, (void)area;
    if (level >= KN_LOG_LEVEL_WARN && (strstr(text, "not finite") || strstr(text, "not a finite")))
        atomic_fetch_add(&n_not_finite, 1);
}

static struct kn_engine *engine_open(const char *url, enum kn_preset preset)
{
    struct kn_engine *e;
    struct kn_err err = {0};
    struct kn_engine_opts o = {.size = sizeof o, .n_threads = 1, .no_prefix_cache = true, .store_url = url, .preset = preset, .prefill_chunk = CHUNK,
                               .chunk_tokens = CHUNK, .profile_path = preset == KN_PRESET_FINE ? profile_path : NULL};
    if (kn_engine_open(&e, model, &o, &err))
        fail_msg("%s", err.text);
    return e;
}

static void ask(struct kn_engine *e, bool publish, struct kn_answer *a, uint8_t digest[16])
{
    int32_t prompt[N_PROMPT];
    struct kn_request *r = NULL;
    kn_bed_prompt(prompt, N_PROMPT, 11);
    struct kn_request_opts o = {.size = sizeof o, .tokens = prompt, .n_tokens = N_PROMPT, .max_tokens = N_NEW, .ignore_stop = true, .no_publish = !publish};
    assert_int_equal(kn_request_submit(&r, e, &o, NULL), KN_OK);
    kn_bed_run(e, &r, a, 1, kn_tiny_n_vocab());
    assert_int_equal(kn_request_kv_digest(r, N_PROMPT - 4, digest), KN_OK);
    kn_request_close(&r);
    assert_int_equal(a->n, N_NEW);
}

static int set_up(void **state)
{
    (void)state;
    void *data;
    size_t n;
    kn_bed_path(model_path, "broken-chunk.gguf");
    kn_bed_path(profile_path, "broken-chunk.knp");
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    if (kn_tiny_model_write(model_path, NULL) || kn_model_open(&model, &mo, NULL))
        return -1;
    struct kn_tiny_profile_opts po = {.seed = 1, .n_sinks = N_SINKS, .step_k = {.004f, .2f, .4f}, .step_v = {.004f, .5f, 1}};
    memcpy(po.fingerprint, kn_model_info(model)->fingerprint, 16);
    struct kni_profile *p = kn_tiny_profile_make(&po);
    int failed = kni_profile_write(p, &data, &n, NULL) || kn_file_write(profile_path, data, n);
    kni_free(data);
    kni_profile_close(&p);
    struct kn_engine *e = engine_open(NULL, KN_PRESET_EXACT);
    ask(e, false, &computed, computed_digest);
    kn_engine_close(&e);
    kn_log_set(note_warning, NULL, KN_LOG_LEVEL_WARN);
    return failed;
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

/* ---- chunks that no encoder writes */

/* The window of every channel is moved to the largest exponents. */
static void *spoil_exact(const void *data, size_t *n)
{
    size_t n_plain, n_channels = (size_t)kv.n_layer * 2 * kv.n_kv_head * kv.d_head, at = 1 + 2 * KNI_EXACT_N_TABLES * 256;
    uint8_t *plain = kn_chunk_unpack_first(data, *n, &n_plain);
    for (size_t c = 0; c < n_channels; c++) {
        uint32_t base = (plain[at + c] | (uint32_t)plain[at + n_channels + c] << 8) + 66; /* quarters of an octave */
        plain[at + c] = (uint8_t)base;
        plain[at + n_channels + c] = (uint8_t)(base >> 8);
    }
    void *out = kn_chunk_repack_first(data, n, plain, n_plain);
    free(plain);
    return out;
}

/* One token's scale in one layer's K is a NaN. */
static void *spoil_tiles(const void *data, size_t *n)
{
    size_t n_plain;
    uint8_t *plain = kn_chunk_unpack_first(data, *n, &n_plain);
    plain[17] = 0x01;
    plain[n_plain / 2 + 17] = 0x7e;
    void *out = kn_chunk_repack_first(data, n, plain, n_plain);
    free(plain);
    return out;
}

/* The sequence's first tokens, which such a chunk holds as they are, are infinite. */
static void *spoil_first_tokens(const void *data, size_t *n)
{
    size_t n_values = kni_kv_block_values(&kv);
    uint16_t *values = malloc(n_values * sizeof *values);
    uint8_t *bytes = malloc(kni_sinks_bound(&kv, N_SINKS));
    void *scratch = kni_alloc(KNI_ALLOC_TAG_CODEC, kni_sinks_scratch_bytes(), 16);
    uint32_t table = 0;
    assert_true(values && bytes && scratch);
    for (size_t i = 0; i < n_values; i++)
        values[i] = 0x7c00;
    const struct kni_kv_host view = kni_kv_host_by_block(&kv, values, &table, 1);
    void *out = kn_chunk_replace_section(data, n, 0, bytes, kni_sinks_encode(&view, 0, N_SINKS, bytes, scratch));
    kni_free(scratch);
    free(bytes);
    free(values);
    return out;
}

struct search { uint32_t first_token; char key[KNI_STORE_KEY_BYTES]; };

static void find(void *user, const struct kn_store_item *item)
{
    struct search *s = user;
    if (item->first_token == s->first_token)
        snprintf(s->key, sizeof s->key, "%s", item->key);
}

static void count_bad(void *user, const struct kn_store_item *item, enum kn_status status, const char *text)
{
    (void)item, (void)text;
    *(unsigned *)user += status != KN_OK;
}

/* Puts the spoilt form of the store's chunk in its place; its checksums, and the store's own, are right. */
static void spoil(const struct folder *f, uint32_t chunk, void *(*spoiler)(const void *data, size_t *n))
{
    struct search s = {.first_token = chunk * CHUNK};
    struct kni_store_buf buf = {0};
    struct kni_store_entry entry;
    struct kni_chunk_meta m;
    unsigned n_bad = 0;
    struct kn_store *store = store_open(f, 0, 0, false);
    assert_int_equal(kn_store_ls(store, find, &s), KN_OK);
    assert_int_equal(kni_store_get(store, s.key, &entry, &buf, NULL), KN_OK);
    assert_int_equal(kni_chunk_read_meta(buf.data, buf.n_bytes, &m, NULL), KN_OK);
    assert_memory_equal(&m.kv, &kv, sizeof kv);
    size_t n = buf.n_bytes;
    void *other = spoiler(buf.data, &n);
    assert_int_equal(kni_store_drop(store, s.key, NULL, NULL), KN_OK);
    assert_int_equal(kni_store_put(store, s.key, &m, other, n, NULL), KN_OK);
    assert_int_equal(kn_store_verify(store, count_bad, &n_bad), KN_OK);
    assert_int_equal(n_bad, 0);
    kni_free(other);
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
}

static void a_request_computes_what_is_not_finite(void **state)
{
    (void)state;
    static const struct {
        enum kn_preset preset;
        void *(*spoiler)(const void *data, size_t *n);
        uint32_t n_chunks; /* that it can spoil, from the first on */
        bool lossy;
    } cases[] = {
        {KN_PRESET_EXACT, spoil_exact, N_CHUNKS, false},
        {KN_PRESET_TILES, spoil_tiles, N_CHUNKS, true},
        {KN_PRESET_FINE, spoil_first_tokens, 1, true},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t chunk = 0; chunk < cases[i].n_chunks; chunk++) {
            struct folder f;
            struct kn_answer a;
            uint8_t digest[16];
            folder_make(&f);
            struct kn_engine *e = engine_open(f.url, cases[i].preset);
            ask(e, true, &a, digest);
            assert_int_equal(a.stats.n_misses, 0);
            assert_int_equal(kn_engine_flush(e, 0), KN_OK);
            kn_engine_close(&e);

            spoil(&f, chunk, cases[i].spoiler);
            unsigned before = atomic_load(&n_not_finite);
            e = engine_open(f.url, cases[i].preset);
            ask(e, false, &a, digest);
            assert_int_equal(a.reason, KN_STOP_REASON_LENGTH);
            assert_int_equal(a.stats.n_misses, 1);
            assert_int_equal(a.stats.n_fetched, chunk * CHUNK);
            if (!cases[i].lossy || !chunk) { /* nothing lossy lies before it: all is as computed */
                assert_memory_equal(a.tokens, computed.tokens, N_NEW * sizeof *a.tokens);
                assert_memory_equal(digest, computed_digest, sizeof digest);
            }
            assert_int_equal(kn_engine_check(e, NULL), KN_OK);
            kn_engine_close(&e);
            assert_int_equal(atomic_load(&n_not_finite), before + 1); /* said by a thread that has ended, as has the removal */

            e = engine_open(f.url, cases[i].preset); /* the chunk is no longer there: not a miss, and what is computed is stored */
            ask(e, true, &a, digest);
            assert_int_equal(a.stats.n_misses, 0);
            assert_int_equal(a.stats.n_fetched, chunk * CHUNK);
            assert_int_equal(kn_engine_flush(e, 0), KN_OK);
            kn_engine_close(&e);
            if (!cases[i].lossy) {
                e = engine_open(f.url, cases[i].preset);
                ask(e, false, &a, digest);
                assert_int_equal(a.stats.n_misses, 0);
                assert_int_equal(a.stats.n_fetched, N_CHUNKS * CHUNK);
                assert_memory_equal(a.tokens, computed.tokens, N_NEW * sizeof *a.tokens);
                assert_memory_equal(digest, computed_digest, sizeof digest);
                kn_engine_close(&e);
            }
            folder_remove(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_request_computes_what_is_not_finite)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building a profile of a tiny random model: the file is valid, belongs to the model, says what was measured, and codes K and V that
 * the model makes; bad input is refused with a sentence and leaves no file behind.
 */
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "codec/profile/profile.h"
#include "codec/spectral/spectral.h"
#include "kinema/log.h"
#include "kinema/profile.h"
#include "run/run.h"
#include "support/tiny_model.h"

#define N_TEXTS 4

static char folder[] = "/tmp/kn-build-XXXXXX";
static char path[64];
static char *texts[N_TEXTS];
static size_t text_bytes[N_TEXTS];

/* Words of a small language, another mix in each text. */
static char *make_text(uint32_t seed, size_t n)
{
    static const char *const words[] = {"the ", "cache ", "of ", "a ", "model ", "moves, ", "and ", "is ", "coded ", "small. ", "When ", "it ", "returns ", "\n", "nothing ", "lost "};
    char *text = malloc(n + 16);
    assert_non_null(text);
    size_t at = 0;
    while (at < n) {
        seed = seed * 1664525u + 1013904223u;
        const char *w = words[(seed >> 24) % (8 + seed % 9)];
        size_t k = strlen(w);
        memcpy(text + at, w, k);
        at += k;
    }
    text[n] = 0;
    return text;
}

static struct kn_model *open_model(const struct kn_tiny_opts *o)
{
    char file[64];
    struct kn_model *model = NULL;
    struct kn_err err = {0};
    snprintf(file, sizeof file, "%s/tiny.gguf", folder);
    assert_int_equal(kn_tiny_model_write(file, o), 0);
    if (kn_model_open(&model, &(struct kn_model_opts){.size = sizeof(struct kn_model_opts), .path = file}, &err))
        fail_msg("%s", err.text);
    unlink(file);
    return model;
}

static struct kn_profile_opts options(void)
{
    return (struct kn_profile_opts){.size = sizeof(struct kn_profile_opts), .texts = (const char *const *)texts, .text_bytes = text_bytes, .n_texts = N_TEXTS, .n_threads = 2, .max_tokens = 384};
}

static size_t files_left(void)
{
    char pattern[64];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    size_t n = glob(pattern, 0, NULL, &found) ? 0 : found.gl_pathc;
    globfree(&found);
    return n;
}

struct watch { char last[32]; double done; unsigned n_phases, n_calls; };

static void watch(void *user, const char *phase, double done)
{
    struct watch *w = user;
    assert_true(done >= 0 && done <= 1.0001);
    if (strcmp(w->last, phase)) {
        snprintf(w->last, sizeof w->last, "%s", phase);
        w->n_phases++;
        w->done = 0;
    }
    assert_true(done >= w->done - 1e-9);
    w->done = done;
    w->n_calls++;
}

/* K and V of a text that calibration has not seen go through the profile: at the finest preset little is lost. */
static void codes_well(struct kn_model *model, const struct kni_profile *p)
{
    enum { N = 256 };
    struct kni_threads *threads;
    struct kni_run *run;
    struct kni_spectral *s;
    struct kni_kv_layout kv = p->kv;
    uint32_t ids[N / 16];
    int32_t tokens[3 * N + 2];
    size_t n_tokens = sizeof tokens / sizeof *tokens;
    char *text = make_text(99, N);
    assert_int_equal(kn_model_tokenize(model, text, N, 0, tokens, &n_tokens), KN_OK);
    uint32_t n = (uint32_t)n_tokens / 16 * 16;
    assert_true(n >= 64 && n <= N);
    for (uint32_t i = 0; i < N / 16; i++)
        ids[i] = i;
    uint16_t *pool = calloc(N / 16, kni_kv_block_bytes(&kv)), *back = calloc(N / 16, kni_kv_block_bytes(&kv));
    uint8_t *symbols = malloc((size_t)(kv.n_layer * (kv.n_kv_head * kv.d_head + 1)) * N);
    assert_true(pool && back && symbols);
    const struct kni_kv_host from = kni_kv_host_by_block(&kv, pool, ids, N / 16), to = kni_kv_host_by_block(&kv, back, ids, N / 16);
    assert_int_equal(kni_threads_open(&threads, 1), KN_OK);
    assert_int_equal(kni_run_open(&run, &(struct kni_run_opts){.model = model, .threads = threads, .max_tokens = N, .max_logits = 1, .n_ctx = N}, NULL), KN_OK);
    struct kni_run_item item = {.kv = kni_kv_view_of(&from), .tokens = tokens, .n_tokens = n};
    assert_int_equal(kni_run_step(run, &item, 1), KN_OK);
    assert_int_equal(kni_spectral_open(&s, p, N, kni_cpu_flags(), NULL), KN_OK);
    struct kni_escapes escapes = {0};
    for (uint32_t part = 0; part < p->n_parts; part++) {
        assert_int_equal(kni_spectral_forward(s, &from, 0, n, part, KNI_PROFILE_PRESET_FINE, symbols, N, &escapes), KN_OK);
        assert_int_equal(kni_spectral_inverse(s, &to, 0, n, part, KNI_PROFILE_PRESET_FINE, symbols, N, &escapes, 0), KN_OK);
        double error = 0, power = 0;
        for (uint32_t l = 0; l < p->parts[part].n_layers; l++)
            for (uint32_t pos = p->n_sinks; pos < n; pos++)
                for (uint32_t h = 0; h < kv.n_kv_head; h++)
                    for (uint32_t i = 0; i < kv.d_head; i++) {
                        double x = (double)kni_f16_to_f32(kni_kv_row(&from, p->parts[part].first_layer + l, part & 1, h, pos)[i]);
                        double y = (double)kni_f16_to_f32(kni_kv_row(&to, p->parts[part].first_layer + l, part & 1, h, pos)[i]);
                        error += (x - y) * (x - y);
                        power += x * x;
                    }
        /* Rows have an rms of 1, times their gain, before the step: its square / 12, and what rows left out take away. */
        double step = (double)p->parts[part].step[0];
        assert_true(error < (step * step / 12 * 3 + 0.01) * power);
    }
    kni_free(escapes.values);
    kni_spectral_close(&s);
    kni_run_close(&run);
    kni_threads_close(&threads);
    free(text);
    free(pool);
    free(back);
    free(symbols);
}

static void a_profile_is_built(void **state)
{
    (void)state;
    struct kn_model *model = open_model(&(struct kn_tiny_opts){0});
    struct kn_profile_opts o = options();
    struct watch w = {0};
    struct kn_err err = {0};
    o.progress = watch;
    o.user = &w;
    o.n_group = 2;
    if (kn_profile_build(model, path, &o, &err))
        fail_msg("%s", err.text);
    assert_int_equal(files_left(), 1);
    assert_true(w.n_phases >= 7 && w.n_calls > 20);
    struct kn_profile_info info = {.size = sizeof info};
    assert_int_equal(kn_profile_read_info(path, &info, &err), KN_OK);
    assert_memory_equal(info.fingerprint, kn_model_info(model)->fingerprint, 16);
    assert_int_equal(info.n_layer, 3);
    assert_int_equal(info.n_kv_head, 2);
    assert_int_equal(info.d_head, 32);
    assert_int_equal(info.n_group, 2);
    assert_int_equal(info.n_sinks, 4);
    assert_int_equal(info.n_calibration_tokens, 3 * (384 - 4)); /* the last text is held back */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(info.presets[i].components, 192);
        assert_true(info.presets[i].rows_k >= 32 && info.presets[i].rows_k <= 192 && info.presets[i].rows_v >= 32 && info.presets[i].rows_v <= 192);
        assert_true(info.presets[i].ratio > 1 && info.presets[i].kl > 0 && info.presets[i].kl < 1 && info.presets[i].top1 > 0.3f && info.presets[i].top1 <= 1);
        assert_true(!i || (info.presets[i].step_v > info.presets[i - 1].step_v && info.presets[i].ratio > info.presets[i - 1].ratio));
    }
    struct kni_profile *p;
    assert_int_equal(kni_profile_open(&p, path, &err), KN_OK);
    struct kni_kv_layout kv = {3, 2, 32, KN_KV_TYPE_F16};
    assert_int_equal(kni_profile_match(p, kn_model_info(model)->fingerprint, &kv, &err), KN_OK);
    assert_memory_equal(p->id, info.id, 16);
    assert_int_equal(p->n_bytes, info.n_bytes);
    assert_false(p->rope.neox);
    assert_true(p->rope.freqs[0] == 1.0);
    float least = 1e9f, most = 0;
    for (uint32_t i = 0; i < p->parts[0].width; i++) {
        least = fminf(least, p->parts[0].weight[i]);
        most = fmaxf(most, p->parts[0].weight[i]);
    }
    assert_true(most > least * 1.05f); /* queries were seen */
    int sum = 0, squares = 0; /* gains: layers differ, and none is finer than all of them */
    for (uint32_t part = 1; part < p->n_parts; part += 2)
        for (uint32_t l = 0; l < p->parts[part].n_layers; l++) {
            sum += p->parts[part].gain[l];
            squares += p->parts[part].gain[l] * p->parts[part].gain[l];
        }
    assert_true(squares > 0 && abs(sum) <= 2);
    codes_well(model, p);
    kni_profile_close(&p);

    /* The same again over the old file, with another number of threads: the same statistics. */
    o.n_threads = 1;
    o.progress = NULL;
    struct kn_profile_info again = {.size = sizeof again};
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_OK);
    assert_int_equal(kn_profile_read_info(path, &again, &err), KN_OK);
    assert_int_equal(again.n_calibration_tokens, info.n_calibration_tokens);
    for (int i = 0; i < 3; i++)
        assert_true(fabsf(again.presets[i].step_v / info.presets[i].step_v - 1) < 0.2f);
    unlink(path);
    kn_model_close(&model);
}

static void one_text_is_cut(void **state)
{
    (void)state;
    struct kn_model *model = open_model(&(struct kn_tiny_opts){.n_layer = 2, .n_kv_head = 1});
    struct kn_profile_opts o = options();
    struct kn_err err = {0};
    struct kn_profile_info info = {.size = sizeof info};
    o.n_texts = 1;
    o.max_tokens = 512;
    if (kn_profile_build(model, path, &o, &err))
        fail_msg("%s", err.text);
    assert_int_equal(kn_profile_read_info(path, &info, &err), KN_OK);
    assert_int_equal(info.n_calibration_tokens, 512 * 3 / 4 - 4);
    unlink(path);
    kn_model_close(&model);
}

static void bad_input(void **state)
{
    (void)state;
    struct kn_model *model = open_model(&(struct kn_tiny_opts){0});
    struct kn_profile_opts o = options();
    struct kn_err err = {0};
    o.max_tokens = 96;
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_E_ARG);
    assert_true(strstr(err.text, "too little text") && strstr(err.text, "288") && strstr(err.text, "576")); /* has, needs */
    o = options();
    o.n_texts = 0;
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_E_ARG);
    const char *none[] = {NULL};
    size_t zero[] = {0};
    o = options();
    o.texts = none;
    o.text_bytes = zero;
    o.n_texts = 1;
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_E_ARG);
    none[0] = "";
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "too little text"));
    o = options();
    o.n_group = 4;
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "n_group is 4: use 1 to 3"));
    o = options();
    o.n_threads = 257;
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_E_ARG);
    o = options();
    assert_int_equal(kn_profile_build(model, "/nowhere/at/all.knp", &o, &err), KN_E_IO);
    assert_non_null(strstr(err.text, "/nowhere/at/all.knp"));
    assert_int_equal(kn_profile_build(model, folder, &o, &err), KN_E_IO);
    o.size = 0;
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_E_ARG);
    assert_int_equal(kn_profile_build(NULL, path, &o, &err), KN_E_ARG);
    kn_model_close(&model);

    model = open_model(&(struct kn_tiny_opts){.n_layer = 1, .n_head = 2, .n_kv_head = 1, .d_head = 24});
    o = options();
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "1 x 24"));
    kn_model_close(&model);
    assert_int_equal(files_left(), 0);

    struct kn_profile_info info = {.size = sizeof info};
    assert_int_equal(kn_profile_read_info(path, &info, &err), KN_E_IO);
    assert_int_equal(kn_profile_read_info(NULL, &info, &err), KN_E_ARG);
}

/* Allocations fail here and there on the way: a status, no file, no leak. */
static void out_of_memory(void **state)
{
    (void)state;
    struct kn_model *model = open_model(&(struct kn_tiny_opts){.n_layer = 1, .n_kv_head = 1});
    struct kn_profile_opts o = options();
    struct kn_err err = {0};
    o.n_threads = 1;
    assert_int_equal(kn_profile_build(model, path, &o, &err), KN_OK); /* weights are packed now */
    unlink(path);
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, i;
    for (i = 1; i < 4000; i += 1 + i / 3) {
        kni_alloc_fault_arm(i, true);
        enum kn_status s = kn_profile_build(model, path, &o, &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(s, hit ? KN_E_NOMEM : KN_OK);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        assert_int_equal(files_left(), !hit);
        if (!hit)
            break;
        assert_true(err.status == KN_E_NOMEM && *err.text);
    }
    assert_true(i > 20);
    unlink(path);
    kn_model_close(&model);
}

static char heard[4][512];
static unsigned n_heard;
static void hear(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user;
    (void)level;
    if (!strcmp(area, "profile") && n_heard < 4)
        snprintf(heard[n_heard++], sizeof *heard, "%s", text);
}

struct listed { char names[8][64]; bool held[8]; uint32_t n, n_tokens[8]; };
static void list(void *user, const struct kn_profile_text *text)
{
    struct listed *l = user;
    snprintf(l->names[l->n], sizeof *l->names, "%s", text->name);
    l->n_tokens[l->n] = text->n_tokens;
    l->held[l->n++] = text->is_held_back;
}

/* Builds from the given texts; what was heard and listed is checked by the caller. */
static enum kn_status build_from(struct kn_model *model, const char *const *given, const char *const *names, size_t n, bool skip, struct listed *l, struct kn_err *err)
{
    size_t bytes[8];
    struct kn_profile_opts o = options();
    for (size_t i = 0; i < n; i++)
        bytes[i] = strlen(given[i]);
    o.texts = given;
    o.text_bytes = bytes;
    o.n_texts = n;
    o.text_names = names;
    o.skip_doubtful = skip;
    n_heard = 0;
    memset(heard, 0, sizeof heard);
    *l = (struct listed){0};
    *err = (struct kn_err){0};
    kn_log_set(hear, NULL, KN_LOG_LEVEL_WARN);
    enum kn_status s = kn_profile_build(model, path, &o, err);
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_WARN);
    if (!s)
        assert_int_equal(kn_profile_read_texts(path, list, l, NULL), KN_OK);
    unlink(path);
    return s;
}

static void a_text_counts_once(void **state)
{
    struct kn_tiny_opts o = {.seed = 5};
    struct kn_model *model = open_model(&o);
    struct listed l;
    struct kn_err err;
    char *similar = strdup(texts[1]), *mixed = malloc(text_bytes[0] + text_bytes[3] + 1);
    (void)state;
    assert_non_null(similar);
    assert_non_null(mixed);
    memcpy(similar + 20, "another", 7); /* a word is not the same */
    const char *names[] = {"/some/where/a.txt", "b.txt", "c.txt", "d.txt", "e.txt"};
    /* the same twice, the second of which would have been held back */
    const char *twice[] = {texts[0], texts[1], texts[2], texts[0]};
    assert_int_equal(build_from(model, twice, names, 4, false, &l, &err), KN_OK);
    assert_int_equal(n_heard, 1);
    assert_non_null(strstr(heard[0], "text 4 (d.txt) is left out"));
    assert_non_null(strstr(heard[0], "text 1 (/some/where/a.txt)"));
    assert_int_equal(l.n, 3);
    assert_string_equal(l.names[0], "a.txt");
    assert_true(l.held[2] && !l.held[1] && !l.held[0]);
    assert_string_equal(l.names[2], "c.txt");
    /* nearly the same */
    const char *near[] = {texts[0], texts[1], similar, texts[2]};
    assert_int_equal(build_from(model, near, NULL, 4, false, &l, &err), KN_OK);
    assert_int_equal(n_heard, 1);
    assert_non_null(strstr(heard[0], "text 3 is left out"));
    assert_int_equal(l.n, 3);
    /* a third of it is another's: only what is new counts */
    snprintf(mixed, text_bytes[0] + text_bytes[3] + 1, "%.150s%s", texts[0], texts[3]);
    const char *part[] = {texts[0], texts[1], mixed, texts[2]};
    assert_int_equal(build_from(model, part, names, 4, false, &l, &err), KN_OK);
    assert_int_equal(n_heard, 1);
    assert_non_null(strstr(heard[0], "text 3 (c.txt) counts with"));
    assert_int_equal(l.n, 4);
    assert_true(l.n_tokens[2] < l.n_tokens[0] && l.n_tokens[2] >= 64);
    /* a text of its own repetitions cannot be measured on itself */
    char *again = malloc(16 * 100 + 1);
    assert_non_null(again);
    for (int i = 0; i < 16; i++)
        memcpy(again + (size_t)i * 100, texts[0], 100);
    again[1600] = 0;
    const char *only[] = {again};
    assert_int_equal(build_from(model, only, NULL, 1, false, &l, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "repeats itself"));
    free(again);
    free(similar);
    free(mixed);
    kn_model_close(&model);
}

static void what_is_no_text_is_named(void **state)
{
    struct kn_tiny_opts o = {.seed = 5};
    struct kn_model *model = open_model(&o);
    struct listed l;
    struct kn_err err;
    const char *names[] = {"a", "b", "c.bin", "d"};
    (void)state;
    static const char *const bad[] = {"good at first \xff and then not", "cut \xe4\xb8", "overlong \xc0\xaf", "surrogate \xed\xa0\x80", "\x01\x02\x03\x04 controls"};
    static const char *const says[] = {"byte 0xff at offset 14", "byte 0xe4 at offset 4", "byte 0xc0 at offset 9", "byte 0xed at offset 10", "control characters"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *given[] = {texts[0], texts[1], bad[i], texts[2]};
        assert_int_equal(build_from(model, given, names, 4, false, &l, &err), KN_E_ARG);
        assert_non_null(strstr(err.text, "text 3 (c.bin)"));
        assert_non_null(strstr(err.text, says[i]));
        assert_int_equal(build_from(model, given, names, 4, true, &l, &err), KN_OK);
        assert_int_equal(l.n, 3);
        assert_int_equal(n_heard, 1);
        assert_non_null(strstr(heard[0], "left out"));
        assert_non_null(strstr(heard[0], says[i]));
    }
    kn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_profile_is_built), cmocka_unit_test(one_text_is_cut), cmocka_unit_test(bad_input), cmocka_unit_test(a_text_counts_once),
                                       cmocka_unit_test(what_is_no_text_is_named), cmocka_unit_test(out_of_memory)};
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/new.knp", folder);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        texts[i] = make_text(i + 1, 3000);
        text_bytes[i] = 3000;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < N_TEXTS; i++)
        free(texts[i]);
    rmdir(folder);
    return failed;
}

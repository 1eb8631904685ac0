/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's file is overwritten, same size, under an engine with a store. What was computed before stays right; nothing that comes
 * after is given out, published, fetched or taken from the prefix cache; and an engine on the file as it was finds only its own chunks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <time.h>

#include <cmocka.h>

#include "support/engine_bed.h"

#define N_PROMPT 100u
#define CHUNK 32u

static char path[256], store[256], url[300];
static const struct kn_tiny_opts old = {.seed = 1, .type = KNI_DTYPE_Q8_0}, new = {.seed = 2, .type = KNI_DTYPE_Q8_0};

static int setup(void **state)
{
    (void)state;
    char command[600];
    kn_bed_path(path, "changed.gguf");
    kn_bed_path(store, "changed-store");
    snprintf(url, sizeof url, "lmdb:%s", store);
    snprintf(command, sizeof command, "rm -rf '%s'", store);
    return system(command) || kn_tiny_model_write(path, &old);
}

static int teardown(void **state)
{
    (void)state;
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s' '%s'", store, path);
    return system(command);
}

/* As rsync --inplace writes: the same inode, the same size. */
static void overwrite(const struct kn_tiny_opts *o)
{
    struct kn_gguf_writer w = {0};
    kn_tiny_model_build(&w, o);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* times of files move with the kernel's clock tick */
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, w.file.data, w.file.n, 0), w.file.n);
    close(fd);
    kn_gguf_writer_fini(&w);
}

static struct kn_engine *open_engine(struct kn_model **model, bool with_store)
{
    struct kn_engine *e = NULL;
    struct kn_err err = {0};
    assert_int_equal(kn_model_open(model, &(struct kn_model_opts){.size = sizeof(struct kn_model_opts), .path = path}, &err), KN_OK);
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1, .store_url = with_store ? url : NULL, .prefill_chunk = CHUNK, .chunk_tokens = CHUNK};
    if (kn_engine_open(&e, *model, &eo, &err))
        fail_msg("%s", err.text);
    return e;
}

static enum kn_status submit(struct kn_request **r, struct kn_engine *e, uint64_t seed, uint32_t max_tokens, struct kn_err *err)
{
    int32_t prompt[N_PROMPT];
    kn_bed_prompt(prompt, N_PROMPT, seed);
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = N_PROMPT, .max_tokens = max_tokens, .ignore_stop = true};
    return kn_request_submit(r, e, &ro, err);
}

static void answer(struct kn_engine *e, uint64_t seed, struct kn_answer *a)
{
    struct kn_request *r = NULL;
    assert_int_equal(submit(&r, e, seed, 8, NULL), KN_OK);
    kn_bed_run(e, &r, a, 1, kn_tiny_n_vocab());
    kn_request_close(&r);
}

static enum kn_status on_row(void *user, size_t at, const float *row)
{
    (void)at, (void)row;
    ++*(unsigned *)user;
    return KN_OK;
}

static void nothing_goes_on(void **state)
{
    (void)state;
    struct kn_model *model = NULL, *fresh = NULL;
    struct kn_answer first, second, a = {0};
    struct kn_engine_stats stats = {.size = sizeof stats};
    struct kn_request *r[3] = {NULL};
    struct kn_err err = {0};
    struct kn_engine *e = open_engine(&model, true);
    answer(e, 1, &first);
    assert_int_equal(kn_engine_flush(e, 0), KN_OK);
    kn_engine_get_stats(e, &stats);
    const uint64_t n_chunks = stats.published_chunks;
    assert_int_equal(n_chunks, 3);

    /* one runs, one has to be fetched or computed, one is finished and wants to be published */
    assert_int_equal(submit(&r[0], e, 2, 200, &err), KN_OK);
    for (int i = 0; i < 6; i++)
        assert_int_equal(kn_bed_step(e), KN_OK);
    assert_int_equal(submit(&r[1], e, 1, 8, &err), KN_OK);
    assert_int_equal(submit(&r[2], e, 3, 8, &err), KN_OK);
    overwrite(&new);
    kn_request_finish(r[0]);
    for (int i = 0; i < 3; i++) {
        bool done = kn_bed_drain(r[i], &a, 0);
        for (int k = 0; k < 1000 && !done; k++) {
            kn_engine_step(e);
            done = kn_bed_drain(r[i], &a, 0);
        }
        assert_true(done);
        if (i) { /* the first was finished by its owner, with tokens from before */
            assert_int_equal(a.reason, KN_STOP_REASON_ERROR);
            assert_int_equal(a.status, KN_E_CHANGED);
            assert_int_equal(a.n, 0);
        }
        a = (struct kn_answer){0};
    }
    assert_int_equal(kn_engine_flush(e, 0), KN_E_CHANGED);
    kn_engine_get_stats(e, &stats);
    assert_int_equal(stats.published_chunks, n_chunks); /* nothing was written since */
    assert_int_equal(stats.n_cached_tokens + stats.n_fetched_tokens, 0);

    struct kn_request *late = NULL;
    assert_int_equal(submit(&late, e, 1, 8, &err), KN_E_CHANGED);
    assert_null(late);
    assert_non_null(strstr(err.text, path));
    int32_t prompt[N_PROMPT];
    unsigned n_rows = 0;
    kn_bed_prompt(prompt, N_PROMPT, 1);
    struct kn_score_opts so = {.size = sizeof so, .tokens = prompt, .n_tokens = N_PROMPT, .first = 50, .on_row = on_row, .user = &n_rows};
    assert_int_equal(kn_engine_score(e, &so, NULL, &err), KN_E_CHANGED);
    assert_int_equal(n_rows, 0);
    assert_int_equal(kn_engine_step(e), KN_AGAIN);
    for (int i = 0; i < 3; i++)
        kn_request_close(&r[i]);
    assert_int_equal(kn_engine_check(e, NULL), KN_OK);
    kn_engine_close(&e);

    /* an engine on it is refused, too: the model was opened before */
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1};
    assert_int_equal(kn_engine_open(&e, model, &eo, &err), KN_E_CHANGED);
    kn_model_close(&model);

    /* opened again, the new file is another model: it fetches nothing; and the old one fetches what was stored, which is right */
    e = open_engine(&fresh, true);
    answer(e, 1, &second);
    assert_int_equal(second.stats.n_fetched, 0);
    kn_engine_close(&e);
    kn_model_close(&fresh);
    overwrite(&old);
    e = open_engine(&fresh, true);
    answer(e, 1, &second);
    assert_int_equal(second.stats.n_fetched, 96);
    assert_memory_equal(first.tokens, second.tokens, 8 * sizeof *first.tokens);
    kn_engine_close(&e);
    kn_model_close(&fresh);
}

/* Two files of one size whose names, shapes and ends of tensors are the same: they have different caches. */
static void rewritten_rows_are_another_model(void **state)
{
    (void)state;
    struct kn_model *model = NULL;
    struct kn_answer a;
    struct kn_gguf_writer w = {0};
    struct kn_engine *e = open_engine(&model, true);
    answer(e, 5, &a);
    assert_int_equal(kn_engine_flush(e, 0), KN_OK);
    kn_engine_close(&e);
    kn_model_close(&model);
    kn_tiny_model_build(&w, &old);
    w.file.data[w.data_at + 12345] ^= 0x40;
    assert_int_equal(kn_file_write(path, w.file.data, w.file.n), 0);
    kn_gguf_writer_fini(&w);
    e = open_engine(&model, true);
    answer(e, 5, &a);
    assert_int_equal(a.stats.n_fetched, 0);
    kn_engine_close(&e);
    kn_model_close(&model);
    assert_int_equal(kn_tiny_model_write(path, &old), 0);
}

/* The file changes after any number of steps: what is given out of the answer then is a beginning of the right one, or all of it. */
static void no_mixed_token(void **state)
{
    (void)state;
    struct kn_model *model = NULL;
    struct kn_answer want;
    struct kn_engine *e = open_engine(&model, false);
    answer(e, 7, &want);
    kn_engine_close(&e);
    kn_model_close(&model);
    for (unsigned steps = 0; steps < 12; steps++) {
        struct kn_request *r = NULL;
        struct kn_answer a = {0};
        e = open_engine(&model, false);
        assert_int_equal(submit(&r, e, 7, 8, NULL), KN_OK);
        bool done = false;
        for (unsigned i = 0; i < steps && !done; i++) {
            kn_engine_step(e);
            done = kn_bed_drain(r, &a, 0);
        }
        overwrite(&new);
        while (!done) {
            kn_engine_step(e);
            done = kn_bed_drain(r, &a, 0);
        }
        assert_memory_equal(a.tokens, want.tokens, a.n * sizeof *a.tokens);
        assert_true(a.n == 8 ? a.reason == KN_STOP_REASON_LENGTH : a.status == KN_E_CHANGED);
        kn_request_close(&r);
        kn_engine_close(&e);
        kn_model_close(&model);
        overwrite(&old);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_goes_on), cmocka_unit_test(rewritten_rows_are_another_model), cmocka_unit_test(no_mixed_token)};
    return cmocka_run_group_tests(tests, setup, teardown);
}

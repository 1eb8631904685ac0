/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fails the n-th allocation, for every n, over: open a model, open an engine, generate, publish, close. Whatever n is, the
 * outcome is either a status with a sentence or the right answer (a failure in the background may cost a publish or a
 * fetch), nothing leaks and nothing crashes. Without a store the sequence of allocations is the same every time, so every
 * n is met; with one, threads interleave, and n runs past the end of what was seen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "support/engine_bed.h"

#define N_PROMPT 70u
#define N_NEW 6u

static char model_path[256], store_dir[256], store_url[300];
static int32_t prompt[N_PROMPT];

/* One life. KN_OK: *a is the answer. Otherwise what failed first, and err says it. */
static enum kn_status live(const char *url, struct kn_answer *a, struct kn_err *err)
{
    struct kn_model *model = NULL;
    struct kn_engine *engine = NULL;
    struct kn_request *r = NULL;
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    struct kn_engine_opts eo = {.size = sizeof eo, .n_ctx = 128, .n_threads = 2, .prefill_chunk = 32, .store_url = url, .chunk_tokens = 32};
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = N_PROMPT, .max_tokens = N_NEW, .ignore_stop = true,
                                 .sampler = KN_OPTS(kn_sampler_opts, .temperature = 1, .seed = 5,
                                                    .repeat_penalty = 1.1f)};
    *a = (struct kn_answer){0};
    enum kn_status status = kn_model_open(&model, &mo, err);
    if (status)
        goto done;
    status = kn_engine_open(&engine, model, &eo, err);
    if (status)
        goto done;
    status = kn_request_submit(&r, engine, &ro, err);
    if (status)
        goto done;
    while (!kn_bed_drain(r, a, kn_model_info(model)->n_vocab)) {
        enum kn_status s = kn_engine_step(engine);
        assert_true(s == KN_OK);
    }
    if (a->reason == KN_STOP_REASON_ERROR) {
        status = a->status;
        snprintf(err->text, sizeof err->text, "generation");
        goto done;
    }
    (void)kn_engine_flush(engine, 10000); /* a publish may have failed: that is its own business */
done:
    if (status)
        assert_true(err->text[0]);
    kn_request_close(&r);
    kn_engine_close(&engine);
    kn_model_close(&model);
    return status;
}

static uint64_t in_use(void)
{
    return kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
}

/* Runs one life with the n-th allocation failing; true when it was reached. */
static bool fail_nth(const char *url, uint64_t n, bool sticky, const struct kn_answer *want)
{
    struct kn_answer a;
    struct kn_err err = {0};
    uint64_t before = in_use();
    kni_alloc_fault_arm(n, sticky);
    enum kn_status status = live(url, &a, &err);
    bool hit = kni_alloc_fault_hit();
    kni_alloc_fault_arm(0, false);
    if (in_use() != before)
        fail_msg("allocation %llu: %llu bytes leak", (unsigned long long)n, (unsigned long long)(in_use() - before));
    if (status) {
        if (!hit || status != KN_E_NOMEM)
            fail_msg("allocation %llu: %s: %s", (unsigned long long)n, kn_status_name(status), err.text);
    } else {
        assert_int_equal(a.n, want->n);
        assert_memory_equal(a.tokens, want->tokens, want->n * sizeof *want->tokens);
    }
    return hit;
}

static void expect(struct kn_answer *want)
{
    struct kn_err err = {0};
    if (live(NULL, want, &err))
        fail_msg("%s", err.text);
    assert_int_equal(want->n, N_NEW);
}

static void test_every_allocation(void **state)
{
    (void)state;
    struct kn_answer want;
    expect(&want);
    for (int sticky = 0; sticky < 2; sticky++) {
        uint64_t n = 1;
        while (fail_nth(NULL, n, sticky, &want))
            n++;
        assert_true(n > 20);
    }
}

static void test_with_a_store(void **state)
{
    (void)state;
    struct kn_answer want;
    expect(&want);
    uint64_t n_missed = 0;
    for (uint64_t n = 1; n < 4000 && n_missed < 5; n += n < 150 ? 1 : 7) { /* the first ones find an empty store, later ones fetch */
        bool hit = fail_nth(store_url, n, false, &want);
        n_missed = hit ? 0 : n_missed + 1;
    }
    assert_int_equal(n_missed, 5);
    for (uint64_t n = 3; n < 120; n += 10)
        fail_nth(store_url, n, true, &want);
    assert_false(fail_nth(store_url, UINT32_MAX, false, &want)); /* what is stored is still good */
}

static int set_up(void **state)
{
    (void)state;
    kn_bed_path(model_path, "alloc.gguf");
    kn_bed_path(store_dir, "alloc-store");
    snprintf(store_url, sizeof store_url, "lmdb:%s", store_dir);
    kn_bed_prompt(prompt, N_PROMPT, 3);
    const struct kn_tiny_opts to = {.n_layer = 2, .n_ctx = 128};
    return kn_tiny_model_write(model_path, &to);
}

static int tear_down(void **state)
{
    (void)state;
    char command[300];
    unlink(model_path);
    snprintf(command, sizeof command, "rm -rf '%s'", store_dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation), cmocka_unit_test(test_with_a_store)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

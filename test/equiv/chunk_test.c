/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One prompt, one answer: whatever the size of prompt chunks, the number of threads and the level of the kernels, alone or beside
 * others, with or without reuse of blocks, with or without preemption, the greedy tokens are the same.
 *
 * Two models. The real one (KN_MODEL) must agree in every token. The tiny random one runs many more cases;
 * its logits are close together, so tokens may part where the two best differ by less than 0.02, which rounding of K and V
 * to 16 bits may decide; comparison of that answer ends there, and such cases must be rare.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/kv_view.h"
#include "support/engine_bed.h"
#include "support/real_model.h"

#define N_PROMPT_MAX 400u

struct rig {
    struct kn_model *model;
    uint32_t n_vocab, n_ctx;
    int32_t prompt[N_PROMPT_MAX], other[N_PROMPT_MAX];
    uint32_t n_prompt, n_other, n_new;
    float gap; /* tokens may part where the reference's two best logits are closer than this; 0: never */
    struct kn_answer want, want_other;
    uint32_t n_compared, n_expected;
};

static struct kn_engine *engine_open(const struct rig *rig, struct kn_engine_opts o)
{
    struct kn_engine *e;
    struct kn_err err = {0};
    o.size = sizeof o;
    o.n_ctx = rig->n_ctx;
    o.n_threads = o.n_threads ? o.n_threads : 2;
    if (kn_engine_open(&e, rig->model, &o, &err))
        fail_msg("%s", err.text);
    return e;
}

static struct kn_request *submit(const struct rig *rig, struct kn_engine *e, const int32_t *tokens, uint32_t n, uint32_t n_new)
{
    struct kn_request *r;
    struct kn_err err = {0};
    struct kn_request_opts o = {.size = sizeof o, .tokens = tokens, .n_tokens = n, .max_tokens = n_new, .ignore_stop = true, .want_logits = rig->gap > 0};
    if (kn_request_submit(&r, e, &o, &err))
        fail_msg("%s", err.text);
    return r;
}

static void compare(struct rig *rig, const struct kn_answer *want, const struct kn_answer *got, const char *what)
{
    assert_int_equal(got->reason, KN_STOP_REASON_LENGTH);
    assert_int_equal(got->n, want->n);
    rig->n_expected += want->n;
    for (uint32_t i = 0; i < want->n; i++, rig->n_compared++)
        if (got->tokens[i] != want->tokens[i]) {
            if (want->gaps[i] < rig->gap)
                return;
            fail_msg("%s: token %u is %d and not %d", what, i, (int)got->tokens[i], (int)want->tokens[i]);
        }
}

static void alone(const struct rig *rig, struct kn_engine *e, const int32_t *tokens, uint32_t n, struct kn_answer *a)
{
    struct kn_request *r = submit(rig, e, tokens, n, rig->n_new);
    kn_bed_run(e, &r, a, 1, rig->n_vocab);
    kn_request_close(&r);
}

static void chunk_sizes(struct rig *rig, const uint32_t *chunks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        char what[32];
        struct kn_answer a;
        struct kn_engine *e = engine_open(rig, (struct kn_engine_opts){.prefill_chunk = chunks[i], .no_prefix_cache = true});
        alone(rig, e, rig->prompt, rig->n_prompt, &a);
        snprintf(what, sizeof what, "chunks of %u", chunks[i]);
        compare(rig, &rig->want, &a, what);
        kn_engine_close(&e);
    }
}

/* Two requests in one step each time, so that every kind of step is cut among the threads. */
static void thread_counts(struct rig *rig)
{
    for (uint32_t n = 1; n <= 4; n += n == 1 ? 2 : 1) { /* 2: everything else here */
        struct kn_answer a[2];
        char what[48];
        struct kn_engine *e = engine_open(rig, (struct kn_engine_opts){.n_threads = n, .prefill_chunk = 256, .no_prefix_cache = true});
        struct kn_request *r[2] = {submit(rig, e, rig->prompt, rig->n_prompt, rig->n_new), submit(rig, e, rig->other, rig->n_other, rig->n_new)};
        kn_bed_run(e, r, a, 2, rig->n_vocab);
        snprintf(what, sizeof what, "%u threads", n);
        compare(rig, &rig->want, &a[0], what);
        compare(rig, &rig->want_other, &a[1], what);
        kn_request_close(&r[0]);
        kn_request_close(&r[1]);
        kn_engine_close(&e);
    }
}

/* Every level that the machine has below its best. */
static void cpu_levels(struct rig *rig, enum kn_cpu_level lowest)
{
    for (enum kn_cpu_level level = lowest; level < KN_CPU_LEVEL_AVX512; level++) {
        struct kn_answer a;
        struct kn_engine_stats st = {.size = sizeof st};
        struct kn_engine *e = engine_open(rig, (struct kn_engine_opts){.prefill_chunk = 256, .no_prefix_cache = true, .cpu_level_max_plus_1 = level + 1});
        kn_engine_get_stats(e, &st);
        assert_true(st.cpu_level <= level);
        alone(rig, e, rig->prompt, rig->n_prompt, &a);
        compare(rig, &rig->want, &a, level == KN_CPU_LEVEL_REF ? "reference kernels" : "AVX2 kernels");
        kn_engine_close(&e);
        if (st.cpu_level < level)
            return; /* the machine has no more */
    }
}

/* Both start together, or the second joins while the first decodes: both are right. */
static void batched(struct rig *rig, uint32_t chunk, uint32_t steps_before)
{
    struct kn_answer a[2];
    struct kn_engine *e = engine_open(rig, (struct kn_engine_opts){.prefill_chunk = chunk, .no_prefix_cache = true});
    struct kn_request *r[2] = {submit(rig, e, rig->other, rig->n_other, rig->n_new), NULL};
    for (uint32_t i = 0; i < steps_before; i++)
        kn_engine_step(e);
    r[1] = submit(rig, e, rig->prompt, rig->n_prompt, rig->n_new);
    kn_bed_run(e, r, a, 2, rig->n_vocab);
    compare(rig, &rig->want_other, &a[0], "the other one of a batch");
    compare(rig, &rig->want, &a[1], "in a batch");
    kn_request_close(&r[0]);
    kn_request_close(&r[1]);
    kn_engine_close(&e);
}

/* A request that leaves a common prefix of n_shared tokens in the pool, then the prompt: n_shared ends inside a block. */
static void shared_prefix(struct rig *rig, uint32_t n_shared, uint32_t n_expect)
{
    int32_t first[N_PROMPT_MAX];
    struct kn_answer a;
    memcpy(first, rig->prompt, sizeof first);
    first[n_shared] = rig->prompt[n_shared] == 40 ? 41 : 40;
    struct kn_engine *e = engine_open(rig, (struct kn_engine_opts){.prefill_chunk = 256});
    struct kn_request *r = submit(rig, e, first, rig->n_prompt, 1);
    kn_bed_run(e, &r, &a, 1, rig->n_vocab);
    kn_request_close(&r);
    alone(rig, e, rig->prompt, rig->n_prompt, &a);
    assert_int_equal(a.stats.n_cached, n_expect);
    compare(rig, &rig->want, &a, "after a prefix that ends inside a block");
    alone(rig, e, rig->prompt, rig->n_prompt, &a); /* once more: now nearly all of it is there */
    assert_true(a.stats.n_cached >= rig->n_prompt - KNI_BLOCK_TOKENS);
    compare(rig, &rig->want, &a, "after itself");
    kn_engine_close(&e);
}

/* The pool holds both prompts but not both answers. When the younger has taken the last block and the older needs one, the
 * younger is thrown out and computed again; the other way round it waits. Returns how many tokens were computed. */
static uint64_t two_in_a_small_pool(struct rig *rig, bool no_prefix_cache, bool prompt_first)
{
    struct kn_answer a[2];
    const uint64_t block_bytes = kn_model_info(rig->model)->kv_bytes_per_token * KNI_BLOCK_TOKENS;
    uint64_t n_blocks = (rig->n_prompt + 15) / 16 + (rig->n_other + 15) / 16 + 1;
    struct kn_engine *e = engine_open(rig, (struct kn_engine_opts){.prefill_chunk = 256, .pool_bytes = n_blocks * block_bytes, .no_prefix_cache = no_prefix_cache});
    struct kn_request *r[2];
    for (int i = 0; i < 2; i++) /* submit order is age */
        r[i] = prompt_first == (i == 0) ? submit(rig, e, rig->prompt, rig->n_prompt, rig->n_new) : submit(rig, e, rig->other, rig->n_other, rig->n_new);
    kn_bed_run(e, r, a, 2, rig->n_vocab);
    struct kn_engine_stats st = {.size = sizeof st};
    kn_engine_get_stats(e, &st);
    compare(rig, prompt_first ? &rig->want : &rig->want_other, &a[0], "the older of two that do not fit");
    compare(rig, prompt_first ? &rig->want_other : &rig->want, &a[1], "the younger of two that do not fit");
    kn_request_close(&r[0]);
    kn_request_close(&r[1]);
    kn_engine_close(&e);
    return st.n_step_tokens;
}

static void preempted(struct rig *rig)
{
    uint64_t n_least = 2 * (rig->n_prompt + rig->n_other + 2 * (uint64_t)(rig->n_new - 1));
    assert_true(two_in_a_small_pool(rig, true, true) + two_in_a_small_pool(rig, true, false) > n_least); /* some were computed twice */
}

static void reference(struct rig *rig)
{
    struct kn_engine *e = engine_open(rig, (struct kn_engine_opts){.prefill_chunk = 512, .no_prefix_cache = true});
    alone(rig, e, rig->prompt, rig->n_prompt, &rig->want);
    alone(rig, e, rig->other, rig->n_other, &rig->want_other);
    kn_engine_close(&e);
}

static void test_tiny(void **state)
{
    (void)state;
    char path[256];
    kn_bed_path(path, "chunk.gguf");
    static const uint32_t chunks[] = {1, 7, 16, 33, 256, 512};
    for (uint64_t seed = 0; seed < 6; seed++) {
        static struct rig rig;
        rig = (struct rig){.n_ctx = 512, .n_prompt = 300 - 7 * (uint32_t)seed, .n_other = 90 + 31 * (uint32_t)seed, .n_new = 48, .gap = 0.02f};
        const struct kn_tiny_opts to = {.seed = seed, .type = seed % 2 ? KNI_DTYPE_Q4_1 : KNI_DTYPE_F32};
        assert_int_equal(kn_tiny_model_write(path, &to), 0);
        struct kn_model_opts mo = {.size = sizeof mo, .path = path};
        assert_int_equal(kn_model_open(&rig.model, &mo, NULL), KN_OK);
        rig.n_vocab = kn_model_info(rig.model)->n_vocab;
        kn_bed_prompt(rig.prompt, N_PROMPT_MAX, 100 + seed);
        kn_bed_prompt(rig.other, N_PROMPT_MAX, 200 + seed);
        reference(&rig);
        chunk_sizes(&rig, chunks, sizeof chunks / sizeof *chunks);
        if (seed < 2) { /* one with F32 and one with quantised weights */
            thread_counts(&rig);
            cpu_levels(&rig, KN_CPU_LEVEL_REF);
        }
        for (uint32_t before = 0; before < 24; before += 5)
            batched(&rig, 64, before);
        for (uint32_t n = 17; n < 250; n += 29)
            shared_prefix(&rig, n, n);
        preempted(&rig);
        two_in_a_small_pool(&rig, false, true);
        two_in_a_small_pool(&rig, false, false);
        if (rig.n_compared < rig.n_expected * 3 / 4)
            fail_msg("only %u of %u tokens could be compared", rig.n_compared, rig.n_expected);
        kn_model_close(&rig.model);
    }
    unlink(path);
}

static const char *const text_one =
    "The lighthouse stood at the end of a long spit of gravel, and every evening the keeper walked out to it with a lamp, a loaf of bread and "
    "a notebook. He wrote down the direction of the wind, the height of the waves, the names of the ships that passed and the colour of the "
    "sky at dusk. In winter the spit was covered with ice, and he tied a rope around his waist before he set out. Nobody had asked him to keep "
    "the notebook. When the harbour office sent a young engineer to replace the lamp with an electric one, she found forty years of weather on "
    "a shelf beside the stove, and she spent the night reading it. In the morning she asked whether the old books could be copied, because the "
    "people who built the new pier had guessed at the size of the waves, and had guessed wrong. The keeper made tea. He said that the sea had "
    "never minded what people guessed. Then he showed her how to read the swell from the sound that it makes under the stones, which is a thing "
    "that cannot be written down. She stayed for three days. After that the harbour office received a letter every month, with a table of "
    "numbers in a tidy hand, and below the table one sentence about the sound. What did the engineer learn from the keeper, and why did the";
static const char *const text_two =
    "To make a simple vegetable soup, first wash and chop two carrots, one onion, a stick of celery and three potatoes. Warm a spoonful of oil "
    "in a large pot, add the onion and stir until it is soft. Then add the other vegetables and";

static void test_real(void **state)
{
    (void)state;
    static struct rig rig;
    static const uint32_t chunks[] = {1, 7, 256};
    rig = (struct rig){.n_ctx = 512, .n_new = 20, .model = kn_real_model_open()};
    rig.n_vocab = kn_model_info(rig.model)->n_vocab;
    size_t n = N_PROMPT_MAX, m = N_PROMPT_MAX;
    assert_int_equal(kn_model_tokenize(rig.model, text_one, strlen(text_one), 0, rig.prompt, &n), KN_OK);
    assert_int_equal(kn_model_tokenize(rig.model, text_two, strlen(text_two), 0, rig.other, &m), KN_OK);
    assert_true(n > 250);
    rig.n_prompt = (uint32_t)n;
    rig.n_other = (uint32_t)m;
    reference(&rig);
    chunk_sizes(&rig, chunks, sizeof chunks / sizeof *chunks);
    thread_counts(&rig);
    cpu_levels(&rig, KN_CPU_LEVEL_AVX2); /* the references: e2e/logits_test */
    batched(&rig, 256, 5);
    shared_prefix(&rig, 201, 201);
    preempted(&rig);
    assert_int_equal(rig.n_compared, rig.n_expected);
    kn_model_close(&rig.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiny), cmocka_unit_test(test_real)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that begin alike and come together: the common part is computed once, whatever becomes of the one that computes it. */
#include "unit/sched/sched_support.h"

#define N_JOBS 8u
#define N_PREFIX 400u /* 25 blocks */
#define N_TAIL 20u
#define N_NEW 5u

/* Prompt i: the common prefix, then its own tail. */
static void make_prompts(int32_t prompts[N_JOBS][N_PREFIX + N_TAIL])
{
    for (uint32_t i = 0; i < N_JOBS; i++) {
        make_prompt(prompts[i], N_PREFIX, 3);
        for (uint32_t t = 0; t < N_TAIL; t++)
            prompts[i][N_PREFIX + t] = (int32_t)((i + t * 11 + 40) % KN_FAKE_VOCAB);
    }
}

static void check_wide(const struct kni_job *job)
{
    int32_t want[N_PREFIX + N_TAIL + 64];
    memcpy(want, job->tokens, job->n_prompt * sizeof *want);
    kn_fake_generate(want, job->n_prompt, kni_job_n_generated(job));
    assert_int_equal(job->n_known, job->n_max);
    assert_memory_equal(job->tokens, want, job->n_known * sizeof *want);
}

static void together(uint32_t prefill_chunk, bool no_index, const int32_t *cached, uint32_t n_reused)
{
    int32_t prompts[N_JOBS][N_PREFIX + N_TAIL];
    struct kni_job jobs[N_JOBS], before;
    struct bed b;
    make_prompts(prompts);
    bed_open(&b, 300, prefill_chunk, N_JOBS, no_index, NULL);
    if (cached) {
        submit(&before, &b, cached, N_PREFIX, 1);
        run_until_idle(&b);
        done(&before, &b);
    }
    uint64_t n_before = kni_sched_get_stats(b.sched).n_step_tokens;
    for (uint32_t i = 0; i < N_JOBS; i++)
        submit(&jobs[i], &b, prompts[i], N_PREFIX + N_TAIL, N_NEW);
    run_until_idle(&b);
    uint64_t n_cached = 0;
    for (uint32_t i = 0; i < N_JOBS; i++) {
        check_wide(&jobs[i]);
        n_cached += jobs[i].stats.n_cached;
        assert_int_equal(jobs[i].stats.n_done, N_PREFIX + N_TAIL);
    }
    struct kni_sched_stats s = kni_sched_get_stats(b.sched);
    uint32_t n_prefixes = no_index ? N_JOBS : 1;
    assert_int_equal(s.n_step_tokens - n_before, n_prefixes * (N_PREFIX - n_reused) + N_JOBS * (N_TAIL + N_NEW - 1));
    assert_int_equal(n_cached, no_index ? 0 : (N_JOBS - 1) * N_PREFIX + n_reused);
    assert_int_equal(s.n_cached_tokens, n_cached);
    assert_int_equal(s.n_prompt_tokens, s.n_cached_tokens + s.n_computed_tokens);
    for (uint32_t i = 0; i < N_JOBS; i++)
        done(&jobs[i], &b);
    bed_close(&b);
}

static void test_common_prefix(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 16, 50, 256, 1000};
    for (unsigned i = 0; i < 5; i++)
        together(chunks[i], false, NULL, 0);
    together(256, true, NULL, 0);
    /* The pool knows a prompt that parts inside a block of the common prefix: each would go on from there by itself. */
    int32_t other[N_PREFIX];
    make_prompt(other, N_PREFIX, 3);
    other[205] ^= 1;
    together(256, false, other, 205);
}

/* The same prompt four times, as for n choices: only what lies behind the last whole block is computed by each. */
static void test_same_prompt(void **state)
{
    (void)state;
    int32_t p[300];
    make_prompt(p, 300, 1);
    struct kni_job jobs[4];
    struct bed b;
    bed_open(&b, 100, 64, 4, false, NULL);
    for (uint32_t i = 0; i < 4; i++)
        submit(&jobs[i], &b, p, 300, 3);
    run_until_idle(&b);
    assert_int_equal(kni_sched_get_stats(b.sched).n_step_tokens, 300 + 3 * (300 - 288) + 4 * 2);
    for (uint32_t i = 0; i < 4; i++) {
        check_answer(&jobs[i]);
        done(&jobs[i], &b);
    }
    bed_close(&b);
}

static void test_tenants_do_not_share(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct kni_job jobs[2];
    struct bed b;
    bed_open(&b, 100, 64, 4, false, NULL);
    job_init(&jobs[0], &b, p, 100, 1, "a");
    job_init(&jobs[1], &b, p, 100, 1, "b");
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(kni_sched_submit(b.sched, &jobs[i]), KN_OK);
    run_until_idle(&b);
    assert_int_equal(kni_sched_get_stats(b.sched).n_step_tokens, 200);
    for (uint32_t i = 0; i < 2; i++)
        done(&jobs[i], &b);
    bed_close(&b);
}

/* The one that computes for all ends in the middle: the next goes on from what there is. */
static void test_leader_leaves(void **state)
{
    (void)state;
    int32_t prompts[N_JOBS][N_PREFIX + N_TAIL];
    struct kni_job jobs[3];
    struct bed b;
    make_prompts(prompts);
    bed_open(&b, 300, 50, 4, false, NULL);
    for (uint32_t i = 0; i < 3; i++)
        submit(&jobs[i], &b, prompts[i], N_PREFIX + N_TAIL, N_NEW);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(step(&b), KN_OK);
        assert_int_equal(jobs[0].seq.n_tokens, 50 * (i + 1));
        assert_true(jobs[1].seq.n_tokens <= 50 * i && jobs[2].seq.n_tokens <= 50 * i);
    }
    kni_sched_cancel(b.sched, &jobs[0]);
    run_until_idle(&b);
    for (uint32_t i = 1; i < 3; i++)
        check_wide(&jobs[i]);
    /* 200 by the first, of which 192 are whole blocks; then once more 208 and two tails */
    assert_int_equal(kni_sched_get_stats(b.sched).n_step_tokens, 200 + (N_PREFIX - 192) + 2 * (N_TAIL + N_NEW - 1));
    for (uint32_t i = 0; i < 3; i++)
        done(&jobs[i], &b);
    bed_close(&b);
}

/* Too few blocks for all tails: some are thrown out and come back, all are right. */
static void test_tight_pool(void **state)
{
    (void)state;
    int32_t prompts[N_JOBS][N_PREFIX + N_TAIL];
    make_prompts(prompts);
    for (uint32_t n_blocks = 29; n_blocks < 40; n_blocks++) {
        struct kni_job jobs[N_JOBS];
        struct bed b;
        bed_open(&b, n_blocks, 64, N_JOBS, false, NULL);
        for (uint32_t i = 0; i < N_JOBS; i++)
            submit(&jobs[i], &b, prompts[i], N_PREFIX + N_TAIL, 40);
        run_until_idle(&b);
        for (uint32_t i = 0; i < N_JOBS; i++) {
            check_wide(&jobs[i]);
            done(&jobs[i], &b);
        }
        bed_close(&b);
    }
}

/* A long prompt that waits for room, most of it cached, is matched when something has changed, not each step. */
static void test_the_head_waits_cheaply(void **state)
{
    (void)state;
    struct bed b;
    struct kni_job a, c, waiting;
    int32_t p[MAX_LEN], q[MAX_LEN];
    bed_open(&b, 34, 400, 4, false, NULL);
    make_prompt(p, 384, 1);
    make_prompt(q, 160, 2);
    submit(&a, &b, p, 300, 1);
    run_until_idle(&b);
    done(&a, &b);
    submit(&c, &b, q, 160, 150);
    step(&b);
    submit(&waiting, &b, p, 384, 1);
    const struct kni_prefix_index *index = kni_pool_index(b.pool);
    uint64_t before = index->n_probes;
    uint32_t n_steps = 0;
    while (!c.reason) {
        assert_int_equal(waiting.state, KNI_JOB_STATE_WAITING);
        assert_int_equal(waiting.seq.n_blocks, 0); /* its cached blocks stay evictable */
        step(&b);
        n_steps++;
    }
    assert_true(n_steps > 100);
    print_message("%.1f entries looked at a step\n", (double)(index->n_probes - before) / n_steps);
    assert_true(index->n_probes - before < 10 * n_steps); /* 18 blocks are cached; a few are entered on the way */
    run_until_idle(&b);
    check_answer(&waiting);
    check_answer(&c);
    done(&c, &b);
    done(&waiting, &b);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_head_waits_cheaply), cmocka_unit_test(test_common_prefix), cmocka_unit_test(test_same_prompt), cmocka_unit_test(test_tenants_do_not_share),
        cmocka_unit_test(test_leader_leaves), cmocka_unit_test(test_tight_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

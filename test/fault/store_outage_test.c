/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that is down, dies, hangs, answers with rubbish, or is slow, seen through the engine: every answer is the one that is
 * computed without a store, the statistics say what is wrong, nothing stays held, and all of it mends by itself once the
 * store is well again. The store is the real one behind fault:, ordered about while the engine runs.
 */
#include "support/fault_bed.h"

#include <time.h>

#include "support/engine_bed.h"

#define N_PROMPT 100u
#define N_NEW 6u
#define CHUNK 32u /* tokens; three chunks lie below the prompt's last token */
#define N_STORED 96u
#define N_PROMPTS 2u

struct outcome { struct kn_answer answer; uint8_t digest[16]; };

static char model_path[256];
static struct kn_model *model;
static struct outcome want[N_PROMPTS]; /* computed without a store */

static struct kn_engine *engine_open(const char *where, bool optional, uint32_t deadline_ms, enum kn_status expected)
{
    struct kn_engine *e = NULL;
    struct kn_err err = {0};
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1, .no_prefix_cache = true, .store_url = where, .store_optional = optional,
                                .fetch_deadline_ms = deadline_ms, .prefill_chunk = CHUNK, .chunk_tokens = CHUNK}; /* equal: the same rows after a fetch */
    enum kn_status s = kn_engine_open(&e, model, &eo, &err);
    if (s != expected)
        fail_msg("%s instead of %s: %s", kn_status_name(s), kn_status_name(expected), err.text);
    return e;
}

static void ask(struct kn_engine *e, unsigned which, bool publish, struct outcome *out)
{
    int32_t prompt[N_PROMPT];
    struct kn_request *r = NULL;
    kn_bed_prompt(prompt, N_PROMPT, 71 + which);
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = N_PROMPT, .max_tokens = N_NEW, .ignore_stop = true, .no_publish = !publish};
    assert_int_equal(kn_request_submit(&r, e, &ro, NULL), KN_OK);
    kn_bed_run(e, &r, &out->answer, 1, kn_tiny_n_vocab());
    assert_int_equal(kn_request_kv_digest(r, N_PROMPT, out->digest), KN_OK);
    kn_request_close(&r);
}

/* Asks, and compares with what is right. Returns how many tokens came from the store. */
static uint64_t ask_right(struct kn_engine *e, unsigned which, bool publish)
{
    struct outcome got;
    ask(e, which, publish, &got);
    assert_int_equal(got.answer.reason, KN_STOP_REASON_LENGTH);
    assert_int_equal(got.answer.n, N_NEW);
    assert_memory_equal(got.answer.tokens, want[which].answer.tokens, N_NEW * sizeof *got.answer.tokens);
    assert_memory_equal(got.digest, want[which].digest, 16);
    assert_true(got.answer.stats.n_fetched == 0 || got.answer.stats.n_fetched == N_STORED || got.answer.stats.n_fetched % CHUNK == 0);
    return got.answer.stats.n_fetched;
}

static struct kn_engine_stats stats(const struct kn_engine *e)
{
    struct kn_engine_stats st = {.size = sizeof st};
    kn_engine_get_stats(e, &st);
    return st;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* Nobody asks the engine for anything meanwhile. */
static void await_well(const struct kn_engine *e)
{
    for (struct kn_engine_stats st = stats(e); !st.store_open || !st.store_read_ok || !st.store_write_ok; st = stats(e))
        nap();
}

static void check_and_close(struct kn_engine *e)
{
    struct kn_err err = {0};
    (void)kn_engine_flush(e, 60000);
    if (kn_engine_check(e, &err))
        fail_msg("%s", err.text);
    kn_engine_close(&e);
}

/* Asks until the prompt comes from the store: on a busy machine a call may take so long that it is taken for one that hangs. */
static void expect_fetched(struct kn_engine *e, unsigned which)
{
    for (int i = 0; i < 50; i++) {
        await_well(e);
        if (ask_right(e, which, false) == N_STORED)
            return;
    }
    fail_msg("prompt %u is never fetched", which);
}

/* Publishes prompt `which`, and fetches it whole. */
static void expect_works(struct kn_engine *e, unsigned which)
{
    enum kn_status s = KN_E_IO;
    for (int i = 0; i < 50 && s; i++) {
        await_well(e);
        ask_right(e, which, true);
        s = kn_engine_flush(e, 60000);
    }
    assert_int_equal(s, KN_OK);
    expect_fetched(e, which);
}

static void down_at_start(void **state)
{
    (void)state;
    char parent[96], below[160];
    snprintf(parent, sizeof parent, "%s/parent", folder.path);
    snprintf(below, sizeof below, "lmdb:%s/store", parent);
    assert_null(engine_open(below, false, 0, KN_E_IO)); /* not optional: an error, as ever */
    assert_null(engine_open("redis://x", true, 0, KN_E_UNSUPPORTED));
    struct kn_engine *e = engine_open(below, true, 0, KN_OK);
    struct kn_engine_stats st = stats(e);
    assert_true(st.has_store && !st.store_open && !st.store_read_ok && !st.store_write_ok);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(ask_right(e, i % N_PROMPTS, true), 0);
    (void)kn_engine_flush(e, 60000);
    assert_int_equal(stats(e).published_chunks, 0);
    assert_int_equal(mkdir(parent, 0777), 0);
    await_well(e);
    expect_works(e, 0);
    check_and_close(e);
    folder_remove(&folder); /* a store is not made in a folder that holds something else */
    assert_int_equal(mkdir(folder.path, 0777), 0);
    order("refuse-open");
    assert_null(engine_open(fault_url, false, 0, KN_E_IO));
    e = engine_open(fault_url, true, 0, KN_OK);
    assert_int_equal(ask_right(e, 0, true), 0);
    assert_int_equal(kn_engine_flush(e, 60000), KN_E_IO);
    order("");
    await_well(e);
    expect_works(e, 1);
    check_and_close(e);
    e = engine_open(NULL, true, 0, KN_OK);
    st = stats(e);
    assert_true(!st.has_store && !st.store_open);
    check_and_close(e);
}

static void dying_and_coming_back(void **state)
{
    (void)state;
    struct kn_engine *e = engine_open(fault_url, true, 0, KN_OK);
    expect_works(e, 0);
    struct kn_engine_stats st = stats(e);
    assert_true(st.has_store && st.store_open && st.store_read_ok && st.store_write_ok);
    assert_int_equal(st.store_read_errors + st.store_write_errors, 0);
    order("fail");
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(ask_right(e, i % N_PROMPTS, true), 0);
    (void)kn_engine_flush(e, 60000);
    st = stats(e);
    assert_true(!st.store_read_ok && st.store_read_errors >= 3);
    order("");
    await_well(e);
    expect_fetched(e, 0);
    order("fail-put");
    ask_right(e, 1, true); /* publishing fails, reading does not */
    assert_int_equal(kn_engine_flush(e, 60000), KN_E_IO);
    expect_fetched(e, 0);
    assert_true(stats(e).store_write_errors >= 1 && stats(e).store_read_ok);
    order("");
    await_well(e);
    expect_works(e, 1);
    check_and_close(e);
}

static void hanging(void **state)
{
    (void)state;
    struct kn_engine *e = engine_open(fault_url, true, 1000, KN_OK); /* a call hangs after a second */
    expect_works(e, 0);
    order("hang");
    assert_int_equal(ask_right(e, 0, false), 0);
    while (stats(e).store_read_ok)
        nap();
    uint64_t n_errors = stats(e).store_read_errors;
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(ask_right(e, i % N_PROMPTS, true), 0);
    assert_int_equal(stats(e).store_read_errors, n_errors); /* nobody has asked it any more */
    (void)kn_engine_flush(e, 60000);
    order("");
    await_well(e);
    expect_fetched(e, 0);
    order("hang-get");
    assert_int_equal(ask_right(e, 0, false), 0);
    while (stats(e).store_read_ok)
        nap();
    struct kn_err err = {0};
    (void)kn_engine_flush(e, 60000);
    if (kn_engine_check(e, &err)) /* although a worker is still out */
        fail_msg("%s", err.text);
    order("");
    await_well(e);
    expect_works(e, 1);
    order("hang");
    ask_right(e, 0, true); /* and closing does not wait for it */
    kn_engine_close(&e);
}

static void rubbish(void **state)
{
    (void)state;
    static const char *const orders[] = {"garbage", "short", "phantom\nfail-put", "garbage\nshort\ngarbage-entry"};
    struct kn_engine *e = engine_open(fault_url, true, 0, KN_OK);
    expect_works(e, 0);
    order("garbage-entry"); /* what the entry says is for the store; the container is believed */
    expect_fetched(e, 0);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct outcome got;
        order(orders[i]);
        unsigned which = strstr(orders[i], "phantom") ? 1 : 0; /* prompt 1 has never been stored */
        uint64_t n_misses = stats(e).n_fetch_misses;
        ask(e, which, false, &got);
        assert_memory_equal(got.answer.tokens, want[which].answer.tokens, N_NEW * sizeof *got.answer.tokens);
        assert_memory_equal(got.digest, want[which].digest, 16);
        assert_int_equal(got.answer.stats.n_fetched, 0);
        assert_true(got.answer.stats.n_misses >= 1);
        assert_true(stats(e).n_fetch_misses > n_misses);
        order("");
        await_well(e);
        expect_works(e, 0); /* what was refused is put anew */
    }
    check_and_close(e);
}

static void slow(void **state)
{
    (void)state;
    struct kn_engine *e = engine_open(fault_url, true, 20000, KN_OK);
    order("delay-lookup-ms 40\ndelay-get-ms 60\ndelay-put-ms 30");
    expect_works(e, 0); /* slow is not wrong */
    check_and_close(e);
    e = engine_open(fault_url, true, 2000, KN_OK);
    order("delay-get-ms 3600000"); /* slower than the deadline: computed, and what is out is waited for by nobody */
    assert_int_equal(ask_right(e, 0, false), 0);
    assert_int_equal(stats(e).n_fetches_cut, 1);
    check_and_close(e);
    order("");
    e = engine_open(fault_url, true, 0, KN_OK);
    expect_fetched(e, 0);
    check_and_close(e);
}

static void replaced_under_the_engine(void **state)
{
    (void)state;
    struct kn_engine *e = engine_open(folder.url, true, 0, KN_OK);
    expect_works(e, 0);
    folder_remove(&folder);
    assert_int_equal(mkdir(folder.path, 0777), 0);
    while (stats(e).store_read_ok)
        assert_int_equal(ask_right(e, 0, false), 0);
    await_well(e);
    assert_int_equal(ask_right(e, 0, false), 0); /* it is another one */
    expect_works(e, 0);
    check_and_close(e);
}

static int group_set_up(void **state)
{
    (void)state;
    struct kn_tiny_opts to = {.n_ctx = 256, .seed = 8};
    kn_bed_path(model_path, "outage.gguf");
    if (kn_tiny_model_write(model_path, &to))
        return -1;
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    if (kn_model_open(&model, &mo, NULL))
        return -1;
    struct kn_engine *e = engine_open(NULL, false, 0, KN_OK);
    for (unsigned i = 0; i < N_PROMPTS; i++)
        ask(e, i, false, &want[i]);
    kn_engine_close(&e);
    return memcmp(want[0].digest, want[1].digest, 16) ? 0 : -1;
}

static int group_tear_down(void **state)
{
    (void)state;
    kn_model_close(&model);
    unlink(model_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(down_at_start, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(dying_and_coming_back, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(hanging, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(rubbish, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(slow, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(replaced_under_the_engine, fault_set_up, fault_tear_down),
    };
    return cmocka_run_group_tests_name("store_outage", tests, group_set_up, group_tear_down);
}

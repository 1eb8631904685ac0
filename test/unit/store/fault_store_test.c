/* SPDX-License-Identifier: Apache-2.0 */
/* The store that misbehaves on command: each order does what it says, while it stands in the file and no longer. */
#include "support/fault_bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/clock.h"
#include "kinema/log.h"

static enum kn_status try_open(struct kn_store **store, const char *where, struct kn_err *err)
{
    struct kn_store_opts o = {.size = sizeof o, .url = where};
    *err = (struct kn_err){0};
    return kn_store_open(store, &o, err);
}

static struct kn_store *open_fault(void)
{
    struct kn_store *store;
    struct kn_err err;
    if (try_open(&store, fault_url, &err))
        fail_msg("%s", err.text);
    return store;
}

static enum kn_status lookup(struct kn_store *store, uint64_t seed, uint32_t *n)
{
    struct kni_store_key key;
    test_key(seed, 1, &key);
    return kni_store_lookup(store, &key, 1, n, NULL);
}

static enum kn_status get(struct kn_store *store, uint64_t seed, struct kni_store_entry *entry, struct kni_store_buf *buf)
{
    struct kni_store_key key;
    test_key(seed, 1, &key);
    return kni_store_get(store, key.text, entry, buf, NULL);
}

static void nothing_ordered_is_transparent(void **state)
{
    (void)state;
    struct kn_store *store = open_fault(); /* no control file */
    struct kni_store_buf buf = {0};
    struct kni_store_entry entry;
    struct kn_store_stat st = {.size = sizeof st};
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    order("");
    assert_true(has(store, 1, 1));
    order("# only a remark\n\n   \t\n");
    assert_int_equal(get(store, 1, &entry, &buf), KN_OK);
    assert_int_equal(kni_store_check(&entry, buf.data, buf.n_bytes, NULL), KN_OK);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_int_equal(st.n_chunks, 1);
    assert_int_equal(kn_store_gc(store, NULL, NULL), KN_OK);
    assert_int_equal(kn_store_rm(store, "", NULL), KN_OK);
    assert_false(has(store, 1, 1));
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
}

static void failures_by_call(void **state)
{
    (void)state;
    const struct { const char *text; bool lookup, get, put, drop; } cases[] = {
        {"fail\n", true, true, true, true},
        {"fail-lookup", true, false, false, false},
        {"fail-get\n", false, true, false, false},
        {"fail-put\r\n", false, false, true, true},
        {"  fail-put\nfail-lookup\n", true, false, true, true},
    };
    struct kn_store *store = open_fault();
    struct kni_store_buf buf = {0};
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t n;
        struct kni_store_key key;
        test_key(99, 1, &key);
        order(cases[i].text);
        assert_int_equal(lookup(store, 1, &n), cases[i].lookup ? KN_E_IO : KN_OK);
        assert_int_equal(get(store, 1, NULL, &buf), cases[i].get ? KN_E_IO : KN_OK);
        assert_int_equal(try_put(store, 2, 1), cases[i].put ? KN_E_IO : KN_OK);
        assert_int_equal(kni_store_drop(store, key.text, NULL, NULL), cases[i].drop ? KN_E_IO : KN_OK);
    }
    order("");
    assert_true(has(store, 1, 1));
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
}

static void damaged_answers(void **state)
{
    (void)state;
    struct kn_store *store = open_fault();
    struct kni_store_buf good = {0}, buf = {0};
    struct kni_store_entry entry, right;
    uint32_t n;
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    assert_int_equal(get(store, 1, &right, &good), KN_OK);
    order("garbage");
    assert_int_equal(get(store, 1, &entry, &buf), KN_OK);
    assert_int_equal(buf.n_bytes, good.n_bytes);
    assert_int_equal(kni_store_check(&entry, buf.data, buf.n_bytes, NULL), KN_E_FORMAT);
    assert_int_not_equal(kni_chunk_verify(buf.data, buf.n_bytes, NULL), KN_OK); /* the container finds it by itself, too */
    order("short");
    assert_int_equal(get(store, 1, &entry, &buf), KN_OK);
    assert_int_equal(buf.n_bytes, good.n_bytes / 2);
    assert_int_not_equal(kni_chunk_verify(buf.data, buf.n_bytes, NULL), KN_OK);
    order("garbage-entry");
    assert_int_equal(get(store, 1, &entry, &buf), KN_OK);
    assert_int_equal(buf.n_bytes, good.n_bytes);
    assert_true(entry.n_bytes != right.n_bytes && entry.xxh3 != right.xxh3);
    order("phantom");
    assert_int_equal(lookup(store, 7, &n), KN_OK);
    assert_int_equal(n, 1);
    assert_int_equal(get(store, 7, &entry, &buf), KN_E_NOT_FOUND);
    order("");
    assert_int_equal(get(store, 1, &entry, &buf), KN_OK); /* what is stored has stayed as it was */
    assert_memory_equal(buf.data, good.data, good.n_bytes);
    kni_store_buf_fini(&good);
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
}

static void delays_are_each_callers_own(void **state)
{
    (void)state;
    struct kn_store *store = open_fault();
    struct kni_store_buf buf = {0};
    uint32_t n;
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    order("delay-get-ms 60\ndelay-lookup-ms 0\n");
    uint64_t begin = kni_now_ns();
    assert_int_equal(get(store, 1, NULL, &buf), KN_OK);
    assert_true(kni_now_ns() - begin >= 60000000u);
    order("delay-lookup-ms 50\ndelay-put-ms 70");
    begin = kni_now_ns();
    assert_int_equal(lookup(store, 1, &n), KN_OK);
    assert_int_equal(n, 1);
    assert_true(kni_now_ns() - begin >= 50000000u);
    begin = kni_now_ns();
    assert_int_equal(try_put(store, 2, 1), KN_OK);
    assert_true(kni_now_ns() - begin >= 70000000u);
    kni_store_interrupt(store); /* an hour's delay would show */
    order("delay-get-ms 3600000");
    assert_int_equal(get(store, 1, NULL, &buf), KN_OK);
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
}

/* ---- hanging */

struct hung { struct kn_store *store; enum kn_status status; atomic_bool done; };

static void *hang_lookup(void *arg)
{
    struct hung *h = arg;
    uint32_t n;
    h->status = lookup(h->store, 1, &n);
    atomic_store(&h->done, true);
    return NULL;
}

static void calls_hang_until_the_order_goes(void **state)
{
    (void)state;
    struct hung h[2] = {{0}, {0}};
    pthread_t threads[2];
    struct kni_store_buf buf = {0};
    struct kn_store *store = open_fault();
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    order("hang-lookup");
    for (int i = 0; i < 2; i++) {
        h[i].store = store;
        assert_int_equal(pthread_create(&threads[i], NULL, hang_lookup, &h[i]), 0);
    }
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    assert_int_equal(get(store, 1, NULL, &buf), KN_OK); /* nobody else is held up */
    assert_false(atomic_load(&h[0].done) || atomic_load(&h[1].done));
    order("");
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(h[i].status, KN_OK);
    }
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
}

static void interrupting_ends_a_hang(void **state)
{
    (void)state;
    struct hung h = {.store = open_fault()};
    pthread_t thread;
    order("hang");
    assert_int_equal(pthread_create(&thread, NULL, hang_lookup, &h), 0);
    kni_store_interrupt(h.store);
    pthread_join(thread, NULL);
    assert_int_equal(h.status, KN_E_IO);
    kn_store_close(&h.store); /* its flush does not hang either */
    h.store = NULL;
    remove(control);
    h.store = open_fault();
    order("hang");
    kn_store_close(&h.store); /* closing interrupts by itself */
    assert_null(h.store);
}

/* ---- opening, and what is no order */

static atomic_uint n_warnings;
static char warning[256];

static void on_log(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user, (void)area;
    if (level == KN_LOG_LEVEL_WARN) {
        snprintf(warning, sizeof warning, "%s", text);
        atomic_fetch_add(&n_warnings, 1);
    }
}

static void unknown_lines_are_named(void **state)
{
    (void)state;
    static const char *const bad[] = {"explode", "fail-", "fail-other", "fails", "delay-get-ms", "delay-get-ms x", "delay-get-ms -1", "delay-get-ms 5 6",
                                      "delay-get-ms 99999999999999999999", "delay-other-ms 1", "hang get", "garbage-", "delay-get-ms 3600001"};
    struct kn_store *store;
    struct kn_err err;
    uint32_t n;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[96];
        snprintf(text, sizeof text, "# first\n%s\nfail\n", bad[i]);
        order(text);
        assert_int_equal(try_open(&store, fault_url, &err), KN_E_ARG);
        assert_null(store);
        assert_true(strstr(err.text, "line 2") && strstr(err.text, control) && strstr(err.text, bad[i]));
    }
    order("");
    store = open_fault();
    order("explode\nfail-lookup\n");
    kn_log_set(on_log, NULL, KN_LOG_LEVEL_WARN);
    for (int i = 0; i < 3; i++)
        assert_int_equal(lookup(store, 1, &n), KN_E_IO); /* the other lines count */
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_WARN);
    assert_int_equal(atomic_load(&n_warnings), 1);
    assert_non_null(strstr(warning, "explode"));
    kn_store_close(&store);
}

static void refused_opening(void **state)
{
    (void)state;
    static const char *const bad[] = {"fault:", "fault:x", "fault:/tmp/x:", "fault::lmdb:/tmp/x"};
    struct kn_store *store;
    struct kn_err err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(try_open(&store, bad[i], &err), KN_E_ARG);
        assert_non_null(strstr(err.text, "fault:CONTROLFILE:URL"));
    }
    assert_int_equal(try_open(&store, "fault:/tmp/x:redis://h", &err), KN_E_UNSUPPORTED);
    order("refuse-open");
    assert_int_equal(try_open(&store, fault_url, &err), KN_E_IO);
    assert_null(store);
    order("");
    store = open_fault();
    kn_store_close(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_ordered_is_transparent, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(failures_by_call, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(damaged_answers, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(delays_are_each_callers_own, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(calls_hang_until_the_order_goes, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(interrupting_ends_a_hang, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(unknown_lines_are_named, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(refused_opening, fault_set_up, fault_tear_down),
    };
    return cmocka_run_group_tests_name("fault_store", tests, NULL, NULL);
}

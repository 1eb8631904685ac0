/* SPDX-License-Identifier: Apache-2.0 */
/* The server's loop over a store that hangs: nobody else waits, and the drain ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/loop_bed.h"

static void order(const char *path, const char *text)
{
    char temp[300];
    snprintf(temp, sizeof temp, "%s.new", path);
    assert_int_equal(kn_file_write(temp, text, strlen(text)), 0);
    assert_int_equal(rename(temp, path), 0);
}

/* A store that hangs: who does not need it is served, who waits for it can leave, and a drain ends. */
static void test_store_hangs(void **state)
{
    (void)state;
    char control[256], folder[256], url[600], command[600];
    kn_bed_path(control, "loop-orders");
    kn_bed_path(folder, "loop-store");
    snprintf(url, sizeof url, "fault:%s:lmdb:%s", control, folder);
    snprintf(command, sizeof command, "rm -rf %s %s", control, folder);
    struct kn_engine_opts eo = {.store_url = url, .chunk_tokens = 16, .pool_bytes = 4 << 20, .fetch_deadline_ms = 600000};
    struct kni_loop_opts lo = {.max_queue = 10, .drain_timeout_ms = 300};
    struct kn_loop_bed b;
    struct kni_snapshot s;
    order(control, "hang-put\n");
    kn_loop_bed_init(&b, &eo, &lo);
    kn_loop_bed_start(&b);
    struct kni_call *waits[2], *plain;
    uint64_t end = kni_now_ns() + 60000000000u;
    for (uint32_t i = 0; i < 3; i++) { /* they publish, and that hangs */
        plain = kn_loop_bed_call(60, 10 + i, 5, 1, 0);
        plain->no_fetch = true;
        assert_int_equal(kni_loop_submit(b.loop, plain), KN_OK);
        kn_loop_bed_wait(plain);
        assert_int_equal(plain->choices[0].reason, KN_STOP_REASON_LENGTH);
        kni_call_unref(plain);
    }
    do /* all are queued, and most likely one is writing by the end of the nap */
        kni_loop_get_snapshot(b.loop, &s);
    while (!s.engine.n_publishing && !s.engine.publish_errors && kni_now_ns() < end);
    assert_true(s.engine.n_publishing || s.engine.publish_errors);
    usleep(20000);
    order(control, "phantom\nhang-get\nhang-put\n"); /* lookups promise, and nothing comes */
    for (uint32_t i = 0; i < 2; i++) {
        waits[i] = kn_loop_bed_call(100, i, 5, 1, 0);
        assert_int_equal(kni_loop_submit(b.loop, waits[i]), KN_OK);
    }
    do
        kni_loop_get_snapshot(b.loop, &s);
    while ((s.n_fetches != 2 || s.n_calls != 2) && kni_now_ns() < end);
    assert_int_equal(s.n_fetches, 2);
    assert_int_equal(s.n_calls, 2);
    assert_int_equal(s.fetches[0].n_prompt, 100);
    assert_true(s.fetches[0].id != s.fetches[1].id);
    kni_loop_cancel(b.loop, waits[0]);
    kn_loop_bed_wait(waits[0]);
    assert_int_equal(waits[0]->choices[0].reason, KN_STOP_REASON_CANCELLED);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    assert_int_equal(waits[1]->choices[0].reason, KN_STOP_REASON_CANCELLED);
    kni_call_unref(waits[0]);
    kni_call_unref(waits[1]);
    kn_loop_bed_fini(&b);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

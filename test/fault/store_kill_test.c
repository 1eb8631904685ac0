/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 in the middle of publishing. A child publishes prompts through the fetch pipeline; it is killed at a random
 * moment; the store is opened again. What was acknowledged must be there, what is visible must be whole, and the next
 * publisher must go on. The child is forked before any thread exists here.
 */
#include "unit/fetch/fetch_support.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 10u
#define N (6u * CHUNK + 3)
#define N_CHUNKS 6u

struct shared { _Atomic uint32_t n_begun, n_acknowledged; };

static void salt_of(uint32_t round, uint32_t i, char out[32])
{
    snprintf(out, 32, "r%u-%u", round, i);
}

static struct kni_fetcher *fetcher_open(const char *url)
{
    struct kni_fetcher *f = NULL;
    struct kn_err err = {0};
    struct kni_fetcher_opts o = test_opts(2, 0);
    o.store_url = url;
    if (kni_fetcher_open(&f, &o, &err))
        fail_msg("%s", err.text);
    return f;
}

static void publish_for_ever(const char *url, uint32_t round, struct shared *shared)
{
    static int32_t prompt[N];
    struct test_pool source = pool_make(N, -1);
    prompt_fill(prompt, N);
    struct kni_fetcher *f = fetcher_open(url);
    for (uint32_t i = 0;; i++) {
        char salt[32];
        salt_of(round, i, salt);
        atomic_store(&shared->n_begun, i + 1);
        if (publish_wait(f, prompt, N, salt, &source))
            _exit(1);
        atomic_store(&shared->n_acknowledged, i + 1);
    }
}

static unsigned n_seen;
static void see(void *user, const struct kn_store_item *item)
{
    (void)user;
    (void)item;
    n_seen++;
}

static void check_store(const char *url, uint32_t round, const struct shared *shared, uint32_t *n_partial)
{
    static int32_t prompt[N];
    struct test_pool source = pool_make(N, -1);
    prompt_fill(prompt, N);
    struct kn_store *store = NULL;
    struct kn_store_stat st = {.size = sizeof st};
    struct kn_err err = {0};
    struct kn_store_opts o = {.size = sizeof o, .url = url};
    assert_int_equal(kn_store_open(&store, &o, &err), KN_OK);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    n_seen = 0;
    assert_int_equal(kn_store_ls(store, see, NULL), KN_OK);
    assert_int_equal(n_seen, st.n_chunks);
    struct kni_fetcher *f = fetcher_open(url);
    for (uint32_t i = 0; i < atomic_load(&shared->n_begun); i++) {
        char salt[32];
        struct test_pool into = pool_make(N, 0xee);
        salt_of(round, i, salt);
        struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, salt, &into);
        if (i < atomic_load(&shared->n_acknowledged))
            assert_int_equal(p.n_restored, N_CHUNKS * CHUNK);
        assert_int_equal(p.n_restored, p.n_wanted); /* nothing is listed that cannot be had */
        assert_int_equal(p.n_misses, 0);
        assert_true(pool_equal(&source, &into, 0, p.n_restored));
        *n_partial += p.n_restored > 0 && p.n_restored < N_CHUNKS * CHUNK;
        pool_free(&into);
    }
    char salt[] = "the next publisher";
    assert_int_equal(publish_wait(f, prompt, N, salt, &source), KN_OK);
    kni_fetcher_close(&f);
    kn_store_close(&store);
    pool_free(&source);
}

static void killed_publishers_leave_a_whole_store(void **state)
{
    char path[] = "/tmp/kn-kill-XXXXXX", url[64], command[64];
    uint32_t n_acknowledged = 0, n_partial = 0;
    unsigned seed = (unsigned)getpid();
    (void)state;
    assert_non_null(mkdtemp(path));
    snprintf(url, sizeof url, "lmdb:%s", path);
    struct shared *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        int status;
        memset((void *)shared, 0, sizeof *shared);
        pid_t child = fork();
        if (child == 0)
            publish_for_ever(url, round, shared);
        while (!atomic_load(&shared->n_begun)) /* until it has opened the store, but for the first rounds: those die anywhere */
            if (round < 2)
                break;
            else
                nap();
        uint32_t us = (uint32_t)rand_r(&seed) % 60000;
        nanosleep(&(struct timespec){.tv_nsec = us * 1000L}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it had not failed before */
        n_acknowledged += atomic_load(&shared->n_acknowledged);
        pid_t checker = fork(); /* a process of its own: this one must stay without threads */
        if (checker == 0) {
            check_store(url, round, shared, &n_partial);
            _exit(n_partial ? 10 : 0);
        }
        assert_int_equal(waitpid(checker, &status, 0), checker);
        assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 10));
        n_partial += WEXITSTATUS(status) == 10;
    }
    print_message("%u prompts acknowledged before a kill, %u rounds cut one in the middle\n", n_acknowledged, n_partial);
    snprintf(command, sizeof command, "rm -rf %s", path);
    assert_int_equal(system(command), 0);
    munmap(shared, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_publishers_leave_a_whole_store)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

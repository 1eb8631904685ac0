/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decode step neither allocates nor locks: no thread of the process, in no library, for 1 to 4 compute threads, one sequence
 * and several, greedy and sampled, over steps that take new blocks from the pool.
 *
 * This program's own malloc and friends stand before libc's, so that even libc's calls of them are seen; the linker hands calls
 * of pthread's locks to the __wrap_ functions below (see test/CMakeLists.txt). All count while armed.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/kv_view.h"
#include "support/engine_bed.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* they have a malloc of their own */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static atomic_bool armed;
static _Atomic uint64_t n_allocs, n_locks;

static void saw(_Atomic uint64_t *counter)
{
    if (atomic_load(&armed))
        atomic_fetch_add(counter, 1);
}

#ifndef SANITIZED
#define SEEN __attribute__((visibility("default"))) /* by libc too */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);

SEEN void *malloc(size_t n) { saw(&n_allocs); return __libc_malloc(n); }
SEEN void *calloc(size_t n, size_t size) { saw(&n_allocs); return __libc_calloc(n, size); }
SEEN void *realloc(void *p, size_t n) { saw(&n_allocs); return __libc_realloc(p, n); }
SEEN void *memalign(size_t align, size_t n) { saw(&n_allocs); return __libc_memalign(align, n); }
SEEN void *aligned_alloc(size_t align, size_t n) { saw(&n_allocs); return __libc_memalign(align, n); }
SEEN int posix_memalign(void **out, size_t align, size_t n) { saw(&n_allocs); *out = __libc_memalign(align, n); return *out ? 0 : 12; }
SEEN void free(void *p) { saw(&n_allocs); __libc_free(p); }
#endif

extern int __real_pthread_mutex_lock(pthread_mutex_t *m);
extern int __real_pthread_mutex_trylock(pthread_mutex_t *m);
extern int __real_pthread_rwlock_rdlock(pthread_rwlock_t *l);
extern int __real_pthread_rwlock_wrlock(pthread_rwlock_t *l);
extern int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
extern int __real_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t);

int __wrap_pthread_mutex_lock(pthread_mutex_t *m) { saw(&n_locks); return __real_pthread_mutex_lock(m); }
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m) { saw(&n_locks); return __real_pthread_mutex_trylock(m); }
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l) { saw(&n_locks); return __real_pthread_rwlock_rdlock(l); }
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l) { saw(&n_locks); return __real_pthread_rwlock_wrlock(l); }
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) { saw(&n_locks); return __real_pthread_cond_wait(c, m); }
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) { saw(&n_locks); return __real_pthread_cond_timedwait(c, m, t); }

static struct kn_model *model;
static char model_path[256];

static int set_up(void **state)
{
    (void)state;
    kn_bed_path(model_path, "quiet.gguf");
    struct kn_tiny_opts to = {.seed = 3, .type = KNI_DTYPE_Q4_1};
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    return kn_tiny_model_write(model_path, &to) || kn_model_open(&model, &mo, NULL) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    kn_model_close(&model);
    unlink(model_path);
    return 0;
}

/* The counters count: our own calls, the library's, and libc's own. */
static void test_counters(void **state)
{
    (void)state;
#ifdef SANITIZED
    skip();
#endif
    static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    char *volatile text = "a text";
    struct kn_engine *e = NULL;
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 2};
    n_allocs = n_locks = 0;
    armed = true;
    pthread_mutex_lock(&m);
    pthread_mutex_unlock(&m);
    char *copy = strdup(text);
    uint64_t locks = n_locks, libc = n_allocs;
    enum kn_status s = kn_engine_open(&e, model, &eo, NULL);
    uint64_t library = n_allocs - libc;
    armed = false;
    assert_int_equal(s, KN_OK);
    assert_int_equal(locks, 1);
    assert_int_equal(libc, 1);
    assert_true(library > 3);
    kn_engine_close(&e);
    free(copy);
}

/* Every way through the sampler and its cuts. */
static const struct kn_sampler_opts samplers[] = {
    {0}, {.temperature = 1}, {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f, .repeat_penalty = 1.1f}, {.temperature = 1, .top_p = 0.9f},
    {.temperature = 1, .top_k = 300, .min_p = 0.01f}, {.repeat_penalty = 1.3f},
};
#define N_SAMPLERS (sizeof samplers / sizeof *samplers)

/* n sequences decode; 40 steps are watched, in which each crosses at least two block boundaries. */
static void watch(uint32_t n_threads, uint32_t n, uint32_t sampler, bool no_prefix_cache)
{
    struct kn_engine *e = NULL;
    struct kn_request *r[4];
    int32_t prompt[64];
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = n_threads, .prefill_chunk = 64, .no_prefix_cache = no_prefix_cache, .n_ctx = 256,
                                .pool_bytes = 64 * kn_model_info(model)->kv_bytes_per_token * KNI_BLOCK_TOKENS};
    assert_int_equal(kn_engine_open(&e, model, &eo, NULL), KN_OK);
    for (uint32_t i = 0; i < n; i++) {
        kn_bed_prompt(prompt, 20 + 9 * i, 70 + i);
        struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = 20 + 9 * i, .max_tokens = 100, .ignore_stop = true};
        struct kn_sampler_opts so = samplers[sampler];
        so.size = sizeof so;
        so.seed = i;
        ro.sampler = &so;
        ro.want_logprobs = n_threads % 2;
        ro.n_top_logprobs = ro.want_logprobs ? 5 : 0;
        assert_int_equal(kn_request_submit(&r[i], e, &ro, NULL), KN_OK);
    }
    struct kn_request_stats st = {.size = sizeof st};
    do { /* until the youngest decodes */
        assert_int_equal(kn_engine_step(e), KN_OK);
        kn_request_get_stats(r[n - 1], &st);
    } while (st.n_generated < 2);
    struct kn_engine_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    kn_engine_get_stats(e, &before);
    enum kn_status s = KN_OK;
    n_allocs = n_locks = 0;
    armed = true;
    for (uint32_t i = 0; i < 40 && s == KN_OK; i++) {
        struct kn_event ev = {.size = sizeof ev};
        s = kn_engine_step(e);
        for (uint32_t j = 0; j < n; j++)
            while (kn_request_next(r[j], &ev) == KN_OK)
                ;
    }
    armed = false;
    assert_int_equal(s, KN_OK);
    kn_engine_get_stats(e, &after);
    assert_int_equal(after.n_step_tokens - before.n_step_tokens, 40 * n); /* they were decodes, all of them */
    assert_true(after.n_free_blocks + 2 * n <= before.n_free_blocks);
    if (n_allocs || n_locks)
        fail_msg("%u threads, %u sequences: %llu allocations, %llu locks in 40 steps", n_threads, n, (unsigned long long)n_allocs, (unsigned long long)n_locks);
    for (uint32_t i = 0; i < n; i++)
        kn_request_close(&r[i]);
    kn_engine_close(&e);
}

static void test_decode_steps(void **state)
{
    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++)
        for (uint32_t n = 1; n <= 4; n += 3)
            for (uint32_t k = 0; k < 2 * N_SAMPLERS; k++)
                watch(n_threads, n, k / 2, k & 1);
}

/* Steps that score a prompt are as quiet: what they fill has been made at submit. */
static void test_scoring_steps(void **state)
{
    (void)state;
    struct kn_engine *e = NULL;
    struct kn_request *r;
    struct kn_event ev = {.size = sizeof ev};
    int32_t prompt[200];
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 2, .prefill_chunk = 64};
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = 200, .score_prompt = true, .n_top_logprobs = 20, .no_generate = true};
    uint32_t n = 0, n_steps = 0;
    kn_bed_prompt(prompt, 200, 1);
    assert_int_equal(kn_engine_open(&e, model, &eo, NULL), KN_OK);
    assert_int_equal(kn_request_submit(&r, e, &ro, NULL), KN_OK);
    n_allocs = n_locks = 0;
    armed = true;
    for (enum kn_status s; (s = kn_request_next(r, &ev)) != KN_END;) {
        n += s == KN_OK && ev.kind == KN_EVENT_KIND_PROMPT;
        if (s == KN_AGAIN)
            n_steps += kn_engine_step(e) == KN_OK;
    }
    armed = false;
    assert_int_equal(n, 200);
    assert_int_equal(n_steps, 7); /* 32 rows a step */
    assert_int_equal(n_allocs, 0);
    assert_int_equal(n_locks, 0);
    kn_request_close(&r);
    kn_engine_close(&e);
}

/* Workers that have gone to sleep are woken without a lock too. */
static void test_after_a_pause(void **state)
{
    (void)state;
    struct kn_engine *e = NULL;
    struct kn_request *r;
    int32_t prompt[8];
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 3};
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = 8, .max_tokens = 100, .ignore_stop = true};
    kn_bed_prompt(prompt, 8, 1);
    assert_int_equal(kn_engine_open(&e, model, &eo, NULL), KN_OK);
    assert_int_equal(kn_request_submit(&r, e, &ro, NULL), KN_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(kn_engine_step(e), KN_OK);
    n_allocs = n_locks = 0;
    armed = true;
    for (int i = 0; i < 10; i++) {
        usleep(3000);
        kn_engine_step(e);
    }
    armed = false;
    assert_int_equal(n_allocs, 0);
    assert_int_equal(n_locks, 0);
    kn_request_close(&r);
    kn_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counters), cmocka_unit_test(test_decode_steps), cmocka_unit_test(test_scoring_steps),
                                       cmocka_unit_test(test_after_a_pause)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

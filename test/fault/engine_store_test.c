/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that lies, dies or is full, seen through the engine: whatever it holds, the answer is the one that is computed
 * without it, and the reason is logged. Chunks are damaged in three ways: after they were stored (the entry's checksum
 * finds it), before (the container's own checksums do), and by somebody who also mends the checksums (header fields are
 * compared). Publishers are killed at random moments; the disk is full; the store is removed under an open engine.
 *
 * Children are forked while this process has no threads and no store open.
 */
#include "unit/store/store_support.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/alloc.h"
#include "codec/container.h"
#include "store/lmdb_store.h"
#include "support/engine_bed.h"
#include "support/refresh_checksums.h"

#define N_PROMPT 100u
#define N_NEW 8u
#define CHUNK 32u /* tokens; three chunks lie below the prompt's last token */
#define N_PROMPTS 4u
#define ROUNDS 10u

struct outcome { struct kn_answer answer; uint8_t digest[16]; };

static char model_path[256], other_path[256];
static struct outcome want[N_PROMPTS]; /* computed without a store */
static _Atomic unsigned n_warnings;

static void count_warning(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user, (void)level, (void)area;
    assert_true(*text);
    atomic_fetch_add(&n_warnings, 1);
}

static struct kn_model *model_open(const char *path)
{
    struct kn_model *model = NULL;
    struct kn_model_opts mo = {.size = sizeof mo, .path = path};
    assert_int_equal(kn_model_open(&model, &mo, NULL), KN_OK);
    return model;
}

static struct kn_engine *engine_open(const char *path, const char *url, enum kn_preset preset)
{
    struct kn_engine *e = NULL;
    struct kn_err err = {0};
    struct kn_model *model = model_open(path);
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1, .no_prefix_cache = true, .store_url = url, .preset = preset,
                                .fetch_pool_percent = 100, /* the pool is that small */
                                .prefill_chunk = CHUNK, .chunk_tokens = CHUNK}; /* equal, so that steps after a fetch have the same rows: same rounding */
    if (kn_engine_open(&e, model, &eo, &err))
        fail_msg("%s", err.text);
    kn_model_close(&model);
    return e;
}

static void ask(struct kn_engine *e, unsigned which, const char *salt, bool publish, struct outcome *out)
{
    int32_t prompt[N_PROMPT];
    struct kn_request *r = NULL;
    struct kn_err err = {0};
    kn_bed_prompt(prompt, N_PROMPT, 11 + which % N_PROMPTS);
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = prompt, .n_tokens = N_PROMPT, .max_tokens = N_NEW, .ignore_stop = true, .salt = salt,
                                 .no_fetch = publish, .no_publish = !publish};
    if (kn_request_submit(&r, e, &ro, &err))
        fail_msg("%s", err.text);
    kn_bed_run(e, &r, &out->answer, 1, kn_tiny_n_vocab());
    assert_int_equal(kn_request_kv_digest(r, N_PROMPT, out->digest), KN_OK);
    kn_request_close(&r);
}

static bool is_right(const struct outcome *got, unsigned which)
{
    const struct outcome *w = &want[which % N_PROMPTS];
    return got->answer.n == N_NEW && w->answer.n == N_NEW && !memcmp(got->answer.tokens, w->answer.tokens, N_NEW * sizeof *w->answer.tokens) &&
           !memcmp(got->digest, w->digest, 16);
}

/* ---- damaged chunks */

struct bed {
    struct folder folder;
    struct kn_engine *reader;
    struct kn_store *store;
    char key[KNI_STORE_KEY_BYTES]; /* of the first chunk */
    struct kni_store_buf good;     /* its container */
    struct kni_chunk_meta meta;
    size_t header_bytes;
};

static void find_first(void *user, const struct kn_store_item *item)
{
    if (!item->first_token)
        snprintf(user, KNI_STORE_KEY_BYTES, "%s", item->key);
}

static void publish_once(const char *path, const char *url, enum kn_preset preset, uint64_t *n_chunks)
{
    struct outcome got;
    struct kn_engine_stats es = {.size = sizeof es};
    struct kn_engine *e = engine_open(path, url, preset);
    ask(e, 0, NULL, true, &got);
    (void)kn_engine_flush(e, 60000);
    kn_engine_get_stats(e, &es);
    *n_chunks = es.published_chunks;
    kn_engine_close(&e);
}

/* False when this build cannot encode the preset. */
static bool bed_open(struct bed *b, enum kn_preset preset)
{
    uint64_t n_chunks;
    *b = (struct bed){0};
    folder_make(&b->folder);
    publish_once(model_path, b->folder.url, preset, &n_chunks);
    if (!n_chunks) {
        assert_int_equal(preset, KN_PRESET_TILES);
        folder_remove(&b->folder);
        return false;
    }
    b->store = store_open(&b->folder, 0, 0, false);
    assert_int_equal(kn_store_ls(b->store, find_first, b->key), KN_OK);
    assert_int_equal(kni_store_get(b->store, b->key, NULL, &b->good, NULL), KN_OK);
    assert_int_equal(kni_chunk_read_meta(b->good.data, b->good.n_bytes, &b->meta, NULL), KN_OK);
    struct kni_container c;
    assert_int_equal(kni_container_open(&c, b->good.data, b->good.n_bytes, NULL), KN_OK);
    b->header_bytes = KNI_CONTAINER_FIXED_BYTES + KNI_CONTAINER_ENTRY_BYTES * c.header.n_sections + 8;
    assert_true(b->header_bytes < b->good.n_bytes);
    b->reader = engine_open(model_path, b->folder.url, preset);
    return true;
}

static void bed_close(struct bed *b)
{
    kn_engine_close(&b->reader);
    kn_store_close(&b->store);
    kni_store_buf_fini(&b->good);
    folder_remove(&b->folder);
}

/* The answer does not wait for the worker that reports a bad chunk and removes it; the tests do, for some seconds. */
static bool is_gone(struct bed *b)
{
    struct kni_store_buf buf = {0};
    bool gone = kni_store_get(b->store, b->key, NULL, &buf, NULL) == KN_E_NOT_FOUND;
    kni_store_buf_fini(&buf);
    return gone;
}

#define WAIT_FOR(x) for (int tries_ = 0; !(x) && tries_ < 10000; tries_++) nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL)

/* The reader asks; misses and warnings as said, nothing fetched, and always the right answer. A refused chunk is removed. */
static void expect(struct bed *b, uint64_t n_misses, unsigned warnings, const char *what, size_t at)
{
    struct outcome got;
    atomic_store(&n_warnings, 0);
    ask(b->reader, 0, NULL, false, &got);
    if (!is_right(&got, 0))
        fail_msg("%s %zu: a wrong answer", what, at);
    WAIT_FOR(atomic_load(&n_warnings) >= warnings && (!n_misses || is_gone(b)));
    if (n_misses && !is_gone(b))
        fail_msg("%s %zu: the chunk is still there", what, at);
    if (got.answer.stats.n_misses != n_misses || got.answer.stats.n_fetched || atomic_load(&n_warnings) != warnings)
        fail_msg("%s %zu: %llu misses, %llu tokens fetched, %u warnings", what, at, (unsigned long long)got.answer.stats.n_misses,
                 (unsigned long long)got.answer.stats.n_fetched, atomic_load(&n_warnings));
}

/* Stored with an entry that fits: only the container can tell. */
static void expect_refused(struct bed *b, const void *data, size_t n, const char *what, size_t at)
{
    assert_int_equal(kni_store_put(b->store, b->key, &b->meta, data, n, NULL), KN_OK);
    expect(b, 1, 1, what, at);
}

/* Changes the data and leaves the entry. */
static void rot(struct bed *b, const void *data, size_t n)
{
    struct kni_lmdb *db = ((struct kni_lmdb_store *)(void *)b->store)->db;
    MDB_txn *txn;
    MDB_val k = {strlen(b->key), b->key}, v = {n, (void *)(uintptr_t)data};
    assert_int_equal(kni_store_put(b->store, b->key, &b->meta, b->good.data, b->good.n_bytes, NULL), KN_OK);
    assert_int_equal(kni_lmdb_begin(db, true, &txn), 0);
    assert_int_equal(kni_lmdb_end(db, txn, true, mdb_put(txn, db->chunk, &k, &v, 0)), 0);
}

static bool describes_the_same(const struct bed *b, const void *data, size_t n)
{
    struct kni_container c;
    return kni_container_open(&c, data, n, NULL) == KN_OK && kni_container_match(&c, &b->meta, NULL) == KN_OK;
}

static void damage(enum kn_preset preset)
{
    struct bed b;
    struct outcome got;
    if (!bed_open(&b, preset))
        skip();
    ask(b.reader, 0, NULL, false, &got); /* undamaged: everything is fetched */
    assert_int_equal(got.answer.stats.n_fetched, 3 * CHUNK);
    assert_true(preset == KN_PRESET_TILES || is_right(&got, 0));

    size_t n = b.good.n_bytes;
    uint8_t *bad = malloc(n);
    assert_non_null(bad);
    for (size_t at = 0; at < n; at += at < b.header_bytes ? 1 : (n - b.header_bytes) / 40 + 1) {
        memcpy(bad, b.good.data, n);
        bad[at] ^= (uint8_t)(1u << at % 8);
        expect_refused(&b, bad, n, "flipped byte", at);
        if (at % 8 == 0) {
            rot(&b, bad, n);
            expect(&b, 1, 1, "flipped byte under its entry", at);
        }
        if (at < KNI_CONTAINER_FIXED_BYTES) {
            kn_refresh_checksums(bad, n);
            if (preset == KN_PRESET_TILES && describes_the_same(&b, bad, n))
                continue; /* another tiling: a container says its own, so this is a forged chunk, not a damaged one */
            expect_refused(&b, bad, n, "flipped header byte with good checksums", at);
        }
    }
    const size_t cuts[] = {1, KNI_CONTAINER_FIXED_BYTES, b.header_bytes - 1, b.header_bytes, n / 2, n - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        expect_refused(&b, b.good.data, cuts[i], "cut to", cuts[i]);
        rot(&b, b.good.data, cuts[i]);
        expect(&b, 0, 1, "cut under its entry to", cuts[i]); /* seen by the lookup already */
    }
    free(bad);

    /* a later chunk is damaged: what lies before it is used */
    rot(&b, b.good.data, n);
    ask(b.reader, 0, NULL, false, &got);
    assert_int_equal(got.answer.stats.n_fetched, 3 * CHUNK);
    assert_int_equal(kn_store_verify(b.store, NULL, NULL), KN_OK);
    bed_close(&b);
}

static void damaged_exact_chunks(void **state)
{
    (void)state;
    damage(KN_PRESET_EXACT);
}

static void damaged_tiles_chunks(void **state)
{
    (void)state;
    damage(KN_PRESET_TILES);
}

/* Whole and with all checksums right, but made by another model and stored under our key. */
static void chunk_of_another_model(void **state)
{
    (void)state;
    struct bed b;
    struct folder other;
    struct kni_store_buf buf = {0};
    char key[KNI_STORE_KEY_BYTES] = "";
    uint64_t n_chunks;
    assert_true(bed_open(&b, KN_PRESET_EXACT));
    folder_make(&other);
    publish_once(other_path, other.url, KN_PRESET_EXACT, &n_chunks);
    assert_int_equal(n_chunks, 3);
    struct kn_store *store = store_open(&other, 0, 0, true);
    assert_int_equal(kn_store_ls(store, find_first, key), KN_OK);
    assert_int_equal(kni_store_get(store, key, NULL, &buf, NULL), KN_OK);
    assert_string_not_equal(key, b.key);
    kn_store_close(&store);
    expect_refused(&b, buf.data, buf.n_bytes, "another model's chunk", 0);
    kni_store_buf_fini(&buf);
    folder_remove(&other);
    bed_close(&b);
}

/* ---- the store goes away */

static void store_removed_under_the_engine(void **state)
{
    (void)state;
    struct folder f;
    struct outcome got;
    struct kn_store *store;
    struct kn_store_stat st = {.size = sizeof st};
    folder_make(&f);
    struct kn_engine *e = engine_open(model_path, f.url, KN_PRESET_EXACT);
    ask(e, 0, NULL, true, &got);
    assert_int_equal(kn_engine_flush(e, 60000), KN_OK);
    folder_remove(&f);
    atomic_store(&n_warnings, 0);
    for (unsigned i = 0; i < 6; i++) {
        ask(e, i, NULL, i % 2, &got);
        assert_true(is_right(&got, i));
        assert_int_equal(got.answer.stats.n_fetched, 0);
        assert_int_equal(kn_engine_flush(e, 60000), i % 2 ? KN_E_IO : KN_OK); /* not a success that nobody will ever find */
    }
    assert_in_range(atomic_load(&n_warnings), 1, 3); /* a failed publish, then that the store is left alone */
    assert_int_equal(mkdir(f.path, 0777), 0);         /* a new store there is another one, also for this process */
    store = store_open(&f, 0, 0, false);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_int_equal(st.n_chunks, 0);
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    kn_engine_close(&e);
    assert_true(has(store, 1, 1));
    kn_store_close(&store);
    folder_remove(&f);
}

/* ---- children */

struct shared { _Atomic uint32_t n_begun, n_flushed; };

static void salt_of(uint32_t round, uint32_t i, char out[32])
{
    snprintf(out, 32, "%u-%u", round, i);
}

static void publish_for_ever(const char *url, uint32_t round, struct shared *shared)
{
    struct outcome got;
    struct kn_engine *e = engine_open(model_path, url, KN_PRESET_EXACT);
    for (uint32_t i = 0;; i++) {
        char salt[32];
        salt_of(round, i, salt);
        ask(e, i, salt, true, &got);
        atomic_store(&shared->n_begun, i + 1);
        if (!is_right(&got, i) || kn_engine_flush(e, 0))
            _exit(1);
        atomic_store(&shared->n_flushed, i + 1);
    }
}

/* The last prompts before the kill: what was flushed is fetched whole, the rest as far as it came; all answers are right. */
static void check_after_kill(const struct folder *f, uint32_t round, const struct shared *shared)
{
    struct outcome got;
    struct kn_store *store = store_open(f, 0, 0, false);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    struct kn_engine *e = engine_open(model_path, f->url, KN_PRESET_EXACT);
    uint32_t n = atomic_load(&shared->n_begun);
    for (uint32_t i = n > 6 ? n - 6 : 0; i <= n; i++) {
        char salt[32];
        salt_of(round, i, salt);
        ask(e, i, salt, false, &got);
        if (!is_right(&got, i))
            fail_msg("round %u, prompt %u of %u: a wrong answer, %llu tokens fetched, tokens %s", round, i, n, (unsigned long long)got.answer.stats.n_fetched,
                     memcmp(got.answer.tokens, want[i % N_PROMPTS].answer.tokens, N_NEW * 4) ? "differ" : "agree");
        assert_int_equal(got.answer.stats.n_misses, 0);
        if (i < atomic_load(&shared->n_flushed))
            assert_int_equal(got.answer.stats.n_fetched, 3 * CHUNK);
    }
    kn_engine_close(&e);
    kn_store_close(&store);
}

static void killed_while_publishing(void **state)
{
    (void)state;
    struct folder f;
    unsigned seed = (unsigned)getpid();
    uint32_t n_flushed = 0;
    folder_make(&f);
    struct shared *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        int status;
        memset((void *)shared, 0, sizeof *shared);
        pid_t child = fork();
        if (child == 0)
            publish_for_ever(f.url, round, shared);
        while (!atomic_load(&shared->n_begun) && !waitpid(child, &status, WNOHANG))
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        assert_true(atomic_load(&shared->n_begun) > 0);
        nanosleep(&(struct timespec){.tv_nsec = rand_r(&seed) % 40000 * 1000L}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it had not failed before */
        n_flushed += atomic_load(&shared->n_flushed);
        check_after_kill(&f, round, shared);
    }
    print_message("%u prompts flushed before the kills\n", n_flushed);
    munmap(shared, 4096);
    folder_remove(&f);
}

#define MUST(x) do { if (!(x)) { fprintf(stderr, "line %d: %s\n", __LINE__, #x); _exit(1); } } while (0)

static void fill_disk(const struct folder *f)
{
    struct outcome got;
    struct rlimit before, small;
    struct kn_engine_stats es = {.size = sizeof es};
    char salt[32];
    uint32_t i = 0;
    signal(SIGXFSZ, SIG_IGN);
    MUST(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = (struct rlimit){.rlim_cur = 256u << 10, .rlim_max = before.rlim_max};
    MUST(setrlimit(RLIMIT_FSIZE, &small) == 0);
    struct kn_engine *e = engine_open(model_path, f->url, KN_PRESET_EXACT);
    enum kn_status s = KN_OK;
    for (; i < 1000 && s == KN_OK; i++) {
        salt_of(0, i, salt);
        ask(e, i, salt, true, &got);
        MUST(is_right(&got, i));
        s = kn_engine_flush(e, 60000);
    }
    MUST(s == KN_E_FULL && i > 1);
    for (uint32_t again = 0; again < 3; again++) { /* the same once more: it fails again and is not said again */
        ask(e, i - 1, salt, true, &got);
        MUST(is_right(&got, i - 1));
        MUST(kn_engine_flush(e, 60000) == KN_E_FULL);
    }
    MUST(atomic_load(&n_warnings) == 1);
    kn_engine_get_stats(e, &es);
    MUST(es.publish_errors == 4);
    MUST(setrlimit(RLIMIT_FSIZE, &before) == 0);
    ask(e, i - 1, salt, true, &got); /* room again */
    MUST(kn_engine_flush(e, 60000) == KN_OK);
    kn_engine_close(&e);
    e = engine_open(model_path, f->url, KN_PRESET_EXACT);
    ask(e, i - 1, salt, false, &got);
    MUST(is_right(&got, i - 1) && got.answer.stats.n_fetched == 3 * CHUNK);
    kn_engine_close(&e);
    _exit(0);
}

static void disk_full_while_publishing(void **state)
{
    (void)state;
    struct folder f;
    int status;
    folder_make(&f);
    atomic_store(&n_warnings, 0);
    pid_t child = fork();
    if (child == 0)
        fill_disk(&f);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct kn_store *store = store_open(&f, 0, 0, true);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    kn_store_close(&store);
    folder_remove(&f);
}

static int set_up(void **state)
{
    (void)state;
    kn_log_set(count_warning, NULL, KN_LOG_LEVEL_WARN);
    kn_bed_path(model_path, "store-fault.gguf");
    kn_bed_path(other_path, "store-fault-other.gguf");
    struct kn_tiny_opts to = {.n_layer = 1, .n_ctx = 128};
    if (kn_tiny_model_write(model_path, &to))
        return -1;
    to.seed = 99;
    if (kn_tiny_model_write(other_path, &to))
        return -1;
    struct kn_engine *e = engine_open(model_path, NULL, KN_PRESET_EXACT);
    for (unsigned i = 0; i < N_PROMPTS; i++)
        ask(e, i, NULL, false, &want[i]);
    kn_engine_close(&e);
    return memcmp(want[0].digest, want[1].digest, 16) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(model_path);
    unlink(other_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_while_publishing),
        cmocka_unit_test(disk_full_while_publishing),
        cmocka_unit_test(damaged_exact_chunks),
        cmocka_unit_test(damaged_tiles_chunks),
        cmocka_unit_test(chunk_of_another_model),
        cmocka_unit_test(store_removed_under_the_engine),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of several files, and files that change while they are open. A tiny model is split as gguf-split does it; each bad set of
 * parts has a sentence that names the file. Changes are made as people make them: dd, rsync --inplace, truncate, mv, touch -r.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kinema/log.h"
#include "model/model.h"
#include "support/gguf_split.h"
#include "support/tiny_model.h"

static char folder[64], prefix[96], whole[96];
static const struct kn_tiny_opts tiny = {.type = KNI_DTYPE_Q8_0, .seed = 3};

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kn_parts_test_XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(prefix, sizeof prefix, "%s/tiny", folder);
    snprintf(whole, sizeof whole, "%s/whole.gguf", folder);
    return kn_tiny_model_write(whole, &tiny);
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static enum kn_status open_path(struct kn_model **m, const char *path, struct kn_err *err)
{
    struct kn_model_opts o = {.size = sizeof o, .path = path};
    memset(err, 0, sizeof *err);
    return kn_model_open(m, &o, err);
}

static void make(struct kn_split *s, const struct kn_tiny_opts *o, uint32_t n)
{
    struct kn_gguf_writer w = {0};
    kn_tiny_model_build(&w, o);
    assert_int_equal(kn_split_make(s, w.file.data, w.file.n, &(struct kn_split_opts){.n_parts = n}), 0);
    kn_gguf_writer_fini(&w);
}

/* Opens part of the split at prefix; wants the status, the file's name and the word in the sentence. */
static void expect(uint32_t part, uint32_t n, enum kn_status status, uint32_t named, const char *word)
{
    char path[4096], name[4096];
    struct kn_model *m;
    struct kn_err err;
    enum kn_status s = open_path(&m, kn_split_name(path, prefix, part, n), &err);
    if (s != status)
        fail_msg("status %s, want %s: %s", kn_status_name(s), kn_status_name(status), err.text);
    assert_int_equal(m == NULL, s != KN_OK);
    if (s && (!strstr(err.text, kn_split_name(name, prefix, named, n)) || !strstr(err.text, word)))
        fail_msg("\"%s\" does not name part %u and \"%s\"", err.text, named + 1, word);
    kn_model_close(&m);
}

/* Where a scalar of the key lies in a part. */
static uint8_t *value(struct kn_gguf_writer *w, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i + n + 4 < w->file.n; i++)
        if (!memcmp(w->file.data + i, key, n))
            return w->file.data + i + n + 4; /* behind the value's type */
    fail_msg("no key %s", key);
    return NULL;
}

static void split_is_the_same(void **state)
{
    (void)state;
    struct kn_model *one, *many;
    struct kn_err err;
    assert_int_equal(open_path(&one, whole, &err), KN_OK);
    for (uint32_t n = 1; n <= 5; n++)
        for (int first = 0; first < (n > 1 ? 2 : 1); first++) {
            struct kn_gguf_writer w = {0};
            struct kn_split s;
            char path[4096];
            kn_tiny_model_build(&w, &tiny);
            assert_int_equal(kn_split_make(&s, w.file.data, w.file.n, &(struct kn_split_opts){.n_parts = n, .no_tensor_first = first}), 0);
            assert_int_equal(kn_split_write(&s, prefix), 0);
            if (open_path(&many, kn_split_name(path, prefix, 0, n), &err))
                fail_msg("%s", err.text);
            const struct kn_model_info *a = kn_model_info(one), *b = kn_model_info(many);
            assert_memory_equal(a->fingerprint, b->fingerprint, 16);
            assert_true(b->n_parts == n && a->n_tensors == b->n_tensors && a->n_params == b->n_params && b->file_bytes > 0);
            struct kn_tensor_info x = {.size = sizeof x}, y = {.size = sizeof y};
            uint32_t last = 0;
            for (uint32_t i = 0; i < a->n_tensors; i++) {
                assert_int_equal(kn_model_get_tensor(one, i, &x), KN_OK);
                assert_int_equal(kn_model_get_tensor(many, i, &y), KN_OK);
                assert_string_equal(x.name, y.name);
                assert_true(x.n_bytes == y.n_bytes && y.part >= last && y.part < n && y.file_offset + y.n_bytes <= s.parts[y.part].file.n);
                assert_memory_equal(w.file.data + x.file_offset, s.parts[y.part].file.data + y.file_offset, x.n_bytes);
                last = y.part;
            }
            assert_int_equal(last, n - 1);
            kn_model_close(&many);
            kn_split_fini(&s);
            kn_gguf_writer_fini(&w);
        }
    kn_model_close(&one);
}

static void bad_parts(void **state)
{
    (void)state;
    struct kn_split s, other;
    char path[4096], path2[4096];
    make(&s, &tiny, 3);
    assert_int_equal(kn_split_write(&s, prefix), 0);
    expect(0, 3, KN_OK, 0, "");
    expect(1, 3, KN_E_ARG, 0, "part 2 of 3"); /* and says which to give */
    expect(2, 3, KN_E_ARG, 2, "give the first one");
    /* missing */
    assert_int_equal(unlink(kn_split_name(path, prefix, 1, 3)), 0);
    expect(0, 3, KN_E_NOT_FOUND, 1, "part 2 of 3");
    /* a part in another's place, the first twice, a whole model */
    assert_int_equal(kn_file_write(path, s.parts[2].file.data, s.parts[2].file.n), 0);
    expect(0, 3, KN_E_FORMAT, 1, "part 3 of 3");
    assert_int_equal(kn_file_write(path, s.parts[0].file.data, s.parts[0].file.n), 0);
    expect(0, 3, KN_E_FORMAT, 1, "part 1 of 3");
    assert_int_equal(kn_tiny_model_write(path, &tiny), 0);
    expect(0, 3, KN_E_FORMAT, 1, "a file of its own");
    assert_int_equal(kn_file_write(path, "", 0), 0);
    expect(0, 3, KN_E_FORMAT, 1, "empty");
    /* cut at every length that ends inside tensor data or the header */
    for (size_t cut = 1; cut < s.parts[1].file.n; cut += 997) {
        assert_int_equal(kn_file_write(path, s.parts[1].file.data, s.parts[1].file.n - cut), 0);
        expect(0, 3, KN_E_FORMAT, 1, "");
    }
    /* of another model: other counts, tensors that are there already */
    make(&other, &(struct kn_tiny_opts){.type = KNI_DTYPE_Q8_0, .n_layer = 4}, 3);
    assert_int_equal(kn_file_write(path, other.parts[1].file.data, other.parts[1].file.n), 0);
    expect(0, 3, KN_E_FORMAT, 1, "of another model");
    memcpy(value(&other.parts[1], "split.tensors.count"), value(&s.parts[1], "split.tensors.count"), 4);
    assert_int_equal(kn_file_write(path, other.parts[1].file.data, other.parts[1].file.n), 0);
    expect(0, 3, KN_E_FORMAT, 0, "tensors and should have");
    kn_split_fini(&other);
    make(&other, &tiny, 4);
    assert_int_equal(kn_file_write(path, other.parts[1].file.data, other.parts[1].file.n), 0);
    expect(0, 3, KN_E_FORMAT, 1, "part 2 of 4");
    kn_split_fini(&other);
    other = (struct kn_split){.n = 1}; /* the numbers of part 2, the tensors of part 1, which has as many */
    assert_int_equal(s.parts[0].n_tensors, s.parts[1].n_tensors);
    kn_bytes_put(&other.parts[0].file, s.parts[0].file.data, s.parts[0].file.n);
    memcpy(value(&other.parts[0], "split.no"), value(&s.parts[1], "split.no"), 2);
    assert_int_equal(kn_file_write(path, other.parts[0].file.data, other.parts[0].file.n), 0);
    expect(0, 3, KN_E_FORMAT, 1, "is in an earlier part, too");
    kn_split_fini(&other);
    /* another architecture in a part that says so */
    other = (struct kn_split){.n = 1};
    kn_gguf_put_str(&other.parts[0], "general.architecture", "qwen2");
    kn_split_keys(&other.parts[0], 1, 3, 29);
    kn_gguf_assemble(&other.parts[0]);
    memcpy(value(&other.parts[0], "split.tensors.count"), value(&s.parts[1], "split.tensors.count"), 4);
    assert_int_equal(kn_file_write(path, other.parts[0].file.data, other.parts[0].file.n), 0);
    expect(0, 3, KN_E_FORMAT, 1, "architecture");
    kn_split_fini(&other);
    /* the first part's own numbers */
    const struct { const char *key; uint16_t value; enum kn_status status; const char *word; } firsts[] = {
        {"split.count", 0, KN_E_FORMAT, "split.count is 0"}, {"split.count", 65535, KN_E_FORMAT, "split.count is 65535"}, {"split.count", 2, KN_E_FORMAT, "in its name"},
        {"split.count", 1, KN_E_FORMAT, "tensors and should have"}, {"split.no", 3, KN_E_FORMAT, "split.no is 3"}, {"split.no", 1, KN_E_ARG, "give the first one"},
        {"split.tensors.count", 1, KN_E_FORMAT, "should have 1"}, {"split.tensors.count", 65535, KN_E_FORMAT, "of another model"},
    };
    assert_int_equal(kn_file_write(path, s.parts[1].file.data, s.parts[1].file.n), 0);
    kn_split_name(path2, prefix, 0, 3);
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        uint8_t *at = value(&s.parts[0], firsts[i].key), kept[2];
        memcpy(kept, at, 2);
        memcpy(at, &firsts[i].value, 2);
        assert_int_equal(kn_file_write(path2, s.parts[0].file.data, s.parts[0].file.n), 0);
        if (!strcmp(firsts[i].key, "split.tensors.count"))
            expect(0, 3, KN_E_FORMAT, 1, "of another model");
        else
            expect(0, 3, firsts[i].status, 0, firsts[i].word);
        memcpy(at, kept, 2);
    }
    /* a name that does not lead to the others */
    assert_int_equal(kn_file_write(path2, s.parts[0].file.data, s.parts[0].file.n), 0);
    struct kn_model *m;
    struct kn_err err;
    snprintf(path, sizeof path, "%s/renamed.gguf", folder);
    assert_int_equal(rename(path2, path), 0);
    assert_int_equal(open_path(&m, path, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "renamed.gguf is the first of 3 parts"));
    kn_split_fini(&s);
}

static void split_out_of_memory(void **state)
{
    (void)state;
    struct kn_split s;
    char path[4096];
    make(&s, &tiny, 3);
    assert_int_equal(kn_split_write(&s, prefix), 0);
    kn_split_fini(&s);
    kn_split_name(path, prefix, 0, 3);
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    for (uint64_t n = 1;; n++) {
        struct kn_model *m;
        struct kn_err err;
        kni_alloc_fault_arm(n, true);
        enum kn_status status = open_path(&m, path, &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        kn_model_close(&m);
        assert_int_equal(status, hit ? KN_E_NOMEM : KN_OK);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        if (!hit) {
            assert_true(n > 8);
            break;
        }
    }
}

/* ---- change */

static unsigned n_errors, n_infos;
static char last_error[512];

static void on_log(void *user, enum kn_log_level level, const char *where, const char *text)
{
    (void)user, (void)where;
    n_errors += level == KN_LOG_LEVEL_ERROR;
    n_infos += level == KN_LOG_LEVEL_INFO;
    if (level == KN_LOG_LEVEL_ERROR)
        snprintf(last_error, sizeof last_error, "%s", text);
}

/* Writes one byte in place, as dd conv=notrunc does. at: from the end. */
static void poke(const char *path, off_t at, bool flip)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_true(fd >= 0);
    off_t from = lseek(fd, -at, SEEK_END);
    assert_int_equal(pread(fd, &byte, 1, from), 1);
    byte ^= flip;
    assert_int_equal(pwrite(fd, &byte, 1, from), 1);
    close(fd);
}

/* Times of files move with the kernel's clock tick. */
static void next_tick(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void harmless(void **state)
{
    (void)state;
    struct kn_model *m;
    struct kn_err err;
    char other[128], command[512];
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    assert_int_equal(kn_tiny_model_write(other, &(struct kn_tiny_opts){.seed = 9}), 0);
    const char *const done[] = {"touch '%s'", "touch -d 2001-02-03 '%s'", "chmod 600 '%s'", "ln '%s' '%s.link'", "rm '%s.link'; true '%s'", "mv '%s.mine' '%s'"};
    assert_int_equal(open_path(&m, whole, &err), KN_OK);
    n_errors = n_infos = 0;
    kn_log_set(on_log, NULL, KN_LOG_LEVEL_INFO);
    for (size_t i = 0; i < sizeof done / sizeof *done; i++) {
        next_tick();
        if (i == 5) {
            snprintf(command, sizeof command, "cp '%s' '%s.mine'", other, whole);
            assert_int_equal(system(command), 0);
        }
        snprintf(command, sizeof command, done[i], whole, whole);
        assert_int_equal(system(command), 0);
        if (kn_model_check(m, &err))
            fail_msg("%s: %s", command, err.text);
        assert_int_equal(n_infos, i + 1); /* looked at once, ... */
        assert_int_equal(kn_model_check(m, &err), KN_OK);
        assert_int_equal(n_infos, i + 1); /* ... and known then */
    }
    assert_int_equal(n_errors, 0);
    assert_int_equal(unlink(whole), 0);
    assert_int_equal(kn_model_check(m, &err), KN_OK);
    kn_model_close(&m);
    assert_int_equal(kn_tiny_model_write(whole, &tiny), 0);
}

static void changes(void **state)
{
    (void)state;
    struct kn_model *m;
    struct kn_err err;
    char command[512];
    /* a byte at the end, one in the middle of a large tensor with the time set back, a shorter file, a longer one, other weights by cp */
    for (int kind = 0; kind < 5; kind++) {
        struct stat st;
        assert_int_equal(kn_tiny_model_write(whole, &tiny), 0);
        assert_int_equal(open_path(&m, whole, &err), KN_OK);
        assert_int_equal(stat(whole, &st), 0);
        n_errors = 0;
        kn_log_set(on_log, NULL, KN_LOG_LEVEL_INFO);
        assert_int_equal(kn_model_check(m, &err), KN_OK);
        next_tick();
        if (kind == 0)
            poke(whole, 1, true);
        if (kind == 1) {
            poke(whole, st.st_size / 2, true);
            struct timespec times[2] = {st.st_atim, st.st_mtim};
            assert_int_equal(utimensat(AT_FDCWD, whole, times, 0), 0); /* as touch -r does */
        }
        if (kind == 2)
            assert_int_equal(truncate(whole, st.st_size / 2), 0);
        if (kind == 3)
            assert_int_equal(truncate(whole, st.st_size + 1), 0);
        if (kind == 4) {
            snprintf(command, sizeof command, "%s/other.gguf", folder);
            assert_int_equal(kn_tiny_model_write(command, &(struct kn_tiny_opts){.type = KNI_DTYPE_Q8_0, .seed = 4}), 0);
            snprintf(command, sizeof command, "cp '%s/other.gguf' '%s'", folder, whole);
            assert_int_equal(system(command), 0);
        }
        for (int again = 0; again < 3; again++) {
            memset(&err, 0, sizeof err);
            assert_int_equal(kn_model_check(m, &err), KN_E_CHANGED);
            assert_int_equal(err.status, KN_E_CHANGED);
            assert_non_null(strstr(err.text, whole));
            assert_int_equal(kn_model_check(m, NULL), KN_E_CHANGED);
        }
        assert_int_equal(n_errors, 1); /* said once */
        assert_string_equal(last_error, err.text);
        assert_int_equal(kn_tiny_model_write(whole, &tiny), 0); /* what is right again is too late */
        assert_int_equal(kn_model_check(m, NULL), KN_E_CHANGED);
        kn_model_close(&m);
    }
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_ERROR);
}

/* Each of the parts counts; one that is written with the same bytes is read and found the same. */
static void parts_change(void **state)
{
    (void)state;
    for (uint32_t part = 0; part < 3; part++) {
        struct kn_split s;
        struct kn_model *m;
        struct kn_err err;
        char first[4096], path[4096];
        make(&s, &tiny, 3);
        assert_int_equal(kn_split_write(&s, prefix), 0);
        kn_split_fini(&s);
        assert_int_equal(open_path(&m, kn_split_name(first, prefix, 0, 3), &err), KN_OK);
        next_tick();
        poke(kn_split_name(path, prefix, part, 3), 1, false);
        assert_int_equal(kn_model_check(m, &err), KN_OK);
        next_tick();
        poke(path, 1, true);
        assert_int_equal(kn_model_check(m, &err), KN_E_CHANGED);
        assert_non_null(strstr(err.text, path));
        kn_model_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_is_the_same), cmocka_unit_test(bad_parts), cmocka_unit_test(split_out_of_memory),
        cmocka_unit_test(harmless),          cmocka_unit_test(changes),   cmocka_unit_test(parts_change),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

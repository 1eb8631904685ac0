/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GGUF reader against files written here: values come back, and every kind of damage ends in the right status with a
 * sentence that names the place. The parser runs on exact-size heap copies, so that sanitizers see any overread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/gguf.h"
#include "support/tiny_model.h"

static enum kn_status parse(struct kni_gguf **g, struct kni_arena *arena, const struct kn_gguf_writer *w, struct kn_err *err)
{
    memset(err, 0, sizeof *err);
    kni_arena_init(arena, KNI_ALLOC_TAG_MODEL, 4096);
    return kni_gguf_parse(g, arena, w->file.data, w->file.n, "t.gguf", err);
}

/* Assembles w, expects status and each of the words in the sentence; frees w. */
static void expect(struct kn_gguf_writer *w, enum kn_status status, const char *word, const char *word2)
{
    struct kni_gguf *g;
    struct kni_arena arena;
    struct kn_err err;
    if (!w->file.n)
        kn_gguf_assemble(w);
    assert_int_equal(parse(&g, &arena, w, &err), status);
    if (status != KN_OK) {
        assert_null(g);
        if (!strstr(err.text, "t.gguf") || (word && !strstr(err.text, word)) || (word2 && !strstr(err.text, word2)))
            fail_msg("\"%s\" does not name \"%s\", \"%s\"", err.text, word, word2);
        assert_int_equal(err.status, status);
    }
    kni_arena_fini(&arena);
    kn_gguf_writer_fini(w);
}

static void put_scalar(struct kn_gguf_writer *w, const char *key, uint32_t type, uint64_t bits, size_t n)
{
    kn_gguf_key(w, key, type);
    kn_bytes_put(&w->kv, &bits, n);
}

static void values(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {.version = 2};
    struct kni_gguf *g;
    struct kni_arena arena;
    struct kn_err err;
    float x = -1.5f, data[3] = {1, 2, 3};
    double d = 2.5;
    uint64_t bits, ne[2] = {3, 1};
    put_scalar(&w, "u8", 0, 200, 1);
    put_scalar(&w, "i8", 1, 0xff, 1);
    put_scalar(&w, "u16", 2, 65535, 2);
    put_scalar(&w, "i16", 3, 0x8000, 2);
    put_scalar(&w, "u32", 4, UINT32_MAX, 4);
    put_scalar(&w, "i32", 5, 7, 4);
    kn_gguf_put_f32(&w, "f32", x);
    kn_gguf_put_bool(&w, "bool", 1);
    kn_gguf_put_str(&w, "str", "words");
    put_scalar(&w, "u64", 10, 1ull << 32, 8);
    put_scalar(&w, "u64max", 10, UINT64_MAX, 8);
    put_scalar(&w, "i64", 11, 9, 8);
    memcpy(&bits, &d, 8);
    put_scalar(&w, "f64", 12, bits, 8);
    d = 1e300;
    memcpy(&bits, &d, 8);
    put_scalar(&w, "f64big", 12, bits, 8);
    kn_gguf_put_array(&w, "strs", KN_GGUF_STR, 2);
    kn_bytes_str(&w.kv, "one", 3);
    kn_bytes_str(&w.kv, "", 0);
    kn_gguf_put_array(&w, "nested", KN_GGUF_ARRAY, 2); /* [[1], ["x"]] */
    kn_bytes_u32(&w.kv, KN_GGUF_I32), kn_bytes_u64(&w.kv, 1), kn_bytes_u32(&w.kv, 1);
    kn_bytes_u32(&w.kv, KN_GGUF_STR), kn_bytes_u64(&w.kv, 1), kn_bytes_str(&w.kv, "x", 1);
    kn_gguf_put_tensor(&w, "t", KNI_DTYPE_F32, 2, ne, data, sizeof data);
    kn_gguf_assemble(&w);
    assert_int_equal(parse(&g, &arena, &w, &err), KN_OK);
    assert_int_equal(g->version, 2);
    uint32_t u = 0;
    float f = 0;
    bool b = false;
    struct kni_gguf_str s;
    const struct kni_gguf_kv *kv;
    assert_true(kni_gguf_get_u32(g, "u8", &u, &err) == KN_OK && u == 200);
    assert_true(kni_gguf_get_u32(g, "u16", &u, &err) == KN_OK && u == 65535);
    assert_true(kni_gguf_get_u32(g, "u32", &u, &err) == KN_OK && u == UINT32_MAX);
    assert_true(kni_gguf_get_u32(g, "i32", &u, &err) == KN_OK && u == 7);
    assert_true(kni_gguf_get_u32(g, "i64", &u, &err) == KN_OK && u == 9);
    static const char *const bad[] = {"i8", "i16", "u64", "u64max", "f32", "str", "bool", "strs"};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kni_gguf_get_u32(g, bad[i], &u, &err), KN_E_FORMAT);
        assert_non_null(strstr(err.text, bad[i]));
    }
    assert_int_equal(u, 9);
    assert_int_equal(kni_gguf_get_u32(g, "absent", &u, &err), KN_E_NOT_FOUND);
    assert_true(kni_gguf_get_f32(g, "f32", &f, &err) == KN_OK && f == -1.5f);
    assert_true(kni_gguf_get_f32(g, "f64", &f, &err) == KN_OK && f == 2.5f);
    assert_int_equal(kni_gguf_get_f32(g, "f64big", &f, &err), KN_E_FORMAT);
    assert_int_equal(kni_gguf_get_f32(g, "u8", &f, &err), KN_E_FORMAT);
    assert_true(kni_gguf_get_bool(g, "bool", &b, &err) == KN_OK && b);
    assert_int_equal(kni_gguf_get_bool(g, "u8", &b, &err), KN_E_FORMAT);
    assert_true(kni_gguf_get_str(g, "str", &s, &err) == KN_OK && s.n == 5 && !memcmp(s.data, "words", 5));
    assert_int_equal(kni_gguf_get_str(g, "u8", &s, &err), KN_E_FORMAT);
    assert_true(kni_gguf_get_array(g, "strs", KNI_GGUF_TYPE_STRING, &kv, &err) == KN_OK && kv->n_elems == 2);
    const uint8_t *at = kv->value;
    s = kni_gguf_next_str(&at);
    assert_true(s.n == 3 && !memcmp(s.data, "one", 3));
    s = kni_gguf_next_str(&at);
    assert_true(s.n == 0 && at == kv->value + kv->n_bytes);
    assert_int_equal(kni_gguf_get_array(g, "strs", KNI_GGUF_TYPE_I32, &kv, &err), KN_E_FORMAT);
    assert_non_null(kni_gguf_find(g, "nested"));
    const struct kni_tensor *t = kni_gguf_find_tensor(g, "t");
    assert_true(t && t->n_dims == 2 && t->ne[0] == 3 && t->ne[1] == 1 && t->ne[3] == 1 && t->n_bytes == 12);
    assert_memory_equal(t->data, data, 12);
    assert_null(kni_gguf_find_tensor(g, "T"));
    kni_arena_fini(&arena);
    kn_gguf_writer_fini(&w);
}

static void header(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    kn_bytes_put(&w.file, "GGU", 3);
    expect(&w, KN_E_FORMAT, "byte 0", NULL);
    kn_bytes_put(&w.file, "GGML....................", 24);
    expect(&w, KN_E_FORMAT, "not the start of a GGUF", NULL);
    for (uint32_t v = 0; v < 6; v++) {
        w.version = v ? v : 0x03000000;
        expect(&w, v == 2 || v == 3 ? KN_OK : KN_E_UNSUPPORTED, "version", v ? NULL : "big-endian");
    }
    static const uint64_t hostile[] = {1, 1ull << 31, 1ull << 32, 1ull << 60, UINT64_MAX};
    for (unsigned i = 0; i < sizeof hostile / sizeof *hostile; i++)
        for (unsigned field = 0; field < 2; field++) { /* counts that the file cannot hold: refused before memory is asked for */
            struct kni_alloc_stats before = kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL);
            kn_gguf_assemble(&w);
            memcpy(w.file.data + 8 + 8 * field, &hostile[i], 8);
            expect(&w, KN_E_FORMAT, field ? "pairs" : "tensors", NULL);
            assert_true(kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL).peak_bytes <= before.peak_bytes + 65536);
        }
}

static void keys(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    kn_gguf_put_u32(&w, "twice", 1);
    kn_gguf_put_u32(&w, "twice", 1);
    expect(&w, KN_E_FORMAT, "twice", NULL);
    kn_gguf_put_u32(&w, "", 1);
    expect(&w, KN_E_FORMAT, "key at byte 24", NULL);
    kn_gguf_key(&w, "odd\x1b[31m", 13);
    kn_bytes_put(&w.kv, NULL, 64);
    expect(&w, KN_E_FORMAT, "odd?[31m", "type 13");
    kn_bytes_str(&w.kv, "a\0b", 3);
    kn_bytes_u32(&w.kv, 4), kn_bytes_u32(&w.kv, 4);
    w.n_kv = 1;
    expect(&w, KN_E_FORMAT, "NUL", NULL);
    put_scalar(&w, "flag", KN_GGUF_BOOL, 2, 1);
    expect(&w, KN_E_FORMAT, "flag", NULL);
    char *long_key = malloc(65537);
    memset(long_key, 'k', 65536);
    long_key[65536] = 0;
    kn_gguf_put_u32(&w, long_key, 1);
    expect(&w, KN_E_FORMAT, "65536", NULL);
    kn_gguf_put_u32(&w, long_key + 1, 1);
    expect(&w, KN_OK, NULL, NULL);
    free(long_key);
    static const uint64_t hostile[] = {1000, 1ull << 32, 1ull << 61, 1ull << 62, UINT64_MAX / 4 + 1, UINT64_MAX};
    for (unsigned i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        static const uint32_t types[] = {0, 4, 8, 9, 12};
        for (unsigned k = 0; k < 5; k++) {
            kn_gguf_put_array(&w, "array", types[k], hostile[i]);
            kn_bytes_put(&w.kv, NULL, 40);
            expect(&w, KN_E_FORMAT, "byte", NULL);
        }
        kn_gguf_key(&w, "str", KN_GGUF_STR);
        kn_bytes_u64(&w.kv, hostile[i]);
        expect(&w, KN_E_FORMAT, "string value", NULL);
        kn_bytes_u64(&w.kv, hostile[i]);
        kn_bytes_put(&w.kv, NULL, 20);
        w.n_kv = 1;
        expect(&w, KN_E_FORMAT, "key", NULL);
    }
    kn_gguf_put_array(&w, "array", 77, 1);
    kn_bytes_put(&w.kv, NULL, 40);
    expect(&w, KN_E_FORMAT, "77", NULL);
    for (unsigned depth = 3; depth < 6; depth++) {
        kn_gguf_put_array(&w, "deep", depth > 1 ? KN_GGUF_ARRAY : KN_GGUF_U32, 1);
        for (unsigned i = depth - 1; i; i--) {
            kn_bytes_u32(&w.kv, i > 1 ? KN_GGUF_ARRAY : KN_GGUF_U32);
            kn_bytes_u64(&w.kv, 1);
        }
        kn_bytes_u32(&w.kv, 5);
        expect(&w, depth > 4 ? KN_E_FORMAT : KN_OK, "nested", NULL);
    }
    static const uint32_t aligns[] = {0, 1, 4, 33, 1u << 21, UINT32_MAX};
    for (unsigned i = 0; i < 6; i++) {
        kn_gguf_put_u32(&w, "general.alignment", aligns[i]);
        expect(&w, KN_E_FORMAT, "general.alignment", NULL);
    }
}

static void tensors(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    uint64_t ne[4] = {32, 2, 1, 1};
    uint8_t data[512] = {0};
    kn_gguf_put_tensor(&w, "same", KNI_DTYPE_F32, 1, ne, data, 128);
    kn_gguf_put_tensor(&w, "same", KNI_DTYPE_F32, 1, ne, data, 128);
    expect(&w, KN_E_FORMAT, "same", "twice");
    kn_gguf_put_tensor(&w, "", KNI_DTYPE_F32, 1, ne, data, 128);
    expect(&w, KN_E_FORMAT, "tensor name", NULL);
    for (uint32_t dims = 0; dims < 7; dims++) {
        uint64_t many[7] = {32, 1, 1, 1, 1, 1, 1};
        kn_gguf_put_tensor(&w, "dims", KNI_DTYPE_F32, dims, many, data, 128);
        expect(&w, dims < 1 || dims > 4 ? KN_E_FORMAT : KN_OK, "dims", NULL);
    }
    for (uint32_t type = 0; type < 45; type++) { /* each type that we cannot read is refused by its name */
        uint64_t one[1] = {256};
        const struct kni_dtype_info *info = kni_dtype_get_info(type);
        uint8_t room[1024] = {0};
        kn_gguf_put_tensor(&w, "blk.0.attn_q.weight", type, 1, one, room, info ? 256 / info->block_values * info->block_bytes : 1024);
        expect(&w, info ? KN_OK : KN_E_UNSUPPORTED, "blk.0.attn_q.weight", kni_dtype_name(type));
    }
    static const uint64_t shapes[][4] = {{0, 1, 1, 1}, {31, 1, 1, 1}, {32, 0, 1, 1}, {1ull << 63, 2, 1, 1}, {1ull << 32, 1ull << 32, 1, 1},
                                         {UINT64_MAX, 1, 1, 1}, {32, 1ull << 40, 1ull << 40, 1}, {UINT64_MAX - 31, 1, 1, 1}};
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        kn_gguf_put_tensor(&w, "shape", KNI_DTYPE_Q4_0, 4, shapes[i], data, 128);
        expect(&w, KN_E_FORMAT, "shape", NULL);
    }
    kn_gguf_put_tensor(&w, "short", KNI_DTYPE_F32, 2, ne, data, 255); /* 256 wanted */
    expect(&w, KN_E_FORMAT, "short", "past the file's end");
    static const uint64_t offsets[] = {1, 16, 31, 512, 1ull << 40, UINT64_MAX - 31, UINT64_MAX};
    for (unsigned i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        kn_gguf_put_tensor(&w, "moved", KNI_DTYPE_F32, 2, ne, data, 256);
        memcpy(w.infos.data + w.infos.n - 8, &offsets[i], 8);
        expect(&w, KN_E_FORMAT, "moved", NULL);
    }
    kn_gguf_put_tensor(&w, "first", KNI_DTYPE_F32, 2, ne, data, 256);
    kn_gguf_put_tensor(&w, "second", KNI_DTYPE_F32, 2, ne, data, 256);
    uint64_t inside = 224;
    memcpy(w.infos.data + w.infos.n - 8, &inside, 8);
    expect(&w, KN_E_FORMAT, "first", "second");
}

/* Cut at every byte of the header and at some of the data: always a sentence, never a crash. */
static void truncated(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    struct kn_tiny_opts o = {.n_layer = 1, .n_head = 1, .n_kv_head = 1, .n_ff = 32};
    kn_tiny_model_build(&w, &o);
    assert_true(w.data_at < w.file.n);
    for (size_t n = 0; n < w.file.n; n += n < w.data_at ? 1 : 997) {
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, w.file.data, n);
        struct kni_arena arena;
        struct kni_gguf *g;
        struct kn_err err = {0};
        kni_arena_init(&arena, KNI_ALLOC_TAG_MODEL, 4096);
        assert_int_equal(kni_gguf_parse(&g, &arena, copy, n, "t.gguf", &err), KN_E_FORMAT);
        assert_true(strlen(err.text) > 20);
        kni_arena_fini(&arena);
        free(copy);
    }
    kn_gguf_writer_fini(&w);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    kn_tiny_model_build(&w, NULL);
    unsigned failed = 0;
    for (uint64_t n = 1;; n++) {
        struct kni_arena arena;
        struct kni_gguf *g;
        struct kn_err err = {0};
        kni_arena_init(&arena, KNI_ALLOC_TAG_MODEL, 1024);
        kni_alloc_fault_arm(n, true);
        enum kn_status status = kni_gguf_parse(&g, &arena, w.file.data, w.file.n, "t.gguf", &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        kni_arena_fini(&arena);
        assert_int_equal(status, hit ? KN_E_NOMEM : KN_OK);
        if (!hit)
            break;
        failed++;
    }
    assert_true(failed > 3);
    kn_gguf_writer_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),  cmocka_unit_test(header),    cmocka_unit_test(keys),
        cmocka_unit_test(tensors), cmocka_unit_test(truncated), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

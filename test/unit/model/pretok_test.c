/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-tokenizers against the reference library's cuts (e2e/golden/pretok.json over the strings of tokens.json), and the
 * UTF-8 check against a plain decoder, exhaustively for up to three bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "model/pretok.h"
#include "support/golden.h"

struct cuts { size_t lengths[256], n, bytes; const char *text; };

static enum kn_status note(void *user, const char *piece, size_t n)
{
    struct cuts *c = user;
    assert_true(n > 0 && piece == c->text + c->bytes); /* in order, without a gap */
    if (c->n == 256)
        return KN_E_FULL;
    c->lengths[c->n++] = n;
    c->bytes += n;
    return KN_OK;
}

static void golden(void **state)
{
    (void)state;
    json_t *strings = kn_golden_load("tokens.json"), *all = kn_golden_load("pretok.json"), *chosen = json_object_get(all, "strings"), *wanted, *e;
    const char *name;
    unsigned n_names = 0;
    json_object_foreach(all, name, wanted) {
        if (wanted == chosen)
            continue;
        struct kni_pretok *p;
        assert_int_equal(kni_pretok_open(&p, name, strlen(name)), KN_OK);
        struct kni_pretok_scratch *scratch = kni_pretok_scratch_open(p);
        assert_non_null(scratch);
        size_t i;
        json_array_foreach(chosen, i, e) {
            const json_t *text = json_object_get(json_array_get(strings, (size_t)json_integer_value(e)), "text"), *want = json_array_get(wanted, i);
            size_t n = json_string_length(text);
            struct cuts c = {.text = json_string_value(text)};
            assert_int_equal(kni_pretok_split(p, scratch, c.text, n, note, &c), KN_OK);
            assert_int_equal(c.bytes, n);
            for (size_t k = 0; k < c.n && k < json_array_size(want); k++)
                if ((json_int_t)c.lengths[k] != json_integer_value(json_array_get(want, k)))
                    fail_msg("%s, \"%s\": piece %zu has %zu bytes, want %lld", name, c.text, k, c.lengths[k], json_integer_value(json_array_get(want, k)));
            assert_int_equal(c.n, json_array_size(want));
        }
        assert_int_equal(i, json_array_size(wanted));
        assert_true(i > 300);
        kni_pretok_scratch_close(&scratch);
        kni_pretok_close(&p);
        n_names++;
    }
    assert_int_equal(n_names, 4);
    json_decref(strings);
    json_decref(all);
}

static void names(void **state)
{
    (void)state;
    struct kni_pretok *p;
    const char *at = kni_pretok_names();
    unsigned n = 0;
    while (*at) { /* every name that the error sentence lists can be opened */
        size_t length = strcspn(at, " ");
        assert_int_equal(kni_pretok_open(&p, at, length), KN_OK);
        assert_true(!kni_pretok_takes_whole(p) || !strncmp(at, "llama", 5));
        assert_true(kni_pretok_adds_bos(p) == !strncmp(at, "llama", 5));
        kni_pretok_close(&p);
        at += length + (at[length] == ' ');
        n++;
    }
    assert_int_equal(n, 10);
    assert_int_equal(kni_pretok_open(&p, "smollm2", 7), KN_E_UNSUPPORTED);
    assert_int_equal(kni_pretok_open(&p, "smoll", 5), KN_E_UNSUPPORTED);
    assert_int_equal(kni_pretok_open(&p, "", 0), KN_E_UNSUPPORTED);
    assert_null(p);
    kni_pretok_close(&p);
}

static enum kn_status refuse(void *user, const char *piece, size_t n)
{
    (void)piece, (void)n;
    return ++*(unsigned *)user == 3 ? KN_E_CANCELLED : KN_OK;
}

static void stops(void **state)
{
    (void)state;
    struct kni_pretok *p;
    unsigned n = 0;
    assert_int_equal(kni_pretok_open(&p, "smollm", 6), KN_OK);
    struct kni_pretok_scratch *s = kni_pretok_scratch_open(p);
    assert_int_equal(kni_pretok_split(p, s, "a 12 b c", 8, refuse, &n), KN_E_CANCELLED);
    assert_int_equal(n, 3);
    kni_pretok_scratch_close(&s);
    kni_pretok_close(&p);
}

/* Length of the character that p starts with by plain arithmetic, 0 when there is none. */
static size_t decode(const unsigned char *p, size_t n)
{
    uint32_t c = p[0], low[] = {0, 0x80, 0x800, 0x10000};
    size_t more = c < 0x80 ? 0 : c >> 5 == 6 ? 1 : c >> 4 == 14 ? 2 : c >> 3 == 30 ? 3 : 9;
    if (more == 9 || more >= n)
        return 0;
    c = more ? c & (0x3fu >> more) : c;
    for (size_t i = 1; i <= more; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        c = c << 6 | (p[i] & 63);
    }
    return c < low[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : more + 1;
}

static void utf8(void **state)
{
    (void)state;
    unsigned char p[5] = {0};
    for (unsigned long v = 0; v < 1ul << 24; v += v < 1ul << 16 ? 1 : 3) {
        p[0] = (unsigned char)(v >> 16), p[1] = (unsigned char)(v >> 8), p[2] = (unsigned char)v;
        size_t want = 0, step;
        while (want < 3 && (step = decode(p + want, 3 - want)))
            want += step;
        if (kni_utf8_valid_prefix((char *)p, 3) != want)
            fail_msg("%02x %02x %02x", p[0], p[1], p[2]);
    }
    for (unsigned a = 0xef; a < 0xf6; a++) /* four bytes: all second and third ones */
        for (unsigned b = 0; b < 256; b++)
            for (unsigned c = 0; c < 256; c++) {
                p[0] = (unsigned char)a, p[1] = (unsigned char)b, p[2] = (unsigned char)c, p[3] = 0x9f;
                size_t want = 0, step;
                while (want < 4 && (step = decode(p + want, 4 - want)))
                    want += step;
                assert_int_equal(kni_utf8_valid_prefix((char *)p, 4), want);
            }
}

static void out_of_memory(void **state)
{
    (void)state;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    unsigned failed = 0;
    for (uint64_t n = 1;; n++) {
        struct kni_pretok *p;
        struct kni_pretok_scratch *s = NULL;
        kni_alloc_fault_arm(n, false);
        enum kn_status status = kni_pretok_open(&p, "llama-bpe", 9);
        if (p)
            s = kni_pretok_scratch_open(p);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_true(p ? status == KN_OK : status == KN_E_NOMEM);
        assert_true(hit == !s || p); /* JIT may go without memory */
        kni_pretok_scratch_close(&s);
        kni_pretok_close(&p);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        if (!hit)
            break;
        failed++;
    }
    assert_true(failed > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden), cmocka_unit_test(names), cmocka_unit_test(stops), cmocka_unit_test(utf8), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

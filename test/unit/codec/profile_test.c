/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles: what is written is read, to the byte; damage of every header byte, every length and every array is refused with a
 * sentence, also under a right checksum; another version, model or shape is KN_E_MISMATCH.
 */
#include "unit/codec/codec_support.h"

#include <stdio.h>
#include <unistd.h>

#include "base/le.h"
#include "codec/profile/profile_format.h"
#include "support/tiny_profile.h"

static struct kni_profile *make(void)
{
    struct kn_tiny_profile_opts o = {.n_layer = 3, .n_kv_head = 1, .d_head = 32, .n_group = 2, .n_ropes = 2, .n_sinks = 4, .fingerprint = {1, 2, 3}};
    return kn_tiny_profile_make(&o);
}

static void bytes_of(const struct kni_profile *p, uint8_t **data, size_t *n)
{
    void *d;
    struct kn_err err = {0};
    assert_int_equal(kni_profile_write(p, &d, n, &err), KN_OK);
    *data = d;
}

static void round_trip(void **state)
{
    (void)state;
    struct kni_profile *p = make(), *q;
    uint8_t *data, *again;
    size_t n, n_again;
    bytes_of(p, &data, &n);
    assert_int_equal(n % 8, 0);
    struct kn_err err = {0};
    assert_int_equal(kni_profile_read(&q, data, n, "bytes", &err), KN_OK);
    struct kni_hash id = kni_hash_bytes(data, n);
    assert_memory_equal(q->id, id.bytes, 16);
    assert_memory_equal(p->id, q->id, 16); /* written again, the same bytes */
    assert_memory_equal(q->fingerprint, ((uint8_t[16]){1, 2, 3}), 16);
    assert_int_equal(q->kv.n_layer, 3);
    assert_int_equal(q->kv.n_kv_head, 1);
    assert_int_equal(q->kv.d_head, 32);
    assert_int_equal(q->n_group, 2);
    assert_int_equal(q->n_parts, 4);
    assert_int_equal(q->n_sinks, 4);
    assert_int_equal(q->n_calibration_tokens, 4096);
    assert_int_equal(q->rope.n_ropes, 2);
    assert_int_equal(q->rope.rope_dim, 32);
    assert_false(q->rope.neox);
    assert_int_equal(q->rope.layers[1], 1);
    assert_true(q->rope.freqs[0] == 1.0 && q->rope.freqs[16] == 1.0 && q->rope.freqs[1] == pow(1e4, -1.0 / 16));
    assert_int_equal(q->parts[0].width, 64);
    assert_int_equal(q->parts[2].width, 32); /* the last group is short */
    assert_int_equal(q->parts[2].first_layer, 2);
    for (uint32_t i = 0; i < q->n_parts; i++) {
        const struct kni_profile_part *a = &p->parts[i], *b = &q->parts[i];
        assert_int_equal(b->n_rows, b->rows[0]);
        assert_memory_equal(a->rows, b->rows, sizeof a->rows);
        assert_memory_equal(a->step, b->step, sizeof a->step);
        assert_memory_equal(a->mean, b->mean, a->width * sizeof *a->mean);
        assert_memory_equal(a->weight, b->weight, a->width * sizeof *a->weight);
        assert_memory_equal(a->basis, b->basis, (size_t)a->n_rows * a->width * 2);
        assert_memory_equal(a->exponent, b->exponent, a->n_layers);
        assert_memory_equal(a->gain, b->gain, a->n_layers);
        assert_true(a->gain[0] || a->n_layers == 1);
        for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++)
            assert_memory_equal(a->classes[k], b->classes[k], a->n_layers + a->rows[k]);
    }
    assert_true(q->quality[1].ratio == 20.0f && q->quality[2].kl == 0.006f && q->quality[0].top1 == 0.98f);
    bytes_of(q, &again, &n_again);
    assert_int_equal(n, n_again);
    assert_memory_equal(data, again, n);
    kni_free(data);
    kni_free(again);
    kni_profile_close(&p);
    kni_profile_close(&q);
    assert_null(q);
    kni_profile_close(&q);
}

static void references(void **state)
{
    (void)state;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_CODEC).current_bytes;
    struct kni_profile *p = make(), *q = kni_profile_ref(p);
    kni_profile_close(&p);
    assert_true(kni_alloc_get_stats(KNI_ALLOC_TAG_CODEC).current_bytes > before);
    assert_int_equal(q->n_parts, 4);
    kni_profile_close(&q);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_CODEC).current_bytes, before);
}

/* Status of reading, which must come with a sentence that names the file. */
static enum kn_status status_of(const uint8_t *data, size_t n)
{
    struct kni_profile *p;
    struct kn_err err = {0};
    enum kn_status s = kni_profile_read(&p, data, n, "FILE", &err);
    assert_true(s == KN_OK || (err.status == s && strstr(err.text, "FILE") && !p));
    kni_profile_close(&p);
    return s;
}

static void every_byte_counts(void **state)
{
    (void)state;
    struct kni_profile *p = make();
    uint8_t *data;
    size_t n;
    bytes_of(p, &data, &n);
    for (size_t i = 0; i < n; i += i < 512 ? 1 : 37)
        for (unsigned flip = 1; flip < 256; flip = flip == 1 ? 0x80 : flip == 0x80 ? 0xff : 256) {
            data[i] ^= (uint8_t)flip;
            assert_int_equal(status_of(data, n), i >= 4 && i < 8 ? KN_E_MISMATCH : KN_E_FORMAT);
            data[i] ^= (uint8_t)flip;
        }
    assert_int_equal(status_of(data, n), KN_OK);
    kni_free(data);
    kni_profile_close(&p);
}

static void every_length(void **state)
{
    (void)state;
    struct kni_profile *p = make();
    uint8_t *data;
    size_t n;
    bytes_of(p, &data, &n);
    for (size_t m = 0; m < n; m += m < 1024 ? 1 : 61) {
        uint8_t *cut = malloc(m ? m : 1); /* exact, for sanitizers */
        assert_non_null(cut);
        memcpy(cut, data, m);
        assert_int_equal(status_of(cut, m), KN_E_FORMAT);
        if (m >= KNI_PROFILE_FIXED_BYTES + 8) { /* its size and checksum made right */
            kni_le64_put(cut + KNI_PROFILE_AT_TOTAL_BYTES, m);
            kni_profile_refresh_checksum(cut, m);
            assert_int_equal(status_of(cut, m), KN_E_FORMAT);
        }
        free(cut);
    }
    uint8_t *longer = calloc(1, n + 8);
    assert_non_null(longer);
    memcpy(longer, data, n);
    kni_le64_put(longer + KNI_PROFILE_AT_TOTAL_BYTES, n + 8);
    kni_profile_refresh_checksum(longer, n + 8);
    assert_int_equal(status_of(longer, n + 8), KN_E_FORMAT);
    free(longer);
    kni_free(data);
    kni_profile_close(&p);
}

/* Fields that lie although the checksum is right. */
static void lies(void **state)
{
    (void)state;
    struct kni_profile *p = make();
    uint8_t *good, *data;
    size_t n, front = kni_profile_front_bytes(p), table = front - 4 * KNI_PROFILE_ENTRY_BYTES;
    bytes_of(p, &good, &n);
    data = malloc(n);
    assert_non_null(data);
    size_t w = p->parts[0].width, basis = front + 8 * w, exponents = basis + 2 * (size_t)p->parts[0].n_rows * w;
    const struct { size_t at; uint32_t bytes, value; } lie[] = {
        {KNI_PROFILE_AT_HEADER_BYTES, 4, 136}, {KNI_PROFILE_AT_N_GROUP, 4, 0}, {KNI_PROFILE_AT_N_GROUP, 4, 4}, {KNI_PROFILE_AT_N_GROUP, 4, 0xffffffff},
        {KNI_PROFILE_AT_N_GROUP, 4, 1}, {KNI_PROFILE_AT_N_LAYER, 4, 0}, {KNI_PROFILE_AT_N_LAYER, 4, 0xffffffff}, {KNI_PROFILE_AT_N_LAYER, 4, 1024},
        {KNI_PROFILE_AT_N_KV_HEAD, 4, 0}, {KNI_PROFILE_AT_N_KV_HEAD, 4, 256}, {KNI_PROFILE_AT_N_KV_HEAD, 4, 0x80000001}, {KNI_PROFILE_AT_D_HEAD, 4, 16},
        {KNI_PROFILE_AT_D_HEAD, 4, 0}, {KNI_PROFILE_AT_D_HEAD, 4, 0x10000020}, {KNI_PROFILE_AT_ROPE_DIM, 4, 0}, {KNI_PROFILE_AT_ROPE_DIM, 4, 31},
        {KNI_PROFILE_AT_ROPE_DIM, 4, 34}, {KNI_PROFILE_AT_NEOX, 1, 2}, {KNI_PROFILE_AT_N_ROPES, 1, 0}, {KNI_PROFILE_AT_N_ROPES, 1, 3},
        {KNI_PROFILE_AT_N_SINKS, 1, 17}, {KNI_PROFILE_AT_ZERO1, 1, 1}, {KNI_PROFILE_AT_ZERO2, 1, 1}, {KNI_PROFILE_AT_ZERO2 + 15, 1, 1},
        {KNI_PROFILE_AT_N_TEXTS, 4, 1} /* version 1 */, {KNI_PROFILE_AT_VERSION, 4, 2} /* without texts */,
        {KNI_PROFILE_AT_RANS_BYTES, 4, 0}, {KNI_PROFILE_AT_RANS_BYTES, 4, 0xffffffff}, {KNI_PROFILE_AT_QUALITY, 4, 0x7fc00000},
        {KNI_PROFILE_AT_QUALITY + 4, 4, 0xbf800000}, {KNI_PROFILE_AT_QUALITY + 8, 4, 0x40000000},
        {128, 4, 0} /* a frequency's low half: valid, see below */, {132, 4, 0x7ff00000}, {132, 4, 0xbff00000},
        {128 + 2 * 16 * 8, 1, 2} /* a layer's frequencies */, {128 + 2 * 16 * 8 + 3, 1, 1} /* filling byte */,
        {table, 4, 0}, {table, 4, 8}, {table, 4, 80}, {table, 4, 0xfffffff0}, {table + 4, 4, 32}, {table + 12, 4, 0}, {table + 12, 4, 0x7f800000},
        {table + 16, 4, 0xbf800000}, {table + 20, 4, 0x7fc00000}, {front, 4, 0x7f800000}, {front, 4, 0x7fc00000}, {front + 4 * w, 4, 0},
        {front + 4 * w, 4, 0xbf800000}, {front + 4 * w, 4, 0x7f800000}, {basis, 2, 0x7f80}, {basis, 2, 0xffc0}, {basis + 2, 2, 0x4100}, {exponents, 1, 96},
        {exponents, 1, 0x80}, {exponents + 2, 1, 33}, {exponents + 3, 1, 0xdf}, {exponents + 4, 1, KNI_RANS_MAX_CLASSES}, {n - 9, 1, 0x77} /* end of the entropy coder's tables, or filling */,
    };
    for (unsigned i = 0; i < sizeof lie / sizeof *lie; i++) {
        memcpy(data, good, n);
        for (uint32_t k = 0; k < lie[i].bytes; k++)
            data[lie[i].at + k] = (uint8_t)(lie[i].value >> 8 * k);
        kni_profile_refresh_checksum(data, n);
        enum kn_status s = status_of(data, n);
        if (lie[i].at == 128 || (lie[i].at == n - 9 && s == KN_OK))
            assert_int_equal(s, KN_OK);
        else if (s != KN_E_FORMAT)
            fail_msg("value %x at %zu: %s", lie[i].value, lie[i].at, kn_status_name(s));
    }
    free(data);
    kni_free(good);
    kni_profile_close(&p);
}

/* Version 2: texts come back, and every byte of them is checked. */
static void texts(void **state)
{
    (void)state;
    struct kni_profile *p = make(), *back, q = *p;
    struct kni_profile_text list[2] = {{.n_bytes = 1ull << 40, .n_tokens = 7, .hash = {1, 2, 3}, .name = "a text.txt"}, {.n_bytes = 3, .n_tokens = 2048, .is_held_back = true}};
    struct kn_err err = {0};
    void *data, *plain;
    size_t n, n_plain;
    q.texts = list;
    q.n_texts = 2;
    memset(list[1].name, 'x', KNI_PROFILE_NAME_BYTES - 1);
    assert_int_equal(kni_profile_write(p, &plain, &n_plain, &err), KN_OK);
    assert_int_equal(kni_profile_write(&q, &data, &n, &err), KN_OK);
    assert_int_equal(((uint8_t *)plain)[KNI_PROFILE_AT_VERSION], 1);
    assert_int_equal(((uint8_t *)data)[KNI_PROFILE_AT_VERSION], 2);
    assert_int_equal(n, n_plain + 2 * KNI_PROFILE_TEXT_ENTRY);
    assert_int_equal(kni_profile_read(&back, data, n, "p", &err), KN_OK);
    assert_int_equal(back->n_texts, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(back->texts[i].name, list[i].name);
        assert_int_equal(back->texts[i].n_bytes, list[i].n_bytes);
        assert_int_equal(back->texts[i].n_tokens, list[i].n_tokens);
        assert_int_equal(back->texts[i].is_held_back, list[i].is_held_back);
        assert_memory_equal(back->texts[i].hash, list[i].hash, 16);
    }
    kni_profile_close(&back);
    size_t at = n - 8 - 2 * KNI_PROFILE_TEXT_ENTRY;
    const struct { size_t at; uint8_t value; } lie[] = {
        {KNI_PROFILE_AT_N_TEXTS, 1}, {KNI_PROFILE_AT_N_TEXTS, 3}, {KNI_PROFILE_AT_N_TEXTS + 2, 1}, {KNI_PROFILE_AT_N_TEXTS, 0}, {KNI_PROFILE_AT_VERSION, 1},
        {at + KNI_PROFILE_TEXT_HELD, 2}, {at + KNI_PROFILE_TEXT_ZERO + 2, 1}, {at + KNI_PROFILE_TEXT_NAME, 0}, {at + KNI_PROFILE_TEXT_NAME + 1, '\n'},
        {at + KNI_PROFILE_TEXT_NAME + 1, 127}, {at + KNI_PROFILE_TEXT_NAME + 20, 'x'}, {at + 2 * KNI_PROFILE_TEXT_ENTRY - 1, 'x'},
    };
    for (unsigned i = 0; i < sizeof lie / sizeof *lie; i++) {
        uint8_t *b = data, old = b[lie[i].at];
        b[lie[i].at] = lie[i].value;
        kni_profile_refresh_checksum(b, n);
        if (status_of(b, n) != KN_E_FORMAT)
            fail_msg("value %x at %zu is not noticed", lie[i].value, lie[i].at);
        b[lie[i].at] = old;
    }
    ((uint8_t *)data)[KNI_PROFILE_AT_VERSION] = 3;
    kni_profile_refresh_checksum(data, n);
    assert_int_equal(status_of(data, n), KN_E_MISMATCH);
    kni_free(data);
    kni_free(plain);
    kni_profile_close(&p);
}

static void match(void **state)
{
    (void)state;
    struct kni_profile *p = make();
    struct kn_err err = {0};
    uint8_t fingerprint[16] = {1, 2, 3};
    struct kni_kv_layout kv = {3, 1, 32, KN_KV_TYPE_BF16};
    assert_int_equal(kni_profile_match(p, fingerprint, &kv, &err), KN_OK);
    fingerprint[15] = 1;
    assert_int_equal(kni_profile_match(p, fingerprint, &kv, &err), KN_E_MISMATCH);
    assert_non_null(strstr(err.text, "another model"));
    fingerprint[15] = 0;
    const struct kni_kv_layout others[] = {{4, 1, 32, 0}, {3, 2, 32, 0}, {3, 1, 64, 0}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kni_profile_match(p, fingerprint, &others[i], &err), KN_E_MISMATCH);
        assert_non_null(strstr(err.text, "3 layers of 1 KV heads of 32"));
    }
    kni_profile_close(&p);
}

static void files(void **state)
{
    (void)state;
    struct kni_profile *p = make(), *q;
    struct kn_err err = {0};
    uint8_t *data;
    size_t n;
    char path[] = "/tmp/kn-profile-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    bytes_of(p, &data, &n);
    assert_int_equal(write(fd, data, n), (ssize_t)n);
    close(fd);
    assert_int_equal(kni_profile_open(&q, path, &err), KN_OK);
    assert_memory_equal(p->id, q->id, 16);
    kni_profile_close(&q);
    assert_int_equal(truncate(path, (off_t)n / 2), 0);
    assert_int_equal(kni_profile_open(&q, path, &err), KN_E_FORMAT);
    assert_true(strstr(err.text, path) && strstr(err.text, "build it again"));
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(kni_profile_open(&q, path, &err), KN_E_FORMAT);
    unlink(path);
    assert_int_equal(kni_profile_open(&q, path, &err), KN_E_IO);
    assert_true(strstr(err.text, path) && strstr(err.text, "no such file"));
    assert_int_equal(kni_profile_open(&q, "/tmp", &err), KN_E_FORMAT);
    assert_null(q);
    kni_free(data);
    kni_profile_close(&p);
}

/* Every allocation of reading and writing may fail; nothing leaks, nothing crashes. */
static void out_of_memory(void **state)
{
    (void)state;
    struct kni_profile *p = make(), *q;
    uint8_t *data;
    size_t n;
    bytes_of(p, &data, &n);
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, i;
    for (i = 1;; i++) {
        struct kn_err err = {0};
        kni_alloc_fault_arm(i, true);
        enum kn_status s = kni_profile_read(&q, data, n, "FILE", &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(s, hit ? KN_E_NOMEM : KN_OK);
        kni_profile_close(&q);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        if (!hit)
            break;
        assert_true(strstr(err.text, "FILE"));
    }
    assert_true(i > 2);
    void *out;
    size_t n_out;
    kni_alloc_fault_arm(1, true);
    assert_int_equal(kni_profile_write(p, &out, &n_out, NULL), KN_E_NOMEM);
    kni_alloc_fault_arm(0, false);
    kni_free(data);
    kni_profile_close(&p);
}

static void write_refuses(void **state)
{
    (void)state;
    struct kni_profile *p = make();
    struct kni_profile bad = *p;
    struct kni_profile_part parts[4];
    float mean[64];
    void *out;
    size_t n;
    struct kn_err err = {0};
    memcpy(parts, p->parts, sizeof parts);
    memcpy(mean, parts[0].mean, sizeof mean);
    bad.parts = parts;
    parts[0].mean = mean;
    assert_int_equal(kni_profile_write(&bad, &out, &n, &err), KN_OK);
    kni_free(out);
    mean[3] = NAN;
    assert_int_equal(kni_profile_write(&bad, &out, &n, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "mean"));
    mean[3] = 0;
    parts[1].step[2] = 0;
    assert_int_equal(kni_profile_write(&bad, &out, &n, &err), KN_E_ARG);
    parts[1] = p->parts[1];
    parts[2].width = 64;
    assert_int_equal(kni_profile_write(&bad, &out, &n, &err), KN_E_ARG);
    parts[2] = p->parts[2];
    bad.n_parts = 2;
    assert_int_equal(kni_profile_write(&bad, &out, &n, &err), KN_E_ARG);
    assert_null(out);
    kni_profile_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(references),    cmocka_unit_test(every_byte_counts), cmocka_unit_test(every_length), cmocka_unit_test(lies),
        cmocka_unit_test(texts),
        cmocka_unit_test(match),      cmocka_unit_test(files),         cmocka_unit_test(out_of_memory),     cmocka_unit_test(write_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

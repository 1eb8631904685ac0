/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kn_hevc_inspect: what it finds in a chunk and in a stream, and what it answers to tables of access units that lie, to damage and to options
 * that are none. Chunks and streams are the seeds of the fuzz targets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/le.h"
#include "codec/container.h"
#include "kinema/codec.h"
#include "support/refresh_checksums.h"

static uint8_t *read_seed(const char *name, size_t *n_bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/test/fuzz/corpus/%s", KN_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc(1 << 20);
    if (!f || !bytes)
        fail_msg("%s cannot be read", path);
    *n_bytes = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    assert_true(*n_bytes > 0 && *n_bytes < 1 << 20);
    return bytes;
}

struct seen { uint32_t n_begun, n_ended, n_slices, n_pictures, n_v; uint64_t bytes; double bits, slice_bits; struct kn_hevc_stream last; };

static double bits_of(const struct kn_hevc_counts *c)
{
    double bits = 0;
    for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++)
        bits += c->element[e].bits;
    return bits;
}

static void on_begin(void *user, const struct kn_hevc_stream *stream)
{
    struct seen *s = user;
    assert_true(stream->params.width && stream->params.height);
    assert_int_equal(stream->n_pictures, 0);
    assert_int_equal(s->n_begun++, s->n_ended);
}

static void on_slice(void *user, const struct kn_hevc_slice *slice)
{
    struct seen *s = user;
    s->n_slices++;
    s->slice_bits += bits_of(&slice->counts);
}

static void on_picture(void *user, const struct kn_hevc_picture *picture)
{
    struct seen *s = user;
    s->n_pictures++;
    s->bytes += picture->n_bytes;
}

static void on_end(void *user, const struct kn_hevc_stream *stream)
{
    struct seen *s = user;
    s->n_ended++;
    s->n_v += stream->index % 2;
    s->bits += bits_of(&stream->counts);
    s->last = *stream;
}

static enum kn_status look(const uint8_t *bytes, size_t n_bytes, struct seen *s, struct kn_err *err)
{
    struct kn_hevc_inspect_opts o = {
        .size = sizeof o, .band_rows = 8, .on_begin = on_begin, .on_slice = on_slice, .on_picture = on_picture, .on_end = on_end, .user = s};
    *s = (struct seen){0};
    return kn_hevc_inspect(bytes, n_bytes, &o, err);
}

static void streams(void **state)
{
    (void)state;
    static const struct {
        const char *seed;
        uint32_t n_streams, n_pictures;
    } files[] = {
        {"hevc_reader_fuzz/ours_all_tools", 1, 3}, {"hevc_reader_fuzz/x265", 1, 3}, {"hevc_reader_fuzz/x265_slow", 1, 3},
        {"chunk_fuzz/tiles_f16", 2, 8}, {"chunk_fuzz/fine_hevc_f16", 2, 4}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n;
        uint8_t *bytes = read_seed(files[i].seed, &n);
        struct seen s;
        struct kn_err err = {0};
        if (look(bytes, n, &s, &err) != KN_OK)
            fail_msg("%s: %s", files[i].seed, err.text);
        assert_int_equal(s.n_begun, files[i].n_streams);
        assert_int_equal(s.n_ended, files[i].n_streams);
        assert_int_equal(s.n_v, files[i].n_streams / 2); /* K and V */
        assert_int_equal(s.n_pictures, files[i].n_pictures);
        assert_true(s.n_slices >= s.n_pictures && s.bytes <= n);
        assert_true(s.bits > s.slice_bits * 0.999999 && s.bits < s.slice_bits * 1.000001);
        assert_int_equal(!s.last.section, files[i].n_streams == 1);
        assert_int_equal(s.last.band_rows, 8);
        free(bytes);
    }
}

/* A chunk's section whose table of access units lies. */
static void tables_that_lie(void **state)
{
    (void)state;
    size_t n, size;
    uint8_t *bytes = read_seed("chunk_fuzz/tiles_f16", &n);
    struct kni_container c;
    struct kn_err err = {0};
    struct seen s;
    enum kni_section_kind kind;
    uint32_t index;
    const uint8_t *section;
    assert_int_equal(kni_container_open(&c, bytes, n, &err), KN_OK);
    assert_int_equal(kni_container_section(&c, 1, &kind, &index, &section, &size, &err), KN_OK);
    assert_int_equal(kind, KNI_SECTION_KIND_TILES_VIDEO);
    uint8_t *table = bytes + (section - bytes);
    const uint32_t n_units = kni_le32_get(table), first = kni_le32_get(table + 4);
    static const uint32_t counts[] = {0, 1, 3, 5, 1000, 0x40000000, UINT32_MAX}, sizes[] = {0, 1, 5000, UINT32_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        kni_le32_put(table, counts[i]);
        kn_refresh_checksums(bytes, n);
        assert_int_equal(look(bytes, n, &s, &err), KN_E_FORMAT);
    }
    kni_le32_put(table, n_units);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        kni_le32_put(table + 4, sizes[i]);
        kn_refresh_checksums(bytes, n);
        assert_int_equal(look(bytes, n, &s, &err), KN_E_FORMAT);
    }
    kni_le32_put(table + 4, first);
    kn_refresh_checksums(bytes, n);
    assert_int_equal(look(bytes, n, &s, &err), KN_OK);
    bytes[n - 1] ^= 1; /* a checksum finds it */
    assert_int_equal(look(bytes, n, &s, &err), KN_E_FORMAT);
    free(bytes);
}

static void wrong_use(void **state)
{
    (void)state;
    size_t n;
    uint8_t *bytes = read_seed("hevc_reader_fuzz/ours_all_tools", &n);
    struct kn_err err = {0};
    struct kn_hevc_inspect_opts o = {.size = sizeof o};
    assert_int_equal(kn_hevc_inspect(bytes, n, &o, &err), KN_OK); /* no callbacks: a check */
    assert_int_equal(kn_hevc_inspect(bytes, n, &o, NULL), KN_OK);
    assert_int_equal(kn_hevc_inspect(NULL, n, &o, &err), KN_E_ARG);
    assert_int_equal(kn_hevc_inspect(bytes, n, NULL, &err), KN_E_ARG);
    assert_int_equal(kn_hevc_inspect(bytes, 0, &o, &err), KN_E_FORMAT);
    assert_int_equal(kn_hevc_inspect(bytes, n - 1, &o, &err), KN_E_FORMAT);
    o.band_rows = 2;
    assert_int_equal(kn_hevc_inspect(bytes, n, &o, &err), KN_E_ARG);
    o = (struct kn_hevc_inspect_opts){0};
    assert_int_equal(kn_hevc_inspect(bytes, n, &o, &err), KN_E_ARG);
    free(bytes);
    o.size = sizeof o;
    bytes = read_seed("chunk_fuzz/exact_f16", &n);
    assert_int_equal(kn_hevc_inspect(bytes, n, &o, &err), KN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no HEVC"));
    free(bytes);
    for (int e = 0; e <= KN_HEVC_ELEMENT_COUNT; e++)
        assert_int_equal(!strcmp(kn_hevc_element_name((enum kn_hevc_element)e), "unknown"), e == KN_HEVC_ELEMENT_COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(streams), cmocka_unit_test(tables_that_lie), cmocka_unit_test(wrong_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

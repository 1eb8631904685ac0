/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fails the n-th allocation, for every n, while a stream is coded: open, begin, pictures, end, twice with one handle. The outcome
 * is KN_E_NOMEM with a sentence, or the right bytes; nothing leaks; and a handle that has failed codes its next stream as if nothing had been.
 */
#include "unit/codec/codec_support.h"

#include "codec/hevc/hevc_encode.h"

enum { W = 64, H = 48, N = 3 };

static uint8_t samples[N][3][W * H];

struct section { uint8_t *bytes; size_t n_bytes; };

static enum kn_status code(struct kni_hevc_encoder *e, uint32_t height, struct kni_container_writer *w, struct kn_err *err)
{
    const size_t strides[3] = {W, W, W};
    enum kn_status s = kni_hevc_encode_begin(e, W, height, N, NULL, err);
    for (uint32_t t = 0; s == KN_OK && t < N; t++) {
        const uint8_t *planes[3] = {samples[t][0], samples[t][1], samples[t][2]};
        s = kni_hevc_encode_picture(e, planes, strides, err);
    }
    return s == KN_OK ? kni_hevc_encode_end(e, w, err) : s;
}

static struct section section_of(struct kni_hevc_encoder *e)
{
    struct kni_container_writer w = {0};
    struct kn_err err = {0};
    if (code(e, H, &w, &err) != KN_OK)
        fail_msg("%s", err.text);
    struct section s = {malloc(w.used_bytes), w.used_bytes};
    assert_non_null(s.bytes);
    memcpy(s.bytes, w.data, w.used_bytes);
    kni_container_writer_fini(&w);
    return s;
}

static uint64_t in_use(void)
{
    return kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
}

/* A handle's life with the n-th allocation failing: a small stream, then the one whose bytes are known. */
static bool fail_nth(const struct kn_hevc_opts *opts, uint64_t n, bool sticky, const struct section *want)
{
    struct kni_hevc_encoder *e = NULL;
    struct kn_err err = {0};
    uint64_t before = in_use();
    enum kn_status s;
    kni_alloc_fault_arm(n, sticky);
    s = kni_hevc_encoder_open(&e, opts, KNI_HEVC_CONTENT_TILES, 0, &err);
    assert_true((s == KN_OK) == (e != NULL));
    for (uint32_t height = H / 3; s == KN_OK && height <= H; height += H - H / 3) {
        struct kni_container_writer w = {0};
        s = code(e, height, &w, &err);
        if (s == KN_OK && height == H) {
            assert_int_equal(w.used_bytes, want->n_bytes);
            assert_memory_equal(w.data, want->bytes, want->n_bytes);
        }
        kni_container_writer_fini(&w);
    }
    bool hit = kni_alloc_fault_hit();
    kni_alloc_fault_arm(0, false);
    if (s != KN_OK && (!hit || s != KN_E_NOMEM || !err.text[0]))
        fail_msg("allocation %llu: %s: %s", (unsigned long long)n, kn_status_name(s), err.text);
    if (e) {
        struct section again = section_of(e);
        assert_int_equal(again.n_bytes, want->n_bytes);
        assert_memory_equal(again.bytes, want->bytes, want->n_bytes);
        free(again.bytes);
        kni_hevc_encoder_close(&e);
    }
    if (in_use() != before)
        fail_msg("allocation %llu: %llu bytes leak", (unsigned long long)n, (unsigned long long)(in_use() - before));
    return hit;
}

static void every_allocation(const struct kn_hevc_opts *opts)
{
    struct kni_hevc_encoder *e;
    struct kn_err err = {0};
    enum kn_status s = kni_hevc_encoder_open(&e, opts, KNI_HEVC_CONTENT_TILES, 0, &err);
    if (s == KN_E_UNSUPPORTED && opts->encoder >= KN_HEVC_ENCODER_X265_ULTRAFAST)
        skip();
    if (s != KN_OK)
        fail_msg("%s", err.text);
    struct section want = section_of(e);
    kni_hevc_encoder_close(&e);
    for (int sticky = 0; sticky < 2; sticky++) {
        uint64_t n = 1;
        while (fail_nth(opts, n, sticky, &want))
            n++;
        assert_true(n > 2); /* the handle, what it codes into, and the section at least */
    }
    free(want.bytes);
}

static void our_own(void **state)
{
    (void)state;
    every_allocation(&(struct kn_hevc_opts){.encoder = KN_HEVC_ENCODER_KINEMA, .tools = KN_HEVC_TOOLS_FULL, .n_slices = 2});
    every_allocation(&(struct kn_hevc_opts){.encoder = KN_HEVC_ENCODER_KINEMA, .tools = KN_HEVC_TOOLS_BASIC});
}

static void the_plugin(void **state)
{
    (void)state;
    every_allocation(&(struct kn_hevc_opts){.encoder = KN_HEVC_ENCODER_X265_ULTRAFAST});
}

static int set_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples; i++)
        (&samples[0][0][0])[i] = (uint8_t)(128 + (test_random() % 31 - 15) * (i / W % 4) / 3);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(our_own), cmocka_unit_test(the_plugin)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of hevc_lossless_fuzz, and sections of our own encoder for hevc_fuzz, into the corpus folder given. Run again when the encoder's
 * streams change:
 *
 *     ninja hevc_corpus && test/hevc_corpus test/fuzz/corpus
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/le.h"
#include "support/hevc_random.h"

static int write_file(const char *folder, const char *below, const char *name, const uint8_t *data, size_t n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", folder, below, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) {
        perror(path);
        return 1;
    }
    printf("%s %zu bytes\n", path, n);
    return 0;
}

/* A section of n pictures, 32 x 48, of one kind each. */
static int make_section(const char *folder, const char *name, const enum hevc_kind *kinds, uint32_t n, uint32_t tools, uint32_t n_slices,
                        enum kni_hevc_content content)
{
    struct hevc_case c = {.opts = {.width = 32, .height = 48, .tools = tools, .n_slices = n_slices, .content = content}};
    uint64_t rng = hevc_mix(tools + n_slices);
    struct kni_hevc_lossless *e;
    size_t bytes = kni_hevc_lossless_bytes(&c.opts);
    void *memory = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    if (!memory || kni_hevc_lossless_init(&e, memory, &c.opts, NULL) != KN_OK)
        return 1;
    size_t head = 3 + 4 + 4 * (size_t)n, at = head;
    uint8_t *out = malloc(head + n * kni_hevc_lossless_unit_bound(e));
    if (!out)
        return 1;
    out[0] = 32 / 16 - 1;
    out[1] = 48 / 16 - 1;
    out[2] = (uint8_t)(n - 1);
    kni_le32_put(out + 3, n);
    c.film = hevc_film_alloc(32, 48, n, 32);
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t k = 0; k < 3; k++)
            hevc_paint_plane(&c.film, t, k, kinds[t], &rng);
        struct kni_hevc_job job = hevc_case_job(&c, t);
        size_t m = kni_hevc_lossless_unit(e, &job, out + at);
        kni_le32_put(out + 7 + 4 * t, (uint32_t)m);
        at += m;
    }
    int bad = write_file(folder, "hevc_fuzz", name, out, at);
    free(out);
    free(memory);
    hevc_case_free(&c);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    static const struct { const char *name; uint8_t bytes[20]; } seeds[] = {
        {"flat_then_spectral", {48, 48, 0x20, 1, 1, 7, 1, 1, 1, 6, 6, 6}},
        {"all_tools_tiles", {17, 33, 0x7f, 2, 1, 8, 13, 13, 9, 16, 18, 15, 14, 14, 14, 17, 17, 12}},
        {"extremes", {9, 70, 0xc5, 3, 0, 9, 4, 5, 3, 17, 17, 4, 4, 3, 5}},
        {"one_symbol", {0, 0, 0x0a, 0, 2, 11, 8, 8, 1, 255, 254, 1, 0}},
        {"wrong_scales", {63, 20, 0x3d, 64, 77, 12, 6, 7, 10, 7, 6, 11, 200, 3, 9}},
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        if (write_file(argv[1], "hevc_lossless_fuzz", seeds[i].name, seeds[i].bytes, sizeof seeds[i].bytes))
            return 1;
    static const enum hevc_kind spectral[] = {HEVC_KIND_FLAT, HEVC_KIND_SPECTRAL}, film[] = {HEVC_KIND_GRADIENT, HEVC_KIND_NEAR, HEVC_KIND_RAMPS},
                                patches[] = {HEVC_KIND_PATCHES, HEVC_KIND_REPEAT};
    return make_section(argv[1], "ours_basic", spectral, 2, KNI_HEVC_TOOLS_BASIC, 1, KNI_HEVC_CONTENT_NOISE) ||
           make_section(argv[1], "ours_full", spectral, 2, KNI_HEVC_TOOLS_ALL, 2, KNI_HEVC_CONTENT_NOISE) ||
           make_section(argv[1], "ours_tiles", film, 3, KNI_HEVC_TOOLS_ALL, 1, KNI_HEVC_CONTENT_TILES) ||
           make_section(argv[1], "ours_patches", patches, 2, KNI_HEVC_TOOL_SIG_CONTEXT | KNI_HEVC_TOOL_RICE, 2, KNI_HEVC_CONTENT_TILES);
}

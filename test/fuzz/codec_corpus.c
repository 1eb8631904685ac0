/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of chunk_fuzz, hevc_fuzz, hevc_reader_fuzz, profile_fuzz and rans_fuzz into the corpus folder given: small valid chunks of all
 * layouts, valid HEVC sections and streams, small profiles, rANS streams. Run again when the container's format or the encoder's settings change:
 *
 *     ninja codec_corpus && test/codec_corpus test/fuzz/corpus
 *
 * Not from here: hevc_reader_fuzz/ours_all_tools, from when our encoder still set all four flags of range extensions; hevc_reader_fuzz/x265_slow, a
 * film of 64 x 48 by libx265's own interface, preset slow, lossless, with wavefront, rectangular and asymmetric partitions, deep transform trees,
 * units of 8 to 16 and three references.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/le.h"
#include "codec/codec.h"
#include "codec/container.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/tiles/tiles.h"
#include "support/symbol_matrix.h"
#include "support/tiny_profile.h"

static int write_file(const char *folder, const char *name, const void *head, size_t n_head, const void *data, size_t n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(head, 1, n_head, f) != n_head || fwrite(data, 1, n, f) != n || fclose(f)) {
        perror(path);
        return 1;
    }
    printf("%s %zu bytes\n", path, n_head + n);
    return 0;
}

static struct kni_profile *profile; /* as chunk_fuzz has it */
static enum kn_backend backend;

static int make(const char *folder, const char *name, enum kn_preset preset, struct kni_kv_layout kv, uint32_t n_tokens, struct kn_tiles_opts tiles)
{
    uint32_t n_blocks = n_tokens / KNI_BLOCK_TOKENS, ids[16];
    uint16_t *base = malloc(kni_kv_block_bytes(&kv) * n_blocks);
    if (!base || n_blocks > 16)
        return 1;
    for (uint32_t i = 0; i < n_blocks; i++)
        ids[i] = i;
    for (size_t i = 0; i < kni_kv_block_values(&kv) * n_blocks; i++) {
        float x = 2.0f * sinf((float)(i % 97) * 0.3f) + 0.1f * (float)(i * 7919 % 13);
        base[i] = kv.type == KN_KV_TYPE_F16 ? kni_f32_to_f16(x) : kni_f32_to_bf16(x);
    }
    const struct kni_kv_host view = kni_kv_host_by_block(&kv, base, ids, n_blocks);
    struct kni_chunk_meta m = {.n_tokens = n_tokens, .kv = kv};
    struct kni_codec_opts opts = {.preset = preset, .tiles = tiles, .profile = profile, .backend = backend};
    struct kni_codec *codec;
    struct kn_err err = {0};
    void *data = NULL;
    size_t n;
    char sub[4096], file[256];
    snprintf(sub, sizeof sub, "%s/chunk_fuzz", folder);
    int bad = kni_codec_open(&codec, &opts, &err) != KN_OK || kni_chunk_encode(codec, &m, &view, &data, &n, &err) != KN_OK;
    if (bad)
        fprintf(stderr, "%s\n", err.text);
    else
        bad = write_file(sub, name, "", 0, data, n);
    struct kni_container c;
    struct kni_tiles_geometry g;
    if (!bad && preset == KN_PRESET_TILES && kni_container_open(&c, data, n, NULL) == KN_OK &&
        kni_tiles_geometry_make(&c.header.meta, &c.header.tiling, &g, NULL) == KN_OK) {
        enum kni_section_kind kind;
        uint32_t index;
        const uint8_t *bytes;
        size_t size;
        kni_container_section(&c, 1, &kind, &index, &bytes, &size, NULL);
        uint8_t head[3] = {(uint8_t)(g.width / 16 - 1), (uint8_t)(g.height / 16 - 1), (uint8_t)(g.n_pictures - 1)};
        snprintf(sub, sizeof sub, "%s/hevc_fuzz", folder);
        snprintf(file, sizeof file, "section_%s", name);
        bad = write_file(sub, file, head, 3, bytes, size);
    }
    kni_codec_close(&codec);
    kni_free(data);
    free(base);
    return bad;
}

/* The smallest profiles: they still hold the entropy coder's tables. */
static int make_profile(const char *folder, const char *name, const struct kn_tiny_profile_opts *o)
{
    struct kni_profile *p = kn_tiny_profile_make(o);
    void *data = NULL;
    size_t n;
    char sub[4096];
    snprintf(sub, sizeof sub, "%s/profile_fuzz", folder);
    int bad = kni_profile_write(p, &data, &n, NULL) != KN_OK || write_file(sub, name, "", 0, data, n);
    kni_free(data);
    kni_profile_close(&p);
    return bad;
}

/* kind 0: a stream of the built-in model; 1: one that stays raw; 2: with its own model in front. The classes are rans_fuzz's. */
static int make_rans(const char *folder, const char *name, int kind)
{
    struct kni_rans_model *model = symbol_matrix_model();
    uint32_t n_rows = kind == 1 ? 2 : 24, n_tokens = kind == 2 ? 48 : 80;
    struct symbol_matrix m = kind == 1 ? symbol_matrix_random(n_rows, n_tokens) : symbol_matrix_make(n_rows, n_tokens, 6.0, 0.5);
    m.symbols[3] = 250; /* an escape */
    for (uint32_t i = 0; i < n_rows; i++)
        m.classes[i] = (uint8_t)(i < 10 ? 222 : 45 - i / 2 + i % 3 * 64);
    size_t n_model = kind == 2 ? kni_rans_model_bytes(model) + 4 : 0, n_head = 3 + n_model;
    uint8_t *out = malloc(n_head + kni_rans_bound(n_rows, n_tokens));
    void *scratch = malloc(kni_rans_scratch_bytes(n_rows, n_tokens));
    char sub[2048];
    int bad = !out || !scratch;
    if (!bad) {
        out[0] = (uint8_t)(n_rows - 1);
        out[1] = (uint8_t)(n_tokens / 16 - 1);
        out[2] = kind == 2;
        if (kind == 2) {
            kni_le32_put(out + 3, (uint32_t)(n_model - 4));
            kni_rans_model_write(model, out + 7);
        }
        size_t n = kni_rans_encode(model, m.symbols, m.stride, n_rows, n_tokens, m.classes, out + n_head, scratch,
                                   kni_cpu_flags());
        snprintf(sub, sizeof sub, "%s/rans_fuzz", folder);
        bad = write_file(sub, name, "", 0, out, n_head + n);
    }
    kni_rans_model_free(&model);
    symbol_matrix_free(&m);
    free(out);
    free(scratch);
    return bad;
}

/* Three pictures of a few loud rows among silent ones and a slope, as a bare stream. */
static int make_hevc(const char *folder, const char *name, struct kn_hevc_opts opts, enum kni_hevc_content content)
{
    enum { W = 48, H = 64, N = 3 };
    static uint8_t planes[3][W * H];
    const uint8_t *in[3] = {planes[0], planes[1], planes[2]};
    const size_t strides[3] = {W, W, W};
    struct kni_hevc_encoder *e = NULL;
    struct kni_container_writer w = {0};
    struct kn_err err = {0};
    char sub[4096];
    int bad = kni_hevc_encoder_open(&e, &opts, content, 0, &err) != KN_OK || kni_hevc_encode_begin(e, W, H, N, NULL,
                                                                                                   &err) != KN_OK;
    for (uint32_t t = 0; t < N && !bad; t++) {
        for (uint32_t i = 0; i < 3 * W * H; i++) {
            uint32_t x = i % W, y = i / W % H;
            uint32_t loud = t && y % 8 == 0 ? 108 + symbol_random() % 41 : 128, slope = content ? 2 * x + 3 * y + t + symbol_random() % 2 : 128;
            planes[i / (W * H)][i % (W * H)] = (uint8_t)(y < 32 ? loud : slope);
        }
        bad = kni_hevc_encode_picture(e, in, strides, &err) != KN_OK;
    }
    bad = bad || kni_hevc_encode_end(e, &w, &err) != KN_OK;
    if (bad)
        fprintf(stderr, "%s\n", err.text);
    snprintf(sub, sizeof sub, "%s/hevc_reader_fuzz", folder);
    bad = bad || write_file(sub, name, "", 0, w.data + 4 + 4 * N, w.used_bytes - 4 - 4 * N);
    kni_container_writer_fini(&w);
    kni_hevc_encoder_close(&e);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    const char *to = argv[1];
    int bad = 0;
    profile = kn_tiny_profile_make(&(struct kn_tiny_profile_opts){.n_sinks = 3, .step_k = {.02f}});
    struct kni_kv_layout spectral = profile->kv;
    for (backend = KN_BACKEND_RANS; !bad && backend <= KN_BACKEND_HEVC; backend++)
        bad = make(to, backend == KN_BACKEND_RANS ? "fine_rans_f16" : "fine_hevc_f16", KN_PRESET_FINE, spectral, 16, (struct kn_tiles_opts){0}) ||
              make(to, backend == KN_BACKEND_RANS ? "small_rans_f16" : "small_hevc_f16", KN_PRESET_SMALL, spectral, 32, (struct kn_tiles_opts){0});
    kni_profile_close(&profile);
    backend = KN_BACKEND_DEFAULT;
    struct kn_tiles_opts few = {.tokens_per_picture = 4}, all = {.levels = 256, .tokens_per_picture = 16, .tile_height = 2};
    return bad || make(to, "exact_f16", KN_PRESET_EXACT, (struct kni_kv_layout){1, 2, 8, KN_KV_TYPE_F16}, 32, (struct kn_tiles_opts){0}) ||
           make(to, "exact_bf16", KN_PRESET_EXACT, (struct kni_kv_layout){2, 1, 4, KN_KV_TYPE_BF16}, 16, (struct kn_tiles_opts){0}) ||
           make(to, "tiles_f16", KN_PRESET_TILES, (struct kni_kv_layout){1, 1, 16, KN_KV_TYPE_F16}, 16, few) ||
           make(to, "tiles_bf16", KN_PRESET_TILES, (struct kni_kv_layout){4, 2, 8, KN_KV_TYPE_BF16}, 16, all) ||
           make_profile(to, "neox", &(struct kn_tiny_profile_opts){.n_layer = 1, .n_kv_head = 1, .d_head = 32, .n_group = 1, .neox = true}) ||
           make_profile(to, "two_ropes", &(struct kn_tiny_profile_opts){.n_layer = 3, .n_kv_head = 1, .d_head = 32, .n_group = 2, .rope_dim = 16, .n_ropes = 2, .n_sinks = 4}) ||
           make_hevc(to, "ours", (struct kn_hevc_opts){.encoder = KN_HEVC_ENCODER_KINEMA, .n_slices = 2}, KNI_HEVC_CONTENT_TILES) ||
           make_hevc(to, "ours_basic", (struct kn_hevc_opts){.encoder = KN_HEVC_ENCODER_KINEMA, .tools = KN_HEVC_TOOLS_BASIC}, KNI_HEVC_CONTENT_NOISE) ||
           make_hevc(to, "x265", (struct kn_hevc_opts){.encoder = KN_HEVC_ENCODER_X265_MEDIUM}, KNI_HEVC_CONTENT_TILES) ||
           make_rans(to, "coded", 0) || make_rans(to, "raw", 1) || make_rans(to, "own_model", 2);
}

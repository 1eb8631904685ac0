/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: the lossless HEVC encoder. Bytes choose everything, and whatever they choose must come back bit for bit from libavcodec, and
 * from libde265 or Kinema's reader for some seeds:
 *
 *     [0] width - 16 (mod 80)   [1] height - 16 (mod 80)   [2] tools (4 bits), content, pictures - 1 (2 bits), pad (1 bit)   [3] slices (mod 65)
 *     [4] row scales: 0 none, 1 true, else noise of that seed   [5] seed of what is painted   [6..] one kind a plane, then samples that
 *     replace painted ones in turn, one picture after the other
 */
#include <stdlib.h>

#include "support/hevc_random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void paint(struct hevc_case *c, const uint8_t *data, size_t size)
{
    struct hevc_film *f = &c->film;
    uint64_t rng = hevc_mix(data[5]);
    size_t at = 6, n_kinds = (size_t)f->n_pictures * 3;
    for (uint32_t t = 0; t < f->n_pictures; t++)
        for (uint32_t k = 0; k < 3; k++)
            hevc_paint_plane(f, t, k, (enum hevc_kind)((at + t * 3 + k < size ? data[at + t * 3 + k] : 0) % HEVC_KIND_COUNT), &rng);
    at += n_kinds;
    for (size_t i = 0; at < size; at++, i += 1 + data[at - 1] % 3) { /* samples of the input, not all next to each other */
        size_t row = i / f->width;
        if (row >= n_kinds * f->height)
            break;
        hevc_film_row(f, 0, 0, (uint32_t)row)[i % f->width] = data[at];
    }
    for (uint32_t t = 0; t < f->n_pictures; t++)
        c->flat[t] = hevc_is_flat(f, t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 6)
        return 0;
    struct hevc_case c = {.seed = data[5]};
    struct kni_hevc_lossless_opts *o = &c.opts;
    uint32_t n = 1u + (data[2] >> 5 & 3);
    *o = (struct kni_hevc_lossless_opts){.width = 16u + data[0] % 80, .height = 16u + data[1] % 80, .tools = data[2] & 15, .n_slices = data[3] % 65u,
                                         .content = data[2] >> 4 & 1 ? KNI_HEVC_CONTENT_TILES : KNI_HEVC_CONTENT_NOISE};
    c.film = hevc_film_alloc(o->width, o->height, n, o->width + (data[2] >> 7 ? 13 : 0));
    memset(c.film.samples, 0x77, ((size_t)n * 3 * o->height - 1) * c.film.stride + o->width);
    paint(&c, data, size);
    c.row_scale = malloc(o->height * sizeof *c.row_scale);
    if (!c.row_scale)
        abort();
    uint64_t rng = hevc_mix(data[4]);
    hevc_measure_rows(&c.film, c.row_scale);
    for (uint32_t y = 0; data[4] > 1 && y < o->height; y++)
        c.row_scale[y] = (uint16_t)(hevc_random(&rng) >> hevc_random(&rng) % 16);
    o->row_scale = data[4] ? c.row_scale : NULL;

    size_t bytes = kni_hevc_lossless_bytes(o);
    if (bytes) { /* 0: too many slices for this height */
        void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
        struct kni_hevc_lossless *e;
        struct hevc_stream s = {0};
        if (!memory || kni_hevc_lossless_init(&e, memory, o, NULL) != KN_OK)
            abort();
        size_t bound = kni_hevc_lossless_unit_bound(e);
        uint8_t *unit = malloc(bound);
        if (!unit)
            abort();
        for (uint32_t t = 0; t < n; t++) {
            struct kni_hevc_job job = hevc_case_job(&c, t);
            size_t m = kni_hevc_lossless_unit(e, &job, unit);
            if (m > bound)
                abort();
            hevc_stream_add(&s, unit, m);
        }
        const char *bad = hevc_judge_avcodec(&s, &c.film);
        if (!bad && data[5] % 4 == 0)
            bad = hevc_judge_de265(&s, &c.film, o->tools);
        if (!bad && data[5] % 4 == 1)
            bad = hevc_judge_reader(&s, &c.film, o->tools, kni_hevc_lossless_n_slices(e));
        if (bad) {
            fprintf(stderr, "%s: %s\n", hevc_case_text(&c), bad);
            abort();
        }
        hevc_stream_free(&s);
        free(unit);
        free(memory);
    } else if (o->n_slices <= (o->height + 63) / 64) {
        abort();
    }
    hevc_case_free(&c);
    return 0;
}

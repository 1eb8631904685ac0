/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random films and options for the lossless HEVC encoder, each wholly determined by one seed:
 *
 *     seed -> struct hevc_case: width, height, slices, tools, content, row scales (true, wrong or none), 1..4 pictures
 *
 * Pictures are of the kinds below, a kind for each plane or a patchwork of kinds; most are small, so that hundreds fit into a few seconds. Kinds
 * aim at what an encoder may get wrong: blocks without residual, residuals at the ends of their range, one symbol at the last position of a block,
 * rows and columns that DPCM empties, a picture that repeats, loud and silent rows, edges that are no multiple of a block.
 */
#ifndef KN_TEST_HEVC_RANDOM_H
#define KN_TEST_HEVC_RANDOM_H

#include <math.h>
#include <stdbool.h>

#include "codec/hevc/hevc_lossless.h"
#include "support/hevc_peers.h"

enum hevc_kind {
    HEVC_KIND_ZERO,       /* all 0 */
    HEVC_KIND_FLAT,       /* all 128 */
    HEVC_KIND_CONSTANT,   /* all one random value */
    HEVC_KIND_NOISE,      /* uniform */
    HEVC_KIND_EXTREMES,   /* 0 or 255, at random */
    HEVC_KIND_CHECKER,    /* 0 and 255 in turn, a sample or a block wide */
    HEVC_KIND_SPECTRAL,   /* Laplacian rows of falling loudness around 128: what spectral pictures are like */
    HEVC_KIND_SPARSE,     /* 128, and a few symbols */
    HEVC_KIND_LAST,       /* 128, and one symbol at the last position of the picture, or of every block of 4..32 */
    HEVC_KIND_ROWS,       /* constant rows */
    HEVC_KIND_COLUMNS,    /* constant columns */
    HEVC_KIND_WALK_X,     /* each row a random walk: its steps are small, its values are not */
    HEVC_KIND_WALK_Y,     /* each column one */
    HEVC_KIND_GRADIENT,   /* film: slopes and a little noise */
    HEVC_KIND_PATCHES,    /* blocks of 8..64, each of another kind */
    HEVC_KIND_FROM_BEFORE, /* from here on: made from the picture before, noise where there is none */
    HEVC_KIND_REPEAT = HEVC_KIND_FROM_BEFORE,
    HEVC_KIND_NEAR,       /* the same, some samples one or two off */
    HEVC_KIND_NEGATIVE,   /* 255 minus it */
    HEVC_KIND_RAMPS,      /* the same plus what DPCM likes: an offset that grows along the row or the column */
    HEVC_KIND_COUNT
};

struct hevc_case {
    uint64_t seed;
    struct kni_hevc_lossless_opts opts;
    struct hevc_film film;
    uint16_t *row_scale;          /* what opts may point to */
    bool flat[HEVC_STREAM_UNITS]; /* picture t is 128 all over */
    enum hevc_kind kind[4];       /* of plane 0 of the first pictures */
};

static inline uint32_t hevc_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state * 0x2545f4914f6cdd1du >> 32);
}

static inline uint64_t hevc_mix(uint64_t x) /* seeds that are neighbours give unrelated states, never 0 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) | 1;
}

static inline uint32_t hevc_range(uint64_t *rng, uint32_t low, uint32_t high) /* both included */
{
    return low + hevc_random(rng) % (high - low + 1);
}

static inline uint8_t hevc_clip(double v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : lrint(v));
}

static inline double hevc_laplace(uint64_t *rng, double scale)
{
    uint32_t r = hevc_random(rng);
    double v = -scale * log(((double)(r >> 1) + 0.5) / 2147483648.0);
    return r & 1 ? v : -v;
}

/* A rectangle of plane k of picture t, of one kind. */
static inline void hevc_paint(struct hevc_film *f, uint32_t t, uint32_t k, uint32_t left, uint32_t top, uint32_t width, uint32_t height,
                              enum hevc_kind kind, uint64_t *rng)
{
    if (kind >= HEVC_KIND_FROM_BEFORE && t == 0)
        kind = HEVC_KIND_NOISE;
    uint32_t param = hevc_random(rng), block = 1u << param % 6, one_in = 2u << (param >> 8) % 9;
    double loud = exp2((param >> 16) % 80 / 10.0 - 1.0), fall = (param >> 4) % 9 * 0.8;
    double slope_x = ((param >> 12) % 64 - 31.5) / 16, slope_y = ((param >> 20) % 64 - 31.5) / 16;
    uint8_t column[8192];
    if (kind == HEVC_KIND_COLUMNS || kind == HEVC_KIND_WALK_Y)
        for (uint32_t x = 0; x < width; x++)
            column[x] = (uint8_t)hevc_random(rng);
    for (uint32_t y = 0; y < height; y++) {
        uint8_t *row = hevc_film_row(f, t, k, top + y) + left, at = (uint8_t)hevc_random(rng);
        const uint8_t *before = t ? hevc_film_row(f, t - 1, k, top + y) + left : row;
        double scale = loud * exp(-fall * y / height);
        for (uint32_t x = 0; x < width; x++) {
            uint8_t v = 128;
            switch (kind) {
            case HEVC_KIND_ZERO: v = 0; break;
            case HEVC_KIND_FLAT: break;
            case HEVC_KIND_CONSTANT: v = (uint8_t)(param >> 24); break;
            case HEVC_KIND_NOISE: v = (uint8_t)hevc_random(rng); break;
            case HEVC_KIND_EXTREMES: v = hevc_random(rng) & 1 ? 255 : 0; break;
            case HEVC_KIND_CHECKER: v = (x / block + y / block + t) & 1 ? 255 : 0; break;
            case HEVC_KIND_SPECTRAL: v = hevc_clip(128 + hevc_laplace(rng, scale)); break;
            case HEVC_KIND_SPARSE:
                if (hevc_random(rng) % one_in == 0)
                    v = param >> 31 ? (uint8_t)hevc_random(rng) : (uint8_t)(127 + hevc_random(rng) % 2 * 2);
                break;
            case HEVC_KIND_LAST:
                if (block < 4 ? x == width - 1 && y == height - 1 : x % block == block - 1 && y % block == block - 1)
                    v = (uint8_t)(param >> 24);
                break;
            case HEVC_KIND_ROWS: v = at; break;
            case HEVC_KIND_COLUMNS: v = column[x]; break;
            case HEVC_KIND_WALK_X: v = at = (uint8_t)(at + hevc_random(rng) % 5 - 2); break;
            case HEVC_KIND_WALK_Y: v = column[x] = (uint8_t)(column[x] + hevc_random(rng) % 5 - 2); break;
            case HEVC_KIND_GRADIENT: v = hevc_clip((param >> 24) + slope_x * x + slope_y * y + hevc_random(rng) % 3); break;
            case HEVC_KIND_REPEAT: v = before[x]; break;
            case HEVC_KIND_NEAR: v = hevc_random(rng) % one_in ? before[x] : (uint8_t)(before[x] + hevc_random(rng) % 5 - 2); break;
            case HEVC_KIND_NEGATIVE: v = (uint8_t)(255 - before[x]); break;
            case HEVC_KIND_RAMPS: v = (uint8_t)(before[x] + (param & 1 ? x % 32 : y % 32) * (param >> 30) + hevc_random(rng) % 2); break;
            default: break;
            }
            row[x] = v;
        }
    }
}

static inline void hevc_paint_plane(struct hevc_film *f, uint32_t t, uint32_t k, enum hevc_kind kind, uint64_t *rng)
{
    if (kind != HEVC_KIND_PATCHES) {
        hevc_paint(f, t, k, 0, 0, f->width, f->height, kind, rng);
        return;
    }
    uint32_t block = 8u << hevc_random(rng) % 4;
    for (uint32_t y = 0; y < f->height; y += block)
        for (uint32_t x = 0; x < f->width; x += block) {
            uint32_t w = f->width - x < block ? f->width - x : block, h = f->height - y < block ? f->height - y : block;
            enum hevc_kind one = (enum hevc_kind)(hevc_random(rng) % HEVC_KIND_COUNT);
            hevc_paint(f, t, k, x, y, w, h, one == HEVC_KIND_PATCHES ? HEVC_KIND_FLAT : one, rng);
        }
}

static inline bool hevc_is_flat(const struct hevc_film *f, uint32_t t)
{
    for (uint32_t i = 0; i < 3 * f->height; i++)
        for (uint32_t x = 0; x < f->width; x++)
            if (hevc_film_row(f, t, 0, i)[x] != 128)
                return false;
    return true;
}

/* Mean |symbol - 128| of each row times 256, over all pictures, of the loudest plane. */
static inline void hevc_measure_rows(const struct hevc_film *f, uint16_t *row_scale)
{
    for (uint32_t y = 0; y < f->height; y++) {
        uint64_t loudest = 0;
        for (uint32_t k = 0; k < 3; k++) {
            uint64_t sum = 0;
            for (uint32_t t = 0; t < f->n_pictures; t++)
                for (uint32_t x = 0; x < f->width; x++)
                    sum += (uint64_t)abs(hevc_film_row(f, t, k, y)[x] - 128);
            loudest = sum > loudest ? sum : loudest;
        }
        row_scale[y] = (uint16_t)(loudest * 256 / ((uint64_t)f->width * f->n_pictures));
    }
}

/* How large a case may be. */
enum hevc_case_size {
    HEVC_CASE_TINY,   /* sides of 16..96 */
    HEVC_CASE_SMALL,  /* 144..256 */
    HEVC_CASE_MEDIUM, /* one or two pictures of at most 200,000 samples a plane, sides to 4096 */
    HEVC_CASE_LARGE   /* one picture of 4096 x 2304 or so, mostly of quiet kinds */
};

static inline void hevc_case_shape(struct hevc_case *c, enum hevc_case_size size, uint64_t *rng)
{
    struct kni_hevc_lossless_opts *o = &c->opts;
    uint32_t n = hevc_range(rng, 1, 4);
    switch (size) {
    case HEVC_CASE_TINY:
        o->width = hevc_range(rng, 16, 96);
        o->height = hevc_range(rng, 16, 96);
        break;
    case HEVC_CASE_SMALL:
        o->width = hevc_range(rng, 144, 256);
        o->height = hevc_range(rng, 144, 256);
        n = hevc_range(rng, 1, 2);
        break;
    case HEVC_CASE_MEDIUM:
        o->width = 1u << hevc_range(rng, 4, 12);
        o->height = hevc_range(rng, 16, 200000 / o->width < 4096 ? 200000 / o->width : 4096);
        o->width -= hevc_random(rng) % 2 && o->width > 16 ? hevc_range(rng, 0, 15) : 0;
        if (o->width < 16)
            o->width = 16;
        n = hevc_range(rng, 1, 2);
        break;
    default:
        o->width = 4096 - hevc_random(rng) % 17;
        o->height = 2304 - hevc_random(rng) % 17;
        n = 1;
    }
    if (hevc_random(rng) % 3) { /* what layouts make, but for a third */
        o->width = (o->width + 15) / 16 * 16;
        o->height = (o->height + 15) / 16 * 16;
    }
    size_t stride = o->width + (hevc_random(rng) % 2 ? hevc_random(rng) % 70 : 0);
    c->film = hevc_film_alloc(o->width, o->height, n, stride);
    for (uint32_t i = 0; i + 1 < 3 * n * o->height; i++) /* what lies between the rows must not matter */
        memset(hevc_film_row(&c->film, 0, 0, i) + o->width, 0x5a ^ (int)i, stride - o->width);
}

/* Any number of slices; where that is refused, fewer, but a slice each 64 rows must be allowed. */
static inline void hevc_case_options(struct hevc_case *c, uint64_t *rng)
{
    struct kni_hevc_lossless_opts *o = &c->opts;
    const uint32_t rows = (o->height + 63) / 64;
    o->tools = hevc_random(rng) % 16;
    o->content = hevc_random(rng) % 2 ? KNI_HEVC_CONTENT_TILES : KNI_HEVC_CONTENT_NOISE;
    o->n_slices = hevc_random(rng) % 3 ? hevc_range(rng, 0, 4) : hevc_range(rng, 1, 64);
    while (o->n_slices > rows && !kni_hevc_lossless_bytes(o))
        o->n_slices--;
    c->row_scale = malloc(o->height * sizeof *c->row_scale);
    if (!c->row_scale)
        abort();
    uint32_t how = hevc_random(rng) % 8;
    if (how < 4)
        hevc_measure_rows(&c->film, c->row_scale);
    else if (how < 6)
        for (uint32_t y = 0; y < o->height; y++) /* quite wrong, 0 and the largest among them */
            c->row_scale[y] = (uint16_t)(hevc_random(rng) >> hevc_random(rng) % 33 % 32 | (hevc_random(rng) % 5 ? 0 : 0xffff));
    o->row_scale = how < 6 ? c->row_scale : NULL;
}

static inline void hevc_case_make(struct hevc_case *c, uint64_t seed, enum hevc_case_size size)
{
    uint64_t rng = hevc_mix(seed);
    *c = (struct hevc_case){.seed = seed};
    hevc_case_shape(c, size, &rng);
    for (uint32_t t = 0; t < c->film.n_pictures; t++) {
        bool first = t == 0;
        enum hevc_kind kind = (enum hevc_kind)(hevc_random(&rng) % (first ? HEVC_KIND_FROM_BEFORE : HEVC_KIND_COUNT));
        if (first && hevc_random(&rng) % 3 == 0)
            kind = HEVC_KIND_FLAT; /* as spectral streams begin */
        else if (!first && hevc_random(&rng) % 4 == 0)
            kind = HEVC_KIND_SPECTRAL;
        if (size == HEVC_CASE_LARGE) {
            static const enum hevc_kind quiet[] = {HEVC_KIND_SPARSE, HEVC_KIND_LAST,     HEVC_KIND_GRADIENT,
                                                   HEVC_KIND_ROWS,   HEVC_KIND_CONSTANT, HEVC_KIND_COLUMNS};
            kind = quiet[hevc_random(&rng) % 6];
        }
        c->kind[t] = kind;
        for (uint32_t k = 0; k < 3; k++) {
            hevc_paint_plane(&c->film, t, k, kind, &rng);
            if (size != HEVC_CASE_LARGE && hevc_random(&rng) % 8 == 0)
                kind = (enum hevc_kind)(hevc_random(&rng) % HEVC_KIND_COUNT); /* from the next plane on */
        }
        c->flat[t] = hevc_is_flat(&c->film, t);
    }
    hevc_case_options(c, &rng);
}

static inline void hevc_case_free(struct hevc_case *c)
{
    hevc_film_free(&c->film);
    free(c->row_scale);
    *c = (struct hevc_case){0};
}

/* A job of picture t. Of a flat picture before, the encoder gets no planes in every other case. */
static inline struct kni_hevc_job hevc_case_job(const struct hevc_case *c, uint32_t t)
{
    struct kni_hevc_job job = {.first = t == 0, .index = t};
    bool hide = t && c->flat[t - 1] && c->seed % 2;
    job.before_flat = t && c->flat[t - 1] && c->seed % 4;
    for (uint32_t k = 0; k < 3; k++) {
        job.now.plane[k] = hevc_film_row(&c->film, t, k, 0);
        job.now.stride[k] = c->film.stride;
        if (t && !hide) {
            job.before.plane[k] = hevc_film_row(&c->film, t - 1, k, 0);
            job.before.stride[k] = c->film.stride;
        }
    }
    return job;
}

static inline const char *hevc_case_text(const struct hevc_case *c)
{
    static char text[200];
    const struct kni_hevc_lossless_opts *o = &c->opts;
    snprintf(text, sizeof text, "seed %llu: %u x %u, %u pictures (kinds %d %d %d %d), tools %u, content %d, %u slices, row scales %s",
             (unsigned long long)c->seed, o->width, o->height, c->film.n_pictures, c->kind[0], c->kind[1], c->kind[2], c->kind[3], o->tools, o->content,
             o->n_slices, o->row_scale ? "given" : "none");
    return text;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where cuts fall, without sorting. Each block's maximum says whether a pass has to read it, so that passes over a
 * peaked row are cheap; over a flat one each reads everything. For those a sample, every stride-th block, tells where a
 * cut will fall, a little below and a little above; one pass takes out the band between, and the rest happens in the
 * band:
 *
 *     order    | above high: weighed once | band: a few thousand, in arrays of its own | below low: out |
 *                                                    ^ the cut
 *
 * The bounds are guesses and checked by the exact pass: a cut that is not in the band is found without one. Top-k of a
 * row of 262,144 takes one pass instead of five to ten, top-p one instead of 1 + ln(1 / top_p) (doc/speed-log.md).
 *
 * Masses before a token are always sums of the same kind, never differences: nothing stands before the best one, so a
 * draw ends.
 */
#include "run/sampler_cut.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

#define GROUP 64u
#define MIN_BLOCKS 1024u /* of rows that are worth a sample */
#define SAMPLE_BLOCKS 256u

struct kni_draw kni_draw_begin(const struct kni_logits *l, float max, float scale)
{
    const size_t n = kni_logit_blocks(l->n);
    float *p = l->scratch;
    struct kni_draw d = {.l = l, .max = max, .scale = scale, .mass = p, .next = p + n, .bound = {-INFINITY, 0}};
    d.band.mass = p + 2 * n;
    d.band.values = p + 3 * n;
    d.band.ids = (uint32_t *)(void *)(p + 5 * n);
    d.band.weights = p + 7 * n;
    d.list = (struct kni_candidate *)(void *)(p + 9 * n);
    return d;
}

void kni_candidates_sink(struct kni_candidate *c, uint32_t n, uint32_t i)
{
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && kni_candidate_is_before(c[child], c[child + 1]))
            child++;
        if (!kni_candidate_is_before(c[i], c[child]))
            return;
        struct kni_candidate t = c[i];
        c[i] = c[child];
        c[child] = t;
    }
}

void kni_candidates_make_heap(struct kni_candidate *c, uint32_t n)
{
    for (uint32_t i = n / 2; i--;)
        kni_candidates_sink(c, n, i);
}

void kni_candidates_sort(struct kni_candidate *c, uint32_t n)
{
    kni_candidates_make_heap(c, n);
    for (uint32_t m = n; m > 1; m--) { /* the worst goes to the end */
        struct kni_candidate t = c[0];
        c[0] = c[m - 1];
        c[m - 1] = t;
        kni_candidates_sink(c, m - 1, 0);
    }
}

/* ---- masses */

/* In one order, so that a walk by groups arrives at the same sum; four sums, since an addition waits for the one
 * before. */
static double sum_group(const float *mass, uint32_t n)
{
    double s[4] = {0};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (uint32_t k = 0; k < 4; k++)
            s[k] += (double)mass[i + k];
    for (; i < n; i++)
        s[0] += (double)mass[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static double sum_all(const float *mass, uint32_t n)
{
    double sum = 0;
    for (uint32_t g = 0; g < n; g += GROUP)
        sum += sum_group(mass + g, n - g < GROUP ? n - g : GROUP);
    return sum;
}

double kni_draw_weigh_all(struct kni_draw *d, const float *sum)
{
    const struct kni_logits *l = d->l;
    uint32_t n = kni_logit_blocks(l->n);
    for (uint32_t b = 0; b < n; b++)
        d->mass[b] = (l->max[b] - d->max) * d->scale;
    l->kernels->exp(d->mass, d->mass, n);
    for (uint32_t b = 0; b < n; b++)
        d->mass[b] *= sum[b];
    return sum_all(d->mass, n);
}

static bool is_in(const struct kni_draw *d, uint32_t i)
{
    return kni_candidate_is_before((struct kni_candidate){d->l->x[i], (int32_t)i}, d->bound);
}

static float weight_of(const struct kni_draw *d, float x)
{
    return expf((x - d->max) * d->scale);
}

/* mass [blocks] of what stands before a bound. Blocks before the bound's id count its equals, those behind do not. */
static double weigh_before(const struct kni_draw *d, struct kni_candidate bound, float *mass)
{
    const struct kni_logits *l = d->l;
    uint32_t at = (uint32_t)bound.id / KNI_LOGIT_BLOCK, n_blocks = kni_logit_blocks(l->n);
    uint32_t n_front = at < n_blocks ? at * KNI_LOGIT_BLOCK : l->n;
    kni_logit_sum_above_fn sum_above = l->kernels->logit_sum_above;
    sum_above(mass, l->x, l->max, n_front, nextafterf(bound.logit, -INFINITY), d->max, d->scale);
    if (at < n_blocks) {
        uint32_t end = kni_logits_block_end(l, at);
        mass[at] = 0;
        for (uint32_t i = n_front; i < end; i++)
            if (kni_candidate_is_before((struct kni_candidate){l->x[i], (int32_t)i}, bound))
                mass[at] += weight_of(d, l->x[i]);
        sum_above(mass + at + 1, l->x + end, l->max + at + 1, l->n - end, bound.logit, d->max, d->scale);
    }
    return sum_all(mass, n_blocks);
}

double kni_draw_cut(struct kni_draw *d, struct kni_candidate bound)
{
    d->bound = bound;
    return weigh_before(d, bound, d->mass);
}

int32_t kni_draw_find(const struct kni_draw *d, double total, double u)
{
    const struct kni_logits *l = d->l;
    uint32_t n = kni_logit_blocks(l->n), g = 0, b, last = UINT32_MAX;
    double at = u * total, sum;
    for (; g + GROUP < n && at >= (sum = sum_group(d->mass + g, GROUP)); g += GROUP)
        at -= sum;
    for (b = g; b < n; b++) {
        if (!(d->mass[b] > 0))
            continue;
        last = b;
        if (at < (double)d->mass[b])
            break;
        at -= (double)d->mass[b];
    }
    for (b = g; last == UINT32_MAX; b--) /* rounding left nothing behind the last group with a mass */
        if (d->mass[b] > 0)
            last = b;
    double share = at / (double)d->mass[last], own = 0;
    float w[KNI_LOGIT_BLOCK];
    uint32_t first = last * KNI_LOGIT_BLOCK, end = kni_logits_block_end(l, last), chosen = first;
    for (uint32_t i = first; i < end; i++)
        own += (double)(w[i - first] = is_in(d, i) ? weight_of(d, l->x[i]) : 0.0f);
    at = share * own;
    for (uint32_t i = first; i < end; i++) {
        if (!(w[i - first] > 0))
            continue;
        chosen = i;
        if (at < (double)w[i - first])
            break;
        at -= (double)w[i - first];
    }
    return (int32_t)chosen;
}

/* ---- values that a given count or mass is above of */

/* What is asked of a row, or of a part of one. */
struct question {
    const struct kni_logits *l;
    float *mass;      /* [blocks] for sums; NULL: counts are asked */
    float max, scale; /* of the weights; max is the highest value of the row that l is from */
    float floor;      /* nothing below it counts */
    double all;       /* what is above it, about */
};

/* The answer lies between: n_low or more are above low, n_high or less above high. */
struct range { float low, high; double n_low, n_high; };

static double above(const struct question *q, float bound)
{
    const struct kni_logits *l = q->l;
    bound = fmaxf(bound, q->floor);
    if (!q->mass)
        return l->kernels->logit_count_above(l->x, l->max, l->n, bound);
    l->kernels->logit_sum_above(q->mass, l->x, l->max, l->n, bound, q->max, q->scale);
    return sum_all(q->mass, kni_logit_blocks(l->n));
}

/* Floats as integers of the same order, to halve a range of them in at most 32 steps. */
static int64_t key_of(float x)
{
    int32_t bits = kni_f32_bits(x) & 0x7fffffff;
    return kni_f32_bits(x) >> 31 ? -(int64_t)bits : bits;
}

static float of_key(int64_t key)
{
    return kni_f32_from_bits(key < 0 ? (uint32_t)-key | 0x80000000u : (uint32_t)key);
}

/* Sets low so that want or more are above it; false when there is not so much. In steps, since counts grow by orders of
 * magnitude. */
static bool widen(const struct question *q, double want, struct range *r)
{
    const float max = q->max;
    float step = q->mass && q->scale < 1 ? fminf(1 / q->scale, 16) : 1;
    *r = (struct range){.low = max - step, .high = max};
    r->n_low = above(q, r->low);
    while (r->n_low < want && (step *= 4) < 1e6f) {
        r->high = r->low, r->n_high = r->n_low;
        r->n_low = above(q, r->low = max - step);
    }
    return r->n_low >= want || (r->n_low = above(q, r->low = -INFINITY)) >= want;
}

/* Nearly straight over values that are normally distributed: how far in the tail n of all are. */
static double depth_of(double n, double all)
{
    return n < all ? sqrt(log(all / n)) : 0;
}

/* Where to halve values next, aiming a little to either side of the goal, which brings both ends to it. Now and then
 * the middle, for rows of another shape. The best one has the weight 1 and the count 1. */
static float guess(const struct question *q, const struct range *r, double want, double slack, uint32_t i)
{
    const double aim = i % 2 ? want + slack / 3 : want - slack / 3, least = r->n_high > 0.5 ? r->n_high : 0.5;
    const double low = depth_of(r->n_low, q->all), high = depth_of(least, q->all);
    double share = 0.5;
    if (i % 6 != 5 && aim > r->n_high && aim < r->n_low && high > low)
        share = (depth_of(aim, q->all) - low) / (high - low);
    return r->low + (r->high - r->low) * (float)share;
}

/* Halves values, later floats, until not more than slack is between: want or more stays above low, less above high. */
static void approach(const struct question *q, double want, double slack, struct range *r)
{
    for (uint32_t i = 0; r->n_low - r->n_high > slack && key_of(r->high) - key_of(r->low) > 1; i++) {
        float halved = of_key((key_of(r->low) + key_of(r->high)) / 2);
        float middle = i < 24 && r->low > -INFINITY ? guess(q, r, want, slack, i) : halved;
        if (!(middle > r->low && middle < r->high))
            middle = halved;
        double n = above(q, middle);
        if (n < want)
            r->high = middle, r->n_high = n;
        else
            r->low = middle, r->n_low = n;
    }
}

/* ---- samples */

/* Every stride-th block of a row, copied: values, their maxima, and room for masses. */
struct sample {
    struct kni_logits l;
    float *mass;
    double stride; /* values of the row a value of the sample */
};

/* false: too small a row. The sample lies where the band will be: at most 4 + 1/8 + 1/8 of its 6 floats a block. */
static bool take_sample(const struct kni_draw *d, struct sample *s)
{
    const struct kni_logits *l = d->l;
    const uint32_t n_whole = l->n / KNI_LOGIT_BLOCK, n = n_whole / 8 < SAMPLE_BLOCKS ? n_whole / 8 : SAMPLE_BLOCKS;
    if (n_whole < MIN_BLOCKS)
        return false;
    float *x = d->band.values, *max = x + (size_t)n * KNI_LOGIT_BLOCK;
    for (uint32_t b = 0; b < n; b++) {
        uint32_t from = (uint32_t)((uint64_t)b * n_whole / n);
        memcpy(x + (size_t)b * KNI_LOGIT_BLOCK, l->x + (size_t)from * KNI_LOGIT_BLOCK, KNI_LOGIT_BLOCK * sizeof *x);
        max[b] = l->max[from];
    }
    *s = (struct sample){.mass = max + n, .stride = (double)n_whole / n};
    s->l = (struct kni_logits){.kernels = l->kernels, .n = n * KNI_LOGIT_BLOCK, .x = x, .max = max};
    return true;
}

/* Values between which want probably falls, spread being its standard deviation in what the sample shows. */
static void bracket(const struct question *q, double want, double spread, float *low, float *high)
{
    /* Neighbours in a vocabulary resemble each other: a margin of 2.5 failed once in eight. */
    const double margin = 3.5 * spread, slack = 2 * spread;
    struct range r, upper;
    *low = -INFINITY, *high = INFINITY;
    bool has_low = widen(q, want + margin, &r);
    upper = r;
    if (has_low) {
        approach(q, want + margin, slack, &r);
        *low = upper.low = r.low, upper.n_low = r.n_low;
    }
    if (want <= margin)
        return;
    if (!(upper.n_high < want - margin))
        upper.high = q->max, upper.n_high = 0;
    approach(q, want - margin, slack, &upper);
    *high = upper.high;
}

/* Takes out the band, and weighs what is above it; how much of each there is is in the answer. Its weights are not made
 * yet. */
static struct kni_logit_split take_band(struct kni_draw *d, float low, float high)
{
    const struct kni_logits *l = d->l;
    struct kni_logit_split s = {.x = l->x, .max = l->max, .n = l->n, .n_room = 2 * kni_logit_blocks(l->n), .low = low,
                                .high = high, .shift = d->max, .scale = d->scale, .sum = d->band.mass,
                                .values = d->band.values, .ids = d->band.ids};
    l->kernels->logit_split(&s);
    return s;
}

static void weigh_band(struct kni_draw *d, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        d->band.weights[i] = (d->band.values[i] - d->max) * d->scale;
    d->l->kernels->exp(d->band.weights, d->band.weights, n);
}

/* Of all above the band and of the first n in it what stands before a bound. */
static double weigh_with_band(const struct kni_draw *d, uint32_t n, struct kni_candidate bound, float *mass)
{
    const uint32_t n_blocks = kni_logit_blocks(d->l->n);
    memcpy(mass, d->band.mass, n_blocks * sizeof *mass);
    for (uint32_t i = 0; i < n; i++) { /* a branch would be foreseen half of the time */
        const float x = d->band.values[i];
        const uint32_t id = d->band.ids[i], is_lower = (int32_t)id < bound.id;
        const uint32_t is_before = (uint32_t)(x > bound.logit) | ((uint32_t)(x == bound.logit) & is_lower);
        mass[id / KNI_LOGIT_BLOCK] += (float)is_before * d->band.weights[i];
    }
    return sum_all(mass, n_blocks);
}

/* ---- top-k */

uint32_t kni_logits_count_before(const struct kni_logits *l, struct kni_candidate bound)
{
    uint32_t b = (uint32_t)bound.id / KNI_LOGIT_BLOCK, first = b * KNI_LOGIT_BLOCK, end = kni_logits_block_end(l, b);
    uint32_t n = l->kernels->logit_count_above(l->x, l->max, first, nextafterf(bound.logit, -INFINITY));
    for (uint32_t i = first; i < end; i++)
        n += kni_candidate_is_before((struct kni_candidate){l->x[i], (int32_t)i}, bound);
    return n + l->kernels->logit_count_above(l->x + end, l->max + b + 1, l->n - end, bound.logit);
}

/* Number n, from 0, of those that are x. */
static uint32_t nth_equal(const struct kni_logits *l, float x, uint32_t n)
{
    for (uint32_t i = 0;; i++)
        if (l->x[i] == x && !n--)
            return i;
}

/* Whether any of block b is above low and not above high. */
static bool has_between(const struct kni_logits *l, uint32_t b, float low, float high)
{
    const float *x = l->x + (size_t)b * KNI_LOGIT_BLOCK;
    uint32_t n = kni_logits_block_end(l, b) - b * KNI_LOGIT_BLOCK, any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= (uint32_t)(x[i] > low) & (uint32_t)(x[i] <= high);
    return any;
}

/* Values are approached until few are left between low, which k or more are above, and high, which fewer are above;
 * those are put in order. */
static struct kni_candidate bound_by_halving(const struct kni_logits *l, float max, uint32_t k,
                                             struct kni_candidate *list)
{
    const struct question q = {.l = l, .max = max, .floor = -INFINITY, .all = l->n};
    struct range r;
    if (!widen(&q, k, &r))
        return (struct kni_candidate){-INFINITY, 0}; /* there are not so many */
    /* To count a few thousand costs less than to sort a list. */
    approach(&q, k, l->n < 256 * KNI_SAMPLER_LIST ? l->n / 256 + 8 : KNI_SAMPLER_LIST, &r);
    uint32_t left = k - (uint32_t)r.n_high, n = (uint32_t)(r.n_low - r.n_high);
    if (left == n)
        return (struct kni_candidate){r.low, 0};
    if (n > KNI_SAMPLER_LIST) /* all are equal to high */
        return (struct kni_candidate){r.high, (int32_t)nth_equal(l, r.high, left)};
    n = 0;
    for (uint32_t b = 0; b < kni_logit_blocks(l->n); b++) {
        if (!(l->max[b] > r.low) || !has_between(l, b, r.low, r.high))
            continue;
        for (uint32_t i = b * KNI_LOGIT_BLOCK; i < kni_logits_block_end(l, b); i++) { /* writes behind the last, too */
            list[n] = (struct kni_candidate){l->x[i], (int32_t)i};
            n += (uint32_t)(l->x[i] > r.low) & (uint32_t)(l->x[i] <= r.high);
        }
    }
    kni_candidates_sort(list, n);
    return list[left];
}

/* With a band: where k falls among a sample, then one pass over the row, then the band alone. 0: it is not there. */
static double cut_in_band(struct kni_draw *d, uint32_t k)
{
    const struct kni_logits *l = d->l;
    struct sample s;
    float low, high;
    if (!take_sample(d, &s))
        return 0;
    const struct question q = {.l = &s.l, .max = d->max, .floor = -INFINITY, .all = s.l.n};
    const double want = k / s.stride, share = (double)k / l->n;
    bracket(&q, want, sqrt(want * (1 - share)) + 1, &low, &high);
    const struct kni_logit_split band = take_band(d, low, high);
    const uint32_t n = band.n_between;
    if (n > band.n_room || band.n_above >= k || band.n_above + n < k)
        return 0;
    struct kni_logits row = {.kernels = l->kernels, .n = n, .x = band.values, .max = d->band.weights};
    l->kernels->logit_max(row.max, row.x, n);
    d->bound = bound_by_halving(&row, fminf(high, d->max), k - band.n_above, d->list);
    if (d->bound.logit <= low) /* the whole band is in */
        d->bound = (struct kni_candidate){low, 0};
    else if (d->bound.id > 0 || d->bound.logit == band.values[0]) /* else a value, and no place */
        d->bound.id = (int32_t)band.ids[d->bound.id];
    weigh_band(d, n);
    return weigh_with_band(d, n, d->bound, d->mass);
}

double kni_draw_cut_to_top_k(struct kni_draw *d, uint32_t k)
{
    double total = cut_in_band(d, k);
    return total > 0 ? total : kni_draw_cut(d, bound_by_halving(d->l, d->max, k, d->list));
}

/* ---- top-p */

/* Whether the mass is spread over a third of the blocks or more. Otherwise passes read few of them. */
static bool is_flat(const struct kni_draw *d, double total)
{
    const uint32_t n = kni_logit_blocks(d->l->n);
    double s[4] = {0};
    for (uint32_t i = 0; i + 4 <= n; i += 4)
        for (uint32_t k = 0; k < 4; k++)
            s[k] += (double)d->mass[i + k] * (double)d->mass[i + k];
    return total * total > (s[0] + s[1] + s[2] + s[3]) * n / 3;
}

static void take_next(struct kni_draw *d, struct kni_candidate bound)
{
    float *mass = d->mass;
    d->bound = bound;
    d->mass = d->next;
    d->next = mass;
}

bool kni_draw_narrow(struct kni_draw *d, double want, float limit, double *total)
{
    struct sample s;
    float low, high;
    if (!(want * 4 < *total) || !is_flat(d, *total) || !take_sample(d, &s)) /* with more, few draws are needed anyway */
        return false;
    struct question q = {.l = &s.l, .mass = s.mass, .max = d->max, .scale = d->scale, .floor = d->bound.logit};
    const double share = want / *total;
    q.all = above(&q, q.floor);
    if (limit > q.floor && above(&q, limit) < share * q.all)
        return false;
    bracket(&q, share * q.all, sqrt((share * (1 - share) + 1 / (double)s.l.n) / s.l.n) * q.all, &low, &high);
    if (!(low > d->bound.logit))
        return false;
    const struct kni_logit_split band = take_band(d, low, high);
    const struct kni_candidate end = {low, 0};
    if (band.n_between > band.n_room || !(sum_all(d->band.mass, kni_logit_blocks(d->l->n)) < want))
        return false;
    weigh_band(d, band.n_between);
    const double mass = weigh_with_band(d, band.n_between, end, d->next);
    if (mass < want)
        return false;
    d->band.high = high, d->band.n = band.n_between;
    take_next(d, end);
    *total = mass;
    return true;
}

bool kni_draw_is_within(struct kni_draw *d, int32_t token, double want, double *total)
{
    const struct kni_candidate bound = {d->l->x[token], token};
    if (*total <= want || (d->band.n && bound.logit > d->band.high))
        return true;
    *total = d->band.n ? weigh_with_band(d, d->band.n, bound, d->next) : weigh_before(d, bound, d->next);
    if (*total < want)
        return true;
    take_next(d, bound);
    return false;
}

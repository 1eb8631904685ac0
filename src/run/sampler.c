/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No sort of the vocabulary. A row comes with the maximum and the sum of weights of each block of 32, made while the logits were
 * written (forward.c); so
 *
 *     greedy, a certain token   the first block that has the maximum, and the first in it
 *     no cut                    a walk over the sums of blocks to the share that was drawn, then over one block
 *     top-k up to 256           a heap; blocks whose maximum does not beat its root are passed over. Then everything on a sorted list
 *     top-k above               draw, then count what stands before the token. When that is k or more, or another cut asks, the bound
 *                               is found by counting what is above a value, narrowing a range of values
 *     min-p                     its bound is a value
 *     top-p                     draw, then add up what stands before the token: if that is less than top_p it is in the cut. If not,
 *                               draw again from what stands before it, whose sums are there now. The chance that a draw is in
 *                               the cut is top_p at least, and 1 + ln(1 / top_p) draws are needed on average, 1.1 at 0.9
 *
 * The last is exact: each draw is by weight from a set that contains the cut, so given that it is in the cut it is by weight
 * there. Sums of blocks are floats, sums over blocks doubles, weights relative to the best logit, so that nothing overflows.
 *
 * The penalty changes the row in place, and the blocks that hold such tokens; the row is put back after the pick.
 */
#include "run/sampler.h"

#include <float.h>
#include <math.h>

#include "base/alloc.h"
#include "base/half.h"

#define MAX_RECENT 65535u
#define MAX_SCALE 1e30f /* so cold that it is greedy, but differences of 0 stay 0 */

enum kn_status kni_sampler_check(const struct kn_sampler_opts *o)
{
    if (!o)
        return KN_OK;
    bool ok = o->temperature >= 0 && o->temperature <= 1e6f && o->top_p >= 0 && o->top_p <= 1 && o->min_p >= 0 && o->min_p <= 1 &&
              o->repeat_penalty >= 0 && o->repeat_penalty <= 1e6f && o->repeat_last <= MAX_RECENT; /* NaN fails every comparison */
    return ok ? KN_OK : KN_E_ARG;
}

static bool penalises(const struct kn_sampler_opts *o)
{
    return o->repeat_penalty > 0 && o->repeat_penalty != 1;
}

enum kn_status kni_sampler_init(struct kni_sampler *sampler, const struct kn_sampler_opts *opts, uint32_t n_vocab)
{
    *sampler = (struct kni_sampler){.n_vocab = n_vocab};
    if (!n_vocab || n_vocab > INT32_MAX || kni_sampler_check(opts) != KN_OK)
        return KN_E_ARG;
    if (opts)
        sampler->opts = *opts;
    struct kn_sampler_opts *o = &sampler->opts;
    if (!o->repeat_last)
        o->repeat_last = 64;
    if (!o->top_k || o->top_k > n_vocab)
        o->top_k = n_vocab;
    if (o->temperature > 0)
        sampler->scale = 1 / o->temperature < MAX_SCALE ? 1 / o->temperature : MAX_SCALE;
    bool ok = true;
    size_t bytes;
    if (penalises(o)) {
        ok = (sampler->recent = kni_alloc(KNI_ALLOC_TAG_REQUEST, o->repeat_last * sizeof *sampler->recent, 0)) != NULL;
        ok = (sampler->saved = kni_alloc(KNI_ALLOC_TAG_REQUEST, o->repeat_last * sizeof *sampler->saved, 0)) && ok;
        ok = kni_mul_size(n_vocab, sizeof *sampler->counts, &bytes) && (sampler->counts = kni_calloc(KNI_ALLOC_TAG_REQUEST, bytes, 0)) && ok;
    }
    if (!ok)
        kni_sampler_fini(sampler);
    return ok ? KN_OK : KN_E_NOMEM;
}

void kni_sampler_fini(struct kni_sampler *sampler)
{
    kni_free(sampler->recent);
    kni_free(sampler->counts);
    kni_free(sampler->saved);
    *sampler = (struct kni_sampler){0};
}

void kni_sampler_accept(struct kni_sampler *sampler, int32_t token)
{
    if (!sampler->recent || token < 0 || (uint32_t)token >= sampler->n_vocab)
        return;
    if (sampler->n_recent == sampler->opts.repeat_last)
        sampler->counts[sampler->recent[sampler->recent_at]]--;
    else
        sampler->n_recent++;
    sampler->recent[sampler->recent_at] = token;
    sampler->counts[token]++;
    sampler->recent_at = (sampler->recent_at + 1) % sampler->opts.repeat_last;
}

/* Whether a stands before b: higher logit, then lower id. */
static bool before(struct kni_candidate a, struct kni_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void swap(struct kni_candidate *a, struct kni_candidate *b)
{
    struct kni_candidate t = *a;
    *a = *b;
    *b = t;
}

/* Sinks entry i of a heap whose root stands last in order. */
static void sink(struct kni_candidate *c, uint32_t n, uint32_t i)
{
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(c[child], c[child + 1]))
            child++;
        if (!before(c[i], c[child]))
            return;
        swap(&c[i], &c[child]);
    }
}

static void sort(struct kni_candidate *heap, uint32_t n)
{
    for (uint32_t m = n; m > 1; m--) { /* the worst goes to the end */
        swap(&heap[0], &heap[m - 1]);
        sink(heap, m - 1, 0);
    }
}

static void make_heap(struct kni_candidate *c, uint32_t n)
{
    for (uint32_t i = n / 2; i--;)
        sink(c, n, i);
}

static uint32_t block_end(const struct kni_logits *l, uint32_t b)
{
    return l->n - b * KNI_LOGIT_BLOCK < KNI_LOGIT_BLOCK ? l->n : (b + 1) * KNI_LOGIT_BLOCK;
}

/* A heap of the k best so far, root the worst of them: once it is full a block whose maximum does not beat the root is passed over. */
uint32_t kni_logits_best(const struct kni_logits *l, uint32_t k, struct kni_candidate *list)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < kni_logit_blocks(l->n); b++) {
        if (n == k && !(l->max[b] > list[0].logit)) /* equals have lower ids already */
            continue;
        for (uint32_t i = b * KNI_LOGIT_BLOCK; i < block_end(l, b); i++) {
            if (n == k ? !(l->x[i] > list[0].logit) : !(l->x[i] > -INFINITY))
                continue;
            list[n < k ? n : 0] = (struct kni_candidate){.logit = l->x[i], .id = (int32_t)i};
            if (n == k)
                sink(list, k, 0);
            else if (++n == k)
                make_heap(list, k);
        }
    }
    if (n < k)
        make_heap(list, n);
    sort(list, n);
    return n;
}

/* Maximum of all; *block: the first that has it. */
static float max_of(const struct kni_logits *l, uint32_t *block)
{
    uint32_t n = kni_logit_blocks(l->n), best = 0;
    for (uint32_t b = 1; b < n; b++)
        if (l->max[b] > l->max[best])
            best = b;
    *block = best;
    return l->max[best];
}

static int32_t first_equal(const struct kni_logits *l, uint32_t from, float logit)
{
    while (l->x[from] != logit)
        from++;
    return (int32_t)from;
}

bool kni_logits_any_finite(const struct kni_logits *l)
{
    uint32_t block, i = 0;
    float max = max_of(l, &block);
    if (max < INFINITY)
        return max > -INFINITY;
    while (i < l->n && !isfinite(l->x[i])) /* rare */
        i++;
    return i < l->n;
}

/* mass [blocks]: sums of blocks over all the row, relative to its maximum. */
static void weigh(const struct kni_logits *l, const float *sum, float max, float scale, float *mass)
{
    uint32_t n = kni_logit_blocks(l->n);
    for (uint32_t b = 0; b < n; b++)
        mass[b] = (l->max[b] - max) * scale;
    l->kernels->exp(mass, mass, n);
    for (uint32_t b = 0; b < n; b++)
        mass[b] *= sum[b];
}

#define GROUP 64u

/* In one order, so that a walk by groups arrives at the same sum; four sums, since an addition waits for the one before. */
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

double kni_logits_log_norm(const struct kni_logits *l, const float *sum)
{
    uint32_t block;
    float max = max_of(l, &block);
    if (max == INFINITY)
        return INFINITY;
    weigh(l, sum, max, 1, l->scratch);
    return (double)max + log(sum_all(l->scratch, kni_logit_blocks(l->n)));
}

/* ---- cuts and draws. Every cut leaves a prefix of the order: what stands before a bound. */

struct draw {
    const struct kni_logits *l;
    float max, scale;
    float *mass; /* [blocks] of what stands before the bound */
    float *next; /* [blocks] the same of the bound that is being looked at */
    struct kni_candidate bound; /* the first that is left out; id n: all that have its logit are in */
};

static bool is_in(const struct draw *d, uint32_t i)
{
    return before((struct kni_candidate){d->l->x[i], (int32_t)i}, d->bound);
}

static float weight_of(const struct draw *d, float x)
{
    return expf((x - d->max) * d->scale);
}

/* mass [blocks] of what stands before a bound. Blocks before the bound's id count its equals, blocks behind it do not. */
static double weigh_before(const struct draw *d, struct kni_candidate bound, float *mass)
{
    const struct kni_logits *l = d->l;
    uint32_t at = (uint32_t)bound.id / KNI_LOGIT_BLOCK, n_blocks = kni_logit_blocks(l->n), n_front = at < n_blocks ? at * KNI_LOGIT_BLOCK : l->n;
    kni_logit_sum_above_fn sum_above = l->kernels->logit_sum_above;
    sum_above(mass, l->x, l->max, n_front, nextafterf(bound.logit, -INFINITY), d->max, d->scale);
    if (at < n_blocks) {
        uint32_t end = block_end(l, at);
        mass[at] = 0;
        for (uint32_t i = n_front; i < end; i++)
            if (before((struct kni_candidate){l->x[i], (int32_t)i}, bound))
                mass[at] += weight_of(d, l->x[i]);
        sum_above(mass + at + 1, l->x + end, l->max + at + 1, l->n - end, bound.logit, d->max, d->scale);
    }
    return sum_all(mass, n_blocks);
}

/* The token at share u in [0, 1) of the mass. */
static int32_t find(const struct draw *d, double total, double u)
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
    uint32_t first = last * KNI_LOGIT_BLOCK, end = block_end(l, last), chosen = first;
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

/* Where to halve values next. Logarithms of counts are nearly straight over a short range; aiming a little to either side of k brings both
 * ends to it. Now and then the middle, for rows of another shape. */
static float guess(float low, float high, uint32_t n_low, uint32_t n_high, uint32_t k, uint32_t i)
{
    double aim = i % 2 ? k + KNI_SAMPLER_LIST / 3.0 : k - KNI_SAMPLER_LIST / 3.0, top = n_high ? n_high : 0.5;
    double share = i % 4 != 3 && aim > top && aim < n_low ? log(n_low / aim) / log(n_low / top) : 0.5;
    return low + (high - low) * (float)share;
}

/* Whether any of block b is above low and not above high. */
static bool has_between(const struct kni_logits *l, uint32_t b, float low, float high)
{
    const float *x = l->x + (size_t)b * KNI_LOGIT_BLOCK;
    uint32_t n = block_end(l, b) - b * KNI_LOGIT_BLOCK, any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= (uint32_t)(x[i] > low) & (uint32_t)(x[i] <= high);
    return any;
}

/* How many stand before a bound; see weigh_before. */
static uint32_t count_before(const struct kni_logits *l, struct kni_candidate bound)
{
    uint32_t b = (uint32_t)bound.id / KNI_LOGIT_BLOCK, first = b * KNI_LOGIT_BLOCK, end = block_end(l, b);
    uint32_t n = l->kernels->logit_count_above(l->x, l->max, first, nextafterf(bound.logit, -INFINITY));
    for (uint32_t i = first; i < end; i++)
        n += before((struct kni_candidate){l->x[i], (int32_t)i}, bound);
    return n + l->kernels->logit_count_above(l->x + end, l->max + b + 1, l->n - end, bound.logit);
}

/* The bound behind the first k of the order; k is too large for a list. Values are halved, later floats, until few are left between
 * low, which k or more are above, and high, which fewer are above; those are put in order. */
static struct kni_candidate bound_of_top_k(const struct kni_logits *l, float max, uint32_t k, struct kni_candidate *list)
{
    kni_logit_count_above_fn count_above = l->kernels->logit_count_above;
    float low = max - 1, high = max;
    uint32_t n_high = 0, n_low = count_above(l->x, l->max, l->n, low);
    for (float step = 2; n_low < k && step < 1e6f; step *= 2) {
        high = low, n_high = n_low;
        n_low = count_above(l->x, l->max, l->n, low = max - step);
    }
    if (n_low < k && (n_low = count_above(l->x, l->max, l->n, low = -INFINITY)) < k)
        return (struct kni_candidate){-INFINITY, 0}; /* there are not so many */
    for (uint32_t i = 0; n_low - n_high > KNI_SAMPLER_LIST && key_of(high) - key_of(low) > 1; i++) {
        float middle = i < 24 && low > -INFINITY ? guess(low, high, n_low, n_high, k, i) : of_key((key_of(low) + key_of(high)) / 2);
        if (!(middle > low && middle < high))
            middle = of_key((key_of(low) + key_of(high)) / 2);
        uint32_t n = count_above(l->x, l->max, l->n, middle);
        if (n < k)
            high = middle, n_high = n;
        else
            low = middle, n_low = n;
    }
    bool is_one = n_low - n_high > KNI_SAMPLER_LIST; /* all are equal to high */
    uint32_t left = k - n_high, n = 0;
    for (uint32_t b = 0; b < kni_logit_blocks(l->n); b++) {
        if (!(l->max[b] > low) || !has_between(l, b, low, high))
            continue;
        for (uint32_t i = b * KNI_LOGIT_BLOCK; i < block_end(l, b); i++) {
            if (!(l->x[i] > low) || l->x[i] > high)
                continue;
            if (!is_one)
                list[n++] = (struct kni_candidate){l->x[i], (int32_t)i};
            else if (!left--)
                return (struct kni_candidate){high, (int32_t)i};
        }
    }
    if (is_one)
        return (struct kni_candidate){high, (int32_t)l->n};
    if (left == n)
        return (struct kni_candidate){low, 0};
    make_heap(list, n);
    sort(list, n);
    return list[left];
}

/* Number n_draws of the seed; further ones of the same pick by round. */
static double draw(const struct kni_sampler *s, uint64_t round)
{
    uint64_t z = s->opts.seed + s->n_draws * 0x9e3779b97f4a7c15u + round * 0xd1342543de82ef95u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static bool cuts_mass(const struct kn_sampler_opts *o)
{
    return o->top_p > 0 && o->top_p < 1;
}

/* The k best, at most a list of them. */
static int32_t draw_from_list(const struct kni_sampler *s, const struct kni_logits *l, struct kni_candidate *c)
{
    const struct kn_sampler_opts *o = &s->opts;
    uint32_t k = kni_logits_best(l, o->top_k, c);
    double w[KNI_SAMPLER_LIST], sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += w[i] = exp(((double)c[i].logit - (double)c[0].logit) * (double)s->scale);
    if (cuts_mass(o)) { /* the fewest that hold top_p of the mass, at least one */
        double want = (double)o->top_p * sum, have = 0;
        for (uint32_t i = 0; i < k; i++)
            if ((have += w[i]) >= want) {
                k = i + 1;
                break;
            }
    }
    while (k > 1 && w[k - 1] < (double)o->min_p) /* relative to the best, whose weight is 1 */
        k--;
    sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += w[i];
    double at = draw(s, 0) * sum;
    for (uint32_t i = 0; i + 1 < k; i++)
        if ((at -= w[i]) < 0)
            return c[i].id;
    return c[k - 1].id;
}

static int32_t draw_from_row(const struct kni_sampler *s, const struct kni_logits *l, float max, struct kni_candidate *list)
{
    const struct kn_sampler_opts *o = &s->opts;
    uint32_t n_blocks = kni_logit_blocks(l->n);
    struct draw d = {.l = l, .max = max, .scale = s->scale, .mass = l->scratch, .next = l->scratch + n_blocks, .bound = {-INFINITY, 0}};
    const bool has_k = o->top_k < l->n, has_others = cuts_mass(o) || o->min_p > 0;
    double total = 0;
    uint64_t round = 0;
    if (!has_k || !has_others) {
        weigh(l, l->sum, max, s->scale, d.mass);
        total = sum_all(d.mass, n_blocks);
    }
    if (has_k && !has_others) { /* mostly it is in: no need to know the bound */
        int32_t token = find(&d, total, draw(s, round++));
        if (count_before(l, (struct kni_candidate){l->x[token], token}) < o->top_k)
            return token;
    }
    if (has_k) {
        d.bound = bound_of_top_k(l, max, o->top_k, list);
        total = weigh_before(&d, d.bound, d.mass);
    }
    const double want = (double)o->top_p * total; /* of all that top-k has left */
    if (o->min_p > 0) {
        struct kni_candidate bound = {max + logf(o->min_p) / s->scale, (int32_t)l->n};
        if (before(bound, d.bound))
            total = weigh_before(&d, d.bound = bound, d.mass);
    }
    for (;; round++) {
        int32_t token = find(&d, total, draw(s, round));
        if (!cuts_mass(o))
            return token;
        struct kni_candidate bound = {l->x[token], token};
        total = weigh_before(&d, bound, d.next);
        if (total < want)
            return token;
        d.bound = bound;
        float *mass = d.mass;
        d.mass = d.next;
        d.next = mass;
    }
}

/* Of block b, after a change of its values. */
static void renew_block(const struct kni_sampler *s, const struct kni_logits *l, uint32_t b)
{
    uint32_t first = b * KNI_LOGIT_BLOCK, n = block_end(l, b) - first;
    l->kernels->logit_max(l->max + b, l->x + first, n);
    if (s->scale > 0)
        l->kernels->logit_sum(l->sum + b, l->x + first, l->max + b, n, s->scale);
}

/* Each token of the window once, however often it is there: a count of 0 says that it has been done. A finite logit stays finite. */
static uint32_t penalise(struct kni_sampler *s, const struct kni_logits *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_recent; i++) {
        int32_t id = s->recent[i];
        float x = l->x[id], y = x > 0 ? x / s->opts.repeat_penalty : x * s->opts.repeat_penalty;
        if (!s->counts[id])
            continue;
        s->saved[n++] = (struct kni_penalised){id, x, s->counts[id]};
        s->counts[id] = 0;
        l->x[id] = isfinite(x) ? fminf(fmaxf(y, -FLT_MAX), FLT_MAX) : x;
    }
    for (uint32_t i = 0; i < n; i++)
        renew_block(s, l, (uint32_t)s->saved[i].id / KNI_LOGIT_BLOCK);
    return n;
}

static int32_t choose(struct kni_sampler *s, const struct kni_logits *l)
{
    struct kni_candidate *list = (struct kni_candidate *)(void *)(l->scratch + 2 * (size_t)kni_logit_blocks(l->n));
    uint32_t block;
    float max = max_of(l, &block);
    s->n_draws += s->scale > 0; /* one a pick, whatever happens below: the stream stays in step */
    if (!(s->scale > 0) || max == INFINITY) /* certain, and differences of infinities are none */
        return first_equal(l, block * KNI_LOGIT_BLOCK, max);
    if (s->opts.top_k <= KNI_SAMPLER_LIST && s->opts.top_k < l->n)
        return draw_from_list(s, l, list);
    return draw_from_row(s, l, max, list);
}

int32_t kni_sampler_pick(struct kni_sampler *s, const struct kni_logits *l)
{
    if (!kni_logits_any_finite(l))
        return -1;
    uint32_t n_saved = s->recent ? penalise(s, l) : 0;
    int32_t token = choose(s, l);
    for (uint32_t i = 0; i < n_saved; i++) {
        l->x[s->saved[i].id] = s->saved[i].logit;
        s->counts[s->saved[i].id] = s->saved[i].count;
    }
    return token;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Greedy is one pass. Otherwise candidates are gathered once, reduced to the top k and ordered by a heap in place (no
 * library qsort: it may allocate), and everything after works on the ordered head. Weights are doubles relative to the best
 * logit, so that nothing overflows.
 */
#include "run/sampler.h"

#include <math.h>

#include "base/alloc.h"

#define MAX_RECENT 65535u

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
    bool ok = true;
    size_t bytes;
    if (penalises(o)) {
        ok = (sampler->recent = kni_alloc(KNI_ALLOC_TAG_REQUEST, o->repeat_last * sizeof *sampler->recent, 0)) != NULL;
        ok = kni_mul_size(n_vocab, sizeof *sampler->counts, &bytes) && (sampler->counts = kni_calloc(KNI_ALLOC_TAG_REQUEST, bytes, 0)) && ok;
    }
    if (o->temperature > 0) {
        ok = kni_mul_size(n_vocab, sizeof *sampler->candidates, &bytes) && (sampler->candidates = kni_alloc(KNI_ALLOC_TAG_REQUEST, bytes, 0)) && ok;
        ok = kni_mul_size(n_vocab, sizeof *sampler->weights, &bytes) && (sampler->weights = kni_alloc(KNI_ALLOC_TAG_REQUEST, bytes, 0)) && ok;
    }
    if (!ok)
        kni_sampler_fini(sampler);
    return ok ? KN_OK : KN_E_NOMEM;
}

void kni_sampler_fini(struct kni_sampler *sampler)
{
    kni_free(sampler->recent);
    kni_free(sampler->counts);
    kni_free(sampler->candidates);
    kni_free(sampler->weights);
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

/* The logit of a token after the penalty; never NaN. */
static float logit_of(const struct kni_sampler *s, const float *logits, uint32_t id)
{
    float x = logits[id];
    if (isnan(x))
        return -INFINITY;
    if (s->counts && s->counts[id])
        x = x > 0 ? x / s->opts.repeat_penalty : x * s->opts.repeat_penalty;
    return isnan(x) ? -INFINITY : x;
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

/* Brings the first k of the order to the front, in order: a heap of the k best so far, root the worst of them. */
static void order_top(struct kni_candidate *c, uint32_t n, uint32_t k)
{
    for (uint32_t i = k / 2; i--;)
        sink(c, k, i);
    for (uint32_t i = k; i < n; i++)
        if (before(c[i], c[0])) {
            swap(&c[i], &c[0]);
            sink(c, k, 0);
        }
    for (uint32_t m = k; m > 1; m--) { /* heap sort: the worst goes to the end */
        swap(&c[0], &c[m - 1]);
        sink(c, m - 1, 0);
    }
}

static double draw(struct kni_sampler *s)
{
    uint64_t z = s->opts.seed + ++s->n_draws * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static int32_t greedy(const struct kni_sampler *s, const float *logits)
{
    struct kni_candidate best = {.logit = logit_of(s, logits, 0), .id = 0};
    for (uint32_t i = 1; i < s->n_vocab; i++) {
        struct kni_candidate c = {.logit = logit_of(s, logits, i), .id = (int32_t)i};
        if (before(c, best))
            best = c;
    }
    return best.id;
}

int32_t kni_sampler_pick(struct kni_sampler *sampler, const float *logits)
{
    const struct kn_sampler_opts *o = &sampler->opts;
    if (!(o->temperature > 0))
        return greedy(sampler, logits);
    double u = draw(sampler); /* one number a pick, whatever happens below: the stream stays in step */
    struct kni_candidate *c = sampler->candidates;
    uint32_t n = 0;
    for (uint32_t i = 0; i < sampler->n_vocab; i++) {
        float x = logit_of(sampler, logits, i);
        if (x > -INFINITY)
            c[n++] = (struct kni_candidate){.logit = x, .id = (int32_t)i};
    }
    if (!n)
        return 0;
    uint32_t k = o->top_k < n ? o->top_k : n;
    order_top(c, n, k);
    if (c[0].logit == INFINITY)
        return c[0].id; /* certain, and differences of infinities are none */
    double sum = 0, *w = sampler->weights;
    for (uint32_t i = 0; i < k; i++)
        sum += w[i] = exp(((double)c[i].logit - (double)c[0].logit) / (double)o->temperature);
    if (o->top_p > 0 && o->top_p < 1) { /* the fewest that hold top_p of the mass, at least one */
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
    double at = u * sum;
    for (uint32_t i = 0; i + 1 < k; i++)
        if ((at -= w[i]) < 0)
            return c[i].id;
    return c[k - 1].id;
}

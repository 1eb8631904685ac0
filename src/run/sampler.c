/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No sort of the vocabulary. A row comes with the maximum and the sum of weights of each block of 32, made while the logits were
 * written (forward.c); so
 *
 *     greedy, a certain token   the first block that has the maximum, and the first in it
 *     no cut                    a walk over the sums of blocks to the share that was drawn, then over one block
 *     top-k up to 256           a heap; blocks whose maximum does not beat its root are passed over. Then everything on a sorted list
 *     top-k above               draw, then count what stands before the token. When that is k or more, or another cut asks, the bound
 *                               is found by counting (sampler_cut.c)
 *     min-p                     its bound is a value. Beside other cuts it is only looked at when a draw is behind it
 *     top-p                     draw, then add up what stands before the token: if that is less than top_p it is in the cut. If not,
 *                               draw again from what stands before it, whose sums are there now. The chance that a draw is in
 *                               the cut is top_p at least, and 1 + ln(1 / top_p) draws are needed on average, 1.1 at 0.9. For a small
 *                               top_p of a flat row the first set is narrowed before (sampler_cut.c)
 *
 * The last is exact: each draw is by weight from a set that contains the cut, so given that it is in the cut it is by weight
 * there. Sums of blocks are floats, sums over blocks doubles, weights relative to the best logit, so that nothing overflows.
 *
 * The sums of weights cost more than all of that where a list or a bound is enough, so then they are not asked for (scale).
 *
 * The penalty changes the row in place, and the blocks that hold such tokens; the row is put back after the pick.
 */
#include "run/sampler.h"

#include <float.h>
#include <math.h>

#include "base/alloc.h"
#include "run/sampler_cut.h"

#define MAX_RECENT 65535u
#define MAX_SHARPNESS 1e30f /* so cold that it is greedy, but differences of 0 stay 0 */

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

static bool cuts_mass(const struct kn_sampler_opts *o)
{
    return o->top_p > 0 && o->top_p < 1;
}

/* top_k is not 0 from here on. */
static bool has_list(const struct kn_sampler_opts *o, uint32_t n_vocab)
{
    return o->top_k <= KNI_SAMPLER_LIST && o->top_k < n_vocab;
}

/* Whether a pick begins with the sums over everything: not when a list is enough, nor when a cut comes first whose bound needs no sums. */
static bool reads_sums(const struct kn_sampler_opts *o, uint32_t n_vocab)
{
    bool has_bound = o->top_k < n_vocab ? cuts_mass(o) || o->min_p > 0 : o->min_p > 0 && !cuts_mass(o);
    return !has_list(o, n_vocab) && !has_bound;
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
        sampler->sharpness = 1 / o->temperature < MAX_SHARPNESS ? 1 / o->temperature : MAX_SHARPNESS;
    if (reads_sums(o, n_vocab))
        sampler->scale = sampler->sharpness;
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

/* A heap of the k best so far, root the worst of them: once it is full a block whose maximum does not beat the root is passed over. */
uint32_t kni_logits_best(const struct kni_logits *l, uint32_t k, struct kni_candidate *list)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < kni_logit_blocks(l->n); b++) {
        if (n == k && !(l->max[b] > list[0].logit)) /* equals have lower ids already */
            continue;
        for (uint32_t i = b * KNI_LOGIT_BLOCK; i < kni_logits_block_end(l, b); i++) {
            if (n == k ? !(l->x[i] > list[0].logit) : !(l->x[i] > -INFINITY))
                continue;
            list[n < k ? n : 0] = (struct kni_candidate){.logit = l->x[i], .id = (int32_t)i};
            if (n == k)
                kni_candidates_sink(list, k, 0);
            else if (++n == k)
                kni_candidates_make_heap(list, k);
        }
    }
    kni_candidates_sort(list, n);
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

double kni_logits_log_norm(const struct kni_logits *l, const float *sum)
{
    uint32_t block;
    float max = max_of(l, &block);
    if (max == INFINITY)
        return INFINITY;
    struct kni_draw d = kni_draw_begin(l, max, 1);
    return (double)max + log(kni_draw_weigh_all(&d, sum));
}

/* Number n_draws of the seed; further ones of the same pick by round. */
static double draw(const struct kni_sampler *s, uint64_t round)
{
    uint64_t z = s->opts.seed + s->n_draws * 0x9e3779b97f4a7c15u + round * 0xd1342543de82ef95u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* The k best, at most a list of them. */
static int32_t draw_from_list(const struct kni_sampler *s, const struct kni_logits *l, struct kni_candidate *c)
{
    const struct kn_sampler_opts *o = &s->opts;
    uint32_t k = kni_logits_best(l, o->top_k, c);
    double w[KNI_SAMPLER_LIST], sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += w[i] = exp(((double)c[i].logit - (double)c[0].logit) * (double)s->sharpness);
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

static int32_t draw_from_row(const struct kni_sampler *s, struct kni_draw *d)
{
    const struct kn_sampler_opts *o = &s->opts;
    const struct kni_logits *l = d->l;
    const bool has_k = o->top_k < l->n;
    double total = 0;
    uint64_t round = 0;
    if (s->scale > 0)
        total = kni_draw_weigh_all(d, l->sum);
    if (has_k && s->scale > 0) { /* no other cut. Mostly it is in: no need to know the bound */
        int32_t token = kni_draw_find(d, total, draw(s, round++));
        if (kni_logits_count_before(l, (struct kni_candidate){l->x[token], token}) < o->top_k)
            return token;
    }
    if (has_k)
        total = kni_draw_cut_to_top_k(d, o->top_k);
    const double want = (double)o->top_p * total; /* of all that top-k has left */
    const float least = o->min_p > 0 ? d->max + logf(o->min_p) / s->sharpness : -INFINITY;
    const struct kni_candidate limit = {least, (int32_t)l->n};
    bool has_limit = kni_candidate_is_before(limit, d->bound);
    if (!has_k && !cuts_mass(o) && has_limit)
        total = kni_draw_cut(d, limit);
    if (cuts_mass(o))
        kni_draw_narrow(d, want, least, &total);
    for (;; round++) {
        int32_t token = kni_draw_find(d, total, draw(s, round));
        if (has_limit && !kni_candidate_is_before((struct kni_candidate){l->x[token], token}, limit)) {
            total = kni_draw_cut(d, limit);
            has_limit = false;
        } else if (!cuts_mass(o) || kni_draw_is_within(d, token, want, &total)) {
            return token;
        }
    }
}

/* Of block b, after a change of its values. */
static void renew_block(const struct kni_sampler *s, const struct kni_logits *l, uint32_t b)
{
    uint32_t first = b * KNI_LOGIT_BLOCK, n = kni_logits_block_end(l, b) - first;
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
    uint32_t block;
    float max = max_of(l, &block);
    s->n_draws += s->sharpness > 0; /* one a pick, whatever happens below: the stream stays in step */
    if (!(s->sharpness > 0) || max == INFINITY) /* certain, and differences of infinities are none */
        return first_equal(l, block * KNI_LOGIT_BLOCK, max);
    struct kni_draw d = kni_draw_begin(l, max, s->sharpness);
    return has_list(&s->opts, l->n) ? draw_from_list(s, l, d.list) : draw_from_row(s, &d);
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

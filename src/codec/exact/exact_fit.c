/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See the header. A layer's angles are looked for in its first 1024 tokens.
 */
#include "codec/exact/exact_fit.h"

#include <math.h>

#include "base/alloc.h"

#define MAX_ANGLE_TOKENS 1024u
#define MAX_LAGS 10
#define TURN_BITS 24.0 /* what a turn of its own costs */
#define SAME_BITS 3.0  /* what the previous layer's costs where the alternative is none */
/* Searching is half of the fit, and layers mostly agree: where the turn of the layer before is clearly right, only every eighth looks for a
 * better one. Where it is not, a model may have another set of frequencies. */
#define SURE_BITS 100.0
#define SEARCH_LAYERS 8
#define FULL_TURN 6.28318530717958647692

bool kni_exact_fit_floats(const struct kni_kv_layout *kv, uint32_t n_tokens, size_t *n_floats)
{
    return kni_mul_size((size_t)kv->n_kv_head * kv->d_head, n_tokens, n_floats) &&
           kni_add_size(*n_floats, 2 * (size_t)n_tokens + 3 * (size_t)kv->n_kv_head, n_floats);
}

void kni_exact_fit_init(struct kni_exact_fit *f, struct kni_exact_model *model, const struct kni_exact_loops *loops, kni_from_half_fn from_half, uint32_t n_tokens,
                        float *floats, int16_t *steps)
{
    const size_t part_values = (size_t)model->kv.n_kv_head * model->kv.d_head * n_tokens;
    *f = (struct kni_exact_fit){.model = model, .loops = loops, .from_half = from_half, .n = n_tokens, .part = floats, .wave = floats + part_values, .steps = steps,
                                .found = (struct kni_exact_found *)(void *)(floats + part_values + 2 * (size_t)n_tokens), .found_pair = UINT32_MAX};
}

static float *channel_of(const struct kni_exact_fit *f, uint32_t head, uint32_t component)
{
    return f->part + ((size_t)head * f->model->kv.d_head + component) * f->n;
}

void kni_exact_fit_head(struct kni_exact_fit *f, uint32_t head, const uint16_t *values)
{
    const size_t n = (size_t)f->model->kv.d_head * f->n;
    float *x = channel_of(f, head, 0);
    f->from_half(x, values, n);
    for (size_t i = 0; i < n; i++)
        x[i] = fabsf(x[i]) <= 65536.0f ? x[i] : 0; /* NaN, infinities and absurd bfloat16s say nothing about a channel */
}

static uint32_t angle_tokens(const struct kni_exact_fit *f)
{
    return f->n < MAX_ANGLE_TOKENS ? f->n : MAX_ANGLE_TOKENS;
}

/* Cosines, then sines of a turn at each token, as the decoder will find them. */
static void make_wave(struct kni_exact_fit *f, uint32_t turn, uint32_t n)
{
    kni_exact_make_wave(f->model, turn, f->steps, n);
    for (uint32_t t = 0; t < 2 * n; t++)
        f->wave[t] = (float)f->steps[t] * 0x1p-14f;
}

/* What a pair's values in each head come to over the first n tokens under a turn: f->found. Keeps what it found last. */
static void measure(struct kni_exact_fit *f, uint32_t pair, uint32_t turn, uint32_t n)
{
    const bool same_pair = f->found_pair == pair && f->found_n == n;
    const uint32_t first = kni_exact_component_of(f->model, pair, false), second = kni_exact_component_of(f->model, pair, true);
    if (same_pair && f->found_turn == turn)
        return;
    if (turn)
        make_wave(f, turn, n);
    for (uint32_t h = 0; h < f->model->kv.n_kv_head; h++) {
        const float *a = channel_of(f, h, first), *b = channel_of(f, h, second);
        struct kni_exact_found *found = &f->found[h];
        if (!same_pair)
            found->square = (f->loops->dot(a, a, n) + f->loops->dot(b, b, n)) / (float)n;
        if (turn) {
            f->loops->product(a, b, f->wave, f->wave + n, n, &found->x, &found->y);
        } else {
            found->x = f->loops->sum(a, n);
            found->y = f->loops->sum(b, n);
        }
        found->x /= (float)n;
        found->y /= (float)n;
    }
    f->found_pair = pair;
    f->found_turn = turn;
    f->found_n = n;
}

/* The angle, in full turns, by which a pair turns in this layer. */
static double find_turn(struct kni_exact_fit *f, uint32_t pair)
{
    const uint32_t n = angle_tokens(f), first = kni_exact_component_of(f->model, pair, false), second = kni_exact_component_of(f->model, pair, true);
    double re[MAX_LAGS] = {0}, im[MAX_LAGS] = {0}, turn = 0;
    measure(f, pair, 0, n);
    for (uint32_t h = 0; h < f->model->kv.n_kv_head; h++) {
        const float *a = channel_of(f, h, first), *b = channel_of(f, h, second);
        double weight = 1 / ((double)f->found[h].square + 1e-30);
        for (uint32_t i = 0; (1u << i) <= n / 2; i++) {
            uint32_t lag = 1u << i;
            float x, y;
            f->loops->product(a + lag, b + lag, a, b, n - lag, &x, &y);
            re[i] += weight * (double)x;
            im[i] += weight * (double)y;
        }
    }
    for (uint32_t i = 0; (1u << i) <= n / 2; i++) {
        double more = atan2(im[i], re[i]) / FULL_TURN - ldexp(turn, (int)i);
        turn += ldexp(more - rint(more), -(int)i);
    }
    return turn - floor(turn);
}

/* Bits that knowing the means saves in this layer's heads over the whole chunk, were values normal. */
static double bits_saved(struct kni_exact_fit *f, uint32_t pair, uint32_t turn)
{
    double bits = 0;
    measure(f, pair, turn, angle_tokens(f));
    for (uint32_t h = 0; h < f->model->kv.n_kv_head; h++) {
        const struct kni_exact_found *found = &f->found[h];
        float mean = found->x * found->x + found->y * found->y;
        if (mean > 0)
            bits -= (double)log2f(1 - (mean < 0.9999f * found->square ? mean / found->square : 0.9999f)) * f->n;
    }
    return bits;
}

/* A turn on a grid that is fine enough for the chunk: a twentieth of a radian from its middle to its ends. */
static uint32_t on_grid(const struct kni_exact_fit *f, double turn)
{
    uint32_t bits = 8;
    while (bits < 24 && ldexp(1, (int)bits) < FULL_TURN * 5 * f->n)
        bits++;
    return (uint32_t)(uint64_t)ldexp(rint(ldexp(turn, (int)bits)), 32 - (int)bits);
}

static uint32_t choose_turn(struct kni_exact_fit *f, uint32_t layer, uint32_t pair)
{
    const struct kni_exact_model *m = f->model;
    uint32_t best = layer ? m->turns[(size_t)(layer - 1) * (m->kv.d_head / 2) + pair] : 0;
    double most = bits_saved(f, pair, best);
    if (most > SURE_BITS && layer % SEARCH_LAYERS)
        return best;
    if (best) {
        double still = bits_saved(f, pair, 0);
        if (most - SAME_BITS < still) {
            most = still;
            best = 0;
        }
    }
    uint32_t own = on_grid(f, find_turn(f, pair));
    if (own && own != best && bits_saved(f, pair, own) - TURN_BITS > most)
        best = own;
    return best;
}

enum kni_exact_pairs kni_exact_fit_pairs(struct kni_exact_fit *f)
{
    struct kni_exact_model *m = f->model;
    double bits[2] = {0, 0};
    for (int pairs = 0; pairs < 2; pairs++) {
        m->pairs = (enum kni_exact_pairs)pairs;
        f->found_pair = UINT32_MAX;
        for (uint32_t pair = 0; pair < m->kv.d_head / 2; pair++) {
            double saved = bits_saved(f, pair, on_grid(f, find_turn(f, pair))), still = bits_saved(f, pair, 0);
            bits[pairs] += saved > still ? saved : still;
        }
    }
    return bits[1] > bits[0] ? KNI_EXACT_PAIRS_HALVES : KNI_EXACT_PAIRS_ADJACENT;
}

/* Base and unit of a channel with this variance and mean square: the cell of its deviation, and what a mean is counted in. A channel that
 * hardly varies gets a deviation of a hundredth of its values, so that they lie in its window. */
static uint16_t base_of(const struct kni_exact_model *m, float variance, float square, float *unit)
{
    const int bias = m->kv.type == KN_KV_TYPE_F16 ? 15 : 127; /* cells are quarters of an octave */
    variance = variance > square * 1e-4f ? variance : square * 1e-4f;
    bool zero = !(variance > 1e-30f);
    int cell = zero ? -4 * bias : (int)lrintf(2 * log2f(variance));
    cell = cell < -4 * bias ? -4 * bias : cell;
    *unit = exp2f((float)cell / 4) / KNI_EXACT_MEAN_UNIT;
    return zero ? 0 : (uint16_t)(cell + 4 * bias - KNI_EXACT_WINDOW_BELOW);
}

static int8_t mean_in_units(float mean, float unit)
{
    float q = rintf(mean / unit);
    return (int8_t)(q < -127 ? -127 : q > 127 ? 127 : q);
}

static void fit_channel(struct kni_exact_fit *f, uint32_t layer, uint32_t is_v, uint32_t head, uint32_t component)
{
    struct kni_exact_model *m = f->model;
    const float *x = channel_of(f, head, component);
    size_t channel = kni_exact_channel(m, layer, is_v, head, component);
    float mean = f->loops->sum(x, f->n) / (float)f->n, square = f->loops->dot(x, x, f->n) / (float)f->n, unit;
    m->bases[channel] = base_of(m, square - mean * mean, square, &unit);
    m->means[channel] = mean_in_units(mean, unit);
}

void kni_exact_fit_part(struct kni_exact_fit *f, uint32_t layer, uint32_t is_v)
{
    struct kni_exact_model *m = f->model;
    const uint32_t n_pairs = m->kv.d_head / 2;
    f->found_pair = UINT32_MAX; /* new values */
    for (uint32_t pair = 0; !is_v && pair < n_pairs; pair++) {
        uint32_t turn = m->turns[(size_t)layer * n_pairs + pair] = choose_turn(f, layer, pair);
        if (turn == 0)
            continue;
        measure(f, pair, turn, f->n);
        for (uint32_t h = 0; h < m->kv.n_kv_head; h++) {
            const struct kni_exact_found *found = &f->found[h];
            float unit;
            size_t one = kni_exact_channel(m, layer, 0, h, kni_exact_component_of(m, pair, false));
            size_t two = kni_exact_channel(m, layer, 0, h, kni_exact_component_of(m, pair, true));
            m->bases[one] = m->bases[two] = base_of(m, (found->square - found->x * found->x - found->y * found->y) / 2, found->square / 2, &unit);
            m->means[one] = mean_in_units(found->x, unit);
            m->means[two] = mean_in_units(found->y, unit);
        }
    }
    for (uint32_t h = 0; h < m->kv.n_kv_head; h++)
        for (uint32_t i = 0; i < m->kv.d_head; i++) {
            uint32_t pair;
            bool second;
            if (is_v || !kni_exact_pair_of(m, i, &pair, &second) || m->turns[(size_t)layer * n_pairs + pair] == 0)
                fit_channel(f, layer, is_v, h, i);
        }
}

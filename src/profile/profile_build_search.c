/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of the presets. Those of V are seven times those of K, which is where a bit taken from either costs the same KL. Each preset
 * has a line of (step of K, step of V): from a third of its longest steps up to them, then V alone grows by some more. On a line KL
 * grows and bytes shrink, so the smallest bytes are where KL meets its target: a share of the KL that CacheGen's way has at a setting
 * of the same name, on the same tokens of the same texts, and no more than a bound that holds for every model: where first tokens
 * matter much, as in Gemma 3, CacheGen's own KL is no measure of what is good.
 *
 * Why lines end: KL on prose forgives more than retrieval does. At longer steps of K facts are no longer found although KL still
 * looks well.
 */
#include <math.h>

#include "base/status.h"
#include "profile/profile_build_state.h"

#define N_TRIES 5u
#define START 0.8         /* of the longest steps: where the search begins */
#define LINE_START 0.3  /* of the longest steps */
#define LINE_END 1.15   /* of V's beyond */
#define TOLERANCE 0.04  /* of the target: near enough */
#define MIN_SHARE 0.02  /* of tokens: rows whose symbols are rarer than that are not coded; at 0.05 KL is a tenth more */

static const struct goal {
    float step_k, step_v;
    uint32_t levels_k, levels_v;
    double share; /* of CacheGen's KL; the rest is for texts unlike the held-back ones */
    double most;  /* KL, nats; a short prefix and what follows at once: about twice of what 3,072 tokens and 1,024 after them give */
} goals[KNI_PROFILE_N_PRESETS] = {
    [KNI_PROFILE_PRESET_FINE] = {0.12f, 0.9f, 64, 64, 0.95, 0.006},
    [KNI_PROFILE_PRESET_MEDIUM] = {0.25f, 1.75f, 32, 32, 0.85, 0.014},
    [KNI_PROFILE_PRESET_SMALL] = {0.38f, 2.6f, 32, 16, 0.85, 0.028},
};

struct search {
    struct kni_build *b;
    uint32_t n_done;
};

static enum kn_status try_point(struct search *s, enum kni_profile_preset preset, double t, struct kni_build_quality *q)
{
    const struct goal *g = &goals[preset];
    double k = t < 1 ? t : 1;
    kni_calibrate_set_preset(s->b->calibrate, preset, (float)((double)g->step_k * k), (float)((double)g->step_v * t), MIN_SHARE);
    enum kn_status status = kni_build_measure_preset(s->b, preset, q);
    kni_build_report(s->b, "steps", (double)++s->n_done / (KNI_PROFILE_N_PRESETS * N_TRIES));
    return status;
}

/* What is known of a line: KL at the largest t within the target and at the smallest one beyond it. */
struct bracket {
    double low, kl_low, high, kl_high; /* kl_low 0: nothing within the target yet; kl_high 0: nothing beyond */
};

/* Where to look next: where a power law through both ends meets the target; with one end only, KL is taken to grow as the square of the
 * step, but a step is never small: KL is noisy, and a search that creeps ends nowhere. */
static double next_point(const struct bracket *k, double target)
{
    double t;
    if (k->kl_low > 0 && k->kl_high > 0) {
        t = k->low * exp(log(k->high / k->low) * log(0.98 * target / k->kl_low) / log(k->kl_high / k->kl_low));
        return t > k->low * 1.01 && t < k->high / 1.01 ? t : sqrt(k->low * k->high);
    }
    if (k->kl_low > 0)
        t = fmax(k->low * sqrt(0.98 * target / k->kl_low), k->low * 1.05);
    else
        t = fmin(k->high * sqrt(0.98 * target / k->kl_high), k->high * 0.85);
    return t < LINE_START ? LINE_START : t > LINE_END ? LINE_END : t;
}

/* The largest t found whose KL is within the target, or the start of the line. */
static enum kn_status search_line(struct search *s, enum kni_profile_preset preset, double target)
{
    struct bracket k = {.low = LINE_START, .high = LINE_END};
    struct kni_build_quality q, best = {0};
    double t = START;
    for (uint32_t i = 0; i < N_TRIES; i++) {
        enum kn_status status = try_point(s, preset, t, &q);
        if (status)
            return status;
        if (q.kl <= target || t <= LINE_START) {
            k.low = t;
            k.kl_low = fmax(q.kl, 1e-9);
            best = q;
            if (q.kl > (1 - TOLERANCE) * target || t >= LINE_END) /* near enough, or at one of the line's ends */
                break;
        } else {
            k.high = t;
            k.kl_high = q.kl;
        }
        if (k.kl_low > 0 && k.high / k.low < 1.03)
            break;
        /* The last try is for a point that holds, if there is none yet. */
        t = i + 2 == N_TRIES && !(k.kl_low > 0) ? LINE_START : next_point(&k, target);
    }
    const struct goal *g = &goals[preset];
    kni_calibrate_set_preset(s->b->calibrate, preset, (float)((double)g->step_k * (k.low < 1 ? k.low : 1)), (float)((double)g->step_v * k.low), MIN_SHARE);
    struct kni_profile_quality *out = &kni_calibrate_profile(s->b->calibrate)->quality[preset];
    out->kl = (float)(best.kl > 0 ? best.kl : 0);
    out->top1 = (float)best.top1;
    return KN_OK;
}

enum kn_status kni_build_search(struct kni_build *b)
{
    struct search s = {.b = b};
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
        struct kni_build_quality rival;
        s.n_done = k * N_TRIES;
        enum kn_status status = kni_build_measure_cachegen(b, goals[k].levels_k, goals[k].levels_v, &rival);
        if (status == KN_OK)
            status = search_line(&s, (enum kni_profile_preset)k, fmin(goals[k].share * rival.kl, goals[k].most));
        if (status)
            return status;
    }
    kni_build_report(b, "steps", 1);
    return KN_OK;
}

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
#include "engine/profile_build_state.h"

#define N_TRIES 5u
#define LINE_START 0.3  /* of the longest steps */
#define LINE_END 1.15   /* of V's beyond */
#define TOLERANCE 0.04  /* of the target: near enough */
#define MIN_SHARE 0.02  /* of tokens: rows whose symbols are rarer than that are not coded; at 0.05 KL is a tenth more */

static const struct goal {
    float step_k, step_v;
    uint32_t levels_k, levels_v;
    double share; /* of CacheGen's KL; the rest is for texts unlike the held-back ones */
    double most;  /* KL, nats */
} goals[KNI_PROFILE_N_PRESETS] = {
    [KNI_PROFILE_PRESET_FINE] = {0.12f, 0.9f, 64, 64, 0.8, 0.004},
    [KNI_PROFILE_PRESET_MEDIUM] = {0.25f, 1.75f, 32, 32, 0.85, 0.008},
    [KNI_PROFILE_PRESET_SMALL] = {0.38f, 2.6f, 32, 16, 0.85, 0.016},
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
    kni_build_report(s->b, "steps", (double)++s->n_done / (KNI_PROFILE_N_PRESETS * (N_TRIES + 1)));
    return status;
}

/* The largest t found whose KL is within the target, or the start of the line. */
static enum kn_status search_line(struct search *s, enum kni_profile_preset preset, double target)
{
    double low = LINE_START, high = LINE_END, kl_low = 0, kl_high = 0, t = 1;
    struct kni_build_quality q, best_q = {0};
    double best = 0;
    for (uint32_t i = 0; i < N_TRIES; i++) {
        enum kn_status status = try_point(s, preset, t, &q);
        if (status)
            return status;
        if (q.kl <= target) {
            best = low = t;
            kl_low = q.kl;
            best_q = q;
            if (q.kl > (1 - TOLERANCE) * target || t >= LINE_END)
                break;
        } else {
            high = t;
            kl_high = q.kl;
            if (t <= LINE_START)
                break;
        }
        /* KL grows about as the square of the step: where would it meet the target? */
        double from = kl_low > 0 ? low : high, kl = kl_low > 0 ? kl_low : kl_high;
        if (kl_low > 0 && kl_high > 0)
            t = low * exp(log(high / low) * log(0.98 * target / kl_low) / log(kl_high / kl_low));
        else
            t = from * sqrt(0.98 * target / kl);
        t = t < LINE_START ? LINE_START : t > LINE_END ? LINE_END : t;
        if (t <= low || t >= high)
            t = low > LINE_START || best > 0 ? sqrt(low * high) : LINE_START;
        if (high / low < 1.02)
            break;
    }
    if (!(best > 0)) {
        enum kn_status status = try_point(s, preset, LINE_START, &best_q);
        if (status)
            return status;
        best = LINE_START;
    }
    const struct goal *g = &goals[preset];
    kni_calibrate_set_preset(s->b->calibrate, preset, (float)((double)g->step_k * (best < 1 ? best : 1)), (float)((double)g->step_v * best), MIN_SHARE);
    struct kni_profile_quality *out = &kni_calibrate_profile(s->b->calibrate)->quality[preset];
    out->kl = (float)(best_q.kl > 0 ? best_q.kl : 0);
    out->top1 = (float)best_q.top1;
    return KN_OK;
}

enum kn_status kni_build_search(struct kni_build *b)
{
    struct search s = {.b = b};
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
        struct kni_build_quality rival;
        s.n_done = k * (N_TRIES + 1);
        enum kn_status status = kni_build_measure_cachegen(b, goals[k].levels_k, goals[k].levels_v, &rival);
        if (status == KN_OK)
            status = search_line(&s, (enum kni_profile_preset)k, fmin(goals[k].share * rival.kl, goals[k].most));
        if (status)
            return status;
    }
    kni_build_report(b, "steps", 1);
    return KN_OK;
}

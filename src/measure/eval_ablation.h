/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spectral layout taken apart: what each idea is worth at the steps of preset medium, one more idea a row:
 *
 *     uniform      rotated keys, values: one step a layer, step * rms of the layer's K or V
 *     row scale    the step times each (token, layer) row's own rms, rounded to a quarter octave
 *     pre-RoPE     keys un-rotated
 *     KLT 1        rotated by the eigenvectors of one layer's covariance, of calibration texts
 *     KLT G        of a group of layers together, as many as the profile has
 *     weights      keys weighted by the queries that they meet: the profile itself
 *
 * Bytes are an ideal coder's that knows each coefficient's distribution over the prefix for nothing, exponents included; escapes count 16
 * bits. The first tokens are exact in every row, and counted with 16 bits a value, so that a row differs from the one before in one idea. How
 * far real streams are from the last row's entropy is seen against medium over rans and over hevc. Owner: the bed's thread.
 */
#ifndef KNI_ENGINE_EVAL_ABLATION_H
#define KNI_ENGINE_EVAL_ABLATION_H

#include "measure/eval_calibration.h"
#include "measure/eval_method.h"

#define KNI_EVAL_ABLATION_STEPS 6u

struct kni_eval_ablation {
    struct kni_eval_bed *bed;               /* borrowed, as all below */
    const struct kni_profile *profile;
    const struct kn_eval_calibration *calibration; /* NULL: rows KLT 1 and KLT G are left out */
};

const char *kni_eval_ablation_name(uint32_t step);
/* Whether the step can be made with what there is. */
bool kni_eval_ablation_has(const struct kni_eval_ablation *a, uint32_t step);
/* As kni_eval_method_code: the clean prefix quantised into the coded copy; account: ideal bytes. */
enum kn_status kni_eval_ablation_code(const struct kni_eval_ablation *a, uint32_t step, struct kni_account *account, struct kn_err *err);

#endif

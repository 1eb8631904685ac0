/* SPDX-License-Identifier: Apache-2.0 */
/* What evaluations may learn from texts that they do not evaluate: see kinema/codec.h. Owner: one thread at a time. */
#ifndef KNI_ENGINE_EVAL_CALIBRATION_H
#define KNI_ENGINE_EVAL_CALIBRATION_H

#include "measure/baseline/kvtc.h"
#include "profile/calibrate.h"
#include "kinema/codec.h"
#include "model/model.h"

struct kn_eval_calibration {
    struct kn_model *model; /* a reference */
    struct kni_threads *threads;
    struct kni_kv_layout kv;
    double *freqs;          /* of rope */
    uint8_t *rope_layers;
    struct kni_profile_rope rope;
    struct kni_kvtc *kvtc;
    struct kni_calibrate *single, *grouped; /* for an ablation, otherwise NULL: bases of one layer, of groups, without weights of queries */
};

/* KN_E_ARG unless it was made for this model and type of pool. */
enum kn_status kni_eval_calibration_check(const struct kn_eval_calibration *c, const struct kn_model *model, enum kn_kv_type type, struct kn_err *err);

#endif

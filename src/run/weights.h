/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's matrices, packed into panels (kernel/panel.h) once a model, by the first run that opens on it:
 *
 *     file: row-major blocks  --all workers, matrix by matrix-->  one allocation of panels, in huge pages where given
 *
 * The model keeps them (kni_model_get_packed) until its last reference goes, so several engines share them. Panels are
 * the same for every CPU level, so runs of all levels share them too; another device has a form of its own beside it.
 * Packed parts of the file are given back to the system as packing goes on: resident memory is one copy. The embedding
 * stays readable in the file, whose pages come back by themselves.
 */
#ifndef KNI_RUN_WEIGHTS_H
#define KNI_RUN_WEIGHTS_H

#include "device/cpu/threads.h"
#include "kernel/panel.h"
#include "model/model.h"

struct kni_layer_panels {
    struct kni_panels wq, wk, wv, wo, w_gate, w_up, w_down;
};

struct kni_weights {
    struct kni_packed packed; /* first */
    struct kni_panels output;
    struct kni_layer_panels *layers;
    uint8_t *data;
};

/* Borrowed from the model. KN_E_NOMEM, with a sentence. Any thread that owns threads; waits while another one packs. */
enum kn_status kni_weights_get(const struct kni_weights **out, struct kn_model *model, struct kni_threads *threads, struct kn_err *err);

#endif

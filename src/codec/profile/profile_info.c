/* SPDX-License-Identifier: Apache-2.0 */
/* What a profile says of itself, for whoever only uses profiles (kinema/profile.h); building one is src/profile. */
#include "kinema/profile.h"

#include <string.h>

#include "base/hash.h"
#include "base/sized.h"
#include "base/status.h"
#include "codec/profile/profile.h"

enum kn_status kn_profile_read_info(const char *path, struct kn_profile_info *out, struct kn_err *err)
{
    if (!path || !out)
        return kni_err_set(err, KN_E_ARG, "kn_profile_read_info needs a path and a place for the information");
    struct kn_profile_info now = {0};
    struct kni_profile *p;
    if (kni_stats_write(out, &now, sizeof now))
        return kni_err_set(err, KN_E_ARG, "the size of struct kn_profile_info is not set: set it to sizeof");
    enum kn_status status = kni_profile_open(&p, path, err);
    if (status)
        return status;
    memcpy(now.id, p->id, sizeof now.id);
    memcpy(now.fingerprint, p->fingerprint, sizeof now.fingerprint);
    now.n_layer = p->kv.n_layer;
    now.n_kv_head = p->kv.n_kv_head;
    now.d_head = p->kv.d_head;
    now.n_group = p->n_group;
    now.n_sinks = p->n_sinks;
    now.n_bytes = p->n_bytes;
    now.n_calibration_tokens = p->n_calibration_tokens;
    now.n_texts = p->n_texts;
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
        now.presets[k].step_k = p->parts[0].step[k];
        now.presets[k].step_v = p->parts[1].step[k];
        now.presets[k].components = p->kv.n_layer * p->kv.n_kv_head * p->kv.d_head;
        for (uint32_t i = 0; i < p->n_parts; i++)
            *(i & 1 ? &now.presets[k].rows_v : &now.presets[k].rows_k) += p->parts[i].rows[k];
        now.presets[k].ratio = p->quality[k].ratio;
        now.presets[k].kl = p->quality[k].kl;
        now.presets[k].top1 = p->quality[k].top1;
    }
    kni_profile_close(&p);
    return kni_stats_write(out, &now, sizeof now);
}

enum kn_status kn_profile_read_texts(const char *path, kn_profile_text_fn fn, void *user, struct kn_err *err)
{
    if (!path || !fn)
        return kni_err_set(err, KN_E_ARG, "kn_profile_read_texts needs a path and someone to tell");
    struct kni_profile *p;
    enum kn_status status = kni_profile_open(&p, path, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < p->n_texts; i++) {
        const struct kni_profile_text *t = &p->texts[i];
        struct kn_profile_text text = {.name = t->name, .n_bytes = t->n_bytes, .n_tokens = t->n_tokens, .is_held_back = t->is_held_back};
        memcpy(text.hash, t->hash, sizeof text.hash);
        fn(user, &text);
    }
    kni_profile_close(&p);
    return KN_OK;
}

void kn_profile_text_hash(const void *text, size_t n_bytes, uint8_t hash[16])
{
    struct kni_hash h = kni_hash_bytes(text, n_bytes);
    memcpy(hash, h.bytes, sizeof h.bytes);
}

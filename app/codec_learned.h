/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a profile was learned on, for `kinema codec eval`: printed with the results, and held against each text: is it one of the profile's,
 * or so unlike them that its quality is not what the profile promises?
 */
#ifndef KN_CODEC_LEARNED_H
#define KN_CODEC_LEARNED_H

#include "codec_report.h"

struct kn_learned {
    struct kn_profile_info info;
    json_t *texts; /* {"name", "tokens", "held_back", "hash"}; NULL: no profile. The caller's to release */
    char path[4096];
};

/* path may be NULL. A profile that cannot be read leaves texts NULL. */
void kn_learned_read(struct kn_learned *learned, const char *path);
/* The same as a new object; NULL: no profile. */
json_t *kn_learned_json(const struct kn_learned *learned);
void kn_learned_print(const struct kn_learned *learned);
/* Sentences on a text's results: a new array of strings, mostly empty. earlier, calibration: paths of the texts evaluated before it, and of
 * those that rivals learn from. */
json_t *kn_learned_hints(const struct kn_learned *learned, const struct kn_report *report, const char *path, const char *const *earlier, uint32_t n_earlier,
                         const char *const *calibration, uint32_t n_calibration);

#endif

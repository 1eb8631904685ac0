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
    uint32_t prefix; /* tokens of the prefixes that its own figures are from, on average */
    char path[4096];
};

/* What a method did to a text, or what the profile notes of it. */
struct kn_learned_figures {
    double ratio, kl; /* 16-bit values over bytes; nats */
    uint32_t prefix;  /* tokens that were coded */
};

enum kn_learned_verdict {
    KN_LEARNED_ALIKE,  /* nothing to say, or nothing to compare with */
    KN_LEARNED_UNLIKE, /* more bytes a token than texts of the profile's kinds ever take */
    KN_LEARNED_WORSE,  /* of those kinds by its bytes; quality is below what the profile promises */
};

/* A text that is evaluated; everything borrowed for the call. */
struct kn_learned_run {
    const char *path, *const *earlier, *const *calibration; /* of it, of those evaluated before it, and of those that rivals learn from */
    uint32_t n_earlier, n_calibration, prefix;              /* prefix: tokens that went through the methods */
};

/* path may be NULL. A profile that cannot be read leaves texts NULL. */
void kn_learned_read(struct kn_learned *learned, const char *path);
/* The same as a new object; NULL: no profile. */
json_t *kn_learned_json(const struct kn_learned *learned);
void kn_learned_print(const struct kn_learned *learned);
/* Compares a text's figures with the profile's own of the same preset. n_exact: first tokens that the profile leaves exact. */
enum kn_learned_verdict kn_learned_judge(const struct kn_learned_figures *own, const struct kn_learned_figures *text,
                                         uint32_t n_exact);
/* Sentences on a text's results: a new array of strings, mostly empty. */
json_t *kn_learned_hints(const struct kn_learned *learned, const struct kn_report *report, const struct kn_learned_run *run);

#endif

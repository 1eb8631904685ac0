/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of `kinema codec eval` over one text or several: kept, averaged, compared at equal KL, printed.
 *
 * Equal KL: a rival's presets are points (KL, bytes); between two of them, log bytes is taken as linear in log KL, beyond the ends
 * as the nearest segment goes on (said so in the output). A point that another one beats in both is left out. The rival's bytes at
 * our KL over our bytes is how many times smaller ours is at the same quality.
 */
#ifndef KN_CODEC_REPORT_H
#define KN_CODEC_REPORT_H

#include "app.h"

enum { KN_REPORT_MAX_ROWS = 128, KN_REPORT_NAME_BYTES = 40 };

struct kn_report_row {
    char method[KN_REPORT_NAME_BYTES], preset[KN_REPORT_NAME_BYTES];
    struct kn_eval_row values; /* its two strings are not used */
};

struct kn_report {
    uint32_t n_rows;
    struct kn_report_row rows[KN_REPORT_MAX_ROWS];
};

struct kn_report_head {
    const char *text, *model; /* what was evaluated; "mean" of several */
    uint32_t prefix, continue_;
    enum kn_kv_type kv_type;
    const json_t *machine;
    json_t *profile; /* what it was learned on, or NULL */
    json_t *hints;   /* array of sentences on this text, or NULL */
    const char *hevc_encoder, *hevc_tools; /* names, of methods that are video */
};

void kn_report_add(struct kn_report *report, const struct kn_eval_row *row);
/* Means of n reports over one model and equal prefixes. Rows are those of the first; one that is not in all is left out. */
void kn_report_mean(struct kn_report *out, const struct kn_report *reports, size_t n);
/* The rival's bytes at this KL over `bytes`; NAN when it has fewer than two presets with a KL above 0. *beyond: past an end of its curve. */
double kn_report_at_kl(const struct kn_report *report, const char *rival, double kl, double bytes, bool *beyond);

/* New object: text, prefix, continue, rows, equal_kl, and what else there is to say. */
json_t *kn_report_json(const struct kn_report *report, const struct kn_report_head *head);
void kn_report_print(const struct kn_report *report, const struct kn_report_head *head);

#endif

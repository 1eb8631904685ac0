/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rANS (rans.h) knows of symbols before it codes any: classes of rows, counts over calibration, and the model made of them.
 * Implemented in rans_model.c, which knows how symbols find their tables and nothing of streams. A model is constant: any thread;
 * a trainer belongs to one.
 */
#ifndef KNI_CODEC_RANS_STATS_H
#define KNI_CODEC_RANS_STATS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_RANS_MAX_CLASSES 240u /* four kinds of rows, up to 64 spreads each */

struct kni_rans_model;

struct kni_rans_trainer; /* counts of symbols seen */
enum kn_status kni_rans_trainer_open(struct kni_rans_trainer **out);
void kni_rans_trainer_close(struct kni_rans_trainer **t);
/* A row's class from its mean magnitude, a fixed rule: mean of |symbol - 128| over calibration. */
uint8_t kni_rans_class_of(double mean_magnitude);
/* The same for a row whose neighbouring tokens' correlation is known, sum of s[t] s[t-1] over sum of s[t]^2 with s = symbol - 128:
 * such rows are coded better by themselves. */
uint8_t kni_rans_class_of_row(double mean_magnitude, double lag_one);
/* Of an exponent row, which resembles the row above more than the token before. */
uint8_t kni_rans_class_of_exponents(double mean_magnitude);
/* The mean magnitude that a class stands for, within an eighth of an octave: 2^-8 for rows that are almost always 0. */
double kni_rans_class_mean(uint8_t class);
/* Counts a matrix that would be coded: the same arguments as encoding. */
void kni_rans_trainer_add(struct kni_rans_trainer *t, const uint8_t *symbols, size_t stride, uint32_t n_rows, uint32_t n_tokens,
                          const uint8_t *classes);
/* Tables from the counts; contexts that were hardly seen lean on their class, unseen symbols stay codable. */
enum kn_status kni_rans_trainer_finish(const struct kni_rans_trainer *t, struct kni_rans_model **out);

void kni_rans_model_free(struct kni_rans_model **m);
/* The model as bytes inside a profile (doc/format-profile.md), and back. KN_E_FORMAT for hostile bytes. */
size_t kni_rans_model_bytes(const struct kni_rans_model *m);
void kni_rans_model_write(const struct kni_rans_model *m, uint8_t *out);
enum kn_status kni_rans_model_read(struct kni_rans_model **out, const uint8_t *data, size_t n_bytes, struct kn_err *err);

#endif

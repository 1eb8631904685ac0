/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods that an evaluation compares: one table, and one function that sends a bed's clean prefix through a method into its
 * coded copy, chunk by chunk as a store would hold it, and says what that cost.
 *
 * Time is the calling thread's processor time: one thread, whatever else the machine does. Owner: the bed's thread.
 */
#ifndef KNI_ENGINE_EVAL_METHOD_H
#define KNI_ENGINE_EVAL_METHOD_H

#include "measure/baseline/kvtc.h"
#include "measure/eval_bed.h"

#define KNI_EVAL_CHUNK 256u /* tokens of a chunk */

enum kni_eval_kind {
    KNI_EVAL_KIND_RAW,
    KNI_EVAL_KIND_ZSTD,
    KNI_EVAL_KIND_CODEC,    /* our own containers */
    KNI_EVAL_KIND_CACHEGEN,
    KNI_EVAL_KIND_IDEAL,    /* cachegen-ideal: quality of the entry before it, bytes of an ideal coder */
    KNI_EVAL_KIND_KVTC
};

struct kni_eval_method {
    const char *method, *preset;
    enum kni_eval_kind kind;
    enum kn_preset codec_preset;         /* CODEC */
    enum kn_backend backend;
    struct kn_tiles_opts tiles;
    uint32_t levels_k, levels_v, n_sinks; /* CACHEGEN, IDEAL */
    double bits;                          /* KVTC: a value, aimed at */
    bool by_needle;                       /* asked for facts unless told otherwise */
};

const struct kni_eval_method *kni_eval_methods(uint32_t *n);
/* Whether the method can only run with a profile; with calibration. */
bool kni_eval_method_wants_profile(const struct kni_eval_method *m);
bool kni_eval_method_wants_calibration(const struct kni_eval_method *m);

/* Whether the comma-separated list names the method. NULL names all. */
bool kni_eval_is_named(const char *list, const char *method);
/* KN_E_ARG when list (NULL: fine), names with commas between them, has one that is not in names; what: "encoder", for the sentence. */
enum kn_status kni_eval_check_names(const char *list, const char *what, const char *names, struct kn_err *err);
/* KN_E_ARG when the list names something that is no method, or "untouched" unless that is allowed. */
enum kn_status kni_eval_check_list(const char *list, bool may_be_untouched, struct kn_err *err);

/* What coding a prefix gave. */
struct kni_eval_coded {
    struct kni_account account;
    uint64_t encode_ns, decode_ns, working_bytes;
};

/* What methods need beyond the bed; fields may be NULL. */
struct kni_eval_needs {
    struct kni_profile *profile;
    struct kni_kvtc *kvtc; /* the calibration's */
    struct kn_hevc_opts hevc;
};

/* Opens a profile and holds it against the bed's model; *out is NULL, with KN_OK, for a NULL path. Close it with kni_profile_close. */
enum kn_status kni_eval_open_profile(struct kni_profile **out, const char *path, const struct kni_eval_bed *bed, struct kn_err *err);

/* Codes the clean prefix and restores it into the coded copy (poisoned before). For IDEAL: only the account; the coded copy
 * stays. */
enum kn_status kni_eval_method_code(const struct kni_eval_method *m, struct kni_eval_bed *bed, const struct kni_eval_needs *needs, struct kni_eval_coded *out,
                                    struct kn_err *err);

#endif

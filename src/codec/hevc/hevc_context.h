/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CABAC's contexts and probability states, shared by coder and reader of HEVC streams. A context is one byte: state * 2 + most
 * probable symbol. Source: ITU-T H.265, 9.3.2.2 (initial values, tables 9-5 to 9-37), 9.3.4.3.2 (tables 9-52 and 9-53).
 * Pure tables and functions: any thread.
 */
#ifndef KNI_CODEC_HEVC_CONTEXT_H
#define KNI_CODEC_HEVC_CONTEXT_H

#include <stdint.h>

/* Where each syntax element's contexts begin. */
enum kni_hevc_context {
    KNI_HEVC_CONTEXT_SPLIT_CU = 0,         /* 3 */
    KNI_HEVC_CONTEXT_SKIP = 3,             /* 3 */
    KNI_HEVC_CONTEXT_BYPASS = 6,           /* cu_transquant_bypass_flag */
    KNI_HEVC_CONTEXT_PRED_MODE = 7,
    KNI_HEVC_CONTEXT_PART_MODE = 8,        /* 4 */
    KNI_HEVC_CONTEXT_PREV_INTRA = 12,
    KNI_HEVC_CONTEXT_CHROMA_MODE = 13,
    KNI_HEVC_CONTEXT_MERGE_FLAG = 14,
    KNI_HEVC_CONTEXT_MERGE_INDEX = 15,
    KNI_HEVC_CONTEXT_ROOT_CBF = 16,
    KNI_HEVC_CONTEXT_SPLIT_TRANSFORM = 17, /* 3 */
    KNI_HEVC_CONTEXT_CBF_LUMA = 20,        /* 2 */
    KNI_HEVC_CONTEXT_CBF_CHROMA = 22,      /* 5 */
    KNI_HEVC_CONTEXT_RDPCM = 27,           /* 2: luma, chroma */
    KNI_HEVC_CONTEXT_RDPCM_DIR = 29,       /* 2 */
    KNI_HEVC_CONTEXT_LAST_X = 31,          /* 18 */
    KNI_HEVC_CONTEXT_LAST_Y = 49,          /* 18 */
    KNI_HEVC_CONTEXT_SUB_BLOCK = 67,       /* 4 */
    KNI_HEVC_CONTEXT_SIG = 71,             /* 42 by position, then one of luma and one of chroma without */
    KNI_HEVC_CONTEXT_GREATER1 = 115,       /* 24 */
    KNI_HEVC_CONTEXT_GREATER2 = 139,       /* 6 */
    KNI_HEVC_CONTEXT_REF_INDEX = 145,      /* 2 */
    KNI_HEVC_CONTEXT_MVD = 147,            /* 2: abs_mvd_greater0_flag, abs_mvd_greater1_flag */
    KNI_HEVC_CONTEXT_MVP = 149,
    KNI_HEVC_CONTEXT_SAO_MERGE = 150,
    KNI_HEVC_CONTEXT_SAO_TYPE = 151,
    KNI_HEVC_CONTEXT_QP_DELTA = 152,       /* 2 */
    KNI_HEVC_CONTEXT_TRANSFORM_SKIP = 154, /* 2 */
    KNI_HEVC_N_CONTEXTS = 156
};
#define KNI_HEVC_SIG_CHROMA 27u /* chroma's first of the 42 */
#define KNI_HEVC_SIG_SINGLE 42u

/* What a bin does to a context and to the range: index state * 2 + most probable symbol. */
struct kni_hevc_state {
    uint32_t lps;    /* range of the less probable symbol, a byte for each quarter of the range, lowest quarter in the lowest byte */
    uint8_t next[2]; /* after bin 0, after bin 1 */
    uint8_t pad[2];
};

/*
 * The same for coding at speed. An op is a bin whose context has been dealt with: state * 2, and 1 for the less probable symbol; a run is
 * up to four bins of one context, which move it at once.
 */
struct kni_hevc_run {
    uint8_t ops[4];
    uint8_t next; /* the context after them */
    uint8_t pad[3];
};
struct kni_hevc_coding {
    uint64_t range[128];               /* by op: a byte for each quarter of the range, the lowest quarter's from bit 23 on: the less probable symbol's
                                        * range, of the other symbol 255 less that */
    uint32_t keep[128];                /* by op: all ones where the range is reduced, 0 where it is replaced */
    uint8_t next[128][2];              /* by context: after bin 0, after bin 1 */
    struct kni_hevc_run runs[128][32]; /* by context, then a one and the bins, first one highest */
};

void kni_hevc_states_fill(struct kni_hevc_state states[128]);
void kni_hevc_coding_fill(struct kni_hevc_coding *coding);
/* init_type 0: I slices; 1, 2: P slices (cabac_init_flag 0, 1). qp: SliceQpY, 0..51. */
void kni_hevc_contexts_init(uint8_t contexts[KNI_HEVC_N_CONTEXTS], uint32_t init_type, int32_t qp);

#endif

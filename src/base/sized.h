/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public structs that carry their size, read and written by the one rule that kinema/types.h states. Every public
 * function that takes options or fills in a struct of the caller's goes through these few, so that all of them take
 * what callers of older and of newer versions hand over.
 *
 *     struct kn_engine_opts o;
 *     if ((status = KNI_OPTS_READ(&o, opts, kn_engine_opts, err)))
 *         return status;
 */
#ifndef KNI_BASE_SIZED_H
#define KNI_BASE_SIZED_H

#include <stddef.h>

#include "kinema/status.h"

/* Bytes that a newer version's options may be longer than ours. A longer struct is none: its size was never set. */
#define KNI_OPTS_MAX_GROWTH 4096u

/*
 * Copies a caller's options src into dst, a struct of dst_bytes bytes whose first member is its size. Members that src
 * is too short for are zero, and dst's size becomes dst_bytes. name: of the struct, "kn_engine_opts", for the sentence.
 * KN_E_ARG when src is NULL, its size is not set, or a byte beyond what dst holds is not zero; dst is all zero then.
 */
enum kn_status kni_opts_read(void *dst, size_t dst_bytes, const void *src, const char *name, struct kn_err *err);
/* The same for options that may be left out: src NULL gives defaults, which are zeros. */
enum kn_status kni_opts_read_or_default(void *dst, size_t dst_bytes, const void *src, const char *name,
                                        struct kn_err *err);

/* type: of both structs, without the word. */
#define KNI_OPTS_READ(dst, src, type, err) \
    kni_opts_read((struct type *){(dst)}, sizeof(struct type), (const struct type *){(src)}, #type, (err))
#define KNI_OPTS_READ_OR_DEFAULT(dst, src, type, err) \
    kni_opts_read_or_default((struct type *){(dst)}, sizeof(struct type), (const struct type *){(src)}, #type, (err))

/* Copies src, a struct of src_bytes bytes whose first member is a size, into the caller's dst as far as dst's own size
 * goes; that size stays, and so do bytes that src does not have. KN_E_ARG when dst is NULL or its size is not set: then
 * nothing is written. */
enum kn_status kni_stats_write(void *dst, const void *src, size_t src_bytes);

#endif

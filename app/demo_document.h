/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's document: English prose of an installed package, cut at a line's end to a wanted number of tokens. */
#ifndef KN_DEMO_DOCUMENT_H
#define KN_DEMO_DOCUMENT_H

#include "app.h"

/* Reads path (NULL: a chapter of Vim's manual, found by pattern), keeps the lines that make up at most max_tokens and writes
 * them to out_path. Fewer than min_tokens is an error. *n_tokens is what was kept; source (room source_bytes) the file that
 * was read. false after a message; what out_path held is then still there. Main thread. */
bool kn_demo_document_write(const struct kn_model *model, const char *path, size_t min_tokens, size_t max_tokens,
                            const char *out_path, size_t *n_tokens, char *source, size_t source_bytes);

#endif

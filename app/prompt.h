/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what the user gave to token ids: document, question and system text, through the model's chat template or raw.
 *
 *     system turn | user turn: document, empty line, question | reply turn opened
 *
 * The document comes first and the question last, so that two questions about one document share their beginning, which
 * is what a prefix cache and a store can reuse. The user's text never becomes control tokens: what happens to spell
 * "<|im_end|>" stays plain text, and the blanks around it are as the template has them.
 */
#ifndef KN_PROMPT_H
#define KN_PROMPT_H

#include <kinema/model.h>

struct kn_prompt {
    const char *document; /* NULL: none; borrowed */
    size_t document_bytes;
    const char *question; /* NULL: none; borrowed, NUL-terminated */
    const char *system;   /* NULL: none; borrowed, NUL-terminated */
    bool raw;             /* no template: the text as it is, control tokens recognised; system is refused */
};

/* Token ids of the prompt in *ids (release with free()), their count in *n_ids. *without_template is true when a template
 * was wanted but the model has none. KN_E_ARG for an empty prompt; err says why anything failed. */
enum kn_status kn_prompt_tokens(const struct kn_model *model, const struct kn_prompt *prompt, int32_t **ids, size_t *n_ids,
                                bool *without_template, struct kn_err *err);

/* Why the model has no chat template to put messages into, as the beginning of a sentence; NULL when it has one. Static. */
const char *kn_prompt_no_template(const struct kn_model *model);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat templates. A GGUF carries a Jinja program; Kinema recognises the usual ones by their marks and renders those by
 * itself, exactly as the program would; it does not run programs out of files. What is not recognised is "none".
 *
 *     chatml   <|im_start|>ROLE\nTEXT<|im_end|>\n ...                  reply: <|im_start|>assistant\n
 *     llama3   BOS <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|> ...   text trimmed
 *     mistral  BOS [INST] TEXT [/INST] reply EOS ...                   blanks and system message as the template has them
 *     gemma    BOS <start_of_turn>ROLE\nTEXT<end_of_turn>\n ...      text trimmed, "model" for assistant, reply: <start_of_turn>model\n
 *
 * Gemma has no system role: a first system message goes before the first message's text, with an empty line between.
 * The last message, too, is closed as the others are, whoever says it. KN_CHAT_REPLY opens the assistant's turn behind it (Mistral's has no
 * opening). KN_CHAT_CONTINUE cuts the rendering right behind the last text instead, as transformers' continue_final_message does: with it
 * goes what the template cuts off texts; and of a text that is nothing else, as there, the header's line breaks, too.
 * "Trimmed" is what Python's strip() means by it: Unicode's blanks and the separators U+001C to U+001F.
 *
 * A ChatML template may hold a system message that goes first when the conversation brings none (SmolLM2, Qwen2): it is
 * taken from the template's text.
 */
#ifndef KNI_MODEL_CHAT_H
#define KNI_MODEL_CHAT_H

#include "model/gguf.h"
#include "model/tokenizer.h"

enum kni_chat_kind { KNI_CHAT_KIND_NONE, KNI_CHAT_KIND_CHATML, KNI_CHAT_KIND_LLAMA3, KNI_CHAT_KIND_MISTRAL, KNI_CHAT_KIND_GEMMA };

struct kni_chat {
    enum kni_chat_kind kind;
    bool in_file; /* the file has a template, known or not */
    struct kni_gguf_str system; /* ChatML: goes first when messages[0] is not a system message; data NULL: none */
    struct kni_gguf_str bos, eos; /* text of the tokens, empty when absent */
    bool no_system;                 /* Gemma 2: a system message is an error */
    struct kni_chat_mistral {
        bool blank_lead, blank_before, blank_after; /* " [INST]", "[INST] ", " [/INST]" */
        bool reply_blank, reply_trim;               /* before the assistant's text; blanks cut off it */
        bool blank_behind;                          /* behind EOS */
        bool system_first, system_last;             /* a system message goes before the first user's text, or the last's when that is the last message */
    } mistral;
};

/* Never fails for an unknown template of the file: kind is NONE. chosen (NULL: none) is the name of one to take instead; of the file's own it
 * keeps what that says of the same kind. KN_E_ARG for an unknown name, KN_E_FORMAT when the key is not a string, KN_E_NOMEM. */
enum kn_status kni_chat_load(struct kni_chat **out, struct kni_arena *arena, const struct kni_gguf *gguf, const struct kni_tokenizer *tokenizer,
                             const char *chosen, struct kn_err *err);
/* "chatml", "llama3", "mistral", "gemma", "none". */
const char *kni_chat_name(const struct kni_chat *chat);
/* As kn_model_chat_texts. */
enum kn_status kni_chat_render(const struct kni_chat *chat, const struct kn_chat_message *messages, size_t n_messages, unsigned flags,
                               struct kn_text_range *texts, char *buf, size_t *n_bytes);

#endif

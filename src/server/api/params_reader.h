/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of params share: the object being read, and where its first error goes. Every reader function returns false once
 * there is an error and leaves it as it is, so that they can be chained.
 *
 *     body -> params_json.c (depth, cost, what nobody reads) -> params.c (budget, JSON) -> params_fields.c (numbers, stops, what is
 *             refused) -> params_prompt.c (texts -> tokens)
 *      `-> params_words.c: what is wrong with bytes that jansson does not take
 */
#ifndef KNI_SERVER_PARAMS_READER_H
#define KNI_SERVER_PARAMS_READER_H

#include <jansson.h>

#include "server/api/params.h"
#include "server/api/params_table.h"

struct kni_params_reader {
    const struct kn_model *model;
    const struct kni_params_limits *limits;
    const json_t *root; /* the body's object */
    struct kni_params_error *error;
    enum kn_status status;
    enum kni_params_route route; /* whose rules of params_table.h hold */
    uint64_t charged; /* to the budget */
    bool any_length; /* of tokens: the context does not matter */
    bool no_bos;     /* add_special_tokens: false */
};

/* Files the first error; returns false. param and code may be NULL. */
bool kni_params_fail(struct kni_params_reader *r, enum kn_status status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
bool kni_params_fail_memory(struct kni_params_reader *r);
/* Files that a number of the table is out of its range, or no number: what says what it is. */
bool kni_params_fail_range(struct kni_params_reader *r, enum kn_status status, const struct kni_field *f, const char *what);
/* The same of logprobs, which completions and chats take differently. */
bool kni_params_fail_logprobs(struct kni_params_reader *r, enum kn_status status, const char *what);
/* The reader of a body, parsed, without the members that nobody reads where they are many; call unload also after an error. */
bool kni_params_load(struct kni_params_reader *r, json_t **json, const char *body, size_t n_body);
void kni_params_unload(struct kni_params_reader *r, json_t *json);

/* Files why jansson did not take a body, in words of the request: the field, what is wrong with it, what to do. */
bool kni_params_fail_json(struct kni_params_reader *r, const char *body, size_t n_body, const json_error_t *e);

/* A field's value; NULL: absent or null. */
const json_t *kni_params_get(const struct kni_params_reader *r, const char *name);
/* Fields that may be absent: *out is left as it is then. */
bool kni_params_bool(struct kni_params_reader *r, const char *name, bool *out);
bool kni_params_number(struct kni_params_reader *r, const char *name, double *out); /* their range is the table's */
bool kni_params_integer(struct kni_params_reader *r, const char *name, int64_t *out, bool *given);
/* "a string", "an array", ... */
const char *kni_params_type(const json_t *value);

/* Refuses members of object that the table refuses on this route: group is the table's prefix ("messages[].", "" for the body), path
 * what their names have before them in an error ("messages[3]."). */
bool kni_params_members(struct kni_params_reader *r, const char *group, const char *path, const json_t *object);
/* "model": no other than this server's. */
bool kni_params_model(struct kni_params_reader *r);
/* Everything but the prompts; max_tokens is what was asked for, 0 to the end of the context. */
bool kni_params_fields(struct kni_params_reader *r, struct kni_params *out);
/* The prompts' tokens, and what max_tokens becomes with them. wanted 0: to the end of the context. */
bool kni_params_prompts(struct kni_params_reader *r, struct kni_params *out, uint32_t wanted);
/* Files that a prompt does not fit the context. n_tokens 0: so many that they were not counted. */
bool kni_params_fail_context(struct kni_params_reader *r, const char *param, uint32_t n_tokens);
/* Files that limits->stop said so. */
bool kni_params_fail_given_up(struct kni_params_reader *r);
/* kni_alloc'ed tokens of a text, or of "messages" in the model's chat template; echo: with the last message's text when it is the assistant's. */
bool kni_params_tokens(struct kni_params_reader *r, const char *param, const char *text, size_t n, unsigned flags, struct kni_params_prompt *out);
bool kni_params_messages(struct kni_params_reader *r, bool echo, struct kni_params_prompt *out);

#endif

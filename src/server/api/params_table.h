/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every field of a request's body that some server of this kind knows, and what becomes of it here, route by route.
 *
 *     done     read by params_*.c, which takes a number's range from here
 *     refused  400 by name, unless it holds a value that leaves the answer as it is: null, or one of those listed with it
 *     ignored  it cannot change the answer, and the note says why; or it does not belong to what the route does
 *
 * A field that changes the answer is done or refused on every route: an answer that silently went without it would be a wrong one.
 * Names that nobody knows are ignored. The table in doc/server.md is written from this one (params_table_test --print), and a test
 * asks the parser about every field and route.
 *
 * Members of objects are fields of their own: "stream_options.include_usage", "messages[].name", "messages[].content[].type".
 */
#ifndef KNI_SERVER_PARAMS_TABLE_H
#define KNI_SERVER_PARAMS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kni_params_route {
    KNI_PARAMS_ROUTE_COMPLETIONS, KNI_PARAMS_ROUTE_CHAT, KNI_PARAMS_ROUTE_TOKENIZE, KNI_PARAMS_ROUTE_DETOKENIZE,
    KNI_PARAMS_ROUTE_COUNT
};

/* Who knows a field. */
enum {
    KNI_FIELD_OPENAI = 1, KNI_FIELD_LLAMA = 2, KNI_FIELD_VLLM = 4, KNI_FIELD_SGLANG = 8, KNI_FIELD_OLLAMA = 16,
    KNI_FIELD_OTHERS = 32, /* TGI, LiteLLM, Mistral, text-generation-webui and such */
    KNI_FIELD_OURS = 64
};

/* Values besides null that leave the answer as it is. */
enum {
    KNI_NEUTRAL_ZERO = 1, KNI_NEUTRAL_ONE = 2, KNI_NEUTRAL_MINUS = 4 /* -1 */, KNI_NEUTRAL_TRUE = 8, KNI_NEUTRAL_FALSE = 16,
    KNI_NEUTRAL_TEXT = 32 /* "" */, KNI_NEUTRAL_LIST = 64 /* [] */, KNI_NEUTRAL_OBJECT = 128 /* {} */
};

enum kni_field_kind { KNI_FIELD_KIND_OTHER, KNI_FIELD_KIND_BOOL, KNI_FIELD_KIND_INTEGER, KNI_FIELD_KIND_NUMBER };

struct kni_field {
    const char *name;
    uint8_t servers;
    char rules[KNI_PARAMS_ROUTE_COUNT + 1]; /* a letter a route: d, r, i */
    uint8_t neutral;
    const char *neutral_texts; /* strings with a blank between them; NULL */
    const char *note;          /* for the document and for whoever was refused; NULL */
    enum kni_field_kind kind;  /* of what is done */
    int64_t low, high;         /* of numbers */
};

extern const struct kni_field kni_fields[]; /* sorted by name */
extern const size_t kni_n_fields;

/* "/v1/completions" */
const char *kni_params_route_name(enum kni_params_route route);
/* The field of that name within a group ("" for the body, "stream_options.", "messages[].", ...); NULL: nobody knows it. */
const struct kni_field *kni_field_find(const char *group, const char *name);
/* As "an integer from 1 to 128"; max_choices bounds n. For fields with a range. */
void kni_field_range(const struct kni_field *field, uint32_t max_choices, char *text, size_t room);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Golden values of the folder test/e2e/golden, and token ids held against them. Everything asserts with cmocka. */
#ifndef KN_TEST_GOLDEN_H
#define KN_TEST_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "kinema/model.h"

/* A JSON file; json_decref it. */
static inline json_t *kn_golden_load(const char *name)
{
    char path[4096];
    json_error_t e;
    snprintf(path, sizeof path, "%s/test/e2e/golden/%s", KN_SOURCE_DIR, name);
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!j)
        fail_msg("%s:%d: %s", path, e.line, e.text);
    return j;
}

/* Tokenizes string number index into room ids at most, which must do, and compares. Returns the ids, for free(). */
static inline int32_t *kn_golden_ids(const struct kn_model *model, size_t index, const char *text, size_t n, unsigned flags, const json_t *want, size_t room, size_t *n_ids)
{
    size_t count = room;
    int32_t *ids = malloc(count * sizeof *ids);
    assert_non_null(ids);
    assert_int_equal(kn_model_tokenize(model, text, n, flags, ids, &count), KN_OK);
    for (size_t i = 0; i < count && i < json_array_size(want); i++)
        if (ids[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("string %zu \"%.60s\": id %zu is %d, want %lld", index, text, i, ids[i], json_integer_value(json_array_get(want, i)));
    if (count != json_array_size(want))
        fail_msg("string %zu \"%.60s\": %zu ids, want %zu", index, text, count, json_array_size(want));
    *n_ids = count;
    return ids;
}

#endif

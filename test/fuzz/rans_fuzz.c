/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: a rANS stream, and models from outside. Byte 0 gives the rows (1..64), byte 1 the tokens in units of 16 (1..64), byte 2
 * whether the model is the built-in one (even) or comes first in the input (odd: a little-endian u32 of its size, then its bytes).
 * The rest is the stream. Every level must say the same of it, and what decodes must survive another round trip.
 */
#include <stdlib.h>
#include <string.h>

#include "base/le.h"
#include "support/cpu_levels.h"
#include "support/symbol_matrix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct kni_rans_model *model, const uint8_t *data, size_t size, uint32_t n_rows, uint32_t n_tokens, const uint8_t *classes)
{
    size_t n = (size_t)n_rows * n_tokens, bound = kni_rans_bound(n_rows, n_tokens);
    uint8_t *a = calloc(n, 1), *b = calloc(n, 1), *out = malloc(bound);
    void *scratch = malloc(kni_rans_scratch_bytes(n_rows, n_tokens)), *few = malloc(kni_rans_decode_scratch_bytes());
    if (!a || !b || !out || !scratch || !few)
        abort();
    enum kn_status s = KN_OK;
    EACH_CPU_LEVEL(level) {
        enum kn_status now = kni_rans_decode(model, data, size, n_rows, n_tokens, classes, level ? b : a, n_tokens,
                                             few, kni_cpu_flags());
        if (level ? now != s : now != KN_OK && now != KN_E_FORMAT)
            abort();
        if (level && now == KN_OK && memcmp(a, b, n))
            abort();
        s = now;
    }
    if (s == KN_OK) {
        size_t m = kni_rans_encode(model, a, n_tokens, n_rows, n_tokens, classes, out, scratch, kni_cpu_flags());
        if (m > bound || kni_rans_decode(model, out, m, n_rows, n_tokens, classes, b, n_tokens, few,
                                         kni_cpu_flags()) != KN_OK || memcmp(a, b, n))
            abort();
    }
    free(a);
    free(b);
    free(out);
    free(scratch);
    free(few);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kni_rans_model *built_in; /* stays for the next input */
    if (size < 3)
        return 0;
    uint32_t n_rows = data[0] % 64u + 1, n_tokens = (data[1] % 64u + 1) * 16;
    bool own = data[2] & 1;
    struct kni_rans_model *model = NULL;
    uint8_t classes[64];
    for (uint32_t i = 0; i < 64; i++)
        classes[i] = (uint8_t)(i < 10 ? 222 : 45 - i / 2 + i % 3 * 64);
    data += 3;
    size -= 3;
    if (!built_in)
        built_in = symbol_matrix_model();
    if (own) {
        struct kn_err err = {0};
        uint32_t n = size < 4 ? 0 : kni_le32_get(data);
        if (size < 4 || n > size - 4)
            return 0;
        enum kn_status s = kni_rans_model_read(&model, data + 4, n, &err);
        if ((s == KN_OK) != (model != NULL) || (s != KN_OK && !err.text[0]))
            abort();
        data += 4 + n;
        size -= 4 + n;
    }
    if (!own || model)
        check(own ? model : built_in, data, size, n_rows, n_tokens, classes);
    kni_rans_model_free(&model);
    return 0;
}

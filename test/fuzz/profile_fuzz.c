/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: a profile, read from bytes as they are and once more with the checksum made right. What is accepted must be usable: it
 * can be written and read again, and the transform runs with it both ways.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "codec/profile/profile.h"
#include "codec/spectral/spectral.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_VALUES (1u << 18)

/* Sixteen tokens there and back. */
static void use(const struct kni_profile *p)
{
    struct kni_kv_layout kv = p->kv;
    if (kni_kv_block_values(&kv) > MAX_VALUES)
        return;
    uint32_t id = 0;
    uint16_t *base = malloc(kni_kv_block_bytes(&kv));
    const struct kni_kv_host view = kni_kv_host_by_block(&kv, base, &id, 1);
    struct kni_spectral *s = NULL;
    struct kni_escapes escapes = {0};
    if (base && kni_spectral_open(&s, p, 16, kni_cpu_flags(), NULL) == KN_OK) {
        for (size_t i = 0; i < kni_kv_block_values(&kv); i++)
            base[i] = (uint16_t)(i * 40503u);
        for (uint32_t part = 0; part < p->n_parts; part++) {
            const struct kni_profile_part *q = &p->parts[part];
            uint8_t *symbols = malloc((size_t)(q->n_layers + q->rows[0]) * 16);
            if (symbols && kni_spectral_forward(s, &view, 0, 16, part, KNI_PROFILE_PRESET_FINE, symbols, 16, &escapes) == KN_OK &&
                kni_spectral_inverse(s, &view, 0, 16, part, KNI_PROFILE_PRESET_FINE, symbols, 16, &escapes, 0) != KN_OK)
                abort(); /* cannot read what it wrote */
            free(symbols);
        }
    }
    kni_free(escapes.values);
    kni_spectral_close(&s);
    free(base);
}

static void read_once(const uint8_t *data, size_t size)
{
    struct kni_profile *p, *again;
    struct kn_err err = {0};
    enum kn_status s = kni_profile_read(&p, data, size, "input", &err);
    if (s != KN_OK && s != KN_E_FORMAT && s != KN_E_MISMATCH && s != KN_E_NOMEM)
        abort();
    if (s != KN_OK)
        return;
    void *bytes;
    size_t n;
    if (kni_profile_write(p, &bytes, &n, &err) == KN_OK) {
        if (n != size || kni_profile_read(&again, bytes, n, "again", &err) != KN_OK)
            abort();
        kni_profile_close(&again);
        kni_free(bytes);
    } else if (err.status != KN_E_NOMEM) {
        abort();
    }
    use(p);
    kni_profile_close(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_once(data, size);
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    kni_profile_refresh_checksum(copy, size);
    read_once(copy, size);
    free(copy);
    return 0;
}

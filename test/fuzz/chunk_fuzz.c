/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: a chunk container, read and restored into a small pool. Checksums would stop nearly every mutation, so each
 * input is tried as it is and once more with its checksums made right, so that the layouts see it too. The expectation is
 * taken from the container itself where its shape is small, to get past the comparison. Chunks of the spectral layout are made to name
 * the one profile that is open here, which has the shape of its seeds.
 */
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "codec/container.h"
#include "support/refresh_checksums.h"
#include "support/tiny_profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_VALUES (1u << 20)

static struct kni_profile *profile(void)
{
    static struct kni_profile *p;
    if (!p)
        p = kn_tiny_profile_make(&(struct kn_tiny_profile_opts){.n_sinks = 3, .step_k = {.02f}});
    return p;
}

static void restore(const uint8_t *data, size_t size)
{
    struct kni_chunk_meta m;
    struct kn_err err = {0};
    kni_chunk_verify(data, size, &err);
    if (kni_chunk_read_meta(data, size, &m, &err) != KN_OK)
        return;
    uint32_t n_blocks = (m.first_token % 256 + m.n_tokens) / KNI_BLOCK_TOKENS;
    if (m.first_token >= 256 || m.n_tokens > 256 || kni_kv_block_values(&m.kv) > MAX_VALUES / n_blocks)
        m = (struct kni_chunk_meta){.n_tokens = 16, .kv = {1, 1, 16, KN_KV_TYPE_F16}}; /* too large here: ends as a mismatch */
    n_blocks = (m.first_token + m.n_tokens) / KNI_BLOCK_TOKENS;
    uint16_t *base = malloc(kni_kv_block_bytes(&m.kv) * n_blocks);
    uint32_t *table = malloc(n_blocks * sizeof *table);
    struct kni_codec *codec = NULL;
    struct kni_codec_opts opts = {.preset = KN_PRESET_EXACT, .profile = profile()};
    if (base && table && kni_codec_open(&codec, &opts, NULL) == KN_OK) {
        for (uint32_t i = 0; i < n_blocks; i++)
            table[i] = n_blocks - 1 - i;
        const struct kni_kv_host view = kni_kv_host_by_block(&m.kv, base, table, n_blocks);
        enum kn_status s = kni_chunk_restore(codec, data, size, &m, &view, &err);
        if (s != KN_OK && s != KN_E_FORMAT && s != KN_E_MISMATCH && s != KN_E_NOMEM)
            abort();
        if (s == KN_OK && kni_chunk_verify(data, size, NULL) != KN_OK)
            abort(); /* restored from a container that does not verify */
    }
    kni_codec_close(&codec);
    free(base);
    free(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    restore(data, size);
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    if (size >= KNI_CONTAINER_FIXED_BYTES && copy[94] == KNI_LAYOUT_ID_SPECTRAL)
        memcpy(copy + 40, profile()->id, 16);
    kn_refresh_checksums(copy, size);
    restore(copy, size);
    free(copy);
    return 0;
}

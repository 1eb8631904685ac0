/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/chain.h"

#include <string.h>

struct kni_hash kni_chain_seed(const uint8_t fingerprint[16], const char *salt)
{
    struct kni_hasher h;
    static const char domain[16] = "kinema-chain-1"; /* domain separation: no other use of BLAKE2b here has this key */
    kni_hasher_init(&h, domain, sizeof domain);
    kni_hasher_update(&h, fingerprint, 16);
    if (salt)
        kni_hasher_update(&h, salt, strlen(salt));
    return kni_hasher_final(&h);
}

struct kni_hash kni_chain_next(const struct kni_hash *prev, const int32_t *tokens, uint32_t n_tokens)
{
    struct kni_hasher h;
    kni_hasher_init(&h, NULL, 0);
    kni_hasher_update(&h, prev->bytes, sizeof prev->bytes);
    for (uint32_t i = 0; i < n_tokens; i++) {
        uint32_t t = (uint32_t)tokens[i];
        uint8_t le[4] = {(uint8_t)t, (uint8_t)(t >> 8), (uint8_t)(t >> 16), (uint8_t)(t >> 24)};
        kni_hasher_update(&h, le, 4);
    }
    return kni_hasher_final(&h);
}

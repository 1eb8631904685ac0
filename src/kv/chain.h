/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of prefixes. The chain hash of a prefix is BLAKE2b over the hash of the prefix one block (16 tokens) shorter and
 * the block's token ids, little-endian; it starts from tenant salt and model fingerprint. The same bytes name the same
 * prefix in every process and on every machine: prefix index and store use these keys. Source: paged-KV prefix caching
 * as in vLLM, with a cryptographic hash because tenants must not be able to construct collisions.
 */
#ifndef KNI_KV_CHAIN_H
#define KNI_KV_CHAIN_H

#include "base/hash.h"

/* salt may be NULL (same as ""); any length. */
struct kni_hash kni_chain_seed(const uint8_t fingerprint[16], const char *salt);
/* n_tokens ids (16 for blocks of the pool). */
struct kni_hash kni_chain_next(const struct kni_hash *prev, const int32_t *tokens, uint32_t n_tokens);

#endif

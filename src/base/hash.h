/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hashes. BLAKE2b (libsodium) where an adversary could profit from a collision: prefix chains, fingerprints.
 * XXH3 where only damage must be found: checksums of sections. Any thread.
 */
#ifndef KNI_BASE_HASH_H
#define KNI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define KNI_HASH_BYTES 16

struct kni_hash { uint8_t bytes[KNI_HASH_BYTES]; };

/* An incremental BLAKE2b-128. The struct is plain memory: no fini is needed. */
struct kni_hasher { _Alignas(64) uint8_t opaque[384]; };

/* key may be NULL; key_bytes at most 64. */
void kni_hasher_init(struct kni_hasher *h, const void *key, size_t key_bytes);
void kni_hasher_update(struct kni_hasher *h, const void *data, size_t n_bytes);
struct kni_hash kni_hasher_final(struct kni_hasher *h);

struct kni_hash kni_hash_bytes(const void *data, size_t n_bytes);
/* 32 lower-case hex digits and NUL into out[33]. */
void kni_hash_hex(const struct kni_hash *h, char out[33]);
int kni_hash_equal(const struct kni_hash *a, const struct kni_hash *b);

uint64_t kni_xxh3(const void *data, size_t n_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <assert.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>
#include <xxhash.h>

_Static_assert(sizeof(struct kni_hasher) >= sizeof(crypto_generichash_blake2b_state), "opaque holds the state");

static crypto_generichash_blake2b_state *state(struct kni_hasher *h)
{
    return (crypto_generichash_blake2b_state *)(void *)h->opaque;
}

/* libsodium wants to be started before any other call; it then also picks the machine's best BLAKE2b. Should that fail,
 * its plain C form stays in place, which gives the same bytes. */
static void start_sodium(void)
{
    int rc = sodium_init();
    (void)rc;
}

void kni_hasher_init(struct kni_hasher *h, const void *key, size_t key_bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_sodium);
    assert(key_bytes <= crypto_generichash_blake2b_KEYBYTES_MAX);
    crypto_generichash_blake2b_init(state(h), key, key_bytes, KNI_HASH_BYTES);
}

void kni_hasher_update(struct kni_hasher *h, const void *data, size_t n_bytes)
{
    crypto_generichash_blake2b_update(state(h), data, n_bytes);
}

struct kni_hash kni_hasher_final(struct kni_hasher *h)
{
    struct kni_hash out;
    crypto_generichash_blake2b_final(state(h), out.bytes, sizeof out.bytes);
    return out;
}

struct kni_hash kni_hash_bytes(const void *data, size_t n_bytes)
{
    struct kni_hasher h;
    kni_hasher_init(&h, NULL, 0);
    kni_hasher_update(&h, data, n_bytes);
    return kni_hasher_final(&h);
}

void kni_hash_hex(const struct kni_hash *h, char out[33])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < KNI_HASH_BYTES; i++) {
        out[2 * i] = digits[h->bytes[i] >> 4];
        out[2 * i + 1] = digits[h->bytes[i] & 15];
    }
    out[32] = 0;
}

int kni_hash_equal(const struct kni_hash *a, const struct kni_hash *b)
{
    return memcmp(a->bytes, b->bytes, KNI_HASH_BYTES) == 0;
}

uint64_t kni_xxh3(const void *data, size_t n_bytes)
{
    return XXH3_64bits(data, n_bytes);
}

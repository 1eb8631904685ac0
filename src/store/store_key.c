/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and manifest entries as bytes (doc/format-store.md).
 *
 *     kn1:<32 hex model>:<32 hex profile>:<32 hex chain>:exact-f16-256-v3
 *                                                        tiles-f16-256-v3-l64-p0-h0
 *                                                        medium-f16-256-v3-rans
 *                                                        medium-f16-256-v3-hevc-basic
 *
 * The variant carries what the three hashes do not: preset, KV type, tokens in the chunk (the chain names the prefix up to
 * the chunk's end, not where the chunk begins), container version, for tiles its options as they were asked for
 * (0 = chosen by shape, which is a function of the model), and for the spectral presets the backend. Video whose tools are held
 * to the basic ones has keys of its own: a decoder that has no others would miss whatever was published first with all of them. Encoders and
 * slices are in no key, since every reader decodes all of them to the same values. Longest: 4 + 3*33 + 66 characters, far below LMDB's 511.
 */
#include "store/store.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/le.h"
#include "codec/container.h"

#define ENTRY_VERSION 1u
#define CONTAINER_VERSION KNI_CONTAINER_VERSION /* a new container version gets new keys, so that versions never fight */

void kni_store_entry_encode(const struct kni_store_entry *e, uint8_t out[KNI_STORE_ENTRY_BYTES])
{
    memset(out, 0, KNI_STORE_ENTRY_BYTES);
    kni_le32_put(out, ENTRY_VERSION);
    kni_le32_put(out + 4, e->n_tokens);
    kni_le64_put(out + 8, e->n_bytes);
    kni_le64_put(out + 16, e->xxh3);
    kni_le64_put(out + 24, e->created_s);
    kni_le64_put(out + 32, e->last_used_s);
    kni_le64_put(out + 40, e->ttl_s);
    kni_le32_put(out + 48, e->first_token);
    memcpy(out + 56, e->fingerprint, 16);
    memcpy(out + 72, e->preset, strnlen(e->preset, sizeof e->preset - 1));
    kni_le64_put(out + 88, kni_xxh3(out, 88));
}

enum kn_status kni_store_entry_decode(struct kni_store_entry *e, const void *data, size_t n_bytes)
{
    const uint8_t *p = data;
    memset(e, 0, sizeof *e);
    if (n_bytes >= 4 && kni_le32_get(p) != ENTRY_VERSION && kni_le32_get(p) < 256)
        return KN_E_MISMATCH;
    if (n_bytes != KNI_STORE_ENTRY_BYTES || kni_le32_get(p) != ENTRY_VERSION || kni_le64_get(p + 88) != kni_xxh3(p, 88))
        return KN_E_FORMAT;
    e->n_tokens = kni_le32_get(p + 4);
    e->n_bytes = kni_le64_get(p + 8);
    e->xxh3 = kni_le64_get(p + 16);
    e->created_s = kni_le64_get(p + 24);
    e->last_used_s = kni_le64_get(p + 32);
    e->ttl_s = kni_le64_get(p + 40);
    e->first_token = kni_le32_get(p + 48);
    memcpy(e->fingerprint, p + 56, 16);
    memcpy(e->preset, p + 72, 15);
    return KN_OK;
}

bool kni_store_entry_is_expired(const struct kni_store_entry *e, uint64_t ttl_s, uint64_t now_s)
{
    uint64_t age = now_s > e->created_s ? now_s - e->created_s : 0;
    return (e->ttl_s && age >= e->ttl_s) || (ttl_s && age >= ttl_s);
}

void kni_store_key_make(struct kni_store_key *out, const struct kni_chunk_meta *meta, const struct kn_tiles_opts *tiles, const struct kn_hevc_opts *hevc)
{
    struct kni_hash fingerprint, profile;
    char model_hex[33], profile_hex[33], chain_hex[33], variant[80];
    memcpy(fingerprint.bytes, meta->fingerprint, 16);
    memcpy(profile.bytes, meta->profile, 16);
    kni_hash_hex(&fingerprint, model_hex);
    kni_hash_hex(&profile, profile_hex);
    kni_hash_hex(&meta->chain, chain_hex);
    const char *preset = kni_preset_name(meta->preset), *type = meta->kv.type == KN_KV_TYPE_BF16 ? "bf16" : "f16";
    snprintf(variant, sizeof variant, "%s-%s-%u-v%u", preset, type, meta->n_tokens, CONTAINER_VERSION);
    size_t n = strlen(variant);
    if (meta->preset == KN_PRESET_TILES) {
        static const struct kn_tiles_opts none;
        const struct kn_tiles_opts *t = tiles ? tiles : &none;
        snprintf(variant + n, sizeof variant - n, "-l%u-p%u-h%u", t->levels ? t->levels : 64, t->tokens_per_picture, t->tile_height);
    } else if (kni_preset_needs_profile(meta->preset)) {
        snprintf(variant + n, sizeof variant - n, "-%s", kni_backend_name(meta->backend ? meta->backend : kni_backend_of(meta->preset, KN_BACKEND_DEFAULT)));
    }
    n = strlen(variant);
    bool video = meta->preset == KN_PRESET_TILES || (kni_preset_needs_profile(meta->preset) && meta->backend == KNI_BACKEND_ID_HEVC);
    if (video && hevc && hevc->tools == KN_HEVC_TOOLS_BASIC)
        snprintf(variant + n, sizeof variant - n, "-basic");
    size_t length = (size_t)snprintf(out->text, sizeof out->text, "kn1:%s:%s:%s:%s", model_hex, profile_hex, chain_hex, variant);
    assert(strlen(variant) + 1 < sizeof variant && length < sizeof out->text); /* the longest values fit with room to spare */
    (void)length;
}

bool kni_store_key_is_valid(const char *text)
{
    size_t n = strnlen(text, KNI_STORE_KEY_BYTES);
    if (n == 0 || n == KNI_STORE_KEY_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return true;
}

bool kni_store_buf_reserve(struct kni_store_buf *buf, size_t n_bytes)
{
    if (n_bytes <= buf->capacity)
        return true;
    uint8_t *p = kni_alloc(KNI_ALLOC_TAG_STORE, n_bytes, 64);
    if (!p)
        return false;
    kni_free(buf->data); /* contents are not kept: every get fills the whole */
    buf->data = p;
    buf->capacity = n_bytes;
    buf->n_bytes = 0;
    return true;
}

void kni_store_buf_fini(struct kni_store_buf *buf)
{
    kni_free(buf->data);
    *buf = (struct kni_store_buf){0};
}

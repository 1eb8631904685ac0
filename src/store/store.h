/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores of coded chunks, seen from inside: one table of operations a URL scheme, and what fetch/ needs of it.
 *
 *     key  "kn1:<fingerprint>:<profile>:<chain hash>:<variant>"   all hex but the variant; doc/format-store.md
 *     data      key -> container bytes                            written first
 *     manifest  key -> struct kni_store_entry                     written last: what can be seen is complete
 *
 * A lookup believes only manifest entries. A get copies the container into the caller's buffer and compares its XXH3 with
 * the entry's, so that no transaction or lock of the store stays open while a chunk is decoded.
 *
 * Threads: the functions declared here may be called by any number of threads on one handle (the public ones of
 * kinema/store.h promise less). Keys are bytes computed from bytes: no process, address or locale has a part in them.
 */
#ifndef KNI_STORE_STORE_H
#define KNI_STORE_STORE_H

#include "base/arena.h"
#include "base/hash.h"
#include "codec/codec.h"
#include "kinema/store.h"

#define KNI_STORE_KEY_BYTES 192u /* longest key, its NUL counted; LMDB allows 511 */
#define KNI_STORE_DEFAULT_MAX_BYTES (16ull << 30)

struct kni_store_key { char text[KNI_STORE_KEY_BYTES]; };

/* One manifest entry. created_s and last_used_s are wall seconds; ttl_s counts from created_s, 0: for ever. */
struct kni_store_entry {
    uint64_t n_bytes, xxh3; /* of the container */
    uint64_t created_s, last_used_s, ttl_s;
    uint32_t first_token, n_tokens;
    uint8_t fingerprint[16];
    char preset[16];
};

/* On disk: 96 bytes, doc/format-store.md. */
#define KNI_STORE_ENTRY_BYTES 96u
void kni_store_entry_encode(const struct kni_store_entry *entry, uint8_t out[KNI_STORE_ENTRY_BYTES]);
/* KN_E_FORMAT: wrong length or checksum; KN_E_MISMATCH: another version. */
enum kn_status kni_store_entry_decode(struct kni_store_entry *out, const void *data, size_t n_bytes);
/* True when the entry's own ttl or the reader's (0: none) has passed. A clock that ran backwards expires nothing. */
bool kni_store_entry_is_expired(const struct kni_store_entry *entry, uint64_t ttl_s, uint64_t now_s);

/* The key of a chunk. Everything that makes two contents incompatible has a place in it: model, profile, prefix (and
 * tenant, through the chain), preset and its options, backend, KV type, chunk length, format version. tiles and hevc may be NULL:
 * defaults. Of hevc only basic tools make a difference: who asks for them must not find streams that use others. */
void kni_store_key_make(struct kni_store_key *out, const struct kni_chunk_meta *meta, const struct kn_tiles_opts *tiles, const struct kn_hevc_opts *hevc);
/* Printable ASCII without space, 1 to KNI_STORE_KEY_BYTES - 1 characters. */
bool kni_store_key_is_valid(const char *text);

/* A growable buffer for containers; zero-initialise, kni_store_buf_fini frees. */
struct kni_store_buf { uint8_t *data; size_t n_bytes, capacity; };
bool kni_store_buf_reserve(struct kni_store_buf *buf, size_t n_bytes);
void kni_store_buf_fini(struct kni_store_buf *buf);

/* Snapshot of a manifest: rows and keys live in the arena. */
struct kni_store_row {
    const char *key;
    struct kni_store_entry entry;
    enum kn_status status; /* of the entry itself: KN_OK, or why it cannot be read */
    struct kni_store_row *next;
};
struct kni_store_list { struct kni_arena arena; struct kni_store_row *first; size_t n_rows; };
void kni_store_list_fini(struct kni_store_list *list);

struct kn_store;

/* One a scheme. A backend embeds struct kn_store as its first member. Sentences in err name the store. */
struct kni_store_ops {
    const char *scheme; /* with its colon */
    const char *form;   /* for error texts: "lmdb:PATH" */
    /* opts is filled in (defaults applied); rest is the URL after the scheme. */
    enum kn_status (*open)(struct kn_store **out, const struct kn_store_opts *opts, const char *rest, struct kn_err *err);
    void (*close)(struct kn_store *store);
    void (*interrupt)(struct kn_store *store); /* as kni_store_interrupt; NULL: calls cannot be interrupted */
    bool (*is_open)(struct kn_store *store);   /* as kni_store_is_open; NULL: always */
    bool (*is_read_only)(const struct kn_store *store); /* besides store->read_only, for a store that may change; NULL: no */
    void (*retry)(struct kn_store *store);     /* as kni_store_retry; NULL: nothing to do */
    enum kn_status (*lookup)(struct kn_store *store, const struct kni_store_key *keys, uint32_t n_keys, uint32_t *n_found, struct kn_err *err);
    enum kn_status (*get)(struct kn_store *store, const char *key, struct kni_store_entry *entry, struct kni_store_buf *buf, struct kn_err *err);
    enum kn_status (*put)(struct kn_store *store, const char *key, const struct kni_store_entry *entry, const void *data, struct kn_err *err);
    enum kn_status (*drop)(struct kn_store *store, const char *key, const struct kni_store_entry *only, struct kn_err *err);
    enum kn_status (*flush)(struct kn_store *store);
    enum kn_status (*list)(struct kn_store *store, const char *prefix, struct kni_store_list *out);
    enum kn_status (*stat)(struct kn_store *store, struct kn_store_stat *out);
    enum kn_status (*gc)(struct kn_store *store, uint64_t *n_removed, uint64_t *bytes_removed);
    enum kn_status (*rm)(struct kn_store *store, const char *prefix, uint64_t *n_removed);
};

struct kn_store {
    const struct kni_store_ops *ops;
    uint64_t max_bytes, ttl_s;
    bool read_only; /* constant after open; ask kn_store_is_read_only */
    uint64_t (*wall_s)(void); /* kni_wall_s; tests turn it */
};

extern const struct kni_store_ops kni_store_lmdb_ops, kni_store_fault_ops;

/* The store is about to be closed: calls that wait for something (an order of fault:, a network) end soon, and later ones do
 * not begin to wait. They may fail. A system call that hangs in the kernel is beyond it. Any thread. */
void kni_store_interrupt(struct kn_store *store);
/* False for a store that is tried again and could not be opened yet. Any thread; never waits for the store. */
bool kni_store_is_open(struct kn_store *store);
/* Tries to open a store that is not open, and opens one anew that fails for good; otherwise, and within a second of the last
 * try, nothing. Any thread, though one that may wait for the store. Calls of other threads fail meanwhile and do not wait. */
void kni_store_retry(struct kn_store *store);
/* Opens a stand-in for the store at opts->url, which opens at once when the store does and at a kni_store_retry otherwise; calls fail
 * with KN_E_IO until then. Errors that no waiting mends stay errors: KN_E_ARG, KN_E_UNSUPPORTED, KN_E_NOMEM, and KN_E_MISMATCH (the
 * folder is somebody else's, or of another version). */
enum kn_status kni_store_open_lazy(struct kn_store **out, const struct kn_store_opts *opts, struct kn_err *err);

/* How many of the n_keys, from the first on without a gap, are listed, complete and not expired. */
enum kn_status kni_store_lookup(struct kn_store *store, const struct kni_store_key *keys, uint32_t n_keys, uint32_t *n_found, struct kn_err *err);
/* Copies a container into buf (grown as needed) and notes the use, to be written later. *entry (may be NULL) is filled as
 * far as it could be read. KN_E_NOT_FOUND: no such chunk, or its data is gone, or it is expired; KN_E_FORMAT: damaged. */
enum kn_status kni_store_get(struct kn_store *store, const char *key, struct kni_store_entry *entry, struct kni_store_buf *buf, struct kn_err *err);
/* Stores a container of meta->... under key: data, then manifest entry; visible to all when it returns KN_OK, else not at
 * all. Evicts the least recently used beyond max_bytes. A chunk that is there already, byte for byte, is only renewed.
 * KN_E_FULL: larger than the limit, or the disk is full; KN_E_STATE: read-only. */
enum kn_status kni_store_put(struct kn_store *store, const char *key, const struct kni_chunk_meta *meta, const void *data, size_t n_bytes, struct kn_err *err);
/* Removes one chunk. With only, just when the entry is still that one (same checksum and creation). Absent is KN_OK. */
enum kn_status kni_store_drop(struct kn_store *store, const char *key, const struct kni_store_entry *only, struct kn_err *err);
/* Writes noted uses. Called by background threads, and by close. */
enum kn_status kni_store_flush(struct kn_store *store);
/* Checks a container against its entry and its own checksums. */
enum kn_status kni_store_check(const struct kni_store_entry *entry, const void *data, size_t n_bytes, struct kn_err *err);

#endif

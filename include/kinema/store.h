/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store of coded KV chunks, as an operator sees it: list, count, verify, collect, remove. The engine opens its own
 * handle from the same URL. URLs: "lmdb:PATH" (a directory, created when missing);
 * "fault:CONTROLFILE:URL" (experimental, never for production: the store at URL, misbehaving as a file says; doc/store-faults.md).
 *
 * A handle has one owner thread. Several processes may open one LMDB store at once.
 */
#ifndef KINEMA_STORE_H
#define KINEMA_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_store;

struct kn_store_opts {
    size_t size;        /* sizeof(struct kn_store_opts) */
    const char *url;    /* borrowed for the call; no default */
    uint64_t max_bytes; /* size limit of stored chunks, bytes; oldest used are evicted beyond it; 0: 16 GiB */
    uint64_t ttl_s;     /* seconds that a chunk lives after its last write; 0: for ever */
    bool read_only;     /* never writes, not even last-use times; fails when the store is missing. Needs no permission to write: without
                         * it on lock.mdb reading goes on beside a writer, with a check after each (doc/format-store.md) */
    bool may_read_only; /* a store that may not be written (permissions, a read-only mount) is opened read_only and a warning logged,
                         * instead of failing */
};

/* One stored chunk. Strings borrowed for the callback. */
struct kn_store_item {
    const char *key;        /* printable */
    const char *preset;     /* as in its manifest entry */
    uint64_t n_bytes;       /* of the container */
    uint64_t created_s;     /* seconds since 1970 */
    uint64_t last_used_s;   /* seconds since 1970 */
    uint32_t first_token, n_tokens;
    uint8_t fingerprint[16]; /* of the model */
};

struct kn_store_stat {
    size_t size; /* sizeof(struct kn_store_stat), set by the caller */
    uint64_t n_chunks, n_bytes; /* complete chunks and their container bytes */
    uint64_t n_orphans, orphan_bytes; /* data without a manifest entry (a publish cut short); gc removes them */
    uint64_t n_expired;
    uint64_t max_bytes, map_bytes, used_bytes; /* limit; LMDB map size and pages in use */
};

typedef void (*kn_store_item_fn)(void *user, const struct kn_store_item *item);
/* status KN_OK or why the chunk is bad, in a sentence. */
typedef void (*kn_store_verify_fn)(void *user, const struct kn_store_item *item, enum kn_status status, const char *text);

KN_API enum kn_status kn_store_open(struct kn_store **out, const struct kn_store_opts *opts, struct kn_err *err);
KN_API void kn_store_close(struct kn_store **store);
/* Whether it was opened read-only, asked for or not. */
KN_API bool kn_store_is_read_only(const struct kn_store *store);
KN_API enum kn_status kn_store_ls(struct kn_store *store, kn_store_item_fn fn, void *user);
/* KN_E_ARG when the size of *out is not set; KN_E_IO. */
KN_API enum kn_status kn_store_stat(struct kn_store *store, struct kn_store_stat *out);
/* Reads every chunk and checks its checksums and its manifest entry. KN_OK when all are good, KN_E_FORMAT otherwise. */
KN_API enum kn_status kn_store_verify(struct kn_store *store, kn_store_verify_fn fn, void *user);
/* Hands out the container of the one chunk whose key begins with prefix, after checking it; bytes are borrowed for the call of fn. KN_E_NOT_FOUND: there
 * is none; KN_E_ARG: there are several; KN_E_FORMAT: it is damaged; or what fn returned. */
typedef enum kn_status (*kn_store_bytes_fn)(void *user, const struct kn_store_item *item, const void *bytes, size_t n_bytes);
KN_API enum kn_status kn_store_get(struct kn_store *store, const char *prefix, kn_store_bytes_fn fn, void *user, struct kn_err *err);
/* Removes expired chunks and orphans, then evicts down to max_bytes. Counts removed chunks and bytes (may be NULL). */
KN_API enum kn_status kn_store_gc(struct kn_store *store, uint64_t *n_removed, uint64_t *bytes_removed);
/* Removes every chunk whose key begins with prefix ("" removes all). */
KN_API enum kn_status kn_store_rm(struct kn_store *store, const char *prefix, uint64_t *n_removed);

#ifdef __cplusplus
}
#endif
#endif

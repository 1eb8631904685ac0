/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a model: one, or the parts of a split one, and whether they are still what was read.
 *
 *     NAME-00001-of-00003.gguf   all metadata, split.no 0, tensors (or none)
 *     NAME-00002-of-00003.gguf   split.no 1, tensors             each part: split.count 3, split.tensors.count of all together
 *     NAME-00003-of-00003.gguf   split.no 2, tensors
 *
 * The first part is opened by its path and leads to the others, which lie beside it. Each is mapped and parsed by itself, with its own
 * alignment; their tensors are then joined in the order of the parts. What a part says of itself has to agree with its place: another
 * part's number, another count of parts or of tensors, another architecture, or a tensor that an earlier part has are refused, each
 * with the file's name. Source of the format: llama.cpp's gguf-split and its loader.
 *
 * Content. A model's fingerprint covers every byte that is computed with: metadata (without the keys split.*), names, types, shapes
 * and data of the tensors, in the order of the parts. So a split model has the fingerprint of the file that it was split from. Data is
 * hashed in leaves of 1 MiB by as many threads as help (BLAKE2b reads about 1 GB/s a core), and the fingerprint is the hash of leaves:
 *
 *     fingerprint = H( "kn-model-2" | pairs | infos | H( H(leaf 0) | H(leaf 1) | ... ) )
 *
 * Change. Files are mapped, so what another process writes into them is computed with at once. Each file's stamp (size, mtime, ctime) is
 * kept and compared, one fstat a file. Where it differs, and the size does not, the data is hashed again: a touch, a new name (mv over
 * the file leaves the mapped one as it is, with another ctime), a new link or mode leave it as it was, and the model goes on with the new
 * stamp. Other data, or another size, is a change: said once in the log, and for good, since what has been computed in between and
 * what has been copied out of the file no longer belong together.
 * Not seen: what changes no time. Writers through a shared mapping on tmpfs do that; a network file system may tell seconds late.
 *
 * Threads: any. The fast way takes no lock and allocates nothing.
 */
#ifndef KNI_MODEL_PARTS_H
#define KNI_MODEL_PARTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"

#define KNI_PARTS_MAX 512u

struct kni_gguf;

struct kni_part {
    const char *path;
    struct kni_file_map map;
    struct kni_gguf *gguf;  /* as parsed; the first's has the tensors of all once they are joined */
    _Atomic uint64_t seen;  /* hash of the last stamp under which the data was what was read */
};

struct kni_parts {
    uint32_t n;
    struct kni_part *parts;
    struct kni_hash content; /* of the tensors' data */
    pthread_mutex_t lock;    /* guards fault until changed is set, and lets one thread read a suspicious file while others wait for the answer */
    _Atomic bool changed;    /* released after fault is written; from then on fault is constant */
    struct kn_err fault;
};

/* Maps and parses path and all parts that it leads to. parts is zeroed; on failure kni_parts_close releases what there is. */
enum kn_status kni_parts_open(struct kni_parts *parts, struct kni_arena *arena, const char *path, struct kn_err *err);
void kni_parts_close(struct kni_parts *parts);

/* Hashes everything; KN_E_CHANGED when a file was written meanwhile, KN_E_IO, KN_E_NOMEM. */
enum kn_status kni_parts_fingerprint(struct kni_parts *parts, uint8_t fingerprint[16], struct kn_err *err);
/* KN_OK, or KN_E_CHANGED with a sentence, from the first time on for ever. */
enum kn_status kni_parts_check(struct kni_parts *parts, struct kn_err *err);

/* The part that holds the byte at. */
const struct kni_part *kni_parts_find(const struct kni_parts *parts, const void *at);
uint64_t kni_parts_bytes(const struct kni_parts *parts);

#endif

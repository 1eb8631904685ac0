/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Container reading and writing. See the header for the layout and doc/format-chunk.md for offsets. All integers go
 * through base/le.h one by one: no struct is ever overlaid on bytes.
 */
#include "codec/container.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/le.h"

/* Offsets in the fixed part. */
enum {
    AT_MAGIC = 0,         /* "KNC1" */
    AT_VERSION = 4,       /* u32 */
    AT_HEADER_BYTES = 8,  /* u32, fixed part + table + checksum */
    AT_N_SECTIONS = 12,   /* u32 */
    AT_TOTAL_BYTES = 16,  /* u64, the whole container */
    AT_FINGERPRINT = 24,  /* 16 bytes */
    AT_PROFILE = 40,      /* 16 bytes */
    AT_CHAIN = 56,        /* 16 bytes */
    AT_FIRST_TOKEN = 72,  /* u32 */
    AT_N_TOKENS = 76,     /* u32 */
    AT_N_LAYER = 80,      /* u32 */
    AT_N_KV_HEAD = 84,    /* u32 */
    AT_D_HEAD = 88,       /* u32 */
    AT_KV_TYPE = 92,      /* u8 */
    AT_PRESET = 93,       /* u8 */
    AT_LAYOUT = 94,       /* u8 */
    AT_BACKEND = 95,      /* u8 */
    AT_LEVELS = 96,       /* u32 */
    AT_RESOLUTION = 100,  /* u32 */
    AT_TILE_HEIGHT = 104, /* u32 */
    AT_HEAD_COLS = 108,   /* u32 */
    AT_GRID_COLS = 112,   /* u32 */
    AT_TOOLS = 116,       /* u32 */
    AT_ZERO = 120,        /* 8 bytes, zero */
    FIXED_END = 128
};
_Static_assert(FIXED_END == KNI_CONTAINER_FIXED_BYTES, "header size");
_Static_assert(AT_BACKEND + 1 == AT_LEVELS && AT_GRID_COLS + 4 == AT_TOOLS && AT_ZERO + 8 == FIXED_END, "no hole in the header");

/* Offsets in a table entry. */
enum { ENTRY_KIND = 0, ENTRY_INDEX = 4, ENTRY_OFFSET = 8, ENTRY_SIZE = 16, ENTRY_CHECKSUM = 24, ENTRY_END = 32 };
_Static_assert(ENTRY_END == KNI_CONTAINER_ENTRY_BYTES, "entry size");

static const uint8_t magic[4] = {'K', 'N', 'C', '1'};

static size_t table_end(uint32_t n_sections)
{
    return FIXED_END + (size_t)n_sections * ENTRY_END;
}

static size_t header_bytes(uint32_t n_sections)
{
    return table_end(n_sections) + 8;
}

/* Fields that stay in range make every later product fit in 64 bits: 1024 layers x 2 x 256 heads x 1024 x 65536 tokens
 * is 2^45 values. Returns the name of the first bad field, or NULL. */
static const char *bad_field(const struct kni_container_header *h)
{
    const struct kni_chunk_meta *m = &h->meta;
    if (m->kv.n_layer < 1 || m->kv.n_layer > KNI_CONTAINER_MAX_LAYERS)
        return "layer count";
    if (m->kv.n_kv_head < 1 || m->kv.n_kv_head > KNI_CONTAINER_MAX_KV_HEADS)
        return "KV head count";
    if (m->kv.d_head < 1 || m->kv.d_head > KNI_CONTAINER_MAX_D_HEAD)
        return "head width";
    if (m->kv.type != KN_KV_TYPE_F16 && m->kv.type != KN_KV_TYPE_BF16)
        return "KV type";
    if (m->n_tokens < 1 || m->n_tokens > KNI_CONTAINER_MAX_TOKENS || m->n_tokens % KNI_BLOCK_TOKENS)
        return "token count";
    if (m->first_token % KNI_BLOCK_TOKENS || m->first_token > INT32_MAX - m->n_tokens)
        return "first token";
    if (h->n_sections > KNI_CONTAINER_MAX_SECTIONS)
        return "section count";
    if (h->tools && h->backend != KNI_BACKEND_ID_HEVC)
        return "HEVC tools";
    return NULL;
}

enum kn_status kni_container_open(struct kni_container *out, const void *data, size_t n_bytes, struct kn_err *err)
{
    const uint8_t *b = data;
    if (n_bytes < FIXED_END)
        return kni_err_set(err, KN_E_FORMAT, "chunk of %zu bytes is shorter than a header; drop it and recompute", n_bytes);
    if (memcmp(b + AT_MAGIC, magic, 4))
        return kni_err_set(err, KN_E_FORMAT, "not a Kinema chunk (magic %02x%02x%02x%02x); drop it and recompute", b[0], b[1], b[2], b[3]);
    uint32_t version = kni_le32_get(b + AT_VERSION);
    if (version != KNI_CONTAINER_VERSION)
        return kni_err_set(err, KN_E_MISMATCH, "chunk format version %u, this build reads %u; recompute and publish again",
                           version, KNI_CONTAINER_VERSION);
    uint32_t n_sections = kni_le32_get(b + AT_N_SECTIONS);
    if (n_sections > KNI_CONTAINER_MAX_SECTIONS || kni_le32_get(b + AT_HEADER_BYTES) != header_bytes(n_sections) ||
        header_bytes(n_sections) > n_bytes)
        return kni_err_set(err, KN_E_FORMAT, "chunk header of %u bytes with %u sections does not fit a chunk of %zu bytes",
                           kni_le32_get(b + AT_HEADER_BYTES), n_sections, n_bytes);
    if (kni_xxh3(b, table_end(n_sections)) != kni_le64_get(b + table_end(n_sections)))
        return kni_err_set(err, KN_E_FORMAT, "chunk header is damaged (checksum); drop it and recompute");
    if (kni_le64_get(b + AT_TOTAL_BYTES) != n_bytes)
        return kni_err_set(err, KN_E_FORMAT, "chunk has %zu bytes, its header says %llu: cut or padded", n_bytes,
                           (unsigned long long)kni_le64_get(b + AT_TOTAL_BYTES));
    for (int i = AT_ZERO; i < FIXED_END; i++)
        if (b[i])
            return kni_err_set(err, KN_E_FORMAT, "chunk header byte %d is %u, must be 0", i, b[i]);

    struct kni_container_header *h = &out->header;
    memset(out, 0, sizeof *out);
    memcpy(h->meta.fingerprint, b + AT_FINGERPRINT, 16);
    memcpy(h->meta.profile, b + AT_PROFILE, 16);
    memcpy(h->meta.chain.bytes, b + AT_CHAIN, 16);
    h->meta.first_token = kni_le32_get(b + AT_FIRST_TOKEN);
    h->meta.n_tokens = kni_le32_get(b + AT_N_TOKENS);
    h->meta.kv.n_layer = kni_le32_get(b + AT_N_LAYER);
    h->meta.kv.n_kv_head = kni_le32_get(b + AT_N_KV_HEAD);
    h->meta.kv.d_head = kni_le32_get(b + AT_D_HEAD);
    h->meta.kv.type = b[AT_KV_TYPE];
    h->meta.preset = b[AT_PRESET];
    h->layout = b[AT_LAYOUT];
    h->backend = h->meta.backend = b[AT_BACKEND];
    h->tiling.levels = kni_le32_get(b + AT_LEVELS);
    h->tiling.tokens_per_picture = kni_le32_get(b + AT_RESOLUTION);
    h->tiling.tile_height = kni_le32_get(b + AT_TILE_HEIGHT);
    h->tiling.head_cols = kni_le32_get(b + AT_HEAD_COLS);
    h->tiling.grid_cols = kni_le32_get(b + AT_GRID_COLS);
    h->tools = kni_le32_get(b + AT_TOOLS);
    h->n_sections = n_sections;
    const char *bad = bad_field(h);
    if (bad)
        return kni_err_set(err, KN_E_FORMAT, "chunk header: %s out of range", bad);

    uint64_t at = header_bytes(n_sections);
    for (uint32_t i = 0; i < n_sections; i++) {
        const uint8_t *e = b + table_end(i);
        uint64_t offset = kni_le64_get(e + ENTRY_OFFSET), size = kni_le64_get(e + ENTRY_SIZE);
        if (offset != at || size > n_bytes - at)
            return kni_err_set(err, KN_E_FORMAT, "chunk section %u at offset %llu, %llu bytes, does not follow its predecessor",
                               i, (unsigned long long)offset, (unsigned long long)size);
        at += size;
    }
    if (at != n_bytes)
        return kni_err_set(err, KN_E_FORMAT, "chunk has %llu bytes after its last section", (unsigned long long)(n_bytes - at));
    out->data = data;
    out->n_bytes = n_bytes;
    return KN_OK;
}

enum kn_status kni_container_section(const struct kni_container *c, uint32_t i, enum kni_section_kind *kind, uint32_t *index,
                                     const uint8_t **bytes, size_t *n_bytes, struct kn_err *err)
{
    assert(i < c->header.n_sections);
    const uint8_t *e = c->data + table_end(i);
    *kind = (enum kni_section_kind)kni_le32_get(e + ENTRY_KIND);
    *index = kni_le32_get(e + ENTRY_INDEX);
    *bytes = c->data + kni_le64_get(e + ENTRY_OFFSET);
    *n_bytes = (size_t)kni_le64_get(e + ENTRY_SIZE);
    if (kni_xxh3(*bytes, *n_bytes) != kni_le64_get(e + ENTRY_CHECKSUM))
        return kni_err_set(err, KN_E_FORMAT, "chunk section %u (kind %u, index %u) is damaged (checksum); drop the chunk and recompute",
                           i, (unsigned)*kind, *index);
    return KN_OK;
}

bool kni_container_next(const struct kni_container *c, uint32_t *n_seen, struct kni_section *out, enum kn_status *status,
                        struct kn_err *err)
{
    if (*status != KN_OK || *n_seen >= c->header.n_sections)
        return false;
    out->number = (*n_seen)++;
    *status = kni_container_section(c, out->number, &out->kind, &out->index, &out->bytes, &out->n_bytes, err);
    return *status == KN_OK;
}

enum kn_status kni_container_expect(const struct kni_container *c, uint32_t i, enum kni_section_kind kind, uint32_t index,
                                    const uint8_t **bytes, size_t *n_bytes, struct kn_err *err)
{
    if (i >= c->header.n_sections)
        return kni_err_set(err, KN_E_FORMAT, "chunk has %u sections, section %u is missing", c->header.n_sections, i);
    enum kni_section_kind have_kind;
    uint32_t have_index;
    enum kn_status s = kni_container_section(c, i, &have_kind, &have_index, bytes, n_bytes, err);
    if (s == KN_OK && (have_kind != kind || have_index != index))
        s = kni_err_set(err, KN_E_FORMAT, "chunk section %u is kind %u index %u, expected kind %u index %u", i,
                        (unsigned)have_kind, have_index, (unsigned)kind, index);
    return s;
}

static enum kn_status mismatch_bytes(struct kn_err *err, const char *field, const uint8_t have[16], const uint8_t want[16])
{
    struct kni_hash a, b;
    char have_hex[33], want_hex[33];
    memcpy(a.bytes, have, 16);
    memcpy(b.bytes, want, 16);
    kni_hash_hex(&a, have_hex);
    kni_hash_hex(&b, want_hex);
    return kni_err_set(err, KN_E_MISMATCH, "chunk has %s %s, expected %s; treated as a miss", field, have_hex, want_hex);
}

static enum kn_status mismatch_number(struct kn_err *err, const char *field, uint32_t have, uint32_t want)
{
    return kni_err_set(err, KN_E_MISMATCH, "chunk has %s %u, expected %u; treated as a miss", field, have, want);
}

enum kn_status kni_container_match(const struct kni_container *c, const struct kni_chunk_meta *expect, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &c->header.meta;
    if (memcmp(m->fingerprint, expect->fingerprint, 16))
        return mismatch_bytes(err, "model fingerprint", m->fingerprint, expect->fingerprint);
    if (memcmp(m->profile, expect->profile, 16))
        return mismatch_bytes(err, "profile", m->profile, expect->profile);
    if (!kni_hash_equal(&m->chain, &expect->chain))
        return mismatch_bytes(err, "chain hash", m->chain.bytes, expect->chain.bytes);
    if (expect->preset != KN_PRESET_DEFAULT && m->preset != expect->preset)
        return mismatch_number(err, "preset", m->preset, expect->preset);
    if (expect->backend && m->backend != expect->backend)
        return mismatch_number(err, "backend", m->backend, expect->backend);
    if (m->first_token != expect->first_token)
        return mismatch_number(err, "first token", m->first_token, expect->first_token);
    if (m->n_tokens != expect->n_tokens)
        return mismatch_number(err, "token count", m->n_tokens, expect->n_tokens);
    if (m->kv.n_layer != expect->kv.n_layer)
        return mismatch_number(err, "layer count", m->kv.n_layer, expect->kv.n_layer);
    if (m->kv.n_kv_head != expect->kv.n_kv_head)
        return mismatch_number(err, "KV head count", m->kv.n_kv_head, expect->kv.n_kv_head);
    if (m->kv.d_head != expect->kv.d_head)
        return mismatch_number(err, "head width", m->kv.d_head, expect->kv.d_head);
    if (m->kv.type != expect->kv.type)
        return mismatch_number(err, "KV type", m->kv.type, expect->kv.type);
    return KN_OK;
}

/* ---- writing */

enum kn_status kni_container_check_header(const struct kni_container_header *header, struct kn_err *err)
{
    const char *bad = bad_field(header);
    return bad ? kni_err_set(err, KN_E_ARG, "chunk to encode: %s out of range (doc/format-chunk.md has the ranges)", bad) : KN_OK;
}

enum kn_status kni_container_writer_init(struct kni_container_writer *w, const struct kni_container_header *header, struct kn_err *err)
{
    memset(w, 0, sizeof *w);
    enum kn_status s = kni_container_check_header(header, err);
    if (s != KN_OK)
        return s;
    w->header = *header;
    w->section_at = header_bytes(header->n_sections);
    if (!kni_container_writer_reserve(w, w->section_at))
        return kni_err_set(err, KN_E_NOMEM, "no memory for a chunk header");
    memset(w->data, 0, w->section_at);
    w->used_bytes = w->section_at;
    return KN_OK;
}

uint8_t *kni_container_writer_reserve(struct kni_container_writer *w, size_t n_bytes)
{
    size_t need;
    if (!kni_add_size(w->used_bytes, n_bytes, &need))
        return NULL;
    if (need > w->capacity_bytes) {
        size_t grown = w->capacity_bytes + w->capacity_bytes / 2;
        if (grown < need)
            grown = need;
        uint8_t *data = kni_realloc(KNI_ALLOC_TAG_CODEC, w->data, grown);
        if (!data)
            return NULL;
        w->data = data;
        w->capacity_bytes = grown;
    }
    return w->data + w->used_bytes;
}

void kni_container_writer_commit(struct kni_container_writer *w, size_t n_bytes)
{
    assert(n_bytes <= w->capacity_bytes - w->used_bytes);
    w->used_bytes += n_bytes;
}

void kni_container_writer_end_section(struct kni_container_writer *w, enum kni_section_kind kind, uint32_t index)
{
    assert(w->n_done < w->header.n_sections);
    uint8_t *e = w->data + table_end(w->n_done++);
    size_t size = w->used_bytes - w->section_at;
    kni_le32_put(e + ENTRY_KIND, kind);
    kni_le32_put(e + ENTRY_INDEX, index);
    kni_le64_put(e + ENTRY_OFFSET, w->section_at);
    kni_le64_put(e + ENTRY_SIZE, size);
    kni_le64_put(e + ENTRY_CHECKSUM, kni_xxh3(w->data + w->section_at, size));
    w->section_at = w->used_bytes;
}

/* Closes the gap that sections planned and not written have left in the table. */
static void shorten_header(struct kni_container_writer *w)
{
    size_t planned = header_bytes(w->header.n_sections), have = header_bytes(w->n_done);
    if (planned == have)
        return;
    memmove(w->data + have, w->data + planned, w->used_bytes - planned);
    w->used_bytes -= planned - have;
    w->header.n_sections = w->n_done;
    for (uint32_t i = 0; i < w->n_done; i++) {
        uint8_t *offset = w->data + table_end(i) + ENTRY_OFFSET;
        kni_le64_put(offset, kni_le64_get(offset) - (planned - have));
    }
}

void kni_container_writer_finish(struct kni_container_writer *w, void **data, size_t *n_bytes)
{
    assert(w->section_at == w->used_bytes);
    shorten_header(w);
    const struct kni_container_header *h = &w->header;
    uint8_t *b = w->data;
    memcpy(b + AT_MAGIC, magic, 4);
    kni_le32_put(b + AT_VERSION, KNI_CONTAINER_VERSION);
    kni_le32_put(b + AT_HEADER_BYTES, (uint32_t)header_bytes(h->n_sections));
    kni_le32_put(b + AT_N_SECTIONS, h->n_sections);
    kni_le64_put(b + AT_TOTAL_BYTES, w->used_bytes);
    memcpy(b + AT_FINGERPRINT, h->meta.fingerprint, 16);
    memcpy(b + AT_PROFILE, h->meta.profile, 16);
    memcpy(b + AT_CHAIN, h->meta.chain.bytes, 16);
    kni_le32_put(b + AT_FIRST_TOKEN, h->meta.first_token);
    kni_le32_put(b + AT_N_TOKENS, h->meta.n_tokens);
    kni_le32_put(b + AT_N_LAYER, h->meta.kv.n_layer);
    kni_le32_put(b + AT_N_KV_HEAD, h->meta.kv.n_kv_head);
    kni_le32_put(b + AT_D_HEAD, h->meta.kv.d_head);
    b[AT_KV_TYPE] = (uint8_t)h->meta.kv.type;
    b[AT_PRESET] = (uint8_t)h->meta.preset;
    b[AT_LAYOUT] = (uint8_t)h->layout;
    b[AT_BACKEND] = (uint8_t)h->backend;
    kni_le32_put(b + AT_LEVELS, h->tiling.levels);
    kni_le32_put(b + AT_RESOLUTION, h->tiling.tokens_per_picture);
    kni_le32_put(b + AT_TILE_HEIGHT, h->tiling.tile_height);
    kni_le32_put(b + AT_HEAD_COLS, h->tiling.head_cols);
    kni_le32_put(b + AT_GRID_COLS, h->tiling.grid_cols);
    kni_le32_put(b + AT_TOOLS, h->tools);
    kni_le64_put(b + table_end(h->n_sections), kni_xxh3(b, table_end(h->n_sections)));
    *data = w->data;
    *n_bytes = w->used_bytes;
    memset(w, 0, sizeof *w);
}

void kni_container_writer_fini(struct kni_container_writer *w)
{
    kni_free(w->data);
    memset(w, 0, sizeof *w);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading profiles. Order of trust: magic, version, size, checksum; then the numbers that sizes follow from; then, when these
 * sizes add up to the file's, the arrays are copied out, and every value is looked at. Whoever can write a file can also make
 * its checksum right, so nothing rests on that.
 *
 * A profile is one arena: a box with the public struct first, and the arrays. Values are copied because a file is little-endian
 * everywhere and a mapped one could change under its readers. Any thread; the last reference frees.
 */
#include "codec/profile/profile_format.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/le.h"

struct box {
    struct kni_profile p; /* first: what callers hold */
    _Atomic uint32_t n_refs;
    struct kni_arena arena;
    struct kni_rans_model *rans;
};

/* ---- what both directions check */

size_t kni_profile_front_bytes(const struct kni_profile *p)
{
    return KNI_PROFILE_FIXED_BYTES + (size_t)p->rope.n_ropes * (p->rope.rope_dim / 2) * 8 + kni_profile_pad8(p->kv.n_layer) +
           (size_t)p->n_parts * KNI_PROFILE_ENTRY_BYTES;
}

size_t kni_profile_part_bytes(const struct kni_profile_part *part)
{
    size_t n = (size_t)part->width * 8 + (size_t)part->n_rows * part->width * 2 + 2 * (size_t)part->n_layers;
    for (uint32_t i = 0; i < KNI_PROFILE_N_PRESETS; i++)
        n += part->n_layers + part->rows[i];
    return kni_profile_pad8(n);
}

const char *kni_profile_check_shape(const struct kni_profile *p)
{
    const struct kni_kv_layout *kv = &p->kv;
    if (kv->n_layer < 1 || kv->n_layer > KNI_PROFILE_MAX_LAYERS)
        return "layer count";
    if (kv->n_kv_head < 1 || kv->n_kv_head > KNI_PROFILE_MAX_KV_HEADS)
        return "KV head count";
    if (kv->d_head < 1 || kv->d_head > KNI_PROFILE_MAX_D_HEAD)
        return "head width";
    if (p->n_group < 1 || p->n_group > kv->n_layer || (uint64_t)p->n_group * kv->n_kv_head * kv->d_head > KNI_PROFILE_MAX_WIDTH ||
        kv->n_kv_head * kv->d_head % 32)
        return "layers a group";
    if (p->n_parts != 2 * ((kv->n_layer + p->n_group - 1) / p->n_group))
        return "part count";
    if (p->rope.rope_dim < 2 || p->rope.rope_dim % 2 || p->rope.rope_dim > kv->d_head)
        return "rotated components";
    if (p->rope.n_ropes < 1 || p->rope.n_ropes > KNI_PROFILE_MAX_ROPES)
        return "frequency vectors";
    if (p->n_sinks > KNI_PROFILE_MAX_SINKS)
        return "exact first tokens";
    return NULL;
}

/* False for NaN too. */
static bool in_range(double x, double lowest, double highest)
{
    return x >= lowest && x <= highest;
}

const char *kni_profile_check_rows(const struct kni_profile_part *part)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < KNI_PROFILE_N_PRESETS; i++) {
        if (part->rows[i] < 16 || part->rows[i] > part->width || part->rows[i] % 16)
            return "rows of a preset";
        if (!in_range((double)part->step[i], (double)KNI_PROFILE_MIN_STEP, (double)KNI_PROFILE_MAX_STEP))
            return "step of a preset";
        most = part->rows[i] > most ? part->rows[i] : most;
    }
    return part->n_rows == most ? NULL : "rows of a basis";
}

static const char *check_part(const struct kni_profile_part *part)
{
    for (uint32_t i = 0; i < part->width; i++) {
        if (!in_range((double)part->mean[i], -1024, 1024))
            return "mean";
        if (!in_range((double)part->weight[i], 1e-3, 1e3))
            return "weight";
    }
    size_t n_basis = (size_t)part->n_rows * part->width;
    uint32_t highest = 0; /* a component of a unit vector is 1 at most; this also excludes infinities and NaN */
    for (size_t i = 0; i < n_basis; i++) {
        uint32_t magnitude = part->basis[i] & 0x7fffu;
        highest = magnitude > highest ? magnitude : highest;
    }
    if (highest > 0x4000u) /* 2.0 */
        return "basis";
    for (uint32_t i = 0; i < part->n_layers; i++)
        if (part->exponent[i] < -96 || part->exponent[i] > 95)
            return "typical exponent";
    for (uint32_t i = 0; part->gain && i < part->n_layers; i++)
        if (part->gain[i] < -KNI_PROFILE_MAX_GAIN || part->gain[i] > KNI_PROFILE_MAX_GAIN)
            return "gain";
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++)
        for (uint32_t i = 0; i < part->n_layers + part->rows[k]; i++)
            if (part->classes[k][i] >= KNI_RANS_MAX_CLASSES)
                return "class of a row";
    return NULL;
}

const char *kni_profile_check_values(const struct kni_profile *p)
{
    for (size_t i = 0; i < (size_t)p->rope.n_ropes * (p->rope.rope_dim / 2); i++)
        if (!in_range(p->rope.freqs[i], 0, 1024))
            return "frequency";
    for (uint32_t i = 0; i < p->kv.n_layer; i++)
        if (p->rope.layers[i] >= p->rope.n_ropes)
            return "frequency vector of a layer";
    for (uint32_t i = 0; i < KNI_PROFILE_N_PRESETS; i++) {
        const struct kni_profile_quality *q = &p->quality[i];
        if (!in_range((double)q->ratio, 0, 1e6) || !in_range((double)q->kl, 0, 1e6) || !in_range((double)q->top1, 0, 1))
            return "measured quality";
    }
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const char *what = check_part(&p->parts[i]);
        if (what)
            return what;
    }
    return NULL;
}

/* ---- reading */

static float f32_get(const uint8_t *at)
{
    return kni_f32_from_bits(kni_le32_get(at));
}

static enum kn_status damaged(const char *name, const char *what, struct kn_err *err)
{
    return kni_err_set(err, KN_E_FORMAT, "%s: damaged profile (%s out of range); build it again with kinema profile build", name, what);
}

/* Magic, version, size, checksum. */
static enum kn_status check_outside(const uint8_t *b, size_t n, const char *name, struct kn_err *err)
{
    if (n < KNI_PROFILE_FIXED_BYTES + 8 || memcmp(b, "KNP1", 4))
        return kni_err_set(err, KN_E_FORMAT, "%s is no profile; make one with kinema profile build", name);
    uint32_t version = kni_le32_get(b + KNI_PROFILE_AT_VERSION);
    if (version < 1 || version > KNI_PROFILE_VERSION)
        return kni_err_set(err, KN_E_MISMATCH, "%s is a profile of version %u, this build reads up to %u; build it again with kinema profile build",
                           name, version, KNI_PROFILE_VERSION);
    if (kni_le64_get(b + KNI_PROFILE_AT_TOTAL_BYTES) != n)
        return kni_err_set(err, KN_E_FORMAT, "%s: damaged profile (%zu bytes, its header says %llu); build it again with kinema profile build",
                           name, n, (unsigned long long)kni_le64_get(b + KNI_PROFILE_AT_TOTAL_BYTES));
    if (kni_xxh3(b, n - 8) != kni_le64_get(b + n - 8))
        return kni_err_set(err, KN_E_FORMAT, "%s: damaged profile (checksum); build it again with kinema profile build", name);
    return KN_OK;
}

static const char *read_header(struct kni_profile *p, const uint8_t *b, uint32_t *rans_bytes)
{
    memcpy(p->fingerprint, b + KNI_PROFILE_AT_FINGERPRINT, 16);
    p->kv = (struct kni_kv_layout){.n_layer = kni_le32_get(b + KNI_PROFILE_AT_N_LAYER),
                                   .n_kv_head = kni_le32_get(b + KNI_PROFILE_AT_N_KV_HEAD),
                                   .d_head = kni_le32_get(b + KNI_PROFILE_AT_D_HEAD)};
    p->rope.neox = b[KNI_PROFILE_AT_NEOX] == 1;
    p->rope.rope_dim = kni_le32_get(b + KNI_PROFILE_AT_ROPE_DIM);
    p->rope.n_ropes = b[KNI_PROFILE_AT_N_ROPES];
    p->n_group = kni_le32_get(b + KNI_PROFILE_AT_N_GROUP);
    p->n_sinks = b[KNI_PROFILE_AT_N_SINKS];
    p->n_calibration_tokens = kni_le64_get(b + KNI_PROFILE_AT_N_CALIBRATION);
    *rans_bytes = kni_le32_get(b + KNI_PROFILE_AT_RANS_BYTES);
    for (uint32_t i = 0; i < KNI_PROFILE_N_PRESETS; i++) {
        const uint8_t *q = b + KNI_PROFILE_AT_QUALITY + (size_t)12 * i;
        p->quality[i] = (struct kni_profile_quality){.ratio = f32_get(q), .kl = f32_get(q + 4), .top1 = f32_get(q + 8)};
    }
    if (kni_le32_get(b + KNI_PROFILE_AT_HEADER_BYTES) != KNI_PROFILE_FIXED_BYTES)
        return "header size";
    if (b[KNI_PROFILE_AT_NEOX] > 1)
        return "pairing of rotated components";
    if (b[KNI_PROFILE_AT_ZERO1])
        return "reserved byte";
    p->n_texts = kni_le32_get(b + KNI_PROFILE_AT_N_TEXTS);
    if (p->n_texts > KNI_PROFILE_MAX_TEXTS || (kni_le32_get(b + KNI_PROFILE_AT_VERSION) == 1) != (p->n_texts == 0))
        return "number of texts";
    for (int i = KNI_PROFILE_AT_ZERO2; i < KNI_PROFILE_FIXED_BYTES; i++)
        if (b[i])
            return "reserved byte";
    if (p->n_group) /* otherwise refused with the shape */
        p->n_parts = (uint32_t)(2 * (((uint64_t)p->kv.n_layer + p->n_group - 1) / p->n_group));
    return kni_profile_check_shape(p);
}

/* The table's entries into p->parts, and the sum of all sizes into *total. */
static const char *read_table(struct kni_profile *p, const uint8_t *table, size_t *total)
{
    for (uint32_t i = 0; i < p->n_parts; i++) {
        struct kni_profile_part *part = &p->parts[i];
        const uint8_t *e = table + (size_t)i * KNI_PROFILE_ENTRY_BYTES;
        kni_profile_part_shape(p, i, part);
        for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
            part->rows[k] = kni_le32_get(e + KNI_PROFILE_ENTRY_ROWS + (size_t)4 * k);
            part->step[k] = f32_get(e + KNI_PROFILE_ENTRY_STEPS + (size_t)4 * k);
            part->n_rows = part->rows[k] > part->n_rows ? part->rows[k] : part->n_rows;
        }
        const char *bad = kni_profile_check_rows(part);
        if (bad)
            return bad;
        *total += kni_profile_part_bytes(part); /* at most 2048 parts of 32 MiB and some: fits */
    }
    return NULL;
}

static const float *read_f32(struct kni_arena *arena, const uint8_t **at, size_t n)
{
    float *out = kni_arena_alloc(arena, n * sizeof *out, 64);
    for (size_t i = 0; out && i < n; i++, *at += 4)
        out[i] = f32_get(*at);
    return out;
}

static const void *read_bytes(struct kni_arena *arena, const uint8_t **at, size_t n)
{
    void *out = kni_arena_alloc(arena, n, 0);
    if (out)
        memcpy(out, *at, n);
    *at += n;
    return out;
}

/* Moves *at, the end of something that began at a multiple of 8 from base, to the next one; false when that skips anything but zeros. */
static bool skip_padding(const uint8_t *base, const uint8_t **at)
{
    bool zero = true;
    for (; (*at - base) % 8; ++*at)
        zero = zero && !**at;
    return zero;
}

/* *at points to the part, all of it inside the file. false: out of memory. */
static bool read_part(struct kni_arena *arena, struct kni_profile_part *part, const uint8_t **at)
{
    part->mean = read_f32(arena, at, part->width);
    part->weight = part->mean ? read_f32(arena, at, part->width) : NULL;
    size_t n = (size_t)part->n_rows * part->width;
    uint16_t *basis = part->weight ? kni_arena_alloc(arena, n * sizeof *basis, 64) : NULL;
    if (!basis)
        return false;
    for (size_t i = 0; i < n; i++, *at += 2)
        basis[i] = kni_le16_get(*at);
    part->basis = basis;
    part->exponent = read_bytes(arena, at, part->n_layers);
    part->gain = read_bytes(arena, at, part->n_layers);
    bool ok = part->exponent && part->gain;
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
        part->classes[k] = read_bytes(arena, at, part->n_layers + part->rows[k]);
        ok = ok && part->classes[k];
    }
    return ok;
}

/* The texts at *at, all of them inside the file. *bad: what is wrong. false: out of memory. */
static bool read_texts(struct box *box, const uint8_t *at, const char **bad)
{
    struct kni_profile_text *t = kni_arena_alloc(&box->arena, (box->p.n_texts + 1) * sizeof *t, 0);
    box->p.texts = t;
    for (uint32_t i = 0; t && i < box->p.n_texts; i++, at += KNI_PROFILE_TEXT_ENTRY) {
        t[i].n_bytes = kni_le64_get(at + KNI_PROFILE_TEXT_BYTES);
        t[i].n_tokens = kni_le32_get(at + KNI_PROFILE_TEXT_TOKENS);
        t[i].is_held_back = at[KNI_PROFILE_TEXT_HELD] == 1;
        memcpy(t[i].hash, at + KNI_PROFILE_TEXT_HASH, sizeof t[i].hash);
        memcpy(t[i].name, at + KNI_PROFILE_TEXT_NAME, sizeof t[i].name);
        bool zeros = at[KNI_PROFILE_TEXT_HELD] <= 1 && !t[i].name[KNI_PROFILE_NAME_BYTES - 1];
        for (size_t k = KNI_PROFILE_TEXT_ZERO; k < KNI_PROFILE_TEXT_HASH; k++)
            zeros = zeros && !at[k];
        for (size_t k = strnlen(t[i].name, KNI_PROFILE_NAME_BYTES); k < KNI_PROFILE_NAME_BYTES; k++)
            zeros = zeros && !t[i].name[k];
        for (size_t k = 0; t[i].name[k]; k++) /* it is printed */
            zeros = zeros && (unsigned char)t[i].name[k] >= ' ' && t[i].name[k] != 127;
        if (!zeros)
            *bad = "name of a text";
    }
    return t;
}

/* Everything behind the header. The box is the caller's to free on failure. */
static enum kn_status read_body(struct box *box, const uint8_t *b, size_t n, uint32_t rans_bytes, const char *name, struct kn_err *err)
{
    struct kni_profile *p = &box->p;
    size_t front = kni_profile_front_bytes(p), total = front, n_freqs = (size_t)p->rope.n_ropes * (p->rope.rope_dim / 2);
    if (front > n)
        return damaged(name, "size of the part table", err);
    p->parts = kni_arena_alloc(&box->arena, p->n_parts * sizeof *p->parts, 0);
    double *freqs = kni_arena_alloc(&box->arena, n_freqs * sizeof *freqs, 0);
    if (!p->parts || !freqs)
        goto no_memory;
    const char *bad = read_table(p, b + front - (size_t)p->n_parts * KNI_PROFILE_ENTRY_BYTES, &total);
    if (bad)
        return damaged(name, bad, err);
    total += (size_t)p->n_texts * KNI_PROFILE_TEXT_ENTRY;
    if (total > n - 8 || kni_profile_pad8(rans_bytes) != n - 8 - total) /* total is below 2^40 and n at least 8 */
        return damaged(name, "sum of the sizes", err);

    const uint8_t *at = b + KNI_PROFILE_FIXED_BYTES;
    bool zeros = true;
    for (size_t i = 0; i < n_freqs; i++, at += 8) {
        uint64_t bits = kni_le64_get(at);
        memcpy(&freqs[i], &bits, 8);
    }
    p->rope.freqs = freqs;
    if (!(p->rope.layers = read_bytes(&box->arena, &at, p->kv.n_layer)))
        goto no_memory;
    zeros = skip_padding(b, &at) && zeros;
    at = b + front;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        if (!read_part(&box->arena, &p->parts[i], &at))
            goto no_memory;
        zeros = skip_padding(b, &at) && zeros;
    }
    enum kn_status status = kni_rans_model_read(&box->rans, at, rans_bytes, err);
    if (status == KN_E_FORMAT)
        return damaged(name, "table of the entropy coder", err);
    if (status)
        goto no_memory;
    p->rans = box->rans;
    at += rans_bytes;
    zeros = skip_padding(b, &at) && zeros;
    bad = NULL;
    if (!read_texts(box, at, &bad))
        goto no_memory;
    if (!bad)
        bad = zeros ? kni_profile_check_values(p) : "filling byte";
    return bad ? damaged(name, bad, err) : KN_OK;
no_memory:
    return kni_err_set(err, KN_E_NOMEM, "%s: no memory for a profile of %zu bytes", name, n);
}

static void box_free(struct box *box)
{
    struct kni_arena arena = box->arena; /* the box lies in it */
    kni_rans_model_free(&box->rans);
    kni_arena_fini(&arena);
}

enum kn_status kni_profile_read(struct kni_profile **out, const void *data, size_t n_bytes, const char *name, struct kn_err *err)
{
    *out = NULL;
    const uint8_t *b = data;
    enum kn_status status = check_outside(b, n_bytes, name, err);
    if (status)
        return status;
    struct kni_arena arena;
    kni_arena_init(&arena, KNI_ALLOC_TAG_CODEC, 0);
    struct box *box = kni_arena_alloc(&arena, sizeof *box, 0);
    if (!box)
        return kni_err_set(err, KN_E_NOMEM, "%s: no memory for a profile", name);
    box->arena = arena;
    uint32_t rans_bytes;
    const char *bad = read_header(&box->p, b, &rans_bytes);
    status = bad ? damaged(name, bad, err) : read_body(box, b, n_bytes, rans_bytes, name, err);
    if (status) {
        box_free(box);
        return status;
    }
    struct kni_hash id = kni_hash_bytes(data, n_bytes);
    memcpy(box->p.id, id.bytes, sizeof box->p.id);
    box->p.n_bytes = n_bytes;
    atomic_init(&box->n_refs, 1);
    *out = &box->p;
    return KN_OK;
}

enum kn_status kni_profile_open(struct kni_profile **out, const char *path, struct kn_err *err)
{
    *out = NULL;
    struct kni_file_map map;
    enum kn_status status = kni_file_map_open(&map, path, err);
    if (status == KN_E_NOT_FOUND)
        return kni_err_set(err, KN_E_IO, "cannot open the profile %s: there is no such file; make one with kinema profile build", path);
    if (status)
        return status;
    status = kni_profile_read(out, map.data, map.n_bytes, path, err);
    /* From here on the file may change: all of it was copied. If it changed before, values and id may be of two files. */
    struct kni_file_stamp now;
    if (status == KN_OK && (kni_file_map_stamp(&map, &now) || now.n_bytes != map.stamp.n_bytes || now.mtime_ns != map.stamp.mtime_ns)) {
        status = kni_err_set(err, KN_E_CHANGED, "the profile %s was written while it was being read: try again when it is complete", path);
        kni_profile_close(out);
    }
    kni_file_map_close(&map);
    return status;
}

struct kni_profile *kni_profile_ref(struct kni_profile *p)
{
    struct box *box = (struct box *)p;
    atomic_fetch_add_explicit(&box->n_refs, 1, memory_order_relaxed); /* the caller's own reference keeps it alive */
    return p;
}

void kni_profile_close(struct kni_profile **p)
{
    struct box *box = (struct box *)*p;
    /* release: what this owner has read is read before another frees it, which acquires. */
    if (box && atomic_fetch_sub_explicit(&box->n_refs, 1, memory_order_acq_rel) == 1)
        box_free(box);
    *p = NULL;
}

enum kn_status kni_profile_match(const struct kni_profile *p, const uint8_t fingerprint[16], const struct kni_kv_layout *kv, struct kn_err *err)
{
    if (p->kv.n_layer != kv->n_layer || p->kv.n_kv_head != kv->n_kv_head || p->kv.d_head != kv->d_head)
        return kni_err_set(err, KN_E_MISMATCH, "the profile is for %u layers of %u KV heads of %u, the model has %u of %u of %u; build one for this model with kinema profile build",
                           p->kv.n_layer, p->kv.n_kv_head, p->kv.d_head, kv->n_layer, kv->n_kv_head, kv->d_head);
    if (memcmp(p->fingerprint, fingerprint, sizeof p->fingerprint))
        return kni_err_set(err, KN_E_MISMATCH, "the profile is of another model (fingerprint %02x%02x%02x%02x..., not %02x%02x%02x%02x...); build one for this model with kinema profile build",
                           p->fingerprint[0], p->fingerprint[1], p->fingerprint[2], p->fingerprint[3], fingerprint[0], fingerprint[1], fingerprint[2],
                           fingerprint[3]);
    return KN_OK;
}

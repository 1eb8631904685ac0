/* SPDX-License-Identifier: Apache-2.0 */
/* The table of methods and the way through each: see eval_method.h. */
#include "measure/eval_method.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "measure/baseline/cachegen.h"
#include "codec/container.h"

#define OWN(name, value, how, enum_how) {.method = name, .preset = how, .kind = KNI_EVAL_KIND_CODEC, .codec_preset = value, .backend = enum_how, .by_needle = enum_how == KN_BACKEND_RANS}
#define RIVAL(name, text, what, k, v, sinks) {.method = name, .preset = text, .kind = what, .levels_k = k, .levels_v = v, .n_sinks = sinks, .by_needle = what == KNI_EVAL_KIND_CACHEGEN}

static const struct kni_eval_method methods[] = {
    {.method = "raw", .preset = "16-bit", .kind = KNI_EVAL_KIND_RAW},
    {.method = "raw+zstd", .preset = "16-bit", .kind = KNI_EVAL_KIND_ZSTD},
    {.method = "exact", .preset = "exact", .kind = KNI_EVAL_KIND_CODEC, .codec_preset = KN_PRESET_EXACT},
    OWN("fine", KN_PRESET_FINE, "rans", KN_BACKEND_RANS),
    OWN("fine", KN_PRESET_FINE, "hevc", KN_BACKEND_HEVC),
    OWN("medium", KN_PRESET_MEDIUM, "rans", KN_BACKEND_RANS),
    OWN("medium", KN_PRESET_MEDIUM, "hevc", KN_BACKEND_HEVC),
    OWN("small", KN_PRESET_SMALL, "rans", KN_BACKEND_RANS),
    OWN("small", KN_PRESET_SMALL, "hevc", KN_BACKEND_HEVC),
    {.method = "tiles", .preset = "64", .kind = KNI_EVAL_KIND_CODEC, .codec_preset = KN_PRESET_TILES, .tiles = {.levels = 64}},
    {.method = "tiles", .preset = "32", .kind = KNI_EVAL_KIND_CODEC, .codec_preset = KN_PRESET_TILES, .tiles = {.levels = 32}},
    RIVAL("cachegen", "64/64", KNI_EVAL_KIND_CACHEGEN, 64, 64, 0),
    RIVAL("cachegen-ideal", "64/64", KNI_EVAL_KIND_IDEAL, 64, 64, 0),
    RIVAL("cachegen", "32/32", KNI_EVAL_KIND_CACHEGEN, 32, 32, 0),
    RIVAL("cachegen-ideal", "32/32", KNI_EVAL_KIND_IDEAL, 32, 32, 0),
    RIVAL("cachegen", "32/16", KNI_EVAL_KIND_CACHEGEN, 32, 16, 0),
    RIVAL("cachegen-ideal", "32/16", KNI_EVAL_KIND_IDEAL, 32, 16, 0),
    RIVAL("cachegen", "16/16", KNI_EVAL_KIND_CACHEGEN, 16, 16, 0),
    RIVAL("cachegen-ideal", "16/16", KNI_EVAL_KIND_IDEAL, 16, 16, 0),
    RIVAL("cachegen+sinks", "64/64", KNI_EVAL_KIND_CACHEGEN, 64, 64, 4),
    RIVAL("cachegen+sinks", "32/32", KNI_EVAL_KIND_CACHEGEN, 32, 32, 4),
    RIVAL("cachegen+sinks", "32/16", KNI_EVAL_KIND_CACHEGEN, 32, 16, 4),
    RIVAL("cachegen+sinks", "16/16", KNI_EVAL_KIND_CACHEGEN, 16, 16, 4),
    {.method = "kvtc", .preset = "3 bits", .kind = KNI_EVAL_KIND_KVTC, .bits = 3},
    {.method = "kvtc", .preset = "2 bits", .kind = KNI_EVAL_KIND_KVTC, .bits = 2},
    {.method = "kvtc", .preset = "1.5 bits", .kind = KNI_EVAL_KIND_KVTC, .bits = 1.5},
    {.method = "kvtc", .preset = "1 bit", .kind = KNI_EVAL_KIND_KVTC, .bits = 1},
};
#define N_METHODS (sizeof methods / sizeof *methods)

const struct kni_eval_method *kni_eval_methods(uint32_t *n)
{
    *n = (uint32_t)N_METHODS;
    return methods;
}

bool kni_eval_method_wants_profile(const struct kni_eval_method *m)
{
    return m->kind == KNI_EVAL_KIND_CODEC && m->codec_preset >= KN_PRESET_FINE;
}

bool kni_eval_method_wants_calibration(const struct kni_eval_method *m)
{
    return m->kind == KNI_EVAL_KIND_KVTC;
}

/* ---- lists of names */

static bool is_method(const char *name, size_t n)
{
    for (size_t i = 0; i < N_METHODS; i++)
        if (strlen(methods[i].method) == n && !memcmp(methods[i].method, name, n))
            return true;
    return false;
}

bool kni_eval_is_named(const char *list, const char *method)
{
    if (!list)
        return true;
    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ",");
        if (n == strlen(method) && !memcmp(at, method, n))
            return true;
        at += n;
        if (!*at)
            return false;
    }
}

enum kn_status kni_eval_check_names(const char *list, const char *what, const char *names, struct kn_err *err)
{
    for (const char *at = list; at; at++) {
        size_t n = strcspn(at, ",");
        bool known = false;
        for (const char *name = names; *name && !known; name += strcspn(name, ",") + (name[strcspn(name, ",")] != 0))
            known = strcspn(name, ",") == n && !memcmp(name, at, n);
        if (!known)
            return kni_err_set(err, KN_E_ARG, "there is no %s \"%.*s\": use %s", what, (int)n, at, names);
        at += n;
        if (!*at)
            break;
    }
    return KN_OK;
}

enum kn_status kni_eval_check_list(const char *list, bool may_be_untouched, struct kn_err *err)
{
    for (const char *at = list; at; at++) {
        size_t n = strcspn(at, ",");
        bool untouched = may_be_untouched && n == 9 && !memcmp(at, "untouched", n);
        if (!untouched && !is_method(at, n))
            return kni_err_set(err, KN_E_ARG, "there is no method \"%.*s\": use %sraw, raw+zstd, exact, fine, medium, small, tiles, cachegen, cachegen-ideal, cachegen+sinks, kvtc",
                               (int)n, at, may_be_untouched ? "untouched, " : "");
        at += n;
        if (!*at)
            break;
    }
    return KN_OK;
}

/* ---- coding */

/* Adds n bytes of a section that K and V share half and half, which is how many values each has. */
static void book_half(struct kni_account *account, size_t n)
{
    account->k_bytes += (double)n / 2;
    account->v_bytes += (double)n / 2;
}

/* Matrices of the spectral layout over rANS, K and V by turns, each after its length (layout_spectral_rans.c); the length is booked with it. */
static void book_matrices(struct kni_account *account, const uint8_t *at, size_t n_bytes, uint32_t n_parts)
{
    const uint8_t *end = at + n_bytes;
    for (uint32_t part = 0; at < end; part = (part + 1) % n_parts) {
        const uint8_t *begin = at;
        size_t n = 0;
        for (unsigned shift = 0; at < end && shift < 35; shift += 7) {
            n |= (size_t)(*at & 127u) << shift;
            if (*at++ < 128)
                break;
        }
        at = n < (size_t)(end - at) ? at + n : end;
        *(part & 1 ? &account->v_bytes : &account->k_bytes) += (double)(at - begin);
    }
}

/* Books a container's sections. */
static enum kn_status book(const void *data, size_t n_bytes, const struct kni_profile *profile, struct kni_account *account, struct kn_err *err)
{
    struct kni_container c;
    enum kn_status s = kni_container_open(&c, data, n_bytes, err);
    struct kni_section section;
    for (uint32_t n_seen = 0; kni_container_next(&c, &n_seen, &section, &s, err);) {
        const enum kni_section_kind kind = section.kind;
        const size_t size = section.n_bytes;
        if (kind == KNI_SECTION_KIND_TILES_SCALE || kind == KNI_SECTION_KIND_SPECTRAL_SINKS || kind == KNI_SECTION_KIND_SPECTRAL_ESCAPES ||
            kind == KNI_SECTION_KIND_SPECTRAL_ORDER || kind == KNI_SECTION_KIND_EXACT_MODEL)
            book_half(account, size);
        else if (kind == KNI_SECTION_KIND_SPECTRAL_RANS)
            book_matrices(account, section.bytes, size, profile->n_parts);
        else
            *(section.index % 2 ? &account->v_bytes : &account->k_bytes) += (double)size;
    }
    account->all_bytes += n_bytes;
    return s;
}

static enum kn_status code_own(const struct kni_eval_method *m, struct kni_eval_bed *bed, const struct kni_eval_needs *needs, struct kni_eval_coded *out, struct kn_err *err)
{
    struct kni_kv_host clean = kni_eval_bed_clean(bed), coded = kni_eval_bed_coded(bed);
    struct kni_codec *encoder = NULL, *decoder = NULL;
    struct kni_profile *profile = kni_eval_method_wants_profile(m) ? needs->profile : NULL;
    struct kni_codec_opts eo = {.preset = m->codec_preset, .tiles = m->tiles, .profile = profile, .backend = m->backend, .hevc = needs->hevc};
    struct kni_codec_opts d_o = {.preset = KN_PRESET_EXACT, .profile = profile};
    struct kni_chunk_meta meta = {.preset = m->codec_preset, .n_tokens = KNI_EVAL_CHUNK, .kv = bed->kv};
    memcpy(meta.fingerprint, bed->model->info.fingerprint, sizeof meta.fingerprint);
    if (profile)
        memcpy(meta.profile, profile->id, sizeof meta.profile);
    enum kn_status status = kni_codec_open(&encoder, &eo, err);
    if (status == KN_OK)
        status = kni_codec_open(&decoder, &d_o, err);
    for (; status == KN_OK && meta.first_token < bed->n_prefix; meta.first_token += KNI_EVAL_CHUNK) {
        void *data = NULL;
        size_t n_bytes = 0;
        uint64_t t0 = kni_processor_ns();
        status = kni_chunk_encode(encoder, &meta, &clean, &data, &n_bytes, err);
        uint64_t t1 = kni_processor_ns();
        if (status == KN_OK)
            status = kni_chunk_restore(decoder, data, n_bytes, &meta, &coded, err);
        uint64_t t2 = kni_processor_ns();
        if (status == KN_OK)
            status = book(data, n_bytes, profile, &out->account, err);
        kni_free(data);
        out->encode_ns += t1 - t0;
        out->decode_ns += t2 - t1;
    }
    out->working_bytes = decoder ? kni_codec_working_bytes(decoder) : 0;
    kni_codec_close(&encoder);
    kni_codec_close(&decoder);
    return status;
}

static enum kn_status code_baseline(const struct kni_eval_method *m, struct kni_eval_bed *bed, struct kni_eval_coded *out, struct kn_err *err)
{
    struct kni_kv_host clean = kni_eval_bed_clean(bed), coded = kni_eval_bed_coded(bed);
    struct kni_cachegen_opts co = {.levels_k = m->levels_k, .levels_v = m->levels_v, .n_sinks = m->n_sinks};
    struct kni_cachegen *cachegen = NULL;
    struct kni_buffer buffer = {0};
    bool wants_cachegen = m->kind == KNI_EVAL_KIND_CACHEGEN || m->kind == KNI_EVAL_KIND_IDEAL;
    enum kn_status status = wants_cachegen ? kni_cachegen_open(&cachegen, &bed->kv, KNI_EVAL_CHUNK, &co) : KN_OK;
    if (status == KN_OK && m->kind == KNI_EVAL_KIND_IDEAL) {
        struct kni_span all = {.n_tokens = bed->n_prefix};
        double bits_k, bits_v;
        status = kni_cachegen_ideal(cachegen, &clean, all, &bits_k, &bits_v);
        out->account = (struct kni_account){.all_bytes = (uint64_t)((bits_k + bits_v) / 8), .k_bytes = bits_k / 8, .v_bytes = bits_v / 8};
    } else {
        struct kni_span span = {.n_tokens = KNI_EVAL_CHUNK};
        for (; status == KN_OK && span.first_token < bed->n_prefix; span.first_token += KNI_EVAL_CHUNK) {
            uint64_t t0 = kni_processor_ns();
            status = m->kind == KNI_EVAL_KIND_RAW    ? kni_raw_encode(&clean, span, &buffer, &out->account)
                     : m->kind == KNI_EVAL_KIND_ZSTD ? kni_raw_zstd_encode(&clean, span, &buffer, &out->account)
                                                     : kni_cachegen_encode(cachegen, &clean, span, &buffer, &out->account);
            uint64_t t1 = kni_processor_ns();
            if (status)
                break;
            status = m->kind == KNI_EVAL_KIND_RAW    ? kni_raw_decode(&coded, span, buffer.data, buffer.used)
                     : m->kind == KNI_EVAL_KIND_ZSTD ? kni_raw_zstd_decode(&coded, span, buffer.data, buffer.used)
                                                     : kni_cachegen_decode(cachegen, &coded, span, buffer.data, buffer.used);
            out->encode_ns += t1 - t0;
            out->decode_ns += kni_processor_ns() - t1;
        }
        out->working_bytes = cachegen ? kni_cachegen_bytes(cachegen) : 0;
    }
    kni_cachegen_close(&cachegen);
    kni_free(buffer.data);
    return status ? kni_err_set(err, status, "%s %s: %s", m->method, m->preset, kn_status_message(status)) : KN_OK;
}

static enum kn_status code_kvtc(const struct kni_eval_method *m, struct kni_eval_bed *bed, struct kni_kvtc *kvtc, struct kni_eval_coded *out, struct kn_err *err)
{
    struct kni_kv_host clean = kni_eval_bed_clean(bed), coded = kni_eval_bed_coded(bed);
    struct kni_buffer buffer = {0};
    enum kn_status status = kni_kvtc_allocate(kvtc, m->bits);
    uint64_t t0 = kni_processor_ns();
    if (status == KN_OK)
        status = kni_kvtc_encode(kvtc, &clean, bed->n_prefix, &buffer, &out->account);
    uint64_t t1 = kni_processor_ns();
    if (status == KN_OK)
        status = kni_kvtc_decode(kvtc, &coded, bed->n_prefix, buffer.data, buffer.used);
    out->encode_ns = t1 - t0;
    out->decode_ns = kni_processor_ns() - t1;
    out->working_bytes = kni_kvtc_bytes(kvtc);
    kni_free(buffer.data);
    return status ? kni_err_set(err, status, "%s %s: %s", m->method, m->preset, kn_status_message(status)) : KN_OK;
}

enum kn_status kni_eval_open_profile(struct kni_profile **out, const char *path, const struct kni_eval_bed *bed, struct kn_err *err)
{
    *out = NULL;
    enum kn_status status = path ? kni_profile_open(out, path, err) : KN_OK;
    if (status == KN_OK && *out)
        status = kni_profile_match(*out, bed->model->info.fingerprint, &bed->kv, err);
    if (status)
        kni_profile_close(out);
    return status;
}

enum kn_status kni_eval_method_code(const struct kni_eval_method *m, struct kni_eval_bed *bed, const struct kni_eval_needs *needs, struct kni_eval_coded *out,
                                    struct kn_err *err)
{
    *out = (struct kni_eval_coded){0};
    if (m->kind != KNI_EVAL_KIND_IDEAL)
        kni_eval_bed_poison(bed);
    if (m->kind == KNI_EVAL_KIND_KVTC)
        return code_kvtc(m, bed, needs->kvtc, out, err);
    return m->kind == KNI_EVAL_KIND_CODEC ? code_own(m, bed, needs, out, err) : code_baseline(m, bed, out, err);
}

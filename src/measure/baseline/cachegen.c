/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CacheGen: see cachegen.h. The quantiser is that of the tiles layout (tiles.h), which has the same scale and levels.
 *
 * A channel's distribution, as stored: for each of its 2 m + 1 levels a class, 0 for a count of 0, otherwise 1 + round(2 log2(count)).
 * The decoder takes a class for 2^((class - 1) / 2): half an octave costs 0.01 bits a symbol and saves more than that in classes.
 * Classes are coded with adaptive counts in the context of the two classes before.
 */
#include "measure/baseline/cachegen.h"

#include <math.h>
#include <string.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/le.h"
#include "measure/baseline/range_coder.h"
#include "codec/tiles/tiles.h"

#define WHAT_CACHEGEN 2u
#define MAX_LEVELS 256u
#define MAX_SINKS 16u
#define N_CLASSES 34u /* counts up to 65536 */
#define UNIT 16.0     /* weight of a count of 1 among a channel's frequencies */
#define SCALE_LEVEL 19

struct channel {
    uint32_t below[MAX_LEVELS + 1]; /* cumulated frequencies; below[n] is the total */
};

struct kni_cachegen {
    struct kni_cachegen_opts opts;
    struct kni_kv_layout kv;
    struct kni_tiles_ops ops;
    uint32_t max_tokens, n_channels; /* channels of one layer's K or V */
    uint32_t weights[N_CLASSES];
    uint16_t *scales;     /* [layer][K, V][token] */
    uint8_t *scale_bytes; /* as two planes */
    uint8_t *symbols;     /* [channel][token] of one layer's K or V */
    uint16_t *sinks;      /* [K, V] of the first tokens */
    uint32_t *histogram;  /* [channel][MAX_LEVELS], ideal only */
    struct kni_range_model models[N_CLASSES][N_CLASSES];
};

static uint32_t class_of(uint32_t count)
{
    return count ? 1 + (uint32_t)lrint(2 * log2((double)count)) : 0;
}

enum kn_status kni_cachegen_open(struct kni_cachegen **out, const struct kni_kv_layout *kv, uint32_t max_tokens, const struct kni_cachegen_opts *opts)
{
    *out = NULL;
    for (unsigned i = 0; i < 2; i++) {
        uint32_t levels = i ? opts->levels_v : opts->levels_k;
        if (levels < 4 || levels > MAX_LEVELS || levels % 2)
            return KN_E_ARG;
    }
    if (!max_tokens || max_tokens > KNI_CONTAINER_MAX_TOKENS || opts->n_sinks > MAX_SINKS || kv->d_head > KNI_CONTAINER_MAX_D_HEAD)
        return KN_E_ARG;
    struct kni_cachegen *c = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *c, 0);
    if (!c)
        return KN_E_NOMEM;
    c->opts = *opts;
    c->kv = *kv;
    c->ops = kni_tiles_ops_get(kv->type, kni_cpu_flags());
    c->max_tokens = max_tokens;
    c->n_channels = kv->n_kv_head * kv->d_head;
    for (uint32_t i = 1; i < N_CLASSES; i++)
        c->weights[i] = (uint32_t)lrint(UNIT * exp2((i - 1) / 2.0));
    size_t n_scales = (size_t)kv->n_layer * 2 * max_tokens;
    c->scales = kni_alloc(KNI_ALLOC_TAG_CODEC, n_scales * 2, 64);
    c->scale_bytes = kni_alloc(KNI_ALLOC_TAG_CODEC, n_scales * 2, 64);
    c->symbols = kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)c->n_channels * max_tokens, 64);
    c->sinks = kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)kv->n_layer * c->n_channels * MAX_SINKS * 2, 64);
    if (!c->scales || !c->scale_bytes || !c->symbols || !c->sinks) {
        kni_cachegen_close(&c);
        return KN_E_NOMEM;
    }
    *out = c;
    return KN_OK;
}

void kni_cachegen_close(struct kni_cachegen **c)
{
    if (!*c)
        return;
    kni_free((*c)->scales);
    kni_free((*c)->scale_bytes);
    kni_free((*c)->symbols);
    kni_free((*c)->sinks);
    kni_free((*c)->histogram);
    kni_free(*c);
    *c = NULL;
}

size_t kni_cachegen_bytes(const struct kni_cachegen *c)
{
    size_t n_scales = (size_t)c->kv.n_layer * 2 * c->max_tokens;
    return sizeof *c + n_scales * 4 + (size_t)c->n_channels * c->max_tokens + (size_t)c->kv.n_layer * c->n_channels * MAX_SINKS * 2;
}

static int32_t half_levels(const struct kni_cachegen *c, uint32_t is_v)
{
    return (int32_t)((is_v ? c->opts.levels_v : c->opts.levels_k) / 2) - 1;
}

/* Of a span's first tokens, so many are sinks. */
static uint32_t sinks_of(const struct kni_cachegen *c, struct kni_span span)
{
    if (span.first_token >= c->opts.n_sinks)
        return 0;
    uint32_t n = c->opts.n_sinks - span.first_token;
    return n < span.n_tokens ? n : span.n_tokens;
}

/* Symbols 0..2m of one layer's K or V, [channel][token], tokens first.. + n of the view. False: a value is not finite. */
static bool quantise(struct kni_cachegen *c, const struct kni_kv_host *view, uint32_t layer, uint32_t is_v, uint32_t first, uint32_t n, uint16_t *scales)
{
    uint8_t samples[KNI_CONTAINER_MAX_D_HEAD];
    int32_t m = half_levels(c, is_v);
    uint8_t lowest = (uint8_t)(128 - m);
    for (uint32_t t = 0; t < n; t++) {
        uint16_t scale = kni_tiles_scale(view, layer, is_v, first + t);
        if (scale >= kni_tiles_infinity(c->kv.type))
            return false;
        scales[t] = scale;
        for (uint32_t head = 0; head < c->kv.n_kv_head; head++) {
            kni_tiles_quantise(samples, kni_kv_row(view, layer, is_v, head, first + t), c->kv.d_head, scale, m, &c->ops, c->kv.type);
            uint8_t *to = c->symbols + (size_t)head * c->kv.d_head * n + t;
            for (uint32_t i = 0; i < c->kv.d_head; i++)
                to[(size_t)i * n] = (uint8_t)(samples[i] - lowest);
        }
    }
    return true;
}

static void dequantise(struct kni_cachegen *c, const struct kni_kv_host *view, uint32_t layer, uint32_t is_v, uint32_t first, uint32_t n, const uint16_t *scales)
{
    uint16_t table[256] = {0};
    int32_t m = half_levels(c, is_v);
    uint32_t lowest = (uint32_t)(128 - m);
    for (uint32_t t = 0; t < n; t++) {
        kni_tiles_table(table, scales[t], m, &c->ops, c->kv.type);
        for (uint32_t head = 0; head < c->kv.n_kv_head; head++) {
            uint16_t *row = kni_kv_row(view, layer, is_v, head, first + t);
            const uint8_t *from = c->symbols + (size_t)head * c->kv.d_head * n + t;
            for (uint32_t i = 0; i < c->kv.d_head; i++)
                row[i] = table[(from[(size_t)i * n] + lowest) & 255u];
        }
    }
}

/* ---- a channel's distribution */

static void cumulate(const struct kni_cachegen *c, const uint8_t *classes, uint32_t n_levels, struct channel *ch)
{
    ch->below[0] = 0;
    for (uint32_t i = 0; i < n_levels; i++)
        ch->below[i + 1] = ch->below[i] + c->weights[classes[i]];
    while (ch->below[n_levels] > KNI_RANGE_TOTAL_MAX) { /* chunks of thousands of tokens: halve, but keep what is there */
        uint32_t low = 0, old = 0;
        for (uint32_t i = 0; i < n_levels; i++) {
            uint32_t weight = ch->below[i + 1] - old;
            old = ch->below[i + 1];
            ch->below[i + 1] = low += (weight + 1) / 2;
        }
    }
}

static void write_channel(struct kni_cachegen *c, struct kni_range_encoder *e, const uint8_t *symbols, uint32_t n, uint32_t n_levels)
{
    uint32_t counts[MAX_LEVELS] = {0};
    uint8_t classes[MAX_LEVELS] = {0};
    struct channel ch;
    for (uint32_t t = 0; t < n; t++)
        counts[symbols[t]]++;
    uint32_t before = 0, last = 0;
    for (uint32_t i = 0; i < n_levels; i++) {
        uint32_t class = class_of(counts[i]);
        kni_range_model_encode(&c->models[before][last], e, N_CLASSES, class);
        classes[i] = (uint8_t)class;
        before = last;
        last = class;
    }
    cumulate(c, classes, n_levels, &ch);
    for (uint32_t t = 0; t < n; t++)
        kni_range_encode(e, ch.below[symbols[t]], ch.below[symbols[t] + 1] - ch.below[symbols[t]], ch.below[n_levels]);
}

static enum kn_status read_channel(struct kni_cachegen *c, struct kni_range_decoder *d, uint8_t *symbols, uint32_t n, uint32_t n_levels)
{
    uint8_t classes[MAX_LEVELS];
    struct channel ch;
    uint32_t before = 0, last = 0;
    for (uint32_t i = 0; i < n_levels; i++) {
        uint32_t class = kni_range_model_decode(&c->models[before][last], d, N_CLASSES);
        classes[i] = (uint8_t)class;
        before = last;
        last = class;
    }
    cumulate(c, classes, n_levels, &ch);
    uint32_t total = ch.below[n_levels];
    if (n && !total)
        return KN_E_FORMAT;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t value = kni_range_decode_get(d, total), low = 0, high = n_levels; /* below[low] <= value < below[high] */
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;
            if (ch.below[middle] <= value)
                low = middle;
            else
                high = middle;
        }
        kni_range_decode_take(d, ch.below[low], ch.below[low + 1] - ch.below[low], total);
        symbols[t] = (uint8_t)low;
    }
    return KN_OK;
}

/* ---- a chunk */

/* Layers' K or V, tokens first.. + n, as one stream. Scales are left in c->scales. */
static enum kn_status write_stream(struct kni_cachegen *c, const struct kni_kv_host *view, uint32_t first, uint32_t n, uint32_t is_v, struct kni_buffer *out, uint32_t *size)
{
    size_t n_values = (size_t)c->kv.n_layer * c->n_channels * n, room = n_values * 2 + (size_t)c->kv.n_layer * c->n_channels * MAX_LEVELS + 64;
    uint32_t n_levels = (uint32_t)(2 * half_levels(c, is_v) + 1);
    uint8_t *to = kni_buffer_room(out, room);
    if (!to)
        return KN_E_NOMEM;
    struct kni_range_encoder e;
    kni_range_encoder_init(&e, to, room);
    memset(c->models, 0, sizeof c->models);
    for (uint32_t layer = 0; layer < c->kv.n_layer; layer++) {
        if (!quantise(c, view, layer, is_v, first, n, c->scales + ((size_t)layer * 2 + is_v) * n))
            return KN_E_UNSUPPORTED;
        for (uint32_t i = 0; i < c->n_channels; i++)
            write_channel(c, &e, c->symbols + (size_t)i * n, n, n_levels);
    }
    size_t used = kni_range_encoder_finish(&e);
    if (used > room)
        return KN_E_NOMEM;
    out->used += used;
    *size = (uint32_t)used;
    return KN_OK;
}

enum kn_status kni_cachegen_encode(struct kni_cachegen *c, const struct kni_kv_host *view, struct kni_span span, struct kni_buffer *out, struct kni_account *account)
{
    if (!span.n_tokens || span.n_tokens > c->max_tokens)
        return KN_E_ARG;
    uint32_t n_sinks = sinks_of(c, span), first = span.first_token + n_sinks, n = span.n_tokens - n_sinks, sizes[3] = {0}; /* K, V, scales */
    uint32_t numbers[KNI_BASELINE_NUMBERS] = {c->opts.levels_k | c->opts.levels_v << 16, n_sinks, n};
    struct kni_span exact = {.first_token = span.first_token, .n_tokens = n_sinks};
    enum kn_status status = kni_baseline_begin(out, WHAT_CACHEGEN, numbers);
    size_t sink_bytes = kni_span_values(view, exact) * 2; /* of K, and of V */
    for (uint32_t is_v = 0; is_v < 2 && status == KN_OK && n_sinks; is_v++) {
        uint8_t *to = kni_buffer_room(out, sink_bytes);
        if (!to) {
            status = KN_E_NOMEM;
            break;
        }
        kni_span_gather(view, exact, is_v, c->sinks);
        memcpy(to, c->sinks, sink_bytes);
        out->used += sink_bytes;
    }
    for (uint32_t is_v = 0; is_v < 2 && status == KN_OK; is_v++)
        status = write_stream(c, view, first, n, is_v, out, &sizes[is_v]);
    if (status == KN_OK) {
        size_t n_scales = (size_t)c->kv.n_layer * 2 * n, bound = ZSTD_compressBound(n_scales * 2);
        for (size_t i = 0; i < n_scales; i++) {
            c->scale_bytes[i] = (uint8_t)c->scales[i];
            c->scale_bytes[n_scales + i] = (uint8_t)(c->scales[i] >> 8);
        }
        uint8_t *to = kni_buffer_room(out, bound);
        size_t size = to ? ZSTD_compress(to, bound, c->scale_bytes, n_scales * 2, SCALE_LEVEL) : 0;
        if (!to || ZSTD_isError(size))
            return KN_E_NOMEM;
        out->used += size;
        sizes[2] = (uint32_t)size;
    }
    for (uint32_t i = 0; i < 3 && status == KN_OK; i++)
        kni_le32_put(out->data + 16 + 4 * i, sizes[i]); /* numbers 3, 4, 5 */
    if (status == KN_OK)
        status = kni_baseline_end(out);
    if (status == KN_OK) {
        account->all_bytes += out->used;
        account->k_bytes += (double)(sink_bytes + sizes[0]) + sizes[2] / 2.0;
        account->v_bytes += (double)(sink_bytes + sizes[1]) + sizes[2] / 2.0;
    }
    return status;
}

enum kn_status kni_cachegen_decode(struct kni_cachegen *c, const struct kni_kv_host *view, struct kni_span span, const uint8_t *data, size_t n_bytes)
{
    uint32_t n_sinks = sinks_of(c, span), first = span.first_token + n_sinks, n = span.n_tokens - n_sinks, x[KNI_BASELINE_NUMBERS];
    struct kni_span exact = {.first_token = span.first_token, .n_tokens = n_sinks};
    size_t sink_bytes = kni_span_values(view, exact) * 2, n_scales = (size_t)c->kv.n_layer * 2 * n, n_body;
    const uint8_t *at;
    enum kn_status status = kni_baseline_open(data, n_bytes, WHAT_CACHEGEN, x, &at, &n_body);
    if (status || span.n_tokens > c->max_tokens || x[0] != (c->opts.levels_k | c->opts.levels_v << 16) || x[1] != n_sinks || x[2] != n ||
        n_body != 2 * sink_bytes + (size_t)x[3] + x[4] + x[5])
        return KN_E_FORMAT;
    for (uint32_t is_v = 0; is_v < 2 && n_sinks; is_v++, at += sink_bytes) {
        memcpy(c->sinks, at, sink_bytes);
        kni_span_scatter(view, exact, is_v, c->sinks);
    }
    size_t got = ZSTD_decompress(c->scale_bytes, n_scales * 2, at + x[3] + x[4], x[5]);
    if (got != n_scales * 2)
        return KN_E_FORMAT;
    for (size_t i = 0; i < n_scales; i++)
        c->scales[i] = (uint16_t)(c->scale_bytes[i] | c->scale_bytes[n_scales + i] << 8);
    for (uint32_t is_v = 0; is_v < 2; is_v++) {
        uint32_t n_levels = (uint32_t)(2 * half_levels(c, is_v) + 1);
        struct kni_range_decoder d;
        kni_range_decoder_init(&d, at, x[3 + is_v]);
        memset(c->models, 0, sizeof c->models);
        for (uint32_t layer = 0; layer < c->kv.n_layer && status == KN_OK; layer++) {
            for (uint32_t i = 0; i < c->n_channels && status == KN_OK; i++)
                status = read_channel(c, &d, c->symbols + (size_t)i * n, n, n_levels);
            dequantise(c, view, layer, is_v, first, n, c->scales + ((size_t)layer * 2 + is_v) * n);
        }
        if (status || kni_range_decoder_is_over(&d))
            return KN_E_FORMAT;
        at += x[3 + is_v];
    }
    return KN_OK;
}

/* ---- ideal */

enum kn_status kni_cachegen_ideal(struct kni_cachegen *c, const struct kni_kv_host *view, struct kni_span span, double *bits_k, double *bits_v)
{
    uint32_t n_sinks = sinks_of(c, span), end = span.first_token + span.n_tokens;
    size_t n_counts = (size_t)c->n_channels * MAX_LEVELS;
    *bits_k = *bits_v = 0;
    if (!c->histogram)
        c->histogram = kni_alloc(KNI_ALLOC_TAG_CODEC, n_counts * sizeof *c->histogram, 64);
    if (!c->histogram)
        return KN_E_NOMEM;
    for (uint32_t part = 0; part < c->kv.n_layer * 2; part++) {
        uint32_t is_v = part % 2, total = span.n_tokens - n_sinks;
        double bits = 0;
        memset(c->histogram, 0, n_counts * sizeof *c->histogram);
        for (uint32_t first = span.first_token + n_sinks; first < end;) {
            uint32_t n = end - first < c->max_tokens ? end - first : c->max_tokens;
            if (!quantise(c, view, part / 2, is_v, first, n, c->scales))
                return KN_E_UNSUPPORTED;
            for (uint32_t i = 0; i < c->n_channels; i++)
                for (uint32_t t = 0; t < n; t++)
                    c->histogram[(size_t)i * MAX_LEVELS + c->symbols[(size_t)i * n + t]]++;
            first += n;
        }
        for (size_t i = 0; i < n_counts; i++)
            if (c->histogram[i])
                bits -= c->histogram[i] * log2((double)c->histogram[i] / total);
        *(is_v ? bits_v : bits_k) += bits;
    }
    return KN_OK;
}

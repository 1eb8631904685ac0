/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout exact: the pool's 16-bit values, bit for bit, as long as they are finite. A model of the chunk
 * (exact_model.h) says what each value's sign, exponent and two bits of fraction are likely to be; those are entropy coded, and the
 * rest, which is noise, is stored as it is:
 *
 *     section 0      kind EXACT_MODEL, index 0: a zstd frame of the packed model
 *     section 1 + i  kind EXACT_PART, index i = layer * 2 + is_v:
 *                    [ n_escapes, u32 ][ raw bits ][ escapes, u16 each ][ rANS stream ]      channels [head][component], tokens inside
 *
 * Encoding goes over the chunk twice: once to fit the model and count symbols, once to code with tables made of the counts. It
 * keeps one part's values, and per value a symbol and a note. Decoding keeps one head's values. Channels are coded token after
 * token since then one table, or a few, serve a whole run of 16 lanes from the first-level cache.
 *
 * Hostile bytes: any stream of symbols decodes to some values, and the counts of escapes and words and the final states must fit. Values
 * that are not finite are refused: the largest of a channel is known when its values are made.
 * Owner: the codec handle.
 */
#include <string.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/le.h"
#include "base/room.h"
#include "codec/exact/exact_fit.h"
#include "codec/exact/exact_lanes.h"
#include "codec/layout.h"
#include "kernel/kernels.h"

#define MODEL_LEVEL 3 /* of zstd */
#define COUNT_WAYS 4u /* counters that take turns: neighbours are often alike, and a counter's next increment waits for its last */

struct kni_exact {
    uint32_t cpu_flags; /* of kernels, lanes and loops */
    ZSTD_CCtx *compressor;   /* NULL until the first encode */
    ZSTD_DCtx *decompressor; /* NULL until the first restore */
    struct kni_exact_lane_ops lanes;
    const struct kni_exact_loops *loops;
    struct kni_exact_model model; /* of model.kv; without arrays before the first chunk */
    uint8_t *packed_model;
    struct kni_exact_encode_table *encode_tables; /* [KNI_EXACT_N_TABLES] */
    struct kni_exact_decode_table *decode_tables;
    uint32_t (*counts)[256]; /* [KNI_EXACT_N_TABLES][COUNT_WAYS] */
    /* scratch of both directions, for scratch_values */
    uint16_t *values;          /* encoding: a part's; decoding: a head's; [component][token] */
    uint8_t *symbols, *notes;  /* encoding: a part's; decoding: a channel's */
    int16_t *means, *waves;    /* [n] of a channel; a layer's [d_head / 2][2][n] */
    uint32_t *held;            /* [d_head / 2]: turns that waves are of */
    size_t n_values, n_symbols, n_notes, n_means, n_waves, n_held;
    float *floats;
    size_t n_floats;
    size_t counted_bytes;      /* told to kni_codec_working_add */
};

static void count_memory(struct kni_codec *codec)
{
    struct kni_exact *x = codec->exact;
    size_t now = sizeof *x + ZSTD_sizeof_CCtx(x->compressor) + ZSTD_sizeof_DCtx(x->decompressor) + kni_exact_model_bytes(&x->model) +
                 kni_exact_model_packed_bytes(&x->model) + (x->encode_tables ? KNI_EXACT_N_TABLES * (sizeof *x->encode_tables + COUNT_WAYS * sizeof *x->counts) : 0) +
                 (x->decode_tables ? KNI_EXACT_N_TABLES * sizeof *x->decode_tables : 0) + x->n_symbols + x->n_notes + 2 * (x->n_values + x->n_means + x->n_waves) +
                 x->n_floats * sizeof(float);
    kni_codec_working_add(codec, x->counted_bytes, now);
    x->counted_bytes = now;
}

static enum kn_status make_state(struct kni_codec *codec, struct kn_err *err)
{
    if (codec->exact)
        return KN_OK;
    codec->exact = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *codec->exact, 0);
    if (!codec->exact)
        return kni_err_set(err, KN_E_NOMEM, "no memory for the exact layout");
    codec->exact->cpu_flags = kni_cpu_flags_without(codec->cpu_without);
    codec->exact->lanes = kni_exact_lane_ops(codec->exact->cpu_flags);
    codec->exact->loops = kni_exact_loops_get(codec->exact->cpu_flags);
    return KN_OK;
}

/* A model for this shape, kept from chunk to chunk. */
static enum kn_status make_model(struct kni_exact *x, const struct kni_kv_layout *kv, struct kn_err *err)
{
    const struct kni_kv_layout *have = &x->model.kv;
    if (x->packed_model && have->n_layer == kv->n_layer && have->n_kv_head == kv->n_kv_head && have->d_head == kv->d_head && have->type == kv->type)
        return KN_OK;
    kni_exact_model_fini(&x->model);
    kni_free(x->packed_model);
    x->packed_model = NULL;
    if (kni_exact_model_init(&x->model, kv))
        x->packed_model = kni_alloc(KNI_ALLOC_TAG_CODEC, kni_exact_model_packed_bytes(&x->model), 0);
    return x->packed_model ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for a model of %u layers of KV", kv->n_layer);
}

/* Scratch for that many values, and for symbols of n_runs channels of the chunk. */
static enum kn_status make_scratch(struct kni_exact *x, const struct kni_chunk_meta *m, size_t n_values, size_t n_symbols, struct kn_err *err)
{
    x->values = kni_room(KNI_ALLOC_TAG_CODEC, x->values, &x->n_values, n_values, sizeof *x->values);
    x->symbols = kni_room(KNI_ALLOC_TAG_CODEC, x->symbols, &x->n_symbols, n_symbols, 1);
    x->notes = kni_room(KNI_ALLOC_TAG_CODEC, x->notes, &x->n_notes, n_symbols, 1);
    x->means = kni_room(KNI_ALLOC_TAG_CODEC, x->means, &x->n_means, m->n_tokens, sizeof *x->means);
    const size_t n_waves = (size_t)(m->kv.d_head / 2 + 1) * 2 * m->n_tokens; /* one more: the fit's */
    x->waves = kni_room(KNI_ALLOC_TAG_CODEC, x->waves, &x->n_waves, n_waves, sizeof *x->waves);
    x->held = kni_room(KNI_ALLOC_TAG_CODEC, x->held, &x->n_held, m->kv.d_head / 2 + 1, sizeof *x->held);
    bool ok = x->values && x->symbols && x->notes && x->means && x->waves && x->held;
    if (ok)
        memset(x->held, 0, x->n_held * sizeof *x->held);
    return ok ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for %zu values of a chunk", n_values);
}

static enum kn_status exact_open_encoder(struct kni_codec *codec, struct kn_err *err)
{
    enum kn_status s = make_state(codec, err);
    if (s != KN_OK)
        return s;
    struct kni_exact *x = codec->exact;
    x->compressor = ZSTD_createCCtx();
    x->encode_tables = kni_alloc(KNI_ALLOC_TAG_CODEC, KNI_EXACT_N_TABLES * sizeof *x->encode_tables, 64);
    x->counts = kni_alloc(KNI_ALLOC_TAG_CODEC, COUNT_WAYS * KNI_EXACT_N_TABLES * sizeof *x->counts, 64);
    if (!x->compressor || !x->encode_tables || !x->counts)
        return kni_err_set(err, KN_E_NOMEM, "no memory for the exact layout's encoder");
    return KN_OK;
}

static enum kn_status exact_plan(const struct kni_codec *codec, struct kni_container_header *header, struct kn_err *err)
{
    (void)codec;
    (void)err;
    header->n_sections = 1 + header->meta.kv.n_layer * 2;
    return KN_OK;
}

/* ---- encoding */

/* Where channel (head, component) of the part at hand begins in values, symbols and notes. */
static size_t run_at(const struct kni_chunk_meta *m, uint32_t head, uint32_t component)
{
    return ((size_t)head * m->kv.d_head + component) * m->n_tokens;
}

static void load_part(struct kni_exact *x, const struct kni_kv_host *view, const struct kni_chunk_meta *m, uint32_t part)
{
    const uint32_t n = m->n_tokens, d = m->kv.d_head;
    for (uint32_t head = 0; head < m->kv.n_kv_head; head++)
        for (uint32_t i = 0; i < d; i += 16) /* outside: sixteen channels' values stay in the first-level cache */
            for (uint32_t t = 0; t < n; t += KNI_BLOCK_TOKENS) {
                const uint16_t *block = kni_kv_row(view, part / 2, part % 2, head, m->first_token + t);
                for (uint32_t k = 0; k < 8; k++) /* the next head's share of the same block lies right behind, in the next part as well */
                    __builtin_prefetch(block + (size_t)(KNI_BLOCK_TOKENS * (d + i)) + k * 32);
                x->loops->load(block + i, d, d - i < 16 ? d - i : 16, x->values + run_at(m, head, i) + t, n);
            }
}

static void store_head(struct kni_exact *x, const struct kni_kv_host *view, const struct kni_chunk_meta *m, uint32_t part, uint32_t head)
{
    const uint32_t n = m->n_tokens, d = m->kv.d_head;
    for (uint32_t i = 0; i < d; i += 16)
        for (uint32_t t = 0; t < n; t += KNI_BLOCK_TOKENS) {
            uint16_t *block = kni_kv_row(view, part / 2, part % 2, head, m->first_token + t);
            x->loops->store(block + i, d, d - i < 16 ? d - i : 16, x->values + (size_t)i * n + t, n);
        }
}

static bool make_notes(struct kni_exact *x, uint32_t part, uint32_t head, uint32_t component, uint8_t *notes, uint32_t n)
{
    return kni_exact_notes(&x->model, x->loops, part / 2, part % 2, head, component, x->waves, x->means, notes, n);
}

static uint16_t base_of(const struct kni_exact *x, uint32_t part, uint32_t head, uint32_t component)
{
    return x->model.bases[kni_exact_channel(&x->model, part / 2, part % 2, head, component)];
}

/* Counts a run's symbols by table. */
static void count_run(struct kni_exact *x, const uint8_t *notes, const uint8_t *symbols, uint32_t n, bool one_table)
{
    uint32_t(*counts)[256] = x->counts;
    for (uint32_t t = 0; !one_table && t < n; t += COUNT_WAYS)
        for (uint32_t k = 0; k < COUNT_WAYS; k++)
            counts[(notes[t + k] & KNI_EXACT_NOTE_TABLE) * COUNT_WAYS + k][symbols[t + k]]++;
    counts += (notes[0] & KNI_EXACT_NOTE_TABLE) * COUNT_WAYS;
    for (uint32_t t = 0; one_table && t < n; t += COUNT_WAYS)
        for (uint32_t k = 0; k < COUNT_WAYS; k++)
            counts[k][symbols[t + k]]++;
}

/* Notes and symbols of a part under the model, counted if wanted. Returns the number of escapes. */
static size_t make_symbols(struct kni_exact *x, const struct kni_chunk_meta *m, uint32_t part, bool count)
{
    size_t n_escapes = 0;
    if (part % 2 == 0)
        kni_exact_make_waves(&x->model, part / 2, x->held, x->waves, m->n_tokens);
    for (uint32_t head = 0; head < m->kv.n_kv_head; head++)
        for (uint32_t i = 0; i < m->kv.d_head; i++) {
            size_t at = run_at(m, head, i);
            bool one_table = make_notes(x, part, head, i, x->notes + at, m->n_tokens);
            n_escapes += x->loops->symbols(x->values + at, x->notes + at, x->model.raw_bits, base_of(x, part, head, i), x->symbols + at, m->n_tokens);
            if (count)
                count_run(x, x->notes + at, x->symbols + at, m->n_tokens, one_table);
        }
    return n_escapes;
}

/* The model, from two looks at every part; and tables from what its symbols turn out to be. */
static void fit_model(struct kni_exact *x, const struct kni_kv_host *view, const struct kni_chunk_meta *m)
{
    struct kni_kernels kernels;
    kni_kernels_init(&kernels, x->cpu_flags);
    struct kni_exact_fit fit;
    kni_exact_fit_init(&fit, &x->model, x->loops, kernels.from_half[m->kv.type], m->n_tokens, x->floats, x->waves + (size_t)(m->kv.d_head / 2) * 2 * m->n_tokens);
    memset(x->counts, 0, COUNT_WAYS * KNI_EXACT_N_TABLES * sizeof *x->counts);
    load_part(x, view, m, m->kv.n_layer / 2 * 2);
    for (uint32_t head = 0; head < m->kv.n_kv_head; head++)
        kni_exact_fit_head(&fit, head, x->values + run_at(m, head, 0));
    x->model.pairs = kni_exact_fit_pairs(&fit);
    for (uint32_t part = 0; part < m->kv.n_layer * 2; part++) {
        load_part(x, view, m, part);
        for (uint32_t head = 0; head < m->kv.n_kv_head; head++)
            kni_exact_fit_head(&fit, head, x->values + run_at(m, head, 0));
        kni_exact_fit_part(&fit, part / 2, part % 2);
        make_symbols(x, m, part, true);
    }
    for (uint32_t table = 0; table < KNI_EXACT_N_TABLES; table++) {
        double weights[256], sum = 0;
        for (int s = 0; s < 256; s++) {
            weights[s] = 0;
            for (uint32_t k = 0; k < COUNT_WAYS; k++)
                weights[s] += x->counts[table * COUNT_WAYS + k][s];
            sum += weights[s];
        }
        if (sum == 0)
            weights[0] = 1; /* not used */
        kni_rans_normalise(weights, x->model.freq[table]);
        kni_rans_make_symbols(x->model.freq[table], x->encode_tables[table].symbols);
    }
}

static enum kn_status write_model(struct kni_exact *x, struct kni_container_writer *w, struct kn_err *err)
{
    size_t n = kni_exact_model_packed_bytes(&x->model), bound = ZSTD_compressBound(n);
    uint8_t *room = kni_container_writer_reserve(w, bound);
    if (!room)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a coded chunk");
    kni_exact_model_pack(&x->model, x->packed_model);
    n = ZSTD_compressCCtx(x->compressor, room, bound, x->packed_model, n, MODEL_LEVEL);
    if (ZSTD_isError(n))
        return kni_err_set(err, KN_E_NOMEM, "zstd could not compress a chunk's model: %s", ZSTD_getErrorName(n));
    kni_container_writer_commit(w, n);
    kni_container_writer_end_section(w, KNI_SECTION_KIND_EXACT_MODEL, 0);
    return KN_OK;
}

/* The part whose symbols are made, as a section. */
static enum kn_status write_part(struct kni_exact *x, struct kni_container_writer *w, uint32_t part, size_t part_values, size_t n_escapes, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &w->header.meta;
    const size_t raw_bytes = kni_exact_packed_bytes(part_values, x->model.raw_bits), head_bytes = 4 + raw_bytes + 2 * n_escapes;
    const size_t stream_bound = kni_exact_stream_bound(part_values);
    uint8_t *room = kni_container_writer_reserve(w, head_bytes + stream_bound);
    if (!room)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a coded chunk");
    kni_le32_put(room, (uint32_t)n_escapes);
    struct kni_exact_packer packer = {.n_bits = x->model.raw_bits, .out = room + 4};
    const size_t n_channels = part_values / m->n_tokens;
    for (size_t c = 0; c < n_channels; c++)
        x->loops->pack(&packer, x->values + c * m->n_tokens, m->n_tokens);
    kni_exact_pack_end(&packer);
    uint8_t *escape = room + 4 + raw_bytes;
    for (size_t i = 0; n_escapes && i < part_values; i++)
        if (x->symbols[i] == KNI_EXACT_ESCAPE) {
            kni_le16_put(escape, x->values[i]);
            escape += 2;
        }
    struct kni_exact_writer lanes;
    uint8_t *end = room + head_bytes + stream_bound;
    kni_exact_writer_init(&lanes, room + head_bytes, end);
    for (size_t c = n_channels; c-- > 0;)
        x->lanes.write(&lanes, x->encode_tables, x->notes + c * m->n_tokens, x->symbols + c * m->n_tokens, m->n_tokens);
    const uint8_t *stream = kni_exact_writer_finish(&lanes);
    memmove(room + head_bytes, stream, (size_t)(end - stream));
    kni_container_writer_commit(w, head_bytes + (size_t)(end - stream));
    kni_container_writer_end_section(w, KNI_SECTION_KIND_EXACT_PART, part);
    return KN_OK;
}

static enum kn_status exact_encode(struct kni_codec *codec, const struct kni_kv_host *view, struct kni_container_writer *w, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &w->header.meta;
    struct kni_exact *x = codec->exact;
    const size_t part_values = (size_t)m->kv.n_kv_head * m->kv.d_head * m->n_tokens;
    size_t n_floats;
    if (part_values > UINT32_MAX || !kni_exact_fit_floats(&m->kv, m->n_tokens, &n_floats))
        return kni_err_set(err, KN_E_ARG, "chunk too large: a layer has %zu values; use fewer tokens a chunk", part_values);
    enum kn_status s = make_model(x, &m->kv, err);
    if (s == KN_OK)
        s = make_scratch(x, m, part_values, part_values, err);
    if (s != KN_OK)
        return s;
    x->floats = kni_room(KNI_ALLOC_TAG_CODEC, x->floats, &x->n_floats, n_floats, sizeof *x->floats);
    if (!x->floats || !kni_container_writer_reserve(w, kni_kv_token_bytes(&m->kv) * m->n_tokens / 8 * 7)) /* mostly enough, and grows */
        return kni_err_set(err, KN_E_NOMEM, "no memory for a coded chunk of %u tokens", m->n_tokens);
    fit_model(x, view, m);
    s = write_model(x, w, err);
    for (uint32_t part = 0; s == KN_OK && part < m->kv.n_layer * 2; part++) {
        load_part(x, view, m, part);
        s = write_part(x, w, part, part_values, make_symbols(x, m, part, false), err);
    }
    count_memory(codec);
    return s;
}

/* ---- restoring */

static enum kn_status read_model(struct kni_exact *x, const struct kni_container *c, struct kn_err *err)
{
    const uint8_t *bytes;
    size_t size, n = kni_exact_model_packed_bytes(&x->model);
    enum kn_status s = kni_container_expect(c, 0, KNI_SECTION_KIND_EXACT_MODEL, 0, &bytes, &size, err);
    if (s != KN_OK)
        return s;
    size_t have = ZSTD_decompressDCtx(x->decompressor, x->packed_model, n, bytes, size);
    if (ZSTD_isError(have))
        return kni_err_set(err, KN_E_FORMAT, "chunk section 0 (the model) does not decompress: %s", ZSTD_getErrorName(have));
    if (have != n)
        return kni_err_set(err, KN_E_FORMAT, "chunk section 0 (the model) has %zu bytes, expected %zu", have, n);
    if (!kni_exact_model_unpack(&x->model, x->packed_model))
        return kni_err_set(err, KN_E_FORMAT, "chunk section 0 (the model) has a table that does not sum to %u, or unknown pairs", KNI_RANS_SCALE);
    for (uint32_t table = 0; table < KNI_EXACT_N_TABLES; table++)
        kni_rans_make_slots(x->model.freq[table], x->decode_tables[table].slots);
    return KN_OK;
}

static enum kn_status read_part(struct kni_exact *x, const struct kni_container *c, uint32_t part, const struct kni_kv_host *view, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &c->header.meta;
    const uint32_t n = m->n_tokens, raw_bits = x->model.raw_bits;
    const size_t raw_bytes = kni_exact_packed_bytes((size_t)m->kv.n_kv_head * m->kv.d_head * n, raw_bits);
    const uint8_t *bytes;
    size_t size;
    enum kn_status s = kni_container_expect(c, 1 + part, KNI_SECTION_KIND_EXACT_PART, part, &bytes, &size, err);
    if (s != KN_OK)
        return s;
    size_t escape_bytes = size >= 4 ? 2 * (size_t)kni_le32_get(bytes) : 0;
    if (size < 4 || size - 4 < raw_bytes || size - 4 - raw_bytes < escape_bytes)
        return kni_err_set(err, KN_E_FORMAT, "chunk section %u of %zu bytes is too short for its raw bits and escapes", 1 + part, size);
    struct kni_exact_unpacker raw = {.n_bits = raw_bits, .in = bytes + 4};
    const uint8_t *escape = bytes + 4 + raw_bytes, *escape_end = escape + escape_bytes;
    struct kni_exact_reader lanes;
    if (part % 2 == 0)
        kni_exact_make_waves(&x->model, part / 2, x->held, x->waves, n);
    const uint16_t infinity = kni_kv_infinity(m->kv.type);
    bool ok = kni_exact_reader_init(&lanes, escape_end, (size_t)(bytes + size - escape_end)), finite = true;
    for (uint32_t head = 0; ok && head < m->kv.n_kv_head; head++) {
        for (uint32_t i = 0; ok && i < m->kv.d_head; i++) {
            uint16_t *values = x->values + (size_t)i * n;
            make_notes(x, part, head, i, x->notes, n);
            x->lanes.read(&lanes, x->decode_tables, x->notes, x->symbols, n);
            x->loops->unpack(&raw, values, n);
            uint16_t largest;
            uint32_t n_escapes = x->loops->values(x->symbols, x->notes, raw_bits, base_of(x, part, head, i), values, n, &largest);
            ok = 2 * (size_t)n_escapes <= (size_t)(escape_end - escape) && !lanes.cut;
            for (uint32_t t = 0; ok && n_escapes && t < n; t++)
                if (x->symbols[t] == KNI_EXACT_ESCAPE) {
                    values[t] = kni_le16_get(escape);
                    escape += 2;
                }
            if (n_escapes) /* before they were put in, anything stood in their places */
                largest = kni_kv_largest(values, n);
            finite = finite && largest < infinity;
        }
        if (ok)
            store_head(x, view, m, part, head);
    }
    if (!ok || escape != escape_end || !kni_exact_unpack_end(&raw) || !kni_exact_reader_finish(&lanes))
        return kni_err_set(err, KN_E_FORMAT, "chunk section %u does not decode: its stream, escapes or padding do not come out even", 1 + part);
    if (!finite)
        return kni_err_set(err, KN_E_FORMAT, "chunk section %u (%s of layer %u) holds values that are not finite", 1 + part, part % 2 ? "V" : "K", part / 2);
    return KN_OK;
}

static enum kn_status exact_restore(struct kni_codec *codec, const struct kni_container *c, const struct kni_kv_host *view, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &c->header.meta;
    const struct kni_tiling *t = &c->header.tiling;
    if (t->levels | t->tokens_per_picture | t->tile_height | t->head_cols | t->grid_cols)
        return kni_err_set(err, KN_E_FORMAT, "exact chunk with a tiling in its header");
    if (c->header.n_sections != 1 + m->kv.n_layer * 2)
        return kni_err_set(err, KN_E_FORMAT, "exact chunk of %u layers has %u sections", m->kv.n_layer, c->header.n_sections);
    enum kn_status s = make_state(codec, err);
    if (s != KN_OK)
        return s;
    struct kni_exact *x = codec->exact;
    s = make_model(x, &m->kv, err);
    if (s == KN_OK)
        s = make_scratch(x, m, (size_t)m->kv.d_head * m->n_tokens, m->n_tokens, err);
    if (s != KN_OK)
        return s;
    if (!x->decompressor && !(x->decompressor = ZSTD_createDCtx()))
        return kni_err_set(err, KN_E_NOMEM, "no memory for a zstd decompressor");
    if (!x->decode_tables && !(x->decode_tables = kni_alloc(KNI_ALLOC_TAG_CODEC, KNI_EXACT_N_TABLES * sizeof *x->decode_tables, 64)))
        return kni_err_set(err, KN_E_NOMEM, "no memory for the exact layout's decoder");
    s = read_model(x, c, err);
    for (uint32_t part = 0; s == KN_OK && part < m->kv.n_layer * 2; part++)
        s = read_part(x, c, part, view, err);
    count_memory(codec);
    return s;
}

static void exact_close(struct kni_codec *codec)
{
    struct kni_exact *x = codec->exact;
    if (!x)
        return;
    ZSTD_freeCCtx(x->compressor);
    ZSTD_freeDCtx(x->decompressor);
    kni_exact_model_fini(&x->model);
    kni_free(x->packed_model);
    kni_free(x->encode_tables);
    kni_free(x->decode_tables);
    kni_free(x->counts);
    kni_free(x->values);
    kni_free(x->symbols);
    kni_free(x->notes);
    kni_free(x->means);
    kni_free(x->waves);
    kni_free(x->held);
    kni_free(x->floats);
    kni_free(x);
    codec->exact = NULL;
}

const struct kni_layout_ops kni_layout_exact = {
    .layout = KNI_LAYOUT_ID_EXACT,
    .backend = KNI_BACKEND_ID_RANS,
    .preset = KN_PRESET_EXACT,
    .name = "exact",
    .open_encoder = exact_open_encoder,
    .plan = exact_plan,
    .encode = exact_encode,
    .restore = exact_restore,
    .estimate = kni_layout_estimate_flat,
    .close = exact_close,
};

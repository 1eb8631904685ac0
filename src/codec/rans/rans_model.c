/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model from counts, and a model as bytes; and which table a row's symbols find, which counting and coding share.
 *
 * The trainer counts symbols by class and level (rans_model.h): 240 x 32 contexts. Most are alike, many are hardly seen. They are
 * merged, cheapest pair first, where the cost is the bits that one table for both loses against one each, until at most 96
 * tables are left and no merge is nearly free. So a context that was hardly seen ends in the table that suits it best. Contexts never
 * seen take the table of the nearest one seen. Bits lost on real matrices, against 128 tables: 0.03 % with 96, 0.1 % with 64, 0.4 %
 * with 32.
 *
 * As bytes: doc/format-rans.md.
 */
#include "codec/rans/rans_model.h"

#include "base/alloc.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define CONTEXTS (KNI_RANS_MAX_CLASSES * KNI_RANS_LEVELS)
#define WANT_TABLES 96u
#define MAGIC 0x314d524bu /* "KRM1" */
#define CLASS_BYTES (6u + 16u + KNI_RANS_LEVELS)
#define HEAD_BYTES 8u
#define TABLE_BYTES (2u * KNI_RANS_SYMBOLS)

struct kni_rans_trainer {
    struct kni_rans_class classes[KNI_RANS_MAX_CLASSES];
    struct kni_rans_row row;
    uint8_t levels[KNI_RANS_MAX_TOKENS], coded[KNI_RANS_MAX_TOKENS];
    uint32_t counts[CONTEXTS][256];
};

#define SPREADS 64u /* classes of a kind, four an octave */
#define LAST_EXPONENTS (KNI_RANS_MAX_CLASSES - 1 - KIND_EXPONENTS * SPREADS) /* a mean of 13: exponents vary less */
enum kind { KIND_PLAIN, KIND_SMOOTH, KIND_SMOOTHER, KIND_EXPONENTS };

static uint8_t class_of(double mean_magnitude, enum kind kind)
{
    double c = mean_magnitude > 0 ? rint(4 * log2(mean_magnitude)) + 32 : 0, last = kind == KIND_EXPONENTS ? LAST_EXPONENTS : SPREADS - 1;
    return (uint8_t)(kind * SPREADS + (unsigned)(c < 0 ? 0 : c > last ? last : c));
}

uint8_t kni_rans_class_of_row(double mean_magnitude, double lag_one)
{
    return class_of(mean_magnitude, lag_one < 0.2 ? KIND_PLAIN : lag_one < 0.4 ? KIND_SMOOTH : KIND_SMOOTHER);
}

uint8_t kni_rans_class_of_exponents(double mean_magnitude)
{
    return class_of(mean_magnitude, KIND_EXPONENTS);
}

double kni_rans_class_mean(uint8_t class)
{
    return exp2((class % SPREADS - 32.0) / 4);
}

/* A row's weight falls with its mean so that small symbols are counted and large ones averaged; what comes before is small below 1.6
 * means, large from 5 on. */
static void class_rule(struct kni_rans_class *c, unsigned class)
{
    double mean = kni_rans_class_mean((uint8_t)class);
    c->above = class / SPREADS == KIND_EXPONENTS;
    c->weight = (uint8_t)fmax(1, rint(64 / (1 + mean)));
    c->cap = (uint8_t)(KNI_RANS_MAX_GAIN / c->weight < 127 ? KNI_RANS_MAX_GAIN / c->weight : 127);
    c->expect = (uint16_t)rint(fmin(256 * mean * c->weight, 64000));
    for (c->shift = 0; 5 * mean > 14 << c->shift && c->shift < 7; c->shift++)
        ;
    for (unsigned v = 0; v < 16; v++) {
        double middle = (v + 0.5) * (1 << c->shift) - 0.5;
        c->left[v] = middle < 1.6 * mean ? 8 : middle < 5 * mean ? 16 : 24;
    }
    for (unsigned level = 0; level < KNI_RANS_LEVELS; level++)
        c->map[level] = (uint8_t)level;
}

enum kn_status kni_rans_trainer_open(struct kni_rans_trainer **out)
{
    struct kni_rans_trainer *t = *out = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *t, 64);
    if (!t)
        return KN_E_NOMEM;
    for (unsigned i = 0; i < KNI_RANS_MAX_CLASSES; i++)
        class_rule(&t->classes[i], i);
    return KN_OK;
}

void kni_rans_trainer_close(struct kni_rans_trainer **t)
{
    kni_free(*t);
    *t = NULL;
}

void kni_rans_notes_ref(struct kni_rans_row *row, const struct kni_rans_class *c, const uint8_t *tokens, uint32_t n_tokens, uint8_t *tables,
                        uint8_t *coded)
{
    kni_rans_row_begin(row, n_tokens);
    kni_rans_to_positions(row->symbols, tokens, 0, n_tokens);
    for (uint32_t p = 0; p < n_tokens; p++) {
        int before = kni_rans_before(row, c, p);
        tables[p] = c->map[kni_rans_level(c, row->loud[p], p, before)];
        coded[p] = kni_rans_flip(row->symbols[p], before < 0);
    }
    kni_rans_row_end(row, n_tokens, c);
}

void kni_rans_trainer_add(struct kni_rans_trainer *t, const uint8_t *symbols, size_t stride, uint32_t n_rows, uint32_t n_tokens, const uint8_t *classes)
{
    kni_rans_row_reset(&t->row);
    for (uint32_t r = 0; r < n_rows; r++) {
        unsigned class = classes[r] < KNI_RANS_MAX_CLASSES ? classes[r] : KNI_RANS_MAX_CLASSES - 1;
        kni_rans_notes_ref(&t->row, &t->classes[class], symbols + r * stride, n_tokens, t->levels, t->coded);
        for (uint32_t p = 0; p < n_tokens; p++)
            t->counts[class * KNI_RANS_LEVELS + t->levels[p]][t->coded[p]]++;
    }
}

/* ---- merging */

#define WINDOW 6u /* clusters are ordered by mean magnitude; each is compared with so many after it */
#define FREE_BITS 256.0 /* a merge that loses less than a table's own bytes is free */

struct cluster {
    double n, sum_magnitude, self_bits; /* self_bits: of its symbols by its own table */
    double counts[256];
};

struct merge {
    struct cluster clusters[CONTEXTS];
    uint32_t order[CONTEXTS]; /* those alive, by mean magnitude */
    double cost[CONTEXTS][WINDOW]; /* of merging order[i] with order[i + 1 + k] */
    uint16_t home[CONTEXTS]; /* of a context: its cluster; NO_HOME when never seen */
    uint32_t n;
};
#define NO_HOME UINT16_MAX

static double n_log_n(double n)
{
    return n > 0 ? n * log2(n) : 0;
}

static double mean_magnitude(const struct cluster *c)
{
    return c->sum_magnitude / c->n;
}

static double merge_cost(const struct cluster *a, const struct cluster *b)
{
    double bits = n_log_n(a->n + b->n);
    for (unsigned s = 0; s < 256; s++)
        bits -= n_log_n(a->counts[s] + b->counts[s]);
    return bits - a->self_bits - b->self_bits;
}

static void cost_again(struct merge *m, uint32_t around)
{
    uint32_t first = around > WINDOW ? around - WINDOW : 0;
    for (uint32_t i = first; i <= around && i < m->n; i++)
        for (uint32_t k = 0; k < WINDOW; k++)
            m->cost[i][k] = i + 1 + k < m->n ? merge_cost(&m->clusters[m->order[i]], &m->clusters[m->order[i + 1 + k]]) : HUGE_VAL;
}

static void merge_begin(struct merge *m, const struct kni_rans_trainer *t)
{
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        struct cluster *c = &m->clusters[i];
        for (unsigned s = 0; s < 256; s++) {
            c->counts[s] = (double)t->counts[i][s];
            c->n += c->counts[s];
            c->sum_magnitude += c->counts[s] * kni_rans_magnitude((uint8_t)s);
            c->self_bits -= n_log_n(c->counts[s]);
        }
        c->self_bits += n_log_n(c->n);
        m->home[i] = c->n > 0 ? (uint16_t)i : NO_HOME;
        if (!(c->n > 0))
            continue;
        uint32_t at = m->n++;
        for (; at && mean_magnitude(&m->clusters[m->order[at - 1]]) > mean_magnitude(c); at--)
            m->order[at] = m->order[at - 1];
        m->order[at] = i;
    }
    for (uint32_t i = 0; i < m->n; i++)
        cost_again(m, i);
}

static void merge_pair(struct merge *m, uint32_t i, uint32_t j)
{
    uint32_t into = m->order[i], from = m->order[j];
    struct cluster *a = &m->clusters[into], *b = &m->clusters[from];
    a->self_bits += b->self_bits + merge_cost(a, b);
    a->n += b->n;
    a->sum_magnitude += b->sum_magnitude;
    for (unsigned s = 0; s < 256; s++)
        a->counts[s] += b->counts[s];
    for (uint32_t c = 0; c < CONTEXTS; c++)
        if (m->home[c] == from)
            m->home[c] = (uint16_t)into;
    m->n--;
    memmove(m->order + j, m->order + j + 1, (m->n - j) * sizeof *m->order);
    memmove(m->cost + j, m->cost + j + 1, (m->n - j) * sizeof *m->cost);
    cost_again(m, i);
    cost_again(m, j);
}

static void merge_all(struct merge *m)
{
    while (m->n > 1) {
        uint32_t best = 0, best_k = 0;
        for (uint32_t i = 0; i < m->n; i++)
            for (uint32_t k = 0; k < WINDOW; k++)
                if (m->cost[i][k] < m->cost[best][best_k]) {
                    best = i;
                    best_k = k;
                }
        if (m->n <= WANT_TABLES && m->cost[best][best_k] > FREE_BITS)
            break;
        merge_pair(m, best, best + 1 + best_k);
    }
}

/* ---- tables */

/* A symbol that would fill less than a quarter of a slot goes through the escape. */
#define DIRECT_SHARE (0.25 / KNI_RANS_SCALE)
#define PRIOR_SYMBOLS 8.0

/* Counts and, so that nothing hangs on a handful of symbols, a few of a two-sided geometric distribution of the same mean. */
static void table_of(const struct cluster *c, uint16_t freq[256])
{
    double mean = c && c->n > 0 ? mean_magnitude(c) + 0.01 : 1, theta = (sqrt(1 + mean * mean) - 1) / mean, weights[256], total = 0, escape = 0;
    for (unsigned s = 0; s < 256; s++) {
        double prior = PRIOR_SYMBOLS * (1 - theta) / (1 + theta) * pow(theta, kni_rans_magnitude((uint8_t)s));
        weights[s] = prior + (c ? c->counts[s] : 0);
        total += weights[s];
    }
    for (unsigned s = 0; s < 256; s++)
        if (s <= KNI_RANS_ESCAPE || s >= KNI_RANS_FIRST + KNI_RANS_SYMBOLS || weights[s] < DIRECT_SHARE * total) {
            escape += weights[s];
            weights[s] = 0;
        }
    weights[KNI_RANS_ESCAPE] = escape + total * 0x1p-16;
    kni_rans_normalise(weights, freq);
}

static struct kni_rans_model *model_new(uint32_t n_tables)
{
    struct kni_rans_model *m = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *m, 64);
    if (!m)
        return NULL;
    m->n_tables = n_tables;
    m->freq = kni_calloc(KNI_ALLOC_TAG_CODEC, n_tables * sizeof *m->freq, 64);
    m->codes = kni_calloc(KNI_ALLOC_TAG_CODEC, n_tables * sizeof *m->codes, 64);
    m->slots = kni_calloc(KNI_ALLOC_TAG_CODEC, n_tables * sizeof *m->slots, 64);
    m->buckets = kni_calloc(KNI_ALLOC_TAG_CODEC, n_tables * sizeof *m->buckets, 64);
    if (!m->freq || !m->codes || !m->slots || !m->buckets)
        kni_rans_model_free(&m);
    return m;
}

/* What dealing out one table's slots knows of its symbols, by number (symbol - KNI_RANS_FIRST). */
struct deal {
    const uint16_t *freq;
    struct kni_rans_bucket *buckets;
    uint16_t *slots;
    uint32_t left[KNI_RANS_SYMBOLS];   /* slots that it has still to get */
    uint32_t next[KNI_RANS_SYMBOLS];   /* the rank of the first of them */
    uint32_t pieces[KNI_RANS_SYMBOLS], first[KNI_RANS_SYMBOLS]; /* as in struct kni_rans_code */
};

/* Slots from .. to - 1 of a bucket go to a symbol's next ranks. */
static void give(struct deal *d, uint32_t bucket, uint32_t from, uint32_t to, uint32_t symbol)
{
    for (uint32_t k = from; k < to; k++)
        d->slots[d->first[symbol] + d->next[symbol]++ - 31 * d->pieces[symbol]] = (uint16_t)(bucket * KNI_RANS_BUCKET_SLOTS + k);
    d->left[symbol] -= to - from;
}

static void fill_bucket(struct deal *d, uint32_t bucket, uint32_t divider, uint32_t other)
{
    d->buckets[bucket].own = d->freq[bucket] | d->next[bucket] << 12 | divider << 24;
    d->buckets[bucket].other = d->freq[other] | (d->next[other] - divider) % KNI_RANS_SCALE << 12 | (KNI_RANS_FIRST + other) << 24;
}

/* The buckets of symbols that do not occur hold a piece of 32 slots each, of the lowest symbol that has as many left. */
static void deal_pieces(struct deal *d)
{
    uint32_t rich = 0, at = 0, of_bucket[KNI_RANS_SYMBOLS];
    for (uint32_t i = 0; i < KNI_RANS_SYMBOLS; i++) {
        if (d->freq[i])
            continue;
        while (d->left[rich] < KNI_RANS_BUCKET_SLOTS)
            rich++;
        d->left[rich] -= KNI_RANS_BUCKET_SLOTS;
        of_bucket[i] = rich;
        d->pieces[rich]++;
    }
    for (uint32_t i = 0; i < KNI_RANS_SYMBOLS; i++) {
        d->first[i] = at;
        at += d->pieces[i] + d->left[i];
    }
    for (uint32_t i = 0; i < KNI_RANS_SYMBOLS; i++) {
        if (d->freq[i])
            continue;
        uint32_t of = of_bucket[i];
        fill_bucket(d, i, 0, of);
        d->slots[d->first[of] + d->next[of] / KNI_RANS_BUCKET_SLOTS] = (uint16_t)(i * KNI_RANS_BUCKET_SLOTS);
        d->next[of] += KNI_RANS_BUCKET_SLOTS;
    }
}

/* What is left fills the other buckets: one that its own symbol does not fill is filled up from one that has too much, which may thereby
 * come to have too little. The last to become poor is served first; the rich are taken by symbol. All this is part of the format. */
static void deal_rest(struct deal *d)
{
    uint8_t poor[KNI_RANS_SYMBOLS];
    uint32_t n_poor = 0, rich = 0;
    for (uint32_t i = 0; i < KNI_RANS_SYMBOLS; i++)
        if (d->freq[i] && d->left[i] < KNI_RANS_BUCKET_SLOTS)
            poor[n_poor++] = (uint8_t)i;
    while (n_poor) {
        uint32_t i = poor[--n_poor], divider = d->left[i];
        while (d->left[rich] <= KNI_RANS_BUCKET_SLOTS) /* there are as many slots left as these buckets hold, so someone has more */
            rich++;
        fill_bucket(d, i, divider, rich);
        give(d, i, 0, divider, i);
        give(d, i, divider, KNI_RANS_BUCKET_SLOTS, rich);
        if (d->left[rich] < KNI_RANS_BUCKET_SLOTS)
            poor[n_poor++] = (uint8_t)rich;
    }
    for (uint32_t i = 0; i < KNI_RANS_SYMBOLS; i++) /* those that fill their own bucket to the brim */
        if (d->left[i]) {
            fill_bucket(d, i, KNI_RANS_BUCKET_SLOTS, i);
            give(d, i, 0, KNI_RANS_BUCKET_SLOTS, i);
        }
}

static void model_build(struct kni_rans_model *m)
{
    struct kni_rans_symbol symbols[256];
    for (uint32_t t = 0; t < m->n_tables; t++) {
        struct deal d = {.freq = m->freq[t] + KNI_RANS_FIRST, .buckets = m->buckets[t], .slots = m->slots[t]};
        for (uint32_t i = 0; i < KNI_RANS_SYMBOLS; i++)
            d.left[i] = d.freq[i];
        deal_pieces(&d);
        deal_rest(&d);
        kni_rans_make_symbols(m->freq[t], symbols);
        for (uint32_t s = 0; s < 256; s++) {
            bool raw = s == KNI_RANS_ESCAPE || !m->freq[t][s];
            uint32_t coded = raw ? KNI_RANS_ESCAPE : s, i = coded - KNI_RANS_FIRST;
            m->codes[t][s].what = m->freq[t][coded] | d.first[i] << 12 | d.pieces[i] << 24 | (raw ? KNI_RANS_RAW : 0);
            m->codes[t][s].recip = symbols[coded].recip;
        }
    }
}

void kni_rans_model_free(struct kni_rans_model **m)
{
    if (!*m)
        return;
    kni_free((*m)->freq);
    kni_free((*m)->codes);
    kni_free((*m)->slots);
    kni_free((*m)->buckets);
    kni_free(*m);
    *m = NULL;
}

/* The index in values[0..n) nearest to i that is not NO_HOME; n when there is none. */
static uint32_t nearest(const uint16_t *values, uint32_t n, uint32_t i)
{
    for (uint32_t d = 0; d < n; d++) {
        if (i >= d && values[i - d] != NO_HOME)
            return i - d;
        if (i + d < n && values[i + d] != NO_HOME)
            return i + d;
    }
    return n;
}

/* The class seen that is most like this one: a quarter octave counts one, another kind three. */
static uint32_t nearest_class(const bool seen[KNI_RANS_MAX_CLASSES], uint32_t class)
{
    uint32_t best = KNI_RANS_MAX_CLASSES, best_distance = UINT32_MAX;
    for (uint32_t i = 0; i < KNI_RANS_MAX_CLASSES; i++) {
        uint32_t a = i % SPREADS, b = class % SPREADS, distance = (a < b ? b - a : a - b) + (i / SPREADS == class / SPREADS ? 0 : 3);
        if (seen[i] && distance < best_distance) {
            best = i;
            best_distance = distance;
        }
    }
    return best;
}

/* The table of each context: its own cluster's, else of the nearest level of its class, else of the nearest class. */
static void fill_maps(struct kni_rans_model *m, const struct merge *merge)
{
    uint16_t table[CONTEXTS];
    bool seen[KNI_RANS_MAX_CLASSES] = {false};
    for (uint32_t i = 0; i < CONTEXTS; i++)
        table[i] = NO_HOME;
    for (uint32_t i = 0; i < CONTEXTS; i++)
        for (uint32_t k = 0; k < merge->n && table[i] == NO_HOME; k++)
            if (merge->home[i] == merge->order[k])
                table[i] = (uint16_t)k;
    for (uint32_t class = 0; class < KNI_RANS_MAX_CLASSES; class++)
        for (uint32_t level = 0; level < KNI_RANS_LEVELS; level++) {
            const uint16_t *own = table + class * KNI_RANS_LEVELS;
            uint32_t from = nearest(own, KNI_RANS_LEVELS, level);
            if (from < KNI_RANS_LEVELS) {
                m->classes[class].map[level] = (uint8_t)own[from];
                seen[class] = true;
            }
        }
    for (uint32_t class = 0; class < KNI_RANS_MAX_CLASSES; class++) {
        uint32_t from = seen[class] ? class : nearest_class(seen, class);
        for (uint32_t level = 0; level < KNI_RANS_LEVELS; level++)
            m->classes[class].map[level] = from < KNI_RANS_MAX_CLASSES ? m->classes[from].map[level] : 0;
    }
}

enum kn_status kni_rans_trainer_finish(const struct kni_rans_trainer *t, struct kni_rans_model **out)
{
    enum kn_status status = KN_E_NOMEM;
    struct kni_rans_model *m = NULL;
    struct merge *merge = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *merge, 0);
    *out = NULL;
    if (!merge)
        goto done;
    merge_begin(merge, t);
    merge_all(merge);
    m = model_new(merge->n ? merge->n : 1);
    if (!m)
        goto done;
    memcpy(m->classes, t->classes, sizeof m->classes);
    fill_maps(m, merge);
    for (uint32_t i = 0; i < m->n_tables; i++)
        table_of(merge->n ? &merge->clusters[merge->order[i]] : NULL, m->freq[i]);
    model_build(m);
    *out = m;
    status = KN_OK;
done:
    kni_free(merge);
    return status;
}

/* ---- bytes */

size_t kni_rans_model_bytes(const struct kni_rans_model *m)
{
    return HEAD_BYTES + KNI_RANS_MAX_CLASSES * CLASS_BYTES + (size_t)m->n_tables * TABLE_BYTES;
}

void kni_rans_model_write(const struct kni_rans_model *m, uint8_t *out)
{
    kni_le32_put(out, MAGIC);
    kni_le32_put(out + 4, m->n_tables);
    out += HEAD_BYTES;
    for (unsigned i = 0; i < KNI_RANS_MAX_CLASSES; i++, out += CLASS_BYTES) {
        const struct kni_rans_class *c = &m->classes[i];
        kni_le16_put(out, c->expect);
        out[2] = c->weight;
        out[3] = c->cap;
        out[4] = c->shift;
        out[5] = c->above;
        memcpy(out + 6, c->left, 16);
        memcpy(out + 22, c->map, KNI_RANS_LEVELS);
    }
    for (uint32_t i = 0; i < m->n_tables; i++)
        for (unsigned s = 0; s < KNI_RANS_SYMBOLS; s++, out += 2)
            kni_le16_put(out, m->freq[i][KNI_RANS_FIRST + s]);
}

static bool class_read(struct kni_rans_class *c, const uint8_t *data, uint32_t n_tables)
{
    c->expect = kni_le16_get(data);
    c->weight = data[2];
    c->cap = data[3];
    c->shift = data[4];
    c->above = data[5];
    memcpy(c->left, data + 6, 16);
    memcpy(c->map, data + 22, KNI_RANS_LEVELS);
    bool good = c->weight * c->cap <= KNI_RANS_MAX_GAIN && c->shift <= 7 && c->above <= 1;
    for (unsigned i = 0; i < 16; i++)
        good &= c->left[i] % 8 == 0 && c->left[i] < KNI_RANS_LEVELS;
    for (unsigned i = 0; i < KNI_RANS_LEVELS; i++)
        good &= c->map[i] < n_tables;
    return good;
}

enum kn_status kni_rans_model_read(struct kni_rans_model **out, const uint8_t *data, size_t n_bytes, struct kn_err *err)
{
    *out = NULL;
    if (n_bytes < HEAD_BYTES || kni_le32_get(data) != MAGIC)
        return kni_err_set(err, KN_E_FORMAT, "the rANS tables do not begin as such tables do; build the profile again");
    uint32_t n_tables = kni_le32_get(data + 4);
    if (!n_tables || n_tables > KNI_RANS_MAX_TABLES || n_bytes != HEAD_BYTES + KNI_RANS_MAX_CLASSES * CLASS_BYTES + (size_t)n_tables * TABLE_BYTES)
        return kni_err_set(err, KN_E_FORMAT, "%u rANS tables in %zu bytes do not agree; build the profile again", n_tables, n_bytes);
    struct kni_rans_model *m = model_new(n_tables);
    if (!m)
        return kni_err_set(err, KN_E_NOMEM, "no memory for %u rANS tables", n_tables);
    enum kn_status status = KN_OK;
    data += HEAD_BYTES;
    for (unsigned i = 0; i < KNI_RANS_MAX_CLASSES && status == KN_OK; i++, data += CLASS_BYTES)
        if (!class_read(&m->classes[i], data, n_tables))
            status = kni_err_set(err, KN_E_FORMAT, "rANS class %u has rules out of range; build the profile again", i);
    for (uint32_t i = 0; i < n_tables && status == KN_OK; i++) {
        for (unsigned s = 0; s < KNI_RANS_SYMBOLS; s++, data += 2)
            m->freq[i][KNI_RANS_FIRST + s] = kni_le16_get(data);
        if (!kni_rans_freq_ok(m->freq[i]) || !m->freq[i][KNI_RANS_ESCAPE])
            status = kni_err_set(err, KN_E_FORMAT, "rANS table %u does not sum to %u or has no escape; build the profile again", i, KNI_RANS_SCALE);
    }
    if (status == KN_OK) {
        model_build(m);
        *out = m;
    } else {
        kni_rans_model_free(&m);
    }
    return status;
}

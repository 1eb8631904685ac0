/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers, as every worker runs them. A step is one fork; between phases stand barriers:
 *
 *     embed, rope tables | per layer: norm | q k v | bias, head norms, rope, write K V | attention | (merge) | o (| post norm) + x
 *                                   | norm | act(gate) * up | down (| post norm) + x
 *                        | final norm | logits, cap | what is made of rows (row.c)
 *
 * What a layer has is in struct kni_layer, filled by its architecture; here stands no architecture's name. A layer with a
 * window keeps all K and V like any other: the pool's layout is the same for all layers.
 *
 * Inputs of matrix products are quantised where they arise, if their length is a whole number of blocks: h after its norm, attention's
 * output before o, silu(gate) * up column by column.
 *
 * Row-wise phases are split statically. Matrix and attention phases are cut into units that do not depend on the number of
 * workers, and workers take the next unit from a counter: the machine's other load then costs less than a static split
 * would, and results are the same for any number of workers. With few rows (decoding) each worker normalises all rows for
 * itself, which is cheaper than a barrier.
 *
 * Counters use relaxed order: a unit's data was published by the barrier before the phase, not by the counter.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "run/workspace.h"

_Static_assert(KNI_RUN_COLS % KNI_LOGIT_BLOCK == 0 && KNI_RUN_LOGIT_COLS % KNI_LOGIT_BLOCK == 0, "a unit of logits is whole blocks");

struct worker {
    struct kni_run_cpu *run;
    uint32_t index, n_workers;
    float *scratch; /* kernels' */
    float *tile;    /* [KNI_RUN_TILE_ROWS][KNI_RUN_COLS] or [KNI_RUN_FEW_ROWS][KNI_RUN_LOGIT_COLS] */
    float *h;       /* [KNI_RUN_FEW_ROWS][n_embd]: own normalised rows */
    struct kni_xblock *hq; /* [KNI_RUN_FEW_ROWS][n_in / 32]: own quantised rows */
};

static bool take(struct worker *w, uint32_t counter, uint32_t n_units, uint32_t *unit)
{
    *unit = atomic_fetch_add_explicit(&w->run->counters[counter], 1, memory_order_relaxed);
    return *unit < n_units;
}

static void barrier(struct worker *w)
{
    if (w->n_workers > 1)
        kni_threads_barrier(w->run->opts.threads);
}

/* The worker's rows of n. */
static uint32_t share(const struct worker *w, uint32_t n, uint32_t which)
{
    return (uint32_t)((uint64_t)n * (w->index + which) / w->n_workers);
}

static bool is_small(const struct kni_run_cpu *r)
{
    return r->n_rows <= KNI_RUN_FEW_ROWS;
}

static uint32_t units_of(uint32_t n, uint32_t each)
{
    return (n + each - 1) / each;
}

static const float *vector(const struct kni_tensor *t)
{
    return t->data; /* F32: the loader has seen to it */
}

static void embed(struct worker *w)
{
    struct kni_run_cpu *r = w->run;
    const struct kni_hparams *hp = &r->model->hparams;
    const struct kni_tensor *t = r->model->tok_embd;
    const struct kni_dtype_info *info = kni_dtype_get_info(t->type);
    size_t row_bytes = (size_t)(hp->n_embd / info->block_values) * info->block_bytes;
    uint32_t n_pairs = hp->rope_dim / 2;
    for (uint32_t i = share(w, r->n_rows, 0); i < share(w, r->n_rows, 1); i++) {
        const uint8_t *src = (const uint8_t *)t->data + (size_t)r->plan->row_token[i] * row_bytes;
        r->kernels.dequant[t->type](src, r->x + (size_t)i * hp->n_embd, hp->n_embd);
        if (hp->embed_scale != 1.0f)
            r->kernels.scale(r->x + (size_t)i * hp->n_embd, hp->embed_scale, hp->n_embd);
        for (uint32_t k = 0; k < hp->n_ropes; k++) {
            size_t at = ((size_t)k * r->opts.max_tokens + i) * n_pairs;
            kni_rope_table(r->cos_rows + at, r->sin_rows + at, r->plan->row_pos[i], n_pairs,
                           r->freqs + (size_t)k * n_pairs);
        }
    }
}

/* Rows of a product's input in both forms; blocks is NULL when n_in is not a whole number of them: then no weight is quantised. */
struct input {
    const float *x;
    const struct kni_xblock *blocks;
};

static void quantise_rows(const struct worker *w, struct kni_xblock *dst, const float *x, uint32_t n_in, uint32_t first, uint32_t end)
{
    uint32_t n = n_in / KNI_PANEL_BLOCK;
    if (n_in % KNI_PANEL_BLOCK == 0)
        w->run->kernels.quantise(dst + (size_t)first * n, x + (size_t)first * n_in, (size_t)(end - first) * n);
}

static struct input input_of(const float *x, const struct kni_xblock *blocks, uint32_t n_in)
{
    return (struct input){.x = x, .blocks = n_in % KNI_PANEL_BLOCK ? NULL : blocks};
}

/* Normalised rows of x: the worker's own copy when rows are few, otherwise shared, behind a barrier. */
static struct input normalise(struct worker *w, const struct kni_tensor *norm)
{
    struct kni_run_cpu *r = w->run;
    const struct kni_hparams *hp = &r->model->hparams;
    bool small = is_small(r);
    float *h = small ? w->h : r->h;
    struct kni_xblock *hq = small ? w->hq : r->xq;
    uint32_t first = small ? 0 : share(w, r->n_rows, 0), end = small ? r->n_rows : share(w, r->n_rows, 1);
    for (uint32_t i = first; i < end; i++) {
        size_t at = (size_t)i * hp->n_embd;
        r->kernels.rmsnorm(h + at, r->x + at, vector(norm), hp->n_embd, hp->rms_eps);
    }
    quantise_rows(w, hq, h, hp->n_embd, first, end);
    if (!small)
        barrier(w);
    return input_of(h, hq, hp->n_embd);
}

/* Attention's output, the same way. */
static struct input attended(struct worker *w)
{
    struct kni_run_cpu *r = w->run;
    uint32_t n_in = r->model->hparams.n_head * r->model->hparams.d_head;
    bool small = is_small(r);
    struct kni_xblock *blocks = small ? w->hq : r->xq;
    quantise_rows(w, blocks, r->q, n_in, small ? 0 : share(w, r->n_rows, 0), small ? r->n_rows : share(w, r->n_rows, 1));
    if (!small)
        barrier(w);
    return input_of(r->q, blocks, n_in);
}

/* Columns unit * KNI_RUN_COLS on of the first n_rows rows. y is the element (row 0, column 0). */
static void linear(struct worker *w, const struct kni_panels *m, struct input in, uint32_t unit, float *y, bool accumulate)
{
    uint32_t col0 = unit * KNI_RUN_COLS;
    kni_linear(&(struct kni_linear_args){.kernels = &w->run->kernels, .w = m, .x = in.x, .xq = in.blocks, .n_rows = w->run->n_rows, .col0 = col0,
        .n_cols = m->n_out - col0 < KNI_RUN_COLS ? m->n_out - col0 : KNI_RUN_COLS, .y = y + col0, .ldy = m->n_out, .accumulate = accumulate,
        .scratch = w->scratch});
}

static void project_qkv(struct worker *w, const struct kni_layer_panels *layer, struct input h, uint32_t counter)
{
    struct kni_run_cpu *r = w->run;
    uint32_t unit, n_q = units_of(layer->wq.n_out, KNI_RUN_COLS), n_k = units_of(layer->wk.n_out, KNI_RUN_COLS);
    while (take(w, counter, n_q + 2 * n_k, &unit)) {
        if (unit < n_q)
            linear(w, &layer->wq, h, unit, r->q, false);
        else if (unit < n_q + n_k)
            linear(w, &layer->wk, h, unit - n_q, r->k, false);
        else
            linear(w, &layer->wv, h, unit - n_q - n_k, r->v, false);
    }
}

static void add(float *x, const struct kni_tensor *bias, uint32_t n)
{
    for (uint32_t i = 0; bias && i < n; i++)
        x[i] += vector(bias)[i];
}

/* Biases, norms of heads and rotation of q and k; writes k and v, rounded to 16 bits, into the pool. */
static void rotate_and_store(struct worker *w, const struct kni_layer *layer, uint32_t index)
{
    struct kni_run_cpu *r = w->run;
    const struct kni_hparams *hp = &r->model->hparams;
    uint32_t n_pairs = hp->rope_dim / 2, d = hp->d_head;
    kni_rope_fn rope = r->kernels.rope[hp->rope_style];
    kni_to_half_fn to_half = r->kernels.to_half[r->opts.kv_type];
    for (uint32_t i = share(w, r->n_rows, 0); i < share(w, r->n_rows, 1); i++) {
        const struct kni_kv_host kv = kni_kv_host_of(&r->plan->items[r->plan->row_item[i]].kv);
        size_t table = ((size_t)layer->rope * r->opts.max_tokens + i) * n_pairs, at_q = (size_t)i * hp->n_head * d, at_kv = (size_t)i * hp->n_kv_head * d;
        const float *cos_row = r->cos_rows + table, *sin_row = r->sin_rows + table;
        add(r->q + at_q, layer->bq, hp->n_head * d);
        add(r->k + at_kv, layer->bk, hp->n_kv_head * d);
        add(r->v + at_kv, layer->bv, hp->n_kv_head * d);
        for (uint32_t head = 0; head < hp->n_head; head++) {
            float *q = r->q + at_q + (size_t)head * d;
            if (layer->q_norm)
                r->kernels.rmsnorm(q, q, vector(layer->q_norm), d, hp->rms_eps);
            rope(q, cos_row, sin_row, n_pairs);
        }
        if (r->plan->tap)
            r->plan->tap(r->plan->tap_user, w->index, index, r->plan->row_pos[i], r->q + at_q);
        for (uint32_t head = 0; head < hp->n_kv_head; head++) {
            float *k = r->k + at_kv + (size_t)head * d, *v = r->v + at_kv + (size_t)head * d;
            if (layer->k_norm)
                r->kernels.rmsnorm(k, k, vector(layer->k_norm), d, hp->rms_eps);
            rope(k, cos_row, sin_row, n_pairs);
            to_half(kni_kv_row(&kv, index, 0, head, r->plan->row_pos[i]), k, d);
            to_half(kni_kv_row(&kv, index, 1, head, r->plan->row_pos[i]), v, d);
        }
    }
}

/* Keys key0 .. end - 1, whole parts, into one partial each; parts that the window has passed are left out. With acc they are
 * folded into it in turn, and there is one partial only. */
static void attend_parts(struct worker *w, const struct kni_attn_args *a, uint32_t key0, uint32_t end, float *part, float *acc)
{
    uint32_t rows = a->n_heads * a->group, first = kni_attn_first_key(a->first_pos, a->window);
    size_t n = kni_attn_part_floats(a->n_heads * a->group, a->kv->layout.d_head) * (a->kv->layout.n_kv_head / a->n_heads);
    bool fresh = true;
    for (uint32_t key = key0; key < end; key += KNI_ATTN_PART_KEYS) {
        uint32_t n_keys = end - key < KNI_ATTN_PART_KEYS ? end - key : KNI_ATTN_PART_KEYS;
        float *to = !acc ? part + (key - key0) / KNI_ATTN_PART_KEYS * n : fresh ? acc : part;
        if (key + n_keys <= first)
            continue;
        kni_attn_part(a, key, n_keys, to);
        if (acc && !fresh)
            kni_attn_part_merge(&w->run->kernels, acc, part, rows, a->kv->layout.d_head);
        fresh = false;
    }
}

/* The partial of share of the heads, of the n-th part. */
static float *part_at(const struct kni_run_cpu *r, uint32_t n, uint32_t share_of_heads)
{
    return r->parts + ((size_t)n * r->n_splits + share_of_heads) * kni_attn_part_floats(r->layout.n_kv_head / r->n_splits * r->group, r->layout.d_head);
}

static void attend(struct worker *w, uint32_t layer, uint32_t counter)
{
    struct kni_run_cpu *r = w->run;
    uint32_t n_kv_head = r->layout.n_kv_head, d = r->layout.d_head, n_heads = n_kv_head / r->n_splits, n_tiles = r->n_tiles * n_kv_head, index;
    size_t head_q = (size_t)r->group * d, ldq = n_kv_head * head_q;
    struct kni_attn_args a = {.kernels = &r->kernels, .layer = layer, .group = r->group, .scale = r->model->hparams.attn_scale, .softcap = r->model->hparams.attn_softcap,
        .window = r->model->layers[layer].window, .ldq = ldq, .ldo = ldq, .scratch = w->scratch};
    if (!(a.scale > 0))
        a.scale = 1.0f / __builtin_sqrtf((float)d);
    while (take(w, counter, n_tiles + (r->n_units - r->n_tiles) * r->n_splits, &index)) {
        bool is_tile = index < n_tiles;
        uint32_t piece = index - n_tiles, part = is_tile ? 0 : piece % r->n_splits;
        const struct kni_run_unit *u = &r->units[is_tile ? index / n_kv_head : r->n_tiles + piece / r->n_splits];
        a.n_heads = is_tile ? 1 : n_heads;
        a.kv_head = is_tile ? index % n_kv_head : part * n_heads;
        const struct kni_kv_host kv = kni_kv_host_of(&r->plan->items[u->item].kv);
        a.kv = &kv;
        a.q = a.out = r->q + u->row * ldq + a.kv_head * head_q;
        a.n_tokens = u->n_tokens;
        a.first_pos = u->first_pos;
        if (is_tile) {
            kni_attn_tile(&a);
        } else if (u->n_keys) {
            attend_parts(w, &a, u->key0, u->key0 + u->n_keys, part_at(r, u->part, part), NULL);
        } else {
            attend_parts(w, &a, 0, u->first_pos + 1, w->tile + kni_attn_part_floats(n_heads * r->group, d), w->tile);
            kni_attn_part_finish(a.out, w->tile, n_heads * r->group, d);
        }
    }
    if (!r->n_merges)
        return;
    barrier(w);
    for (uint32_t i = share(w, r->n_merges * r->n_splits, 0); i < share(w, r->n_merges * r->n_splits, 1); i++) {
        const struct kni_run_unit *u = &r->merges[i / r->n_splits];
        uint32_t part = i % r->n_splits, n = (u->n_keys + KNI_ATTN_PART_KEYS - 1) / KNI_ATTN_PART_KEYS;
        uint32_t start = kni_attn_first_key(u->first_pos, a.window) / KNI_ATTN_PART_KEYS;
        float *acc = part_at(r, u->part + start, part);
        for (uint32_t j = start + 1; j < n; j++)
            kni_attn_part_merge(&r->kernels, acc, part_at(r, u->part + j, part), n_heads * r->group, d);
        kni_attn_part_finish(r->q + u->row * ldq + part * n_heads * head_q, acc, n_heads * r->group, d);
    }
}

/* ff = act(gate) * up for some columns, and their block of the quantised form: up stays in a tile of the worker. */
static struct input gate_up(struct worker *w, const struct kni_layer_panels *layer, struct input h, uint32_t counter)
{
    struct kni_run_cpu *r = w->run;
    uint32_t n_embd = r->model->hparams.n_embd, n_ff = r->model->hparams.n_ff, unit;
    struct input out = input_of(r->ff, r->ffq, n_ff);
    while (take(w, counter, units_of(n_ff, KNI_RUN_COLS), &unit)) {
        uint32_t col0 = unit * KNI_RUN_COLS, n_cols = n_ff - col0 < KNI_RUN_COLS ? n_ff - col0 : KNI_RUN_COLS;
        linear(w, &layer->w_gate, h, unit, r->ff, false);
        for (uint32_t row = 0; row < r->n_rows; row += KNI_RUN_TILE_ROWS) {
            uint32_t n = r->n_rows - row < KNI_RUN_TILE_ROWS ? r->n_rows - row : KNI_RUN_TILE_ROWS;
            kni_linear(&(struct kni_linear_args){.kernels = &r->kernels, .w = &layer->w_up, .x = h.x + (size_t)row * n_embd,
                .xq = h.blocks ? h.blocks + (size_t)row * (n_embd / KNI_PANEL_BLOCK) : NULL, .n_rows = n, .col0 = col0, .n_cols = n_cols, .y = w->tile,
                .ldy = n_cols, .scratch = w->scratch});
            for (uint32_t i = 0; i < n; i++) {
                float *ff = r->ff + (size_t)(row + i) * n_ff + col0;
                r->kernels.act_mul[r->model->hparams.act](ff, w->tile + (size_t)i * n_cols, n_cols);
                if (out.blocks)
                    r->kernels.quantise(r->ffq + (size_t)(row + i) * (n_ff / KNI_PANEL_BLOCK) + unit, ff, 1);
            }
        }
    }
    return out;
}

/* x += norm(x_in * m), or without a norm x += x_in * m. */
static void add_linear(struct worker *w, const struct kni_panels *m, const struct kni_tensor *norm, struct input in, uint32_t counter)
{
    struct kni_run_cpu *r = w->run;
    uint32_t unit, n_embd = m->n_out;
    while (take(w, counter, units_of(n_embd, KNI_RUN_COLS), &unit))
        linear(w, m, in, unit, norm ? r->h : r->x, !norm);
    barrier(w);
    if (!norm)
        return;
    for (uint32_t i = share(w, r->n_rows, 0); i < share(w, r->n_rows, 1); i++) {
        float *h = r->h + (size_t)i * n_embd, *x = r->x + (size_t)i * n_embd;
        r->kernels.rmsnorm(h, h, vector(norm), n_embd, r->model->hparams.rms_eps);
        for (uint32_t k = 0; k < n_embd; k++)
            x[k] += h[k];
    }
    barrier(w);
}

static void cap(float *logit, uint32_t n, float c)
{
    for (uint32_t i = 0; c > 0 && i < n; i++)
        logit[i] = c * tanhf(logit[i] / c);
}

static void logits(struct worker *w, uint32_t counter)
{
    struct kni_run_cpu *r = w->run;
    const struct kni_hparams *hp = &r->model->hparams;
    const struct kni_panels *output = &r->weights->output;
    uint32_t n_embd = hp->n_embd, n_vocab = output->n_out, unit, first = share(w, r->n_outs, 0), end = share(w, r->n_outs, 1);
    for (uint32_t i = first; i < end; i++)
        r->kernels.rmsnorm(r->h + (size_t)i * n_embd, r->x + (size_t)r->plan->out_row[i] * n_embd,
                           vector(r->model->output_norm), n_embd, hp->rms_eps);
    quantise_rows(w, r->xq, r->h, n_embd, first, end);
    barrier(w);
    struct input in = input_of(r->h, r->xq, n_embd);
    uint32_t cols = r->n_outs <= KNI_RUN_FEW_ROWS ? KNI_RUN_LOGIT_COLS : KNI_RUN_COLS;
    while (take(w, counter, units_of(n_vocab, cols), &unit)) {
        uint32_t col0 = unit * cols, n_cols = n_vocab - col0 < cols ? n_vocab - col0 : cols;
        for (uint32_t row = 0; row < r->n_outs; row += KNI_RUN_TILE_ROWS) {
            uint32_t n = r->n_outs - row < KNI_RUN_TILE_ROWS ? r->n_outs - row : KNI_RUN_TILE_ROWS;
            kni_linear(&(struct kni_linear_args){.kernels = &r->kernels, .w = output, .x = in.x + (size_t)row * n_embd,
                .xq = in.blocks ? in.blocks + (size_t)row * (n_embd / KNI_PANEL_BLOCK) : NULL, .n_rows = n, .col0 = col0, .n_cols = n_cols,
                .y = w->tile, .ldy = n_cols, .scratch = w->scratch});
            for (uint32_t i = 0; i < n; i++) {
                cap(w->tile + (size_t)i * n_cols, n_cols, hp->logit_softcap);
                memcpy(r->plan->out_logits[row + i] + col0, w->tile + (size_t)i * n_cols, n_cols * sizeof(float));
                kni_run_note_logits(r, row + i, w->tile + (size_t)i * n_cols, col0, n_cols);
            }
        }
    }
}

void kni_run_forward(void *arg, uint32_t index, uint32_t n_workers)
{
    struct kni_run_cpu *r = arg;
    struct worker w = {.run = r, .index = index, .n_workers = n_workers, .scratch = r->scratch + index * r->scratch_floats};
    w.tile = w.scratch + r->scratch_floats - r->tile_floats;
    w.h = w.tile - (size_t)KNI_RUN_FEW_ROWS * r->model->hparams.n_embd;
    w.hq = (struct kni_xblock *)(void *)(w.h - r->own_blocks * (sizeof *w.hq / sizeof(float)));
    kni_alloc_forbid_begin();
    embed(&w);
    barrier(&w);
    uint32_t counter = 0;
    for (uint32_t l = 0; l < r->model->hparams.n_layer; l++, counter += KNI_RUN_PHASES) {
        const struct kni_layer *layer = &r->model->layers[l];
        const struct kni_layer_panels *panels = &r->weights->layers[l];
        project_qkv(&w, panels, normalise(&w, layer->attn_norm), counter);
        barrier(&w);
        rotate_and_store(&w, layer, l);
        barrier(&w);
        attend(&w, l, counter + 1);
        barrier(&w);
        add_linear(&w, &panels->wo, layer->attn_post_norm, attended(&w), counter + 2);
        struct input ff = gate_up(&w, panels, normalise(&w, layer->ffn_norm), counter + 3);
        barrier(&w);
        add_linear(&w, &panels->w_down, layer->ffn_post_norm, ff, counter + 4);
    }
    if (r->n_outs) {
        logits(&w, counter);
        barrier(&w);
        for (uint32_t row; take(&w, counter + 1, r->n_outs, &row);)
            kni_run_make_row(r, row, index);
    }
    kni_alloc_forbid_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers of the llama architecture, as every worker runs them. A step is one fork; between phases stand barriers:
 *
 *     embed, rope tables | per layer: norm | q k v | rope, write K V | attention | (merge) | o + x | norm | silu(gate) * up | down + x
 *                        | final norm | logits
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
#include <string.h>

#include "base/alloc.h"
#include "run/workspace.h"

struct worker {
    struct kni_run *run;
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

static bool is_small(const struct kni_run *r)
{
    return r->n_rows <= KNI_RUN_FEW_ROWS;
}

static uint32_t units_of(uint32_t n, uint32_t each)
{
    return (n + each - 1) / each;
}

static void embed(struct worker *w)
{
    struct kni_run *r = w->run;
    const struct kni_hparams *hp = &r->model->hparams;
    const struct kni_tensor *t = r->model->tok_embd;
    const struct kni_dtype_info *info = kni_dtype_get_info(t->type);
    size_t row_bytes = (size_t)(hp->n_embd / info->block_values) * info->block_bytes;
    uint32_t n_pairs = hp->rope_dim / 2;
    for (uint32_t i = share(w, r->n_rows, 0); i < share(w, r->n_rows, 1); i++) {
        const uint8_t *src = (const uint8_t *)t->data + (size_t)*r->row_token[i] * row_bytes;
        r->kernels.dequant[t->type](src, r->x + (size_t)i * hp->n_embd, hp->n_embd);
        kni_rope_table(r->cos_rows + (size_t)i * n_pairs, r->sin_rows + (size_t)i * n_pairs, r->row_pos[i], n_pairs, hp->rope_base);
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
static struct input normalise(struct worker *w, uint32_t norm)
{
    struct kni_run *r = w->run;
    const struct kni_hparams *hp = &r->model->hparams;
    bool small = is_small(r);
    float *h = small ? w->h : r->h;
    struct kni_xblock *hq = small ? w->hq : r->xq;
    uint32_t first = small ? 0 : share(w, r->n_rows, 0), end = small ? r->n_rows : share(w, r->n_rows, 1);
    for (uint32_t i = first; i < end; i++) {
        size_t at = (size_t)i * hp->n_embd;
        r->kernels.rmsnorm(h + at, r->x + at, r->norms + (size_t)norm * hp->n_embd, hp->n_embd, hp->rms_eps);
    }
    quantise_rows(w, hq, h, hp->n_embd, first, end);
    if (!small)
        barrier(w);
    return input_of(h, hq, hp->n_embd);
}

/* Attention's output, the same way. */
static struct input attended(struct worker *w)
{
    struct kni_run *r = w->run;
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
    struct kni_run *r = w->run;
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

/* Rotates q and k; writes k and v, rounded to 16 bits, into the pool. */
static void rotate_and_store(struct worker *w, uint32_t layer)
{
    struct kni_run *r = w->run;
    const struct kni_hparams *hp = &r->model->hparams;
    uint32_t n_pairs = hp->rope_dim / 2, d = hp->d_head;
    kni_rope_fn rope = r->kernels.rope[hp->rope_style];
    kni_to_half_fn to_half = r->kernels.to_half[r->opts.kv_type];
    for (uint32_t i = share(w, r->n_rows, 0); i < share(w, r->n_rows, 1); i++) {
        const struct kni_kv_view *kv = &r->items[r->row_item[i]].kv;
        const float *cos_row = r->cos_rows + (size_t)i * n_pairs, *sin_row = r->sin_rows + (size_t)i * n_pairs;
        for (uint32_t head = 0; head < hp->n_head; head++)
            rope(r->q + ((size_t)i * hp->n_head + head) * d, cos_row, sin_row, n_pairs);
        for (uint32_t head = 0; head < hp->n_kv_head; head++) {
            size_t at = ((size_t)i * hp->n_kv_head + head) * d;
            rope(r->k + at, cos_row, sin_row, n_pairs);
            to_half(kni_kv_row(kv, layer, 0, head, r->row_pos[i]), r->k + at, d);
            to_half(kni_kv_row(kv, layer, 1, head, r->row_pos[i]), r->v + at, d);
        }
    }
}

static float *part_at(const struct kni_run *r, uint32_t part, uint32_t head)
{
    return r->parts + ((size_t)part * r->layout.n_kv_head + head) * kni_attn_part_floats(r->group, r->layout.d_head);
}

/* A decode whose keys are not shared out: the same ranges, folded in the same order, by one worker. */
static void attend_whole(struct worker *w, const struct kni_attn_args *a, float *out)
{
    struct kni_run *r = w->run;
    size_t n = kni_attn_part_floats(r->group, r->layout.d_head);
    float *acc = w->tile, *part = acc + n;
    for (uint32_t key0 = 0; key0 <= a->first_pos; key0 += r->part_keys) {
        uint32_t left = a->first_pos + 1 - key0;
        kni_attn_part(a, key0, left < r->part_keys ? left : r->part_keys, key0 ? part : acc);
        if (key0)
            kni_attn_part_merge(acc, part, r->group, r->layout.d_head);
    }
    kni_attn_part_finish(out, acc, r->group, r->layout.d_head);
}

static void attend(struct worker *w, uint32_t layer, uint32_t counter)
{
    struct kni_run *r = w->run;
    uint32_t n_kv_head = r->layout.n_kv_head, d = r->layout.d_head, index;
    size_t ldq = (size_t)n_kv_head * r->group * d;
    while (take(w, counter, r->n_units * n_kv_head, &index)) {
        const struct kni_run_unit *u = &r->units[index / n_kv_head];
        uint32_t head = index % n_kv_head;
        float *q = r->q + u->row * ldq + (size_t)head * r->group * d;
        struct kni_attn_args a = {.kernels = &r->kernels, .kv = &r->items[u->item].kv, .layer = layer, .kv_head = head, .group = r->group,
            .scale = 1.0f / __builtin_sqrtf((float)d), .q = q, .ldq = ldq, .out = q, .ldo = ldq, .n_tokens = u->n_tokens,
            .first_pos = u->first_pos, .scratch = w->scratch};
        if (u->n_keys)
            kni_attn_part(&a, u->key0, u->n_keys, part_at(r, u->part, head));
        else if (r->items[u->item].n_tokens == 1)
            attend_whole(w, &a, q);
        else
            kni_attn_tile(&a);
    }
    if (!r->n_merges)
        return;
    barrier(w);
    for (uint32_t i = share(w, r->n_merges * n_kv_head, 0); i < share(w, r->n_merges * n_kv_head, 1); i++) {
        const struct kni_run_unit *u = &r->merges[i / n_kv_head];
        uint32_t head = i % n_kv_head;
        float *acc = part_at(r, u->part, head);
        for (uint32_t j = 1; j < u->n_keys; j++)
            kni_attn_part_merge(acc, part_at(r, u->part + j, head), r->group, d);
        kni_attn_part_finish(r->q + u->row * ldq + (size_t)head * r->group * d, acc, r->group, d);
    }
}

/* ff = silu(gate) * up for some columns, and their block of the quantised form: up stays in a tile of the worker. */
static struct input gate_up(struct worker *w, const struct kni_layer_panels *layer, struct input h, uint32_t counter)
{
    struct kni_run *r = w->run;
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
                r->kernels.silu_mul(ff, w->tile + (size_t)i * n_cols, n_cols);
                if (out.blocks)
                    r->kernels.quantise(r->ffq + (size_t)(row + i) * (n_ff / KNI_PANEL_BLOCK) + unit, ff, 1);
            }
        }
    }
    return out;
}

static void add_linear(struct worker *w, const struct kni_panels *m, struct input in, uint32_t counter)
{
    uint32_t unit;
    while (take(w, counter, units_of(m->n_out, KNI_RUN_COLS), &unit))
        linear(w, m, in, unit, w->run->x, true);
    barrier(w);
}

static void logits(struct worker *w, uint32_t counter)
{
    struct kni_run *r = w->run;
    const struct kni_hparams *hp = &r->model->hparams;
    const struct kni_panels *output = &r->weights->output;
    uint32_t n_embd = hp->n_embd, n_vocab = output->n_out, unit, first = share(w, r->n_outs, 0), end = share(w, r->n_outs, 1);
    for (uint32_t i = first; i < end; i++)
        r->kernels.rmsnorm(r->h + (size_t)i * n_embd, r->x + (size_t)r->out_row[i] * n_embd, r->norms + (size_t)2 * hp->n_layer * n_embd,
                           n_embd, hp->rms_eps);
    quantise_rows(w, r->xq, r->h, n_embd, first, end);
    barrier(w);
    struct input in = input_of(r->h, r->xq, n_embd);
    uint32_t cols = r->n_outs <= KNI_RUN_FEW_ROWS ? KNI_RUN_LOGIT_COLS : KNI_RUN_COLS;
    while (take(w, counter, units_of(n_vocab, cols), &unit)) {
        uint32_t col0 = unit * cols, n_cols = n_vocab - col0 < cols ? n_vocab - col0 : cols;
        for (uint32_t row = 0; row < r->n_outs; row += KNI_RUN_TILE_ROWS) {
            uint32_t n = r->n_outs - row < KNI_RUN_TILE_ROWS ? r->n_outs - row : KNI_RUN_TILE_ROWS;
            kni_linear(&(struct kni_linear_args){.kernels = &r->kernels, .w = output, .x = in.x + (size_t)row * n_embd,
                .xq = in.blocks ? in.blocks + (size_t)row * (n_embd / KNI_PANEL_BLOCK) : NULL, .n_rows = n, .col0 = col0, .n_cols = n_cols, .y = w->tile, .ldy = n_cols, .scratch = w->scratch});
            for (uint32_t i = 0; i < n; i++)
                memcpy(r->out_logits[row + i] + col0, w->tile + (size_t)i * n_cols, n_cols * sizeof(float));
        }
    }
}

void kni_run_forward(void *arg, uint32_t index, uint32_t n_workers)
{
    struct kni_run *r = arg;
    struct worker w = {.run = r, .index = index, .n_workers = n_workers, .scratch = r->scratch + index * r->scratch_floats};
    w.tile = w.scratch + r->scratch_floats - r->tile_floats;
    w.h = w.tile - (size_t)KNI_RUN_FEW_ROWS * r->model->hparams.n_embd;
    w.hq = (struct kni_xblock *)(void *)(w.h - r->own_blocks * (sizeof *w.hq / sizeof(float)));
    kni_alloc_forbid_begin();
    embed(&w);
    barrier(&w);
    uint32_t counter = 0;
    for (uint32_t l = 0; l < r->model->hparams.n_layer; l++, counter += KNI_RUN_PHASES) {
        const struct kni_layer_panels *layer = &r->weights->layers[l];
        project_qkv(&w, layer, normalise(&w, 2 * l), counter);
        barrier(&w);
        rotate_and_store(&w, l);
        barrier(&w);
        attend(&w, l, counter + 1);
        barrier(&w);
        add_linear(&w, &layer->wo, attended(&w), counter + 2);
        struct input ff = gate_up(&w, layer, normalise(&w, 2 * l + 1), counter + 3);
        barrier(&w);
        add_linear(&w, &layer->w_down, ff, counter + 4);
    }
    if (r->n_outs)
        logits(&w, counter);
    kni_alloc_forbid_end();
}

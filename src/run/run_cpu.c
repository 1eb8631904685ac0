/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU's forward pass as a device's: memory and weights, how a step's attention is shared out, and one fork that is
 * the step. The layers are in forward.c. A step is over when begin returns, so there is nothing to poll and nothing to
 * copy.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/status.h"
#include "base/pieces.h"
#include "run/workspace.h"

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Fills r's sizes and pointers. The order of pieces is the one drawn in workspace.h. */
static void lay_out(struct kni_run_cpu *r, struct kni_pieces *b)
{
    const struct kni_run_opts *o = &r->opts;
    const struct kni_hparams *hp = &o->model->hparams;
    size_t rows = o->max_tokens, f = sizeof(float), d = hp->d_head;
    r->n_workers = kni_threads_count(o->threads);
    r->group = hp->n_head / hp->n_kv_head;
    size_t split = rows < KNI_RUN_SPLIT_ITEMS ? rows : KNI_RUN_SPLIT_ITEMS;
    size_t part_floats = kni_attn_part_floats(hp->n_head, hp->d_head);
    size_t n_parts = (o->n_ctx + KNI_ATTN_PART_KEYS - 1) / KNI_ATTN_PART_KEYS;
    r->n_parts_all = (uint32_t)(n_parts > KNI_RUN_SPLIT_PARTS || rows == 1      ? n_parts
                                : split * n_parts < KNI_RUN_SPLIT_PARTS ? split * n_parts
                                                                        : KNI_RUN_SPLIT_PARTS);

    kni_piece(b, 1, sizeof *r);
    r->freqs = kni_piece(b, (size_t)hp->n_ropes * (hp->rope_dim / 2), sizeof *r->freqs);
    r->x = kni_piece(b, rows * hp->n_embd, f);
    r->h = kni_piece(b, rows * hp->n_embd, f);
    r->q = kni_piece(b, rows * hp->n_head * d, f);
    r->k = kni_piece(b, rows * hp->n_kv_head * d, f);
    r->v = kni_piece(b, rows * hp->n_kv_head * d, f);
    r->ff = kni_piece(b, rows * hp->n_ff, f);
    r->xq = kni_piece(b, rows * (max_size(hp->n_embd, hp->n_head * d) / KNI_PANEL_BLOCK), sizeof *r->xq);
    r->ffq = kni_piece(b, rows * (hp->n_ff / KNI_PANEL_BLOCK), sizeof *r->ffq);
    r->cos_rows = kni_piece(b, hp->n_ropes * rows * (hp->rope_dim / 2), f);
    r->sin_rows = kni_piece(b, hp->n_ropes * rows * (hp->rope_dim / 2), f);
    r->counters = kni_piece(b, (size_t)hp->n_layer * KNI_RUN_PHASES + 2, sizeof *r->counters);
    r->units = kni_piece(b, rows + r->n_parts_all, sizeof *r->units);
    r->merges = kni_piece(b, split, sizeof *r->merges);
    r->n_blocks = kni_logit_blocks(hp->n_vocab);
    r->row_max = kni_piece(b, (size_t)o->max_logits * r->n_blocks, f);
    r->row_sums = kni_piece(b, (size_t)o->max_logits * 2 * r->n_blocks, f);
    r->row_scratch = kni_piece(b, r->n_workers * kni_logits_scratch_floats(hp->n_vocab), f);
    r->parts = kni_piece(b, r->n_parts_all * part_floats, f);

    size_t n_in_max = max_size(hp->n_ff, max_size(hp->n_embd, hp->n_head * d));
    size_t attn = kni_attn_scratch_floats(r->group, hp->d_head, hp->n_kv_head);
    size_t work = max_size(kni_linear_scratch_bytes() / f, attn);
    size_t tile = max_size(KNI_RUN_TILE_ROWS * KNI_RUN_COLS, KNI_RUN_FEW_ROWS * KNI_RUN_LOGIT_COLS);
    r->tile_floats = (max_size(tile, 2 * part_floats) + 15) & ~(size_t)15;
    r->own_blocks = KNI_RUN_FEW_ROWS * (n_in_max / KNI_PANEL_BLOCK);
    size_t own = KNI_RUN_FEW_ROWS * (size_t)hp->n_embd + r->own_blocks * (sizeof *r->xq / f);
    r->scratch_floats = ((work + own + 15) & ~(size_t)15) + r->tile_floats;
    r->scratch = kni_piece(b, r->n_workers * r->scratch_floats, f);
}

static size_t cpu_workspace_bytes(const struct kni_run_opts *opts)
{
    struct kni_run_cpu r = {.opts = *opts};
    struct kni_pieces b = {0};
    lay_out(&r, &b);
    return b.overflow ? 0 : b.used;
}

static enum kn_status cpu_open(void **out, const struct kni_run_opts *o, struct kn_err *err)
{
    *out = NULL;
    if (!o->threads)
        return kni_err_set(err, KN_E_ARG, "run: a forward pass on CPU needs compute threads, and there are none");
    const struct kni_weights *weights;
    enum kn_status status = kni_weights_get(&weights, o->model, o->threads, err);
    if (status != KN_OK)
        return status;
    size_t bytes = cpu_workspace_bytes(o);
    struct kni_pieces b = {.base = bytes ? kni_calloc(KNI_ALLOC_TAG_SCRATCH, bytes, 64) : NULL};
    if (!b.base)
        return kni_err_set(err, KN_E_NOMEM,
                           "run: no memory for a workspace of %zu bytes; use a smaller prefill chunk than %u tokens",
                           bytes, o->max_tokens);
    struct kni_run_cpu *r = (struct kni_run_cpu *)(void *)b.base;
    r->opts = *o;
    r->model = o->model;
    r->weights = weights;
    lay_out(r, &b);
    const struct kni_hparams *hp = &o->model->hparams;
    r->layout = (struct kni_kv_layout){
        .n_layer = hp->n_layer, .n_kv_head = hp->n_kv_head, .d_head = hp->d_head, .type = o->kv_type};
    kni_kernels_init(&r->kernels, kni_cpu_flags_without(o->cpu_without));
    if (hp->d_head % 8) { /* SIMD forms of these two take whole vectors only */
        struct kni_kernels ref;
        kni_kernels_init(&ref, 0);
        memcpy(r->kernels.attn_score16, ref.attn_score16, sizeof ref.attn_score16);
        memcpy(r->kernels.attn_mix16, ref.attn_mix16, sizeof ref.attn_mix16);
    }
    for (uint32_t i = 0; i < hp->n_ropes; i++) {
        const struct kni_rope *rope = &hp->ropes[i];
        kni_rope_freqs(r->freqs + (size_t)i * (hp->rope_dim / 2), hp->rope_dim / 2, rope->base, rope->scale,
                       rope->factors ? rope->factors->data : NULL);
    }
    *out = r;
    return KN_OK;
}

static void cpu_close(void **state)
{
    kni_free(*state);
    *state = NULL;
}

static void plan_prompt(struct kni_run_cpu *r, uint32_t item, uint32_t row)
{
    const struct kni_run_item *it = &r->plan->items[item];
    uint32_t tile = kni_attn_tile_tokens(r->group);
    for (uint32_t end = it->n_tokens; end;) { /* late tiles see the most keys: take them first */
        uint32_t t = (end - 1) / tile * tile;
        r->units[r->n_units++] = (struct kni_run_unit){
            .item = item, .row = row + t, .first_pos = it->first_pos + t, .n_tokens = end - t};
        end = t;
    }
}

/* How decodes are shared out. It decides on speed only: parts of keys and the order of folding are the same in every
 * plan. */
static void plan_decodes(struct kni_run_cpu *r)
{
    uint64_t total = 0;
    uint32_t n_parts = 0, n_workers4 = 4 * r->n_workers, row = 0;
    for (uint32_t i = 0; i < r->plan->n_items; i++)
        total += r->plan->items[i].n_tokens == 1 ? r->plan->items[i].first_pos + 1 : 0;
    uint32_t fair = (uint32_t)(total / n_workers4);
    uint32_t piece_keys = (fair / 2 + KNI_ATTN_PART_KEYS / 2) / KNI_ATTN_PART_KEYS * KNI_ATTN_PART_KEYS;
    if (piece_keys < KNI_ATTN_PART_KEYS)
        piece_keys = KNI_ATTN_PART_KEYS;
    for (uint32_t i = 0; i < r->plan->n_items; row += r->plan->items[i++].n_tokens) {
        struct kni_run_unit u = {.item = i, .row = row, .first_pos = r->plan->items[i].first_pos, .n_tokens = 1};
        uint32_t n_keys = u.first_pos + 1, n = (n_keys + KNI_ATTN_PART_KEYS - 1) / KNI_ATTN_PART_KEYS;
        if (r->plan->items[i].n_tokens > 1)
            continue;
        if (n == 1 || n_keys <= fair || r->n_merges == KNI_RUN_SPLIT_ITEMS || n_parts + n > r->n_parts_all) {
            r->units[r->n_units++] = u;
            continue;
        }
        u.part = n_parts;
        n_parts += n;
        r->merges[r->n_merges] = u;
        r->merges[r->n_merges++].n_keys = n_keys;
        for (; u.key0 < n_keys; u.key0 += piece_keys, u.part += piece_keys / KNI_ATTN_PART_KEYS) {
            u.n_keys = n_keys - u.key0 < piece_keys ? n_keys - u.key0 : piece_keys;
            r->units[r->n_units++] = u;
        }
    }
    uint32_t n_pieces = r->n_units - r->n_tiles, n_head = r->layout.n_kv_head;
    r->n_splits = 1; /* all heads in one piece read memory fastest; but everyone is to have some work */
    while (r->n_splits < n_head && (n_head % r->n_splits || n_pieces * r->n_splits < n_workers4))
        r->n_splits++;
}

static enum kn_status cpu_begin(void *state, const struct kni_run_plan *plan)
{
    struct kni_run_cpu *r = state;
    r->plan = plan;
    r->n_rows = plan->n_rows;
    r->n_outs = plan->n_outs;
    r->n_units = r->n_merges = 0;
    for (uint32_t i = 0, row = 0; i < plan->n_items; row += plan->items[i++].n_tokens)
        if (plan->items[i].n_tokens > 1)
            plan_prompt(r, i, row);
    r->n_tiles = r->n_units;
    plan_decodes(r);
    for (uint32_t i = 0; i < r->model->hparams.n_layer * KNI_RUN_PHASES + 2; i++)
        atomic_store_explicit(&r->counters[i], 0, memory_order_relaxed);
    kni_threads_run(r->opts.threads, kni_run_forward, r);
    return KN_OK;
}

static enum kn_status cpu_try_end(void *state, const struct kni_run_plan *plan)
{
    (void)state, (void)plan;
    return KN_OK;
}

const struct kni_run_ops kni_run_ops_cpu = {
    .name = "cpu",
    .has_tap = true,
    .workspace_bytes = cpu_workspace_bytes,
    .open = cpu_open,
    .begin = cpu_begin,
    .try_end = cpu_try_end,
    .close = cpu_close};

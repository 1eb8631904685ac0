/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open, argument checks and the plan of a step; the layers themselves are in forward.c. Items come from our own scheduler,
 * but a wrong one would write outside the pool, so a step checks everything before it writes anything.
 */
#include "run/run.h"

#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "run/workspace.h"

#define N_CTX_MAX (1u << 24)

/* Hands out pieces of one allocation; with base NULL it only adds up. */
struct bump {
    char *base;
    size_t used;
    bool overflow;
};

static void *piece(struct bump *b, size_t count, size_t each)
{
    size_t bytes, at = b->used;
    if (!kni_mul_size(count, each, &bytes) || !kni_add_size(bytes, 63, &bytes) || !kni_add_size(at, bytes & ~(size_t)63, &b->used))
        b->overflow = true;
    return b->base && !b->overflow ? b->base + at : NULL;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Fills r's sizes and pointers. The order of pieces is the one drawn in workspace.h. */
static void lay_out(struct kni_run *r, struct bump *b)
{
    const struct kni_run_opts *o = &r->opts;
    const struct kni_hparams *hp = &o->model->hparams;
    size_t rows = o->max_tokens, f = sizeof(float), d = hp->d_head;
    r->n_workers = kni_threads_count(o->threads);
    r->group = hp->n_head / hp->n_kv_head;
    size_t split = rows < KNI_RUN_SPLIT_ITEMS ? rows : KNI_RUN_SPLIT_ITEMS, part_floats = kni_attn_part_floats(hp->n_head, hp->d_head);
    size_t n_parts = (o->n_ctx + KNI_ATTN_PART_KEYS - 1) / KNI_ATTN_PART_KEYS;
    r->n_parts_all = (uint32_t)(n_parts > KNI_RUN_SPLIT_PARTS || rows == 1 ? n_parts : split * n_parts < KNI_RUN_SPLIT_PARTS ? split * n_parts : KNI_RUN_SPLIT_PARTS);

    piece(b, 1, sizeof *r);
    r->freqs = piece(b, (size_t)hp->n_ropes * (hp->rope_dim / 2), sizeof *r->freqs);
    r->x = piece(b, rows * hp->n_embd, f);
    r->h = piece(b, rows * hp->n_embd, f);
    r->q = piece(b, rows * hp->n_head * d, f);
    r->k = piece(b, rows * hp->n_kv_head * d, f);
    r->v = piece(b, rows * hp->n_kv_head * d, f);
    r->ff = piece(b, rows * hp->n_ff, f);
    r->xq = piece(b, rows * (max_size(hp->n_embd, hp->n_head * d) / KNI_PANEL_BLOCK), sizeof *r->xq);
    r->ffq = piece(b, rows * (hp->n_ff / KNI_PANEL_BLOCK), sizeof *r->ffq);
    r->cos_rows = piece(b, hp->n_ropes * rows * (hp->rope_dim / 2), f);
    r->sin_rows = piece(b, hp->n_ropes * rows * (hp->rope_dim / 2), f);
    r->counters = piece(b, (size_t)hp->n_layer * KNI_RUN_PHASES + 2, sizeof *r->counters);
    r->row_item = piece(b, rows, sizeof *r->row_item);
    r->row_pos = piece(b, rows, sizeof *r->row_pos);
    r->row_token = piece(b, rows, sizeof *r->row_token);
    r->out_row = piece(b, o->max_logits, sizeof *r->out_row);
    r->out_logits = piece(b, o->max_logits, sizeof *r->out_logits);
    r->out_rows = piece(b, o->max_logits, sizeof *r->out_rows);
    r->units = piece(b, rows + r->n_parts_all, sizeof *r->units);
    r->merges = piece(b, split, sizeof *r->merges);
    r->n_blocks = kni_logit_blocks(hp->n_vocab);
    r->row_max = piece(b, (size_t)o->max_logits * r->n_blocks, f);
    r->row_sums = piece(b, (size_t)o->max_logits * 2 * r->n_blocks, f);
    r->row_scratch = piece(b, r->n_workers * kni_logits_scratch_floats(hp->n_vocab), f);
    r->parts = piece(b, r->n_parts_all * part_floats, f);

    size_t n_in_max = max_size(hp->n_ff, max_size(hp->n_embd, hp->n_head * d));
    size_t work = max_size(kni_linear_scratch_bytes() / f, kni_attn_scratch_floats(r->group, hp->d_head, hp->n_kv_head));
    size_t tile = max_size(KNI_RUN_TILE_ROWS * KNI_RUN_COLS, KNI_RUN_FEW_ROWS * KNI_RUN_LOGIT_COLS);
    r->tile_floats = (max_size(tile, 2 * part_floats) + 15) & ~(size_t)15;
    r->own_blocks = KNI_RUN_FEW_ROWS * (n_in_max / KNI_PANEL_BLOCK);
    size_t own = KNI_RUN_FEW_ROWS * (size_t)hp->n_embd + r->own_blocks * (sizeof *r->xq / f);
    r->scratch_floats = ((work + own + 15) & ~(size_t)15) + r->tile_floats;
    r->scratch = piece(b, r->n_workers * r->scratch_floats, f);
}

size_t kni_run_workspace_bytes(const struct kni_run_opts *opts)
{
    struct kni_run r = {.opts = *opts};
    struct bump b = {0};
    lay_out(&r, &b);
    return b.overflow ? 0 : b.used;
}

enum kn_status kni_run_open(struct kni_run **out, const struct kni_run_opts *o, struct kn_err *err)
{
    *out = NULL;
    if (!o->model || !o->threads || !o->max_tokens || !o->max_logits || !o->n_ctx || o->n_ctx > N_CTX_MAX ||
        (unsigned)o->kv_type >= KNI_KERNELS_N_KV_TYPE)
        return kni_err_set(err, KN_E_ARG, "run: max_tokens %u, max_logits %u, n_ctx %u (at most %u) or kv_type %d is out of range", o->max_tokens,
                           o->max_logits, o->n_ctx, N_CTX_MAX, (int)o->kv_type);
    const struct kni_weights *weights;
    enum kn_status status = kni_weights_get(&weights, o->model, o->threads, err);
    if (status != KN_OK)
        return status;
    size_t bytes = kni_run_workspace_bytes(o);
    struct bump b = {.base = bytes ? kni_calloc(KNI_ALLOC_TAG_SCRATCH, bytes, 64) : NULL};
    if (!b.base)
        return kni_err_set(err, KN_E_NOMEM, "run: no memory for a workspace of %zu bytes; use a smaller prefill chunk than %u tokens", bytes, o->max_tokens);
    struct kni_run *r = (struct kni_run *)(void *)b.base;
    r->opts = *o;
    r->model = o->model;
    r->weights = weights;
    lay_out(r, &b);
    const struct kni_hparams *hp = &o->model->hparams;
    r->layout = (struct kni_kv_layout){.n_layer = hp->n_layer, .n_kv_head = hp->n_kv_head, .d_head = hp->d_head, .type = o->kv_type};
    kni_kernels_init(&r->kernels, kni_cpu_flags());
    if (hp->d_head % 8) { /* SIMD forms of these two take whole vectors only */
        struct kni_kernels ref;
        kni_kernels_init(&ref, 0);
        memcpy(r->kernels.attn_score16, ref.attn_score16, sizeof ref.attn_score16);
        memcpy(r->kernels.attn_mix16, ref.attn_mix16, sizeof ref.attn_mix16);
    }
    for (uint32_t i = 0; i < hp->n_ropes; i++) {
        const struct kni_rope *rope = &hp->ropes[i];
        kni_rope_freqs(r->freqs + (size_t)i * (hp->rope_dim / 2), hp->rope_dim / 2, rope->base, rope->scale, rope->factors ? rope->factors->data : NULL);
    }
    *out = r;
    return KN_OK;
}

void kni_run_close(struct kni_run **run)
{
    kni_free(*run);
    *run = NULL;
}

void kni_run_set_tap(struct kni_run *run, kni_run_tap_fn fn, void *user)
{
    run->tap = fn;
    run->tap_user = user;
}

static bool row_is_valid(const struct kni_run *r, const struct kni_run_row *row)
{
    uint32_t n_vocab = r->model->hparams.n_vocab;
    if (row->sampler ? row->sampler->n_vocab != n_vocab : row->want_logprob && (row->token < 0 || (uint32_t)row->token >= n_vocab))
        return false;
    return row->n_top <= n_vocab && row->n_top <= KN_MAX_TOP_LOGPROBS && (!row->n_top || (row->top && row->want_logprob));
}

static bool item_is_valid(const struct kni_run *r, const struct kni_run_item *it)
{
    const struct kni_kv_layout *l = &it->kv.layout;
    if (!it->n_tokens || !it->tokens || it->n_tokens > r->opts.n_ctx || it->first_pos > r->opts.n_ctx - it->n_tokens)
        return false;
    if (it->n_logits > it->n_tokens || (it->n_logits && !it->logits))
        return false;
    for (uint32_t i = 0; it->rows && i < it->n_logits; i++)
        if (!row_is_valid(r, &it->rows[i]))
            return false;
    if (!it->kv.k.at || !it->kv.v.at || !it->kv.block_ids || l->n_layer != r->layout.n_layer || l->n_kv_head != r->layout.n_kv_head ||
        l->d_head != r->layout.d_head || l->type != r->layout.type)
        return false;
    if ((uint64_t)it->kv.n_blocks * KNI_BLOCK_TOKENS < (uint64_t)it->first_pos + it->n_tokens)
        return false;
    for (uint32_t i = 0; i < it->n_tokens; i++)
        if (it->tokens[i] < 0 || (uint32_t)it->tokens[i] >= r->model->hparams.n_vocab)
            return false;
    return true;
}

static void plan_prompt(struct kni_run *r, uint32_t item, uint32_t row)
{
    const struct kni_run_item *it = &r->items[item];
    uint32_t tile = kni_attn_tile_tokens(r->group);
    for (uint32_t end = it->n_tokens; end;) { /* late tiles see the most keys: take them first */
        uint32_t t = (end - 1) / tile * tile;
        r->units[r->n_units++] = (struct kni_run_unit){.item = item, .row = row + t, .first_pos = it->first_pos + t, .n_tokens = end - t};
        end = t;
    }
}

/* How decodes are shared out. It decides on speed only: parts of keys and the order of folding are the same in every plan. */
static void plan_decodes(struct kni_run *r)
{
    uint64_t total = 0;
    uint32_t n_parts = 0, n_workers4 = 4 * r->n_workers, row = 0;
    for (uint32_t i = 0; i < r->n_items; i++)
        total += r->items[i].n_tokens == 1 ? r->items[i].first_pos + 1 : 0;
    uint32_t fair = (uint32_t)(total / n_workers4), piece_keys = (fair / 2 + KNI_ATTN_PART_KEYS / 2) / KNI_ATTN_PART_KEYS * KNI_ATTN_PART_KEYS;
    if (piece_keys < KNI_ATTN_PART_KEYS)
        piece_keys = KNI_ATTN_PART_KEYS;
    for (uint32_t i = 0; i < r->n_items; row += r->items[i++].n_tokens) {
        struct kni_run_unit u = {.item = i, .row = row, .first_pos = r->items[i].first_pos, .n_tokens = 1};
        uint32_t n_keys = u.first_pos + 1, n = (n_keys + KNI_ATTN_PART_KEYS - 1) / KNI_ATTN_PART_KEYS;
        if (r->items[i].n_tokens > 1)
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

enum kn_status kni_run_step(struct kni_run *r, const struct kni_run_item *items, uint32_t n_items)
{
    uint64_t n_rows = 0, n_outs = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        if (!item_is_valid(r, &items[i]))
            return KN_E_ARG;
        n_rows += items[i].n_tokens;
        n_outs += items[i].n_logits;
    }
    if (n_rows > r->opts.max_tokens || n_outs > r->opts.max_logits)
        return KN_E_ARG;
    if (!n_rows)
        return KN_OK;
    r->items = items;
    r->n_items = n_items;
    r->n_rows = (uint32_t)n_rows;
    r->n_outs = r->n_units = r->n_merges = 0;
    for (uint32_t i = 0, row = 0; i < n_items; row += items[i++].n_tokens) {
        const struct kni_run_item *it = &items[i];
        uint32_t first_out = it->n_tokens - it->n_logits;
        for (uint32_t t = 0; t < it->n_tokens; t++) {
            r->row_item[row + t] = i;
            r->row_pos[row + t] = it->first_pos + t;
            r->row_token[row + t] = &it->tokens[t];
            if (t >= first_out) {
                r->out_row[r->n_outs] = row + t;
                r->out_rows[r->n_outs] = it->rows ? &it->rows[t - first_out] : NULL;
                r->out_logits[r->n_outs++] = it->logits + (size_t)(t - first_out) * r->model->hparams.n_vocab;
            }
        }
        if (it->n_tokens > 1)
            plan_prompt(r, i, row);
    }
    r->n_tiles = r->n_units;
    plan_decodes(r);
    for (uint32_t i = 0; i < r->model->hparams.n_layer * KNI_RUN_PHASES + 2; i++)
        atomic_store_explicit(&r->counters[i], 0, memory_order_relaxed);
    kni_threads_run(r->opts.threads, kni_run_forward, r);
    return KN_OK;
}

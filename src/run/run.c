/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every device's steps have in common: argument checks, the rows of a step, and whether one is under way. The pass
 * itself lies behind struct kni_run_ops. Items come from our own scheduler, but a wrong one would write outside the
 * pool, so a step checks everything before anything is written.
 *
 *     struct kni_run | row_item, row_pos, row_token [max_tokens] | out_row, out_logits, out_rows [max_logits]
 */
#include "run/run.h"

#include <assert.h>
#include <time.h>

#include "base/alloc.h"
#include "base/status.h"
#include "kernel/kernels.h"
#include "base/pieces.h"
#include "run/run_ops.h"

#define N_CTX_MAX (1u << 24)
#define SPINS 16u       /* polls that follow each other at once: a step that is as good as over is not slept through */
#define SPIN_ROUNDS 32u /* of a relaxed processor, between two of them: about a microsecond */
#define SLEEP_NS 50000  /* between later ones: a large model's decode step on a GPU takes a hundred times as long */

struct kni_run {
    struct kni_run_opts opts; /* ops is not NULL */
    struct kni_kv_layout layout;
    struct kni_run_plan plan;
    void *state; /* the device's */
    bool is_under_way;
};

/* Fills r's pointers. */
static void lay_out(struct kni_run *r, struct kni_pieces *b)
{
    const struct kni_run_opts *o = &r->opts;
    kni_piece(b, 1, sizeof *r);
    r->plan.row_item = kni_piece(b, o->max_tokens, sizeof *r->plan.row_item);
    r->plan.row_pos = kni_piece(b, o->max_tokens, sizeof *r->plan.row_pos);
    r->plan.row_token = kni_piece(b, o->max_tokens, sizeof *r->plan.row_token);
    r->plan.out_row = kni_piece(b, o->max_logits, sizeof *r->plan.out_row);
    r->plan.out_logits = kni_piece(b, o->max_logits, sizeof *r->plan.out_logits);
    r->plan.out_rows = kni_piece(b, o->max_logits, sizeof *r->plan.out_rows);
}

static const struct kni_run_ops *ops_of(const struct kni_run_opts *o)
{
    return o->ops ? o->ops : &kni_run_ops_cpu;
}

static size_t own_bytes(const struct kni_run_opts *o)
{
    struct kni_run r = {.opts = *o};
    struct kni_pieces b = {0};
    lay_out(&r, &b);
    return b.overflow ? 0 : b.used;
}

size_t kni_run_workspace_bytes(const struct kni_run_opts *o)
{
    size_t own = own_bytes(o), device = ops_of(o)->workspace_bytes(o), bytes;
    return own && device && kni_add_size(own, device, &bytes) ? bytes : 0;
}

enum kn_status kni_run_open(struct kni_run **out, const struct kni_run_opts *o, struct kn_err *err)
{
    *out = NULL;
    if (!o->model || !o->max_tokens || !o->max_logits || !o->n_ctx || o->n_ctx > N_CTX_MAX ||
        (unsigned)o->kv_type >= KNI_KERNELS_N_KV_TYPE)
        return kni_err_set(err, KN_E_ARG,
                           "run: max_tokens %u, max_logits %u, n_ctx %u (at most %u) or kv_type %d is out of range",
                           o->max_tokens, o->max_logits, o->n_ctx, N_CTX_MAX, (int)o->kv_type);
    size_t bytes = own_bytes(o);
    struct kni_pieces b = {.base = bytes ? kni_calloc(KNI_ALLOC_TAG_SCRATCH, bytes, 64) : NULL};
    if (!b.base)
        return kni_err_set(err, KN_E_NOMEM,
                           "run: no memory for a workspace of %zu bytes; use a smaller prefill chunk than %u tokens",
                           bytes, o->max_tokens);
    struct kni_run *r = (struct kni_run *)(void *)b.base;
    r->opts = *o;
    r->opts.ops = ops_of(o);
    lay_out(r, &b);
    const struct kni_hparams *hp = &o->model->hparams;
    r->layout = (struct kni_kv_layout){
        .n_layer = hp->n_layer, .n_kv_head = hp->n_kv_head, .d_head = hp->d_head, .type = o->kv_type};
    enum kn_status status = r->opts.ops->open(&r->state, &r->opts, err);
    if (status)
        kni_run_close(&r);
    *out = r;
    return status;
}

void kni_run_close(struct kni_run **run)
{
    struct kni_run *r = *run;
    if (!r)
        return;
    for (uint32_t n = 0; kni_run_try_end(r) == KN_AGAIN;)
        kni_run_pause(++n);
    r->opts.ops->close(&r->state);
    kni_free(r);
    *run = NULL;
}

void kni_run_set_tap(struct kni_run *run, kni_run_tap_fn fn, void *user)
{
    assert(!fn || run->opts.ops->has_tap);
    run->plan.tap = fn;
    run->plan.tap_user = user;
}

static bool row_is_valid(const struct kni_run *r, const struct kni_run_row *row)
{
    uint32_t n_vocab = r->opts.model->hparams.n_vocab;
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
    if ((unsigned)it->want > KNI_RUN_WANT_LOGITS || (it->want == KNI_RUN_WANT_NOTHING) != !it->n_logits ||
        (it->want == KNI_RUN_WANT_ROWS && !it->rows))
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
        if (it->tokens[i] < 0 || (uint32_t)it->tokens[i] >= r->opts.model->hparams.n_vocab)
            return false;
    return true;
}

/* The rows of all items. */
static void fill_plan(struct kni_run *r, const struct kni_run_item *items, uint32_t n_items)
{
    struct kni_run_plan *p = &r->plan;
    p->items = items;
    p->n_items = n_items;
    p->n_outs = 0;
    for (uint32_t i = 0, row = 0; i < n_items; row += items[i++].n_tokens) {
        const struct kni_run_item *it = &items[i];
        uint32_t first_out = it->n_tokens - it->n_logits;
        for (uint32_t t = 0; t < it->n_tokens; t++) {
            p->row_item[row + t] = i;
            p->row_pos[row + t] = it->first_pos + t;
            p->row_token[row + t] = it->tokens[t];
            if (t >= first_out) {
                p->out_row[p->n_outs] = row + t;
                p->out_rows[p->n_outs] = it->rows ? &it->rows[t - first_out] : NULL;
                p->out_logits[p->n_outs++] = it->logits + (size_t)(t - first_out) * r->opts.model->hparams.n_vocab;
            }
        }
    }
}

enum kn_status kni_run_begin(struct kni_run *r, const struct kni_run_item *items, uint32_t n_items)
{
    uint64_t n_rows = 0, n_outs = 0;
    if (r->is_under_way)
        return KN_E_STATE;
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
    r->plan.n_rows = (uint32_t)n_rows;
    fill_plan(r, items, n_items);
    enum kn_status status = r->opts.ops->begin(r->state, &r->plan);
    r->plan.items = NULL;
    r->is_under_way = !status;
    return status;
}

enum kn_status kni_run_try_end(struct kni_run *r)
{
    enum kn_status status = r->is_under_way ? r->opts.ops->try_end(r->state, &r->plan) : KN_OK;
    r->is_under_way = status == KN_AGAIN;
    return status;
}

void kni_run_forget(struct kni_run *r, uint32_t item)
{
    for (uint32_t i = 0; r->is_under_way && i < r->plan.n_outs; i++)
        if (r->plan.row_item[r->plan.out_row[i]] == item) {
            r->plan.out_rows[i] = NULL;
            r->plan.out_logits[i] = NULL;
        }
}

static void relax_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void kni_run_pause(uint32_t n)
{
    if (n > SPINS)
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    else
        for (uint32_t i = 0; i < SPIN_ROUNDS; i++)
            relax_cpu();
}

enum kn_status kni_run_step(struct kni_run *r, const struct kni_run_item *items, uint32_t n_items)
{
    enum kn_status status = kni_run_begin(r, items, n_items);
    for (uint32_t n = 0; !status && (status = kni_run_try_end(r)) == KN_AGAIN; status = KN_OK)
        kni_run_pause(++n);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "run/weights.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "base/alloc.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define UNIT_PANELS 16u /* panels that a worker packs at a time */
#define N_LAYER_MATRICES 7u

struct job {
    const struct kn_model *model;
    struct kni_weights *weights;
    _Atomic uint32_t next; /* unit over all matrices; relaxed, since units share nothing */
};

static uint32_t matrices_of(const struct kn_model *m)
{
    return m->hparams.n_layer * N_LAYER_MATRICES + 1;
}

/* Matrix index: where it is in the file and where its panels are described. */
static struct kni_panels *matrix(const struct kn_model *m, struct kni_weights *w, uint32_t index, const struct kni_tensor **src)
{
    if (index == matrices_of(m) - 1) {
        *src = m->output;
        return &w->output;
    }
    const struct kni_layer *l = &m->layers[index / N_LAYER_MATRICES];
    struct kni_layer_panels *p = &w->layers[index / N_LAYER_MATRICES];
    const struct kni_tensor *const tensors[] = {l->wq, l->wk, l->wv, l->wo, l->w_gate, l->w_up, l->w_down};
    struct kni_panels *const panels[] = {&p->wq, &p->wk, &p->wv, &p->wo, &p->w_gate, &p->w_up, &p->w_down};
    *src = tensors[index % N_LAYER_MATRICES];
    return panels[index % N_LAYER_MATRICES];
}

static void pack(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct job *j = arg;
    (void)worker, (void)n_workers;
    uint32_t first = 0, unit = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < matrices_of(j->model); i++) { /* units ascend, so one pass over the matrices serves all of a worker's */
        const struct kni_tensor *src;
        const struct kni_panels *p = matrix(j->model, j->weights, i, &src);
        uint32_t n_panels = kni_panels_count(p), n_units = (n_panels + UNIT_PANELS - 1) / UNIT_PANELS;
        size_t row_bytes = (size_t)(src->n_bytes / src->ne[1]);
        for (; unit - first < n_units; unit = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) {
            uint32_t panel = (unit - first) * UNIT_PANELS, end = panel + UNIT_PANELS < n_panels ? panel + UNIT_PANELS : n_panels;
            size_t from = panel * KNI_PANEL_COLS * row_bytes;
            for (uint32_t k = panel; k < end; k++)
                kni_panel_pack(p, k, src->data, (uint8_t *)(size_t)p->data + k * p->panel_bytes);
            size_t to = end == n_panels ? (size_t)src->n_bytes : end * KNI_PANEL_COLS * row_bytes;
            kni_model_release(j->model, (const uint8_t *)src->data + from, to - from);
        }
        first += n_units;
    }
}

static void weights_close(struct kni_packed *packed)
{
    struct kni_weights *w = (struct kni_weights *)(void *)packed; /* its first member */
    kni_free(w->data);
    kni_free(w->layers);
    kni_free(w);
}

static enum kn_status weights_open(struct kni_packed **out, struct kn_model *m, void *threads, struct kn_err *err)
{
    struct kni_weights *w = kni_calloc(KNI_ALLOC_TAG_MODEL, sizeof *w, 0);
    const struct kni_tensor *src;
    size_t total = 0;
    bool fits = true;
    if (w)
        w->layers = kni_calloc(KNI_ALLOC_TAG_MODEL, m->hparams.n_layer * sizeof *w->layers, 0);
    if (!w || !w->layers)
        goto no_memory;
    for (uint32_t i = 0; fits && i < matrices_of(m); i++) {
        struct kni_panels *p = matrix(m, w, i, &src);
        size_t bytes = kni_panels_init(p, src->type, (uint32_t)src->ne[1], (uint32_t)src->ne[0]);
        fits = bytes && kni_add_size(total, bytes, &total);
    }
    w->data = fits ? kni_alloc(KNI_ALLOC_TAG_MODEL, total, total >= HUGE_BYTES ? HUGE_BYTES : 64) : NULL;
    if (!w->data)
        goto no_memory;
    if (total >= HUGE_BYTES)
        madvise(w->data, total & ~(HUGE_BYTES - 1), MADV_HUGEPAGE); /* a wish: small pages do as well */
    size_t at = 0;
    for (uint32_t i = 0; i < matrices_of(m); i++) {
        struct kni_panels *p = matrix(m, w, i, &src);
        p->data = w->data + at;
        at += p->panel_bytes * kni_panels_count(p);
    }
    struct job j = {.model = m, .weights = w};
    kni_threads_run(threads, pack, &j);
    for (uint32_t i = 0; i < m->parts.n; i++) /* pages that two units shared */
        kni_file_map_release(&m->parts.parts[i].map, m->parts.parts[i].map.data, m->parts.parts[i].map.n_bytes);
    w->packed.close = weights_close;
    *out = &w->packed;
    return KN_OK;
no_memory:
    if (w)
        weights_close(&w->packed);
    return kni_err_set(err, KN_E_NOMEM, "run: no memory for %zu bytes of packed weights; use a smaller model", total);
}

enum kn_status kni_weights_get(const struct kni_weights **out, struct kn_model *model, struct kni_threads *threads, struct kn_err *err)
{
    const struct kni_packed *packed;
    enum kn_status status = kni_model_get_packed(&packed, model, "cpu panels", weights_open, threads, err);
    *out = (const struct kni_weights *)(const void *)packed;
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices side by side. One encoder a triple, as row scales differ. A picture's slices are dealt out one by one: rows at the top are loud and
 * take longer. Each is coded into room of its own, then all are moved together behind the parameter sets; pictures follow one another, so the
 * figures hold for one picture that is in a hurry, not for many.
 */
#include "measure/bench_slices.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/le.h"


struct kni_slices {
    const struct kni_film *film;
    struct kni_threads *threads;
    void **memory;                      /* [n_coders] */
    struct kni_hevc_lossless **coders;
    uint32_t n_coders, n_slices;
    uint8_t *room;                      /* several threads: slice i of the current picture at at[i], sizes[i] bytes of it */
    size_t *at, *sizes;
    const struct kni_hevc_lossless *coder; /* of the current picture, as job */
    struct kni_hevc_job job;
    atomic_uint next;                   /* slice to code; workers take numbers, order does not matter */
};

void kni_slices_close(struct kni_slices **slices)
{
    struct kni_slices *x = *slices;
    if (!x)
        return;
    for (uint32_t i = 0; x->memory && i < x->n_coders; i++)
        kni_free(x->memory[i]);
    kni_free(x->memory);
    kni_free(x->coders);
    kni_free(x->room);
    kni_free(x->at);
    kni_free(x->sizes);
    kni_free(x);
    *slices = NULL;
}

static enum kn_status open_coders(struct kni_slices *x, uint32_t tools, uint32_t n_slices, struct kn_err *err)
{
    const struct kni_film *f = x->film;
    for (uint32_t i = 0; i < x->n_coders; i++) {
        struct kni_hevc_lossless_opts o = {.width = f->width,
                                           .height = f->height,
                                           .tools = tools,
                                           .content = f->content,
                                           .n_slices = n_slices,
                                           .row_scale = f->row_scale ? kni_film_row_scale(f, i * f->n_chunks) : NULL};
        size_t n = kni_hevc_lossless_bytes(&o);
        if (!n)
            return kni_err_set(err, KN_E_ARG, "the encoder takes no pictures of %u x %u", f->width, f->height);
        x->memory[i] = kni_alloc(KNI_ALLOC_TAG_CODEC, n, 64);
        if (!x->memory[i])
            return kni_err_set(err, KN_E_NOMEM, "no memory for an HEVC encoder");
        enum kn_status status = kni_hevc_lossless_init(&x->coders[i], x->memory[i], &o, err);
        if (status)
            return status;
    }
    return KN_OK;
}

static enum kn_status make_room(struct kni_slices *x, struct kn_err *err)
{
    size_t n = 0;
    x->n_slices = kni_hevc_lossless_n_slices(x->coders[0]); /* the same for all: it goes by size */
    x->at = kni_alloc(KNI_ALLOC_TAG_CODEC, x->n_slices * sizeof *x->at, 0);
    x->sizes = kni_alloc(KNI_ALLOC_TAG_CODEC, x->n_slices * sizeof *x->sizes, 0);
    for (uint32_t i = 0; x->at && i < x->n_slices; i++) {
        size_t most = 0;
        for (uint32_t c = 0; c < x->n_coders; c++) {
            size_t bound = kni_hevc_lossless_slice_bound(x->coders[c], i);
            most = bound > most ? bound : most;
        }
        x->at[i] = n;
        n += (most + 63) / 64 * 64; /* threads do not write to one cache line */
    }
    x->room = kni_alloc(KNI_ALLOC_TAG_CODEC, n ? n : 1, 64);
    return x->at && x->sizes && x->room ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for %u slices", x->n_slices);
}

enum kn_status kni_slices_open(struct kni_slices **out, const struct kni_film *film, uint32_t tools, uint32_t n_slices, struct kni_threads *threads,
                               struct kn_err *err)
{
    struct kni_slices *x = *out = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *x, 0);
    if (!x)
        return kni_err_set(err, KN_E_NOMEM, "no memory for an HEVC encoder");
    x->film = film;
    x->threads = threads;
    x->n_coders = film->row_scale ? film->n_streams / film->n_chunks : 1;
    x->memory = kni_calloc(KNI_ALLOC_TAG_CODEC, x->n_coders * sizeof *x->memory, 0);
    x->coders = kni_calloc(KNI_ALLOC_TAG_CODEC, x->n_coders * sizeof *x->coders, 0);
    enum kn_status status = x->memory && x->coders ? open_coders(x, tools, n_slices, err) : kni_err_set(err, KN_E_NOMEM, "no memory for an HEVC encoder");
    if (status == KN_OK && threads)
        status = make_room(x, err);
    if (status)
        kni_slices_close(out);
    return status;
}

static void code_slices(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct kni_slices *x = arg;
    (void)worker;
    (void)n_workers;
    for (uint32_t i; (i = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed)) < x->n_slices;)
        x->sizes[i] = kni_hevc_lossless_slice(x->coder, &x->job, i, x->room + x->at[i]);
}

static size_t code_picture(struct kni_slices *x, uint8_t *out)
{
    if (!x->threads)
        return kni_hevc_lossless_unit(x->coder, &x->job, out);
    atomic_store_explicit(&x->next, 0, memory_order_relaxed); /* kni_threads_run publishes it */
    kni_threads_run(x->threads, code_slices, x);
    size_t n = x->job.first ? kni_hevc_lossless_headers(x->coder, out) : 0;
    for (uint32_t i = 0; i < x->n_slices; i++) {
        memcpy(out + n, x->room + x->at[i], x->sizes[i]);
        n += x->sizes[i];
    }
    return n;
}

enum kn_status kni_slices_code(struct kni_slices *x, uint32_t stream, struct kni_container_writer *w, struct kn_err *err)
{
    const struct kni_film *f = x->film;
    x->coder = x->coders[f->row_scale ? stream / f->n_chunks : 0];
    size_t table = 4 + 4 * (size_t)f->n_pictures, n = table, bound = kni_hevc_lossless_unit_bound(x->coder) + KNI_HEVC_LOSSLESS_HEADERS;
    uint8_t *room = kni_container_writer_reserve(w, table + f->n_pictures * bound);
    if (!room)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a stream of %u pictures", f->n_pictures);
    kni_le32_put(room, f->n_pictures);
    for (uint32_t i = 0; i < f->n_pictures; i++) {
        x->job.first = i == 0;
        x->job.index = i;
        x->job.before = x->job.now;
        x->job.before_flat = i && kni_film_is_flat(f, i - 1);
        kni_film_planes(f, stream, i, x->job.now.plane);
        for (uint32_t k = 0; k < 3; k++)
            x->job.now.stride[k] = f->width;
        size_t size = code_picture(x, room + n);
        kni_le32_put(room + 4 + 4 * (size_t)i, (uint32_t)size);
        n += size;
    }
    kni_container_writer_commit(w, n);
    return KN_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinema's own encoder taken by hand, for what its handle (hevc_encode.h) does not offer: any set of tools, and the slices of a picture on
 * several threads. Writes the same sections.
 *
 * Owner: one thread, which is also the one that runs threads.
 */
#ifndef KNI_ENGINE_BENCH_SLICES_H
#define KNI_ENGINE_BENCH_SLICES_H

#include "codec/container.h"
#include "measure/bench_film.h"

struct kni_slices;

/* tools: bits of enum kni_hevc_tool. n_slices: of a picture, 0: chosen by size. threads: NULL codes slices one after the other. Film
 * and threads are borrowed while the handle lives. KN_E_NOMEM, KN_E_ARG (the encoder does not take such pictures). */
enum kn_status kni_slices_open(struct kni_slices **out, const struct kni_film *film, uint32_t tools, uint32_t n_slices, struct kni_threads *threads,
                               struct kn_err *err);
void kni_slices_close(struct kni_slices **slices);

/* A stream's section to w's end, as kni_hevc_encode_end writes it. KN_E_NOMEM. */
enum kn_status kni_slices_code(struct kni_slices *x, uint32_t stream, struct kni_container_writer *w, struct kn_err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of compute threads that run one function together: fork, work, join. The caller is worker 0, so a pool of one
 * thread starts none. Workers spin for a few microseconds between jobs, then sleep in the kernel: a decode step
 * forks some hundred times. No allocation and no lock in run. One owner thread calls run; no nesting. Workers take no signals
 * but those that their own work raises, such as SIGBUS from a mapped file that has shrunk.
 */
#ifndef KNI_DEVICE_CPU_THREADS_H
#define KNI_DEVICE_CPU_THREADS_H

#include <stdint.h>

#include "base/status.h"

#define KNI_THREADS_MAX 256u

struct kni_threads;

/* worker in 0..n_workers-1. */
typedef void (*kni_threads_fn)(void *arg, uint32_t worker, uint32_t n_workers);

/* n_threads 1..KNI_THREADS_MAX; 0: kni_cpu_count(), but no more than that. KN_E_ARG, KN_E_NOMEM. */
enum kn_status kni_threads_open(struct kni_threads **out, uint32_t n_threads);
void kni_threads_close(struct kni_threads **threads);
uint32_t kni_threads_count(const struct kni_threads *threads);
/* Calls fn on every worker and returns when all have returned; their writes are visible to the caller. */
void kni_threads_run(struct kni_threads *threads, kni_threads_fn fn, void *arg);
/* Barrier inside fn: every worker must call it the same number of times. */
void kni_threads_barrier(struct kni_threads *threads);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that the library starts leave the program's signals to the program: they are created between block and restore
 * and inherit the mask. Faults of a thread's own making (SIGSEGV, SIGBUS of a cut file, ...) stay open everywhere.
 */
#ifndef KNI_BASE_SIGNALS_H
#define KNI_BASE_SIGNALS_H

#include <signal.h>

/* Blocks every signal but faults for the calling thread; the mask before goes to *before. */
void kni_signals_block(sigset_t *before);
void kni_signals_restore(const sigset_t *before);

#endif

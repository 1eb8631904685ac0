/* SPDX-License-Identifier: Apache-2.0 */
/* How a child ended, in words, and what it said last: for the rivals, which run in processes of their own and may die. */
#ifndef KN_BENCH_LAST_WORDS_H
#define KN_BENCH_LAST_WORDS_H

#include "bench.h"

#define KN_HOW_ENDED_BYTES 128u
/* "was ended by SIGSEGV (Segmentation fault)", "ended with status 1". status: as of waitpid. */
void kn_how_ended(int status, char out[KN_HOW_ENDED_BYTES]);
/* Says on stderr how who ended: the tail of what fd (a file; < 0: none) holds, then "WHO was ended by SIGSEGV (Segmentation fault) WHEN"
 * and whether its last words are above or it said nothing. status: as of waitpid. Returns KN_APP_EXIT_FAILED. */
int kn_say_end(const char *who, int status, const char *when, int fd);
/* Prints the tail of what fd holds to stderr; false: it holds nothing. */
bool kn_show_tail(int fd);
/* What tools/build-peers has noted about the build that a program in bin/ belongs to: {"kind", "flags", "note"}; NULL: there is no note. */
json_t *kn_peer_build(const char *program);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Time. Monotonic nanoseconds for durations and deadlines, wall seconds for what is stored. Any thread. */
#ifndef KNI_BASE_CLOCK_H
#define KNI_BASE_CLOCK_H

#include <stdint.h>

uint64_t kni_now_ns(void);
uint64_t kni_wall_s(void);
/* Processor time of all threads of the process. */
uint64_t kni_processor_ns(void);

#endif

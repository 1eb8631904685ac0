/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Body of the multiply-add probes, compiled once per instruction level: KN_PROBE_NAME is the function, KN_PROBE_FLOATS the
 * width of a register in floats. Ten independent chains hide the latency of a multiply-add (4 cycles, two pipes).
 */
#ifndef KN_PROBE_KERNEL_H
#define KN_PROBE_KERNEL_H

#include <stdint.h>

#define KN_PROBE_DEFINE(name, floats)                                                                  \
    typedef float name##_vec __attribute__((vector_size((floats) * 4)));                               \
    uint64_t name(uint64_t n_fma, float *sink)                                                         \
    {                                                                                                  \
        enum { CHAINS = 10 };                                                                          \
        name##_vec a[CHAINS], b = (name##_vec){0} + 0.999999f, c = (name##_vec){0} + 1e-7f;            \
        for (int i = 0; i < CHAINS; i++)                                                               \
            a[i] = (name##_vec){0} + (float)(i + 1);                                                   \
        uint64_t rounds = n_fma / (CHAINS * (floats)) + 1;                                             \
        for (uint64_t r = 0; r < rounds; r++) {                                                        \
            a[0] = a[0] * b + c;                                                                       \
            a[1] = a[1] * b + c;                                                                       \
            a[2] = a[2] * b + c;                                                                       \
            a[3] = a[3] * b + c;                                                                       \
            a[4] = a[4] * b + c;                                                                       \
            a[5] = a[5] * b + c;                                                                       \
            a[6] = a[6] * b + c;                                                                       \
            a[7] = a[7] * b + c;                                                                       \
            a[8] = a[8] * b + c;                                                                       \
            a[9] = a[9] * b + c;                                                                       \
        }                                                                                              \
        float sum = 0;                                                                                 \
        for (int i = 0; i < CHAINS; i++)                                                               \
            for (int k = 0; k < (floats); k++)                                                         \
                sum += a[i][k];                                                                        \
        *sink = sum;                                                                                   \
        return rounds * CHAINS * (floats);                                                             \
    }

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of bins, and the start and stop of a slice's data. Source: ITU-T H.265, 9.3.2.5, 9.3.4.3. */
#include "measure/reader/hevc_reader_cabac.h"

#include <math.h>
#include <string.h>

void kni_hevc_bins_init(struct kni_hevc_bins *b)
{
    /* Probability of the less likely value: 0.5 in state 0, 0.01875 in state 63, a constant ratio between neighbours. */
    double p = 0.5, ratio = pow(0.01875 / 0.5, 1.0 / 63);
    for (uint32_t i = 0; i < 64; i++, p *= ratio)
        for (uint32_t mps = 0; mps < 2; mps++) {
            b->cost[2 * i + mps][mps] = -log2(1 - p);
            b->cost[2 * i + mps][!mps] = -log2(p);
        }
    kni_hevc_states_fill(b->states);
}

void kni_hevc_models_init(struct kni_hevc_models *m, uint32_t init_type, int32_t qp)
{
    kni_hevc_contexts_init(m->context, init_type, qp);
    memset(m->rice, 0, sizeof m->rice);
}

void kni_hevc_bins_start(struct kni_hevc_bins *b, const uint8_t *bytes, size_t n_bytes, size_t at)
{
    b->bytes = bytes;
    b->n_bytes = n_bytes;
    b->at = at;
    b->value = 0;
    b->range = 510;
    b->spare = 0;
    for (uint32_t i = 0; i < 2; i++)
        b->value = b->value << 8 | (b->at < n_bytes ? bytes[b->at] : 0u), b->at++;
    b->spare = 7; /* 16 bits less the offset's 9 */
}

size_t kni_hevc_bins_stop(const struct kni_hevc_bins *b)
{
    size_t bit = kni_hevc_bins_at(b); /* the first bit not taken: the one before ends the payload */
    if (bit > b->n_bytes * 8 || !(b->bytes[(bit - 1) >> 3] >> (7 - ((bit - 1) & 7)) & 1))
        return 0;
    return (bit + 7) / 8;
}

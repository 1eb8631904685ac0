/* SPDX-License-Identifier: Apache-2.0 */
/* From weights to frequencies that sum to 4096, and from those to the tables of rans_core.h. Nothing here is hot. */
#include "codec/rans/rans_core.h"

#include <math.h>

/* Bits saved, per unit of all weights, when a symbol of this weight goes from freq to freq + 1. */
static double gain(double weight, uint32_t freq)
{
    return weight * log2(1 + 1 / (double)freq);
}

/* The symbol for which one more is worth most (up), or one less costs least (not up), and how much; 256 when none may change. */
static unsigned pick(const double weights[256], const uint16_t freq[256], bool up, double *worth)
{
    unsigned best = 256;
    for (unsigned s = 0; s < 256; s++) {
        if (!freq[s] || (up ? freq[s] >= KNI_RANS_SCALE - 1 : freq[s] == 1))
            continue;
        double g = up ? gain(weights[s], freq[s]) : gain(weights[s], freq[s] - 1u);
        if (best == 256 || (up ? g > *worth : g < *worth)) {
            best = s;
            *worth = g;
        }
    }
    return best;
}

void kni_rans_normalise(const double weights[256], uint16_t freq[256])
{
    double total = 0, won = 0, lost = 0;
    uint32_t sum = 0, n_present = 0, last = 0;
    for (unsigned s = 0; s < 256; s++)
        total += weights[s];
    for (unsigned s = 0; s < 256; s++) {
        freq[s] = 0;
        if (!(weights[s] > 0))
            continue;
        double f = rint(weights[s] / total * KNI_RANS_SCALE);
        freq[s] = f < 1 ? 1 : f > KNI_RANS_SCALE - 1 ? KNI_RANS_SCALE - 1 : (uint16_t)f;
        sum += freq[s];
        n_present++;
        last = s;
    }
    if (n_present == 1) { /* a symbol of freq 4096 has no place in a slot */
        freq[last] = KNI_RANS_SCALE - 1;
        freq[last ^ 1] = 1;
        return;
    }
    for (; sum < KNI_RANS_SCALE; sum++)
        freq[pick(weights, freq, true, &won)]++;
    for (; sum > KNI_RANS_SCALE; sum--)
        freq[pick(weights, freq, false, &lost)]--;
    for (;;) { /* each exchange makes the sum of bits smaller, so this ends */
        unsigned up = pick(weights, freq, true, &won), down = pick(weights, freq, false, &lost);
        if (up == 256 || down == 256 || up == down || won <= lost * (1 + 1e-9))
            return;
        freq[up]++;
        freq[down]--;
    }
}

bool kni_rans_freq_ok(const uint16_t freq[256])
{
    uint32_t sum = 0;
    bool small = true;
    for (unsigned s = 0; s < 256; s++) {
        sum += freq[s];
        small &= freq[s] < KNI_RANS_SCALE;
    }
    return small && sum == KNI_RANS_SCALE;
}

void kni_rans_make_symbols(const uint16_t freq[256], struct kni_rans_symbol symbols[256])
{
    uint32_t start = 0;
    for (unsigned s = 0; s < 256; s++) {
        uint32_t f = freq[s];
        symbols[s] = (struct kni_rans_symbol){freq[s], (uint16_t)start, f < 2 ? UINT32_MAX * f : (uint32_t)((1ull << 32) / f)};
        start += f;
    }
}

void kni_rans_make_slots(const uint16_t freq[256], uint32_t slots[KNI_RANS_SCALE])
{
    uint32_t at = 0;
    for (unsigned s = 0; s < 256; s++)
        for (uint32_t i = 0; i < freq[s]; i++)
            slots[at++] = kni_rans_slot((uint8_t)s, freq[s], i);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Unicode normalisation form C, which Qwen's tokenizers apply to text between special tokens. Any thread. */
#ifndef KNI_MODEL_NFC_H
#define KNI_MODEL_NFC_H

#include <stddef.h>

#include "base/status.h"
#include "model/effort.h"

/* Normalises n bytes of valid UTF-8, n < 2^31. *out becomes NULL when the text certainly is in form C already, otherwise memory
 * that the caller frees with kni_free, with *n_out bytes (at most 3n). Linear in n. A step is a byte or a character. KN_E_NOMEM,
 * KN_E_CANCELLED. */
enum kn_status kni_nfc(char **out, size_t *n_out, const char *text, size_t n, struct kni_effort *effort);

#endif

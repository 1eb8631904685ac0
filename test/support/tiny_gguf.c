/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the tiny model of tiny_model.h as a file, for scripts: tiny_gguf [--broken] FILE [N_CTX [CHAT_TEMPLATE]]; an empty template leaves it out;
 * --broken: one whose logits are not numbers. Exit status 0: written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/tiny_model.h"

int main(int argc, char **argv)
{
    bool broken = argc > 1 && !strcmp(argv[1], "--broken");
    argc -= broken;
    argv += broken;
    struct kn_tiny_opts o = {.broken = broken, .type = KNI_DTYPE_Q4_1, .n_ctx = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2048};
    if (argc > 3)
        o.chat_template = argv[3];
    if (argc < 2 || argc > 4 || !o.n_ctx) {
        fprintf(stderr, "usage: tiny_gguf [--broken] FILE [N_CTX [CHAT_TEMPLATE]]\n");
        return 2;
    }
    if (kn_tiny_model_write(argv[1], &o)) {
        fprintf(stderr, "tiny_gguf: cannot write %s\n", argv[1]);
        return 1;
    }
    return 0;
}

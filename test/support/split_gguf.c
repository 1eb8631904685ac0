/* SPDX-License-Identifier: Apache-2.0 */
/* Splits a model for scripts: split_gguf FILE PREFIX N [first] writes PREFIX-00001-of-0000N.gguf and so on; first: the first part has
 * no tensors. Exit status 0: written. */
#include "base/file.h"
#include "support/gguf_split.h"

int main(int argc, char **argv)
{
    struct kni_file_map map;
    struct kn_split s;
    struct kn_split_opts o = {.n_parts = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0, .no_tensor_first = argc > 4};
    if (argc < 4 || !o.n_parts) {
        fprintf(stderr, "usage: split_gguf FILE PREFIX N [first]\n");
        return 2;
    }
    if (kni_file_map_open(&map, argv[1], NULL)) {
        fprintf(stderr, "split_gguf: cannot read %s\n", argv[1]);
        return 1;
    }
    int rc = kn_split_make(&s, map.data, map.n_bytes, &o) || kn_split_write(&s, argv[2]);
    if (rc)
        fprintf(stderr, "split_gguf: cannot split %s\n", argv[1]);
    kn_split_fini(&s);
    kni_file_map_close(&map);
    return rc ? 1 : 0;
}

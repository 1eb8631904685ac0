/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the corpus of gguf_fuzz: a tiny random model, the same in two parts, and a file with every kind of metadata value. Not built by default:
 *
 *     ninja model_corpus && test/model_corpus test/fuzz/corpus/gguf_fuzz
 */
#include "support/gguf_split.h"
#include "support/tiny_model.h"

static int save(const char *folder, const char *name, struct kn_gguf_writer *w)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int rc = kn_file_write(path, w->file.data, w->file.n);
    kn_gguf_writer_fini(w);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    struct kn_gguf_writer w = {0};
    kn_tiny_model_build(&w, &(struct kn_tiny_opts){.type = KNI_DTYPE_Q4_0, .n_layer = 1, .n_head = 1, .n_kv_head = 1, .n_ff = 32});
    int rc = save(argv[1], "tiny_q4_0", &w);

    struct kn_split split;
    struct kn_bytes pair = {0};
    char path[4096];
    kn_tiny_model_build(&w, &(struct kn_tiny_opts){.type = KNI_DTYPE_Q4_0, .n_layer = 1, .n_head = 1, .n_kv_head = 1, .n_ff = 32});
    rc |= kn_split_make(&split, w.file.data, w.file.n, &(struct kn_split_opts){.n_parts = 2});
    kn_bytes_put(&pair, "PAIR", 4);
    kn_bytes_u32(&pair, (uint32_t)split.parts[0].file.n);
    kn_bytes_put(&pair, split.parts[0].file.data, split.parts[0].file.n);
    kn_bytes_put(&pair, split.parts[1].file.data, split.parts[1].file.n);
    snprintf(path, sizeof path, "%s/tiny_pair", argv[1]);
    rc |= kn_file_write(path, pair.data, pair.n);
    free(pair.data);
    kn_split_fini(&split);
    kn_gguf_writer_fini(&w);

    static const uint32_t types[] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12}, sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 8, 8};
    float data[32] = {1};
    uint64_t ne[4] = {8, 2, 2, 1};
    w.version = 2;
    for (unsigned i = 0; i < 11; i++) {
        char key[16];
        snprintf(key, sizeof key, "scalar.%u", types[i]);
        kn_gguf_key(&w, key, types[i]);
        kn_bytes_put(&w.kv, "\1\0\0\0\0\0\0\0", sizes[i]);
        snprintf(key, sizeof key, "array.%u", types[i]);
        kn_gguf_put_array(&w, key, types[i], 3);
        kn_bytes_put(&w.kv, NULL, 3 * sizes[i]);
    }
    kn_gguf_put_str(&w, "general.architecture", "llama");
    kn_gguf_put_u32(&w, "general.alignment", 32);
    kn_gguf_put_array(&w, "nested", KN_GGUF_ARRAY, 2);
    kn_bytes_u32(&w.kv, KN_GGUF_I32), kn_bytes_u64(&w.kv, 1), kn_bytes_u32(&w.kv, 1);
    kn_bytes_u32(&w.kv, KN_GGUF_STR), kn_bytes_u64(&w.kv, 1), kn_bytes_str(&w.kv, "x", 1);
    kn_gguf_put_tensor(&w, "a.weight", KNI_DTYPE_F32, 4, ne, data, sizeof data);
    kn_gguf_put_tensor(&w, "b.weight", KNI_DTYPE_F16, 1, ne, data, 16);
    kn_gguf_assemble(&w);
    return rc || save(argv[1], "all_types", &w) ? 1 : 0;
}

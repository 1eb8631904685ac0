/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model file from arbitrary bytes: parsed from memory (exact bounds, so that sanitizers see overreads), then opened as a
 * model through a memory file, used a little, and closed. Whatever opens must tokenize, render and list its tensors.
 * Bytes that begin with "PAIR" and a length hold two files, which are opened as the parts of a split model.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct kn_model *m)
{
    const struct kn_model_info *info = kn_model_info(m);
    struct kn_tensor_info t = {.size = sizeof t};
    struct kn_chat_message talk = {"user", "the <|im_end|> \xff 12 in"};
    char buf[256];
    int32_t ids[3 * 256 + 2];
    size_t n = sizeof buf, n_ids = sizeof ids / sizeof *ids;
    uint64_t bytes = 0;
    for (uint32_t i = 0; kn_model_get_tensor(m, i, &t) == KN_OK; i++)
        bytes += t.n_bytes;
    assert(bytes <= info->file_bytes && info->n_head % info->n_kv_head == 0);
    if (kn_model_chat(m, &talk, 1, true, buf, &n) != KN_OK)
        n = 0;
    enum kn_status s = kn_model_tokenize(m, buf, n, KN_TOKENIZE_SPECIAL | KN_TOKENIZE_BOS, ids, &n_ids);
    assert(s == KN_OK && n_ids <= 3 * n + 2);
    (void)s;
    for (size_t i = 0; i < n_ids; i++) {
        const char *p;
        size_t k;
        s = kn_model_token_bytes(m, ids[i], &p, &k);
        assert(s == KN_OK && k <= info->file_bytes);
    }
}

static void write_part(const char *path, const uint8_t *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (f && fwrite(data, 1, size, f) != size)
        assert(!"the temporary folder is full");
    if (f)
        fclose(f);
}

/* "PAIR" | bytes of the first, u32 | first | second */
static void open_pair(const uint8_t *data, size_t size)
{
    char paths[2][64];
    uint32_t n;
    struct kn_model *m = NULL;
    struct kn_err err = {0};
    struct kn_model_opts o = {.size = sizeof o, .path = paths[0]};
    memcpy(&n, data + 4, 4);
    data += 8;
    size -= 8;
    n = n < size ? n : (uint32_t)size;
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "/tmp/kn_fuzz_%ld-%05d-of-00002.gguf", (long)getpid(), i + 1);
    write_part(paths[0], data, n);
    write_part(paths[1], data + n, size - n);
    enum kn_status opened = kn_model_open(&m, &o, &err);
    unlink(paths[0]);
    unlink(paths[1]);
    assert((opened == KN_OK) == (m != NULL) && (m || err.text[0]));
    if (m)
        use(m);
    kn_model_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 8 && !memcmp(data, "PAIR", 4)) {
        open_pair(data, size);
        return 0;
    }
    struct kni_arena arena;
    struct kni_gguf *g;
    struct kn_err err = {0};
    kni_arena_init(&arena, KNI_ALLOC_TAG_MODEL, 0);
    enum kn_status parsed = kni_gguf_parse(&g, &arena, data, size, "fuzz", &err);
    assert(parsed == KN_OK || (!g && err.text[0]));
    assert(arena.used_bytes <= 64 * size + 4096); /* hostile counts cost no more than the file is long */
    kni_arena_fini(&arena);

    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char path[64];
    struct kn_model *m = NULL;
    struct kn_model_opts o = {.size = sizeof o, .path = path};
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        goto done;
    enum kn_status opened = kn_model_open(&m, &o, &err);
    assert((opened == KN_OK) == (m != NULL));
    assert(parsed == KN_OK || opened != KN_OK);
    if (m)
        use(m);
    kn_model_close(&m);
done:
    if (fd >= 0)
        close(fd);
    return 0;
}

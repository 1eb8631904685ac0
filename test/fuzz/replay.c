/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without libFuzzer: once on every file of the corpus folder, then on mutations of each (bit flips,
 * truncations, nasty integers) from a seed that is fixed for each file, so that CI exercises the parser even where clang is
 * missing, and the same way whatever order a file system lists files in.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t rng;
static uint64_t next(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

static void run(const uint8_t *data, size_t n) /* from an exact-size heap copy, so that sanitizers see overreads */
{
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy)
        abort();
    memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

int main(int argc, char **argv)
{
    unsigned files = 0, runs = 0, mutations = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 200;
    DIR *dir = argc > 1 ? opendir(argv[1]) : NULL;
    if (!dir) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER [mutations]\n", argv[0]);
        return 2;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        FILE *f = fopen(path, "rb");
        if (!f)
            continue;
        fseek(f, 0, SEEK_END);
        long end = ftell(f);
        size_t n = end > 0 ? (size_t)end : 0;
        rewind(f);
        uint8_t *data = malloc(n + 64), *work = malloc(n + 64);
        if (!data || !work || fread(data, 1, n, f) != n)
            return 1;
        fclose(f);
        rng = 0x9e3779b97f4a7c15u;
        run(data, n);
        files++, runs++;
        for (unsigned i = 0; i < mutations && n; i++, runs++) {
            size_t m = n;
            memcpy(work, data, n);
            switch (next() % 4) {
            case 0: m = next() % n; break;
            case 1: for (unsigned k = 1 + next() % 8; k--;) work[next() % n] ^= (uint8_t)(1u << next() % 8); break;
            case 2: for (unsigned k = 1 + next() % 4; k--;) work[next() % n] = (uint8_t)next(); break;
            default: { /* a known-nasty integer somewhere */
                static const uint64_t nasty[] = {0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
                uint64_t v = nasty[next() % 8];
                size_t w = n < 8 ? n : 8;
                memcpy(work + next() % (n - w + 1), &v, w);
            }
            }
            run(work, m);
        }
        free(data);
        free(work);
    }
    closedir(dir);
    printf("%u files, %u runs\n", files, runs);
    return files ? 0 : 1; /* an empty corpus tests nothing */
}

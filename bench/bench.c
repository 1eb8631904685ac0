/* SPDX-License-Identifier: Apache-2.0 */
/* kinema bench: finds the benchmark and hands it the rest of the arguments; and what its benchmarks share. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kn_bench_median(const double *values, size_t n)
{
    double sorted[KN_BENCH_MAX_REPEAT];
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, compare);
    return n ? sorted[n / 2] : 0;
}

static void help(FILE *out)
{
    fputs("usage: kinema bench NAME [options]\n\n  engine   prefill, decode and memory, beside another engine\n"
          "  quality  predictions beside those of the reference kernels\n"
          "  codec    speed of the codecs, beside zstd and a plain copy; encoders of video, size and speed\n"
          "  serve    latency and throughput of the server under load, beside llama.cpp's\n\n"
          "Options of a benchmark: kinema bench NAME --help\n",
          out);
}

int kn_cmd_bench(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return KN_APP_EXIT_USAGE;
    }
    if (!strcmp(argv[1], "engine"))
        return kn_bench_engine(argc - 1, argv + 1);
    if (!strcmp(argv[1], "quality"))
        return kn_bench_quality(argc - 1, argv + 1);
    if (!strcmp(argv[1], "codec"))
        return kn_bench_codec(argc - 1, argv + 1);
    if (!strcmp(argv[1], "serve"))
        return kn_bench_serve(argc - 1, argv + 1);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        help(stdout);
        return KN_APP_EXIT_OK;
    }
    return kn_app_usage_error("bench", "there is no benchmark %s", argv[1]);
}

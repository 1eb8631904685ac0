/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the renderings of metrics share: how seconds are written, names, the process's memory, and when a server calls
 * itself degraded.
 *
 * Numbers are written from integers, because printf's %f follows the embedding program's locale and "0,5" is no number to any reader.
 * Any thread; nothing fails but the buffer, which remembers it.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cpu.h"
#include "kinema/engine.h"
#include "server/loop/loop.h"
#include "server/metrics/metrics.h"

void kni_metrics_seconds(struct kni_buf *out, uint64_t ns)
{
    char text[40];
    int n = snprintf(text, sizeof text, "%" PRIu64 ".%09" PRIu64, ns / 1000000000u, ns % 1000000000u);

    while (n > 0 && text[n - 1] == '0')
        n--;
    if (n > 0 && text[n - 1] == '.')
        n--;
    kni_buf_add(out, text, (size_t)n);
}

uint64_t kni_metrics_resident_bytes(void)
{
    char text[128] = {0};
    uint64_t all = 0, resident = 0;
    long page = sysconf(_SC_PAGESIZE);
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    if (read(fd, text, sizeof text - 1) > 0 && page > 0 && sscanf(text, "%" SCNu64 " %" SCNu64, &all, &resident) == 2)
        resident *= (uint64_t)page;
    else
        resident = 0;
    close(fd);
    return resident;
}

const char *kni_metrics_route_name(enum kni_route route)
{
    static const char *const names[KNI_ROUTE_COUNT] = {"chat", "completions", "models", "tokenize", "health", "metrics", "stats", "dashboard", "other"};

    return (unsigned)route < KNI_ROUTE_COUNT ? names[route] : "other";
}

const char *kni_metrics_cpu_name(int level)
{
    return kni_cpu_level_name(level >= KN_CPU_LEVEL_AVX512 ? KNI_CPU_FLAG_AVX2 | KNI_CPU_FLAG_AVX512 : level == KN_CPU_LEVEL_AVX2 ? KNI_CPU_FLAG_AVX2 : 0);
}

unsigned kni_metrics_degraded(const struct kni_snapshot *snapshot, uint64_t now_ns)
{
    const struct kn_engine_stats *engine = &snapshot->engine;
    bool works = snapshot->n_calls > 0 || snapshot->n_inbox > 0;
    unsigned degraded = 0;

    if (engine->has_store && !engine->store_open)
        degraded |= KNI_DEGRADED_STORE_CLOSED;
    else if (engine->has_store) /* what reads and writes do is known of an open store only */
        degraded |= (engine->store_read_ok ? 0u : KNI_DEGRADED_STORE_READ) | (engine->store_write_ok ? 0u : KNI_DEGRADED_STORE_WRITE);
    if (works && now_ns > snapshot->taken_ns && now_ns - snapshot->taken_ns > KNI_STALL_NS)
        degraded |= KNI_DEGRADED_STALLED;
    return degraded;
}

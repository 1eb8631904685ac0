/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that misbehaves on command, for experiments and tests, never for production: "fault:CONTROLFILE:URL".
 *
 *     caller --call--> read CONTROLFILE: hang? delay? fail? --> the store at URL --> garbage? short? --> caller
 *
 * The control file holds one order a line (see orders[] below and doc/store-faults.md). It is read at every call, so that
 * somebody outside can make the store of a running server slow, dead or mad, and well again. A missing or an empty one makes
 * the wrapper transparent. An unknown line is an error at open, and logged once after that.
 *
 * Threads: any. Nothing here is locked: a call that is delayed or hangs sleeps in short naps of its own, so that one call's
 * delay never adds to another's. Naps end when the order goes away or when the store is interrupted, which closing does.
 * Failure: what the control file orders, besides what the wrapped store reports.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "store/store.h"

#define MAX_CONTROL_BYTES 4096u
#define MAX_DELAY_MS 3600000u
#define NAP_NS 5000000 /* between two looks at the control file while a call hangs */

enum call { CALL_LOOKUP, CALL_GET, CALL_PUT, CALL_OTHER, CALL_COUNT };
static const char *const call_names[CALL_COUNT] = {"lookup", "get", "put", "other"};

/* What the control file orders; arrays by enum call. */
struct orders {
    uint32_t delay_ms[CALL_COUNT];
    bool fail[CALL_COUNT], hang[CALL_COUNT];
    bool garbage, garbage_entry, shorten, phantom, refuse_open;
};

struct fault_store {
    struct kn_store base;
    struct kn_store *inner;
    char *path;          /* of the control file */
    atomic_bool closing; /* release by interrupt, acquire by naps */
    atomic_bool told;    /* an unknown line has been logged; only whoever turns it speaks, so relaxed */
};

static struct fault_store *self(struct kn_store *store)
{
    return (struct fault_store *)(void *)store;
}

/* "fail" or "fail-get": the word itself means every call. False when it is neither. */
static bool match_calls(const char *line, const char *word, bool flags[CALL_COUNT])
{
    size_t n = strlen(word);
    if (strncmp(line, word, n))
        return false;
    for (int c = 0; c < CALL_COUNT; c++) {
        bool all = !line[n], one = line[n] == '-' && c != CALL_OTHER && !strcmp(line + n + 1, call_names[c]);
        flags[c] |= all || one;
        if (one)
            return true;
    }
    return !line[n];
}

static bool parse_line(const char *line, struct orders *o)
{
    const struct { const char *word; bool *flag; } flags[] = {{"garbage", &o->garbage}, {"garbage-entry", &o->garbage_entry}, {"short", &o->shorten},
                                                              {"phantom", &o->phantom}, {"refuse-open", &o->refuse_open}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(line, flags[i].word))
            return *flags[i].flag = true;
    for (int c = 0; c < CALL_OTHER; c++) {
        char word[32];
        int n = snprintf(word, sizeof word, "delay-%s-ms ", call_names[c]);
        if (strncmp(line, word, (size_t)n) || line[n] < '0' || line[n] > '9')
            continue;
        char *end;
        unsigned long ms = strtoul(line + n, &end, 10);
        if (*end || ms > MAX_DELAY_MS)
            return false;
        o->delay_ms[c] = (uint32_t)ms;
        return true;
    }
    return match_calls(line, "fail", o->fail) || match_calls(line, "hang", o->hang);
}

/* Reads the file; a missing one orders nothing. KN_E_IO, or KN_E_ARG for an unknown line: the others count all the same. */
static enum kn_status read_orders(const char *path, struct orders *o, struct kn_err *err)
{
    char text[MAX_CONTROL_BYTES + 1];
    size_t n = 0;
    ssize_t got = 0;
    enum kn_status s = KN_OK;
    *o = (struct orders){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? KN_OK : kni_err_set(err, KN_E_IO, "store fault: control file %.200s: %s", path, strerror(errno));
    while (n < MAX_CONTROL_BYTES && (got = read(fd, text + n, MAX_CONTROL_BYTES - n)) > 0)
        n += (size_t)got;
    int e = errno;
    close(fd);
    if (got < 0)
        return kni_err_set(err, KN_E_IO, "store fault: control file %.200s: %s", path, strerror(e));
    text[n] = 0;
    int number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        number++;
        size_t end = strlen(line);
        while (end && (line[end - 1] == ' ' || line[end - 1] == '\t' || line[end - 1] == '\r'))
            line[--end] = 0;
        line += strspn(line, " \t");
        if (*line && *line != '#' && !parse_line(line, o) && !s)
            s = kni_err_set(err, KN_E_ARG, "store fault: control file %.200s, line %d: \"%.60s\" is no order; see doc/store-faults.md", path, number, line);
    }
    return s;
}

static bool is_closing(const struct fault_store *f)
{
    return atomic_load_explicit(&f->closing, memory_order_acquire); /* partner: fault_interrupt */
}

static void look(struct fault_store *f, struct orders *o)
{
    struct kn_err err = {0};
    if (read_orders(f->path, o, &err) && !atomic_exchange_explicit(&f->told, true, memory_order_relaxed))
        kni_log(KN_LOG_LEVEL_WARN, "store", "%s; said once", err.text);
}

static void nap(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns < NAP_NS ? (long)ns : NAP_NS}, NULL);
}

/* What happens before the wrapped store is asked: hanging, then the delay, then failing. */
static enum kn_status enter(struct fault_store *f, enum call call, struct orders *o, struct kn_err *err)
{
    look(f, o);
    while (o->hang[call] && !is_closing(f)) {
        nap(NAP_NS);
        look(f, o);
    }
    if (o->hang[call])
        return kni_err_set(err, KN_E_IO, "store fault: a %s was hanging when the store was closed", call_names[call]);
    uint64_t now = kni_now_ns(), until = now + o->delay_ms[call] * 1000000ull;
    for (; now < until && !is_closing(f); now = kni_now_ns())
        nap(until - now);
    return o->fail[call] ? kni_err_set(err, KN_E_IO, "store fault: a %s fails because %.200s says so", call_names[call], f->path) : KN_OK;
}

static enum kn_status fault_lookup(struct kn_store *store, const struct kni_store_key *keys, uint32_t n_keys, uint32_t *n_found, struct kn_err *err)
{
    struct fault_store *f = self(store);
    struct orders o;
    enum kn_status s = enter(f, CALL_LOOKUP, &o, err);
    if (!s)
        s = f->inner->ops->lookup(f->inner, keys, n_keys, n_found, err);
    if (!s && o.phantom)
        *n_found = n_keys;
    return s;
}

static enum kn_status fault_get(struct kn_store *store, const char *key, struct kni_store_entry *entry, struct kni_store_buf *buf, struct kn_err *err)
{
    struct fault_store *f = self(store);
    struct orders o;
    enum kn_status s = enter(f, CALL_GET, &o, err);
    if (!s)
        s = f->inner->ops->get(f->inner, key, entry, buf, err);
    if (s)
        return s;
    if (o.garbage) /* every 64th byte, the first included: whatever a part is, it is hit */
        for (size_t i = 0; i < buf->n_bytes; i += 64)
            buf->data[i] ^= 0x5a;
    if (o.shorten)
        buf->n_bytes /= 2;
    if (o.garbage_entry) {
        *entry = (struct kni_store_entry){.n_bytes = ~entry->n_bytes, .xxh3 = ~entry->xxh3, .first_token = UINT32_MAX, .n_tokens = UINT32_MAX};
        memset(entry->preset, 0xff, sizeof entry->preset);
    }
    return KN_OK;
}

static enum kn_status fault_put(struct kn_store *store, const char *key, const struct kni_store_entry *entry, const void *data, struct kn_err *err)
{
    struct orders o;
    enum kn_status s = enter(self(store), CALL_PUT, &o, err);
    struct kn_store *inner = self(store)->inner;
    return s ? s : inner->ops->put(inner, key, entry, data, err);
}

static enum kn_status fault_drop(struct kn_store *store, const char *key, const struct kni_store_entry *only, struct kn_err *err)
{
    struct orders o;
    enum kn_status s = enter(self(store), CALL_PUT, &o, err); /* a write, as a put is */
    struct kn_store *inner = self(store)->inner;
    return s ? s : inner->ops->drop(inner, key, only, err);
}

static enum kn_status fault_flush(struct kn_store *store)
{
    struct orders o;
    enum kn_status s = enter(self(store), CALL_OTHER, &o, NULL);
    struct kn_store *inner = self(store)->inner;
    return s ? s : inner->ops->flush(inner);
}

static enum kn_status fault_list(struct kn_store *store, const char *prefix, struct kni_store_list *out)
{
    struct orders o;
    enum kn_status s = enter(self(store), CALL_OTHER, &o, NULL);
    struct kn_store *inner = self(store)->inner;
    *out = (struct kni_store_list){0};
    return s ? s : inner->ops->list(inner, prefix, out);
}

static enum kn_status fault_stat(struct kn_store *store, struct kn_store_stat *out)
{
    struct orders o;
    enum kn_status s = enter(self(store), CALL_OTHER, &o, NULL);
    struct kn_store *inner = self(store)->inner;
    return s ? s : inner->ops->stat(inner, out);
}

static enum kn_status fault_gc(struct kn_store *store, uint64_t *n_removed, uint64_t *bytes_removed)
{
    struct orders o;
    enum kn_status s = enter(self(store), CALL_OTHER, &o, NULL);
    struct kn_store *inner = self(store)->inner;
    return s ? s : inner->ops->gc(inner, n_removed, bytes_removed);
}

static enum kn_status fault_rm(struct kn_store *store, const char *prefix, uint64_t *n_removed)
{
    struct orders o;
    enum kn_status s = enter(self(store), CALL_OTHER, &o, NULL);
    struct kn_store *inner = self(store)->inner;
    return s ? s : inner->ops->rm(inner, prefix, n_removed);
}

static void fault_interrupt(struct kn_store *store)
{
    atomic_store_explicit(&self(store)->closing, true, memory_order_release); /* partner: is_closing */
    kni_store_interrupt(self(store)->inner);
}

static void fault_close(struct kn_store *store)
{
    struct fault_store *f = self(store);
    kn_store_close(&f->inner);
    kni_free(f->path);
    kni_free(f);
}

static enum kn_status fault_open(struct kn_store **out, const struct kn_store_opts *opts, const char *rest, struct kn_err *err)
{
    const char *colon = strchr(rest, ':');
    struct fault_store *f = NULL;
    struct orders o;
    struct kn_store_opts inner = *opts;
    enum kn_status s;
    if (!colon || colon == rest || !colon[1] || colon - rest >= PATH_MAX)
        return kni_err_set(err, KN_E_ARG, "store \"fault:%.200s\": expected fault:CONTROLFILE:URL, such as fault:/tmp/orders:lmdb:PATH", rest);
    f = kni_calloc(KNI_ALLOC_TAG_STORE, sizeof *f, 0);
    if (!f || !(f->path = kni_calloc(KNI_ALLOC_TAG_STORE, (size_t)(colon - rest) + 1, 0))) {
        s = kni_err_set(err, KN_E_NOMEM, "store fault: out of memory");
        goto done;
    }
    memcpy(f->path, rest, (size_t)(colon - rest));
    if ((s = read_orders(f->path, &o, err)))
        goto done;
    if (o.refuse_open) {
        s = kni_err_set(err, KN_E_IO, "store fault: cannot be opened because %.200s says so", f->path);
        goto done;
    }
    inner.url = colon + 1;
    if (!(s = kn_store_open(&f->inner, &inner, err))) {
        f->base.read_only = kn_store_is_read_only(f->inner);
        *out = &f->base;
        f = NULL;
    }
done:
    if (f)
        fault_close(&f->base);
    return s;
}

const struct kni_store_ops kni_store_fault_ops = {
    .scheme = "fault:",
    .form = "fault:CONTROLFILE:URL",
    .open = fault_open,
    .close = fault_close,
    .interrupt = fault_interrupt,
    .lookup = fault_lookup,
    .get = fault_get,
    .put = fault_put,
    .drop = fault_drop,
    .flush = fault_flush,
    .list = fault_list,
    .stat = fault_stat,
    .gc = fault_gc,
    .rm = fault_rm,
};

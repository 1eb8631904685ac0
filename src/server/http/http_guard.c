/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guard of slow clients, see http_guard.h.
 *
 *     connection threads --- mark (atomic) ---> guard's thread: every tick, over the list, under the lock: shutdown of the late
 *     accepting thread  --- add, remove, lingering descriptors (lock) --->  poll of the lingering, recv, close
 *
 * shutdown() under the lock does not block, and the lock is what keeps the descriptor from being closed and used anew between
 * the look and the cut. A tick is a quarter of the shortest limit, at most 250 ms. A reader that is cut while sending is reset
 * (SO_LINGER 0): what it never read must not stay in the kernel's memory.
 */
#include "server/http/http_guard.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/status.h"

#define MAX_LINGERING 64u /* more at once are closed without */
#define TICK_MS 250u

struct lingering { int fd; uint64_t until_ns, n_bytes; };

struct kni_guard {
    struct kni_guard_limits limits;
    _Atomic uint64_t *slow;
    int event_fd; /* wakes the thread: a lingering socket, or the end */
    pthread_t thread;
    pthread_mutex_t lock; /* guards conns with their links, lingering, n_lingering, stopping */
    struct kni_guard_conn *conns;
    struct lingering lingering[MAX_LINGERING]; /* added by anyone, removed by the guard's thread */
    uint32_t n_lingering;
    bool stopping;
};

void kni_guard_enter(struct kni_guard_conn *conn, enum kni_guard_phase phase)
{
    atomic_store_explicit(&conn->mark, kni_now_ns() << 3 | (uint64_t)phase, memory_order_relaxed);
}

static uint32_t limit_ms(const struct kni_guard *guard, enum kni_guard_phase phase)
{
    switch (phase) {
    case KNI_GUARD_PHASE_HEAD: return guard->limits.header_ms;
    case KNI_GUARD_PHASE_BODY: return guard->limits.body_ms;
    case KNI_GUARD_PHASE_SEND: return guard->limits.send_ms;
    case KNI_GUARD_PHASE_IDLE: return guard->limits.idle_ms;
    default: return 0;
    }
}

static void wake(struct kni_guard *guard)
{
    uint64_t one = 1;
    ssize_t n = write(guard->event_fd, &one, sizeof one); /* a full counter wakes as well */
    (void)n;
}

void kni_guard_add(struct kni_guard *guard, struct kni_guard_conn *conn, int fd)
{
    conn->fd = fd;
    conn->prev = NULL;
    atomic_init(&conn->cut, false);
    kni_guard_enter(conn, KNI_GUARD_PHASE_HEAD);
    pthread_mutex_lock(&guard->lock);
    conn->next = guard->conns;
    if (conn->next)
        conn->next->prev = conn;
    guard->conns = conn;
    pthread_mutex_unlock(&guard->lock);
}

void kni_guard_remove(struct kni_guard *guard, struct kni_guard_conn *conn, bool unread)
{
    bool added = false;
    int fd = -1;
    if (unread && !atomic_load_explicit(&conn->cut, memory_order_relaxed)) /* its setter holds the lock; late is harmless */
        fd = dup(conn->fd);
    pthread_mutex_lock(&guard->lock);
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        guard->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    if (fd >= 0 && !guard->stopping && guard->n_lingering < MAX_LINGERING) {
        guard->lingering[guard->n_lingering++] = (struct lingering){fd, kni_now_ns() + KNI_GUARD_LINGER_MS * 1000000ull, 0};
        added = true;
    }
    pthread_mutex_unlock(&guard->lock);
    if (added)
        wake(guard);
    else if (fd >= 0)
        close(fd);
}

bool kni_guard_is_busy(struct kni_guard *guard)
{
    bool busy = false;
    pthread_mutex_lock(&guard->lock);
    for (struct kni_guard_conn *c = guard->conns; c && !busy; c = c->next) {
        enum kni_guard_phase phase = (enum kni_guard_phase)(atomic_load_explicit(&c->mark, memory_order_relaxed) & 7);
        busy = !atomic_load_explicit(&c->cut, memory_order_relaxed) && (phase == KNI_GUARD_PHASE_HANDLER || phase == KNI_GUARD_PHASE_SEND);
    }
    pthread_mutex_unlock(&guard->lock);
    return busy;
}

void kni_guard_cut_all(struct kni_guard *guard)
{
    pthread_mutex_lock(&guard->lock);
    for (struct kni_guard_conn *c = guard->conns; c; c = c->next) {
        atomic_store_explicit(&c->cut, true, memory_order_relaxed);
        shutdown(c->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&guard->lock);
}

static void cut_late(struct kni_guard *guard)
{
    uint64_t now = kni_now_ns(), n[KNI_GUARD_PHASE_COUNT] = {0};
    pthread_mutex_lock(&guard->lock);
    for (struct kni_guard_conn *c = guard->conns; c; c = c->next) {
        uint64_t mark = atomic_load_explicit(&c->mark, memory_order_relaxed), begin = mark >> 3;
        enum kni_guard_phase phase = (enum kni_guard_phase)(mark & 7);
        uint64_t limit = limit_ms(guard, phase);
        if (!limit || now < begin + limit * 1000000 || atomic_load_explicit(&c->cut, memory_order_relaxed))
            continue;
        atomic_store_explicit(&c->cut, true, memory_order_relaxed);
        if (phase == KNI_GUARD_PHASE_SEND)
            setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        shutdown(c->fd, SHUT_RDWR);
        n[phase]++;
    }
    pthread_mutex_unlock(&guard->lock);
    uint64_t n_slow = n[KNI_GUARD_PHASE_HEAD] + n[KNI_GUARD_PHASE_BODY] + n[KNI_GUARD_PHASE_SEND];
    if (n_slow) {
        atomic_fetch_add_explicit(guard->slow, n_slow, memory_order_relaxed); /* a counter alone */
        kni_log(KN_LOG_LEVEL_DEBUG, "server", "cut %llu connections as too slow: %llu in their head, %llu in their body, %llu reading the answer",
                (unsigned long long)n_slow, (unsigned long long)n[KNI_GUARD_PHASE_HEAD], (unsigned long long)n[KNI_GUARD_PHASE_BODY],
                (unsigned long long)n[KNI_GUARD_PHASE_SEND]);
    }
}

/* Throws away what has come; false: the peer is done, or has had its share. */
static bool drain(struct lingering *l)
{
    char bytes[16384];
    for (int i = 0; i < 8; i++) { /* not for ever: others wait */
        ssize_t n = recv(l->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        l->n_bytes += (uint64_t)n;
        if (!n || l->n_bytes > KNI_GUARD_LINGER_BYTES)
            return false;
    }
    return true;
}

/* Waits for a tick, a wake-up, or bytes of lingering sockets, and looks after those. False: the guard is stopping. */
static bool wait_and_drain(struct kni_guard *guard, uint32_t tick_ms)
{
    struct lingering at[MAX_LINGERING];
    struct pollfd fds[1 + MAX_LINGERING] = {{.fd = guard->event_fd, .events = POLLIN}};
    pthread_mutex_lock(&guard->lock);
    uint32_t n = guard->n_lingering, kept = 0;
    bool stopping = guard->stopping;
    memcpy(at, guard->lingering, n * sizeof *at);
    pthread_mutex_unlock(&guard->lock);
    for (uint32_t i = 0; i < n; i++)
        fds[1 + i] = (struct pollfd){.fd = at[i].fd, .events = POLLIN};
    if (!stopping && poll(fds, 1 + n, (int)tick_ms) > 0 && fds[0].revents) {
        uint64_t count;
        ssize_t r = read(guard->event_fd, &count, sizeof count);
        (void)r;
    }
    uint64_t now = kni_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        if (stopping || now >= at[i].until_ns || !drain(&at[i]))
            close(at[i].fd);
        else
            at[kept++] = at[i];
    }
    pthread_mutex_lock(&guard->lock); /* those that came meanwhile lie behind the first n */
    memmove(guard->lingering + kept, guard->lingering + n, (guard->n_lingering - n) * sizeof *at);
    memcpy(guard->lingering, at, kept * sizeof *at);
    guard->n_lingering -= n - kept;
    pthread_mutex_unlock(&guard->lock);
    return !stopping;
}

static void *run(void *user)
{
    struct kni_guard *guard = user;
    uint32_t tick_ms = TICK_MS;
    for (int phase = 0; phase < KNI_GUARD_PHASE_COUNT; phase++) {
        uint32_t limit = limit_ms(guard, (enum kni_guard_phase)phase);
        if (limit && limit / 4 < tick_ms)
            tick_ms = limit / 4 ? limit / 4 : 1;
    }
    for (uint64_t next = 0; wait_and_drain(guard, tick_ms);) {
        if (kni_now_ns() < next)
            continue;
        cut_late(guard);
        next = kni_now_ns() + tick_ms * 1000000ull / 2; /* lingering sockets wake the thread more often */
    }
    return NULL;
}

enum kn_status kni_guard_open(struct kni_guard **out, const struct kni_guard_limits *limits, _Atomic uint64_t *slow, struct kn_err *err)
{
    *out = NULL;
    struct kni_guard *guard = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *guard, 0);
    if (!guard)
        return kni_err_set(err, KN_E_NOMEM, "server: out of memory for the guard of connections");
    guard->limits = *limits;
    guard->slow = slow;
    guard->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = guard->event_fd < 0 ? errno : pthread_mutex_init(&guard->lock, NULL);
    if (!rc) {
        sigset_t before;
        kni_signals_block(&before);
        rc = pthread_create(&guard->thread, NULL, run, guard);
        kni_signals_restore(&before);
        if (rc)
            pthread_mutex_destroy(&guard->lock);
    }
    if (rc) {
        if (guard->event_fd >= 0)
            close(guard->event_fd);
        kni_free(guard);
        return kni_err_set(err, KN_E_IO, "server: cannot start the guard of connections: %s", strerror(rc));
    }
    *out = guard;
    return KN_OK;
}

void kni_guard_close(struct kni_guard **guard)
{
    struct kni_guard *g = *guard;
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->stopping = true;
    pthread_mutex_unlock(&g->lock);
    wake(g);
    pthread_join(g->thread, NULL);
    pthread_mutex_destroy(&g->lock);
    close(g->event_fd);
    kni_free(g);
    *guard = NULL;
}

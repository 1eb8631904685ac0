/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the store is well, and what is done while it is not.
 *
 *     every call:  ask --the store answers--> told: success closes the breaker, three failures in a row open it
 *                   '--nothing comes back within its limit--> watch: the call hangs, the breaker opens at once
 *     keeper:      breaker open, pause over --> a lookup (or a removal) of a key that nobody has --> told
 *                  store not open           --> try to open it, at most every second
 *
 * While the breaker is open nobody but the keeper asks, so that a store that comes back is found without a request to pay for
 * it, and one that hangs costs those requests something that were waiting when it began, and no other.
 *
 * A call that hangs cannot be taken back: its thread is gone until it returns. What others want of that thread is: jobs in
 * flight are cut, the publish that it was in is given back to the owner (its blocks are not touched any more), and when all
 * publishers hang, the queued ones end. The call that is out is the best probe there is: when it returns well, the
 * breaker closes; when it returns badly, the keeper goes on after a short pause; otherwise it does so after a long one.
 *
 * Hanging calls are found by the owner, in the functions that it calls anyway, because the keeper may hang itself. The one
 * lock is the fetcher's; it is never held over a store call or a log line.
 */
#include "base/clock.h"
#include "base/log.h"
#include "fetch/fetcher.h"

#define RETRY_OPEN_NS 1000000000ull
#define PROBE_KEY "kn1:probe"

static enum kni_store_use use_of(enum kni_store_call call)
{
    return call == KNI_STORE_CALL_WRITE ? KNI_STORE_USE_WRITE : KNI_STORE_USE_READ;
}

bool kni_fetcher_may_ask(const struct kni_fetcher *f, enum kni_store_use use)
{
    return !f->breakers[use].open_until_ns && kni_store_is_open(f->store);
}

static void call_begin(struct kni_fetch_thread *t, enum kni_store_call call)
{
    t->call = call;
    t->call_begin_ns = kni_now_ns();
}

bool kni_fetcher_ask(struct kni_fetch_thread *t, enum kni_store_call call)
{
    struct kni_fetcher *f = t->fetcher;
    pthread_mutex_lock(&f->lock);
    bool may = kni_fetcher_may_ask(f, use_of(call));
    if (may)
        call_begin(t, call);
    pthread_mutex_unlock(&f->lock);
    return may;
}

/* (lock) held. True when the breaker has turned. */
static bool note(struct kni_fetch_thread *t, bool failed)
{
    struct kni_fetcher *f = t->fetcher;
    enum kni_store_use use = use_of(t->call);
    struct kni_breaker *b = &f->breakers[use];
    bool hung = t->hung;
    uint64_t now = kni_now_ns();
    t->call_begin_ns = 0;
    t->hung = false;
    f->n_hung[use] -= hung;
    if (!failed)
        return kni_breaker_succeed(b);
    if (hung) { /* counted when it was found */
        if (!f->n_hung[use])
            kni_breaker_ease(b, now);
        return false;
    }
    f->n_store_errors[use]++;
    return kni_breaker_fail(b, now);
}

bool kni_fetcher_told(struct kni_fetch_thread *t, bool failed, const struct kn_err *err)
{
    struct kni_fetcher *f = t->fetcher;
    pthread_mutex_lock(&f->lock);
    bool write = use_of(t->call) == KNI_STORE_USE_WRITE, turned = note(t, failed), mine = !t->disowned;
    if (failed)
        pthread_cond_broadcast(&f->work); /* for the keeper: there is a pause to wait for */
    pthread_mutex_unlock(&f->lock);
    if (turned && failed)
        kni_log(KN_LOG_LEVEL_WARN, "fetch", "the store fails repeatedly (%s); it is not %s for growing pauses, %s meanwhile", err->text[0] ? err->text : "no reason given",
                write ? "written" : "read", write ? "nothing is published" : "prompts are recomputed");
    else if (turned)
        kni_log(KN_LOG_LEVEL_INFO, "fetch", "the store can be %s again", write ? "written" : "read");
    return mine;
}

bool kni_fetcher_publishers_hang(const struct kni_fetcher *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_threads; i++)
        n += f->threads[i].role == KNI_FETCH_ROLE_PUBLISHER && f->threads[i].hung;
    return n == f->n_publishers;
}

/* Counts calls that hang since the last time; true when there are any. turned: by use, whose breaker opened. (lock) held. */
static bool find_hung(struct kni_fetcher *f, uint64_t now, bool turned[2])
{
    bool any = false;
    for (uint32_t i = 0; i < f->n_threads; i++) {
        struct kni_fetch_thread *t = &f->threads[i];
        if (!t->call_begin_ns || t->hung || now - t->call_begin_ns <= f->limit_ns[t->call])
            continue;
        enum kni_store_use use = use_of(t->call);
        any = t->hung = true;
        f->n_hung[use]++;
        f->n_store_errors[use]++;
        turned[use] |= kni_breaker_trip(&f->breakers[use], now);
        if (t->publish)
            kni_publish_disown(t, KN_E_TIMEOUT);
    }
    return any;
}

void kni_fetcher_watch(struct kni_fetcher *f)
{
    bool turned[2] = {false, false};
    pthread_mutex_lock(&f->lock);
    uint64_t now = kni_now_ns();
    if (find_hung(f, now, turned)) {
        for (struct kni_fetch *j = f->jobs; j && turned[KNI_STORE_USE_READ]; j = j->next)
            if (j->state == KNI_FETCH_STATE_LOOKUP || j->state == KNI_FETCH_STATE_RUNNING) {
                j->cut = true; /* whose turn comes next would only wait for its deadline */
                kni_fetch_settle(j, now);
            }
        if (kni_fetcher_publishers_hang(f))
            kni_publish_drop_queued(f, KN_E_TIMEOUT);
        pthread_cond_broadcast(&f->work);
    }
    pthread_mutex_unlock(&f->lock);
    if (turned[KNI_STORE_USE_READ])
        kni_log(KN_LOG_LEVEL_WARN, "fetch", "the store does not answer; it is not read until it does, prompts are recomputed meanwhile");
    if (turned[KNI_STORE_USE_WRITE])
        kni_log(KN_LOG_LEVEL_WARN, "fetch", "the store does not take what is written; it is not written until it does, nothing is published meanwhile");
}

void kni_fetcher_get_health(struct kni_fetcher *f, struct kni_fetcher_health *out)
{
    kni_fetcher_watch(f);
    pthread_mutex_lock(&f->lock);
    *out = (struct kni_fetcher_health){.read_errors = f->n_store_errors[KNI_STORE_USE_READ],
                                       .write_errors = f->n_store_errors[KNI_STORE_USE_WRITE],
                                       .is_open = kni_store_is_open(f->store),
                                       .read_only = kn_store_is_read_only(f->store),
                                       .read_ok = !f->breakers[KNI_STORE_USE_READ].open_until_ns,
                                       .write_ok = !f->breakers[KNI_STORE_USE_WRITE].open_until_ns};
    pthread_mutex_unlock(&f->lock);
}

/* ---- the keeper */

static bool is_due(const struct kni_fetcher *f, enum kni_store_use use, uint64_t now)
{
    return f->breakers[use].open_until_ns && now >= f->breakers[use].open_until_ns;
}

/* One question to the store, whether or not its breaker is open; looks for the answer's status only. Lock not held. */
static void probe(struct kni_fetch_thread *t, enum kni_store_call call)
{
    struct kni_fetcher *f = t->fetcher;
    struct kni_store_key key = {PROBE_KEY};
    struct kn_err err = {0};
    uint32_t n_found;
    pthread_mutex_lock(&f->lock);
    call_begin(t, call);
    pthread_mutex_unlock(&f->lock);
    enum kn_status s = call == KNI_STORE_CALL_WRITE ? kni_store_drop(f->store, key.text, NULL, &err) : kni_store_lookup(f->store, &key, 1, &n_found, &err);
    (void)kni_fetcher_told(t, s != KN_OK && s != KN_E_FULL, &err);
}

/* Opens a store that is not open, or opens one anew that fails for good. Its thread may hang in that. Lock not held. */
static void retry(struct kni_fetch_thread *t)
{
    struct kni_fetcher *f = t->fetcher;
    pthread_mutex_lock(&f->lock);
    call_begin(t, KNI_STORE_CALL_LOOKUP);
    pthread_mutex_unlock(&f->lock);
    kni_store_retry(f->store);
    pthread_mutex_lock(&f->lock);
    bool hung = t->hung;
    f->n_hung[KNI_STORE_USE_READ] -= hung;
    t->hung = false;
    t->call_begin_ns = 0;
    f->retry_ns = kni_now_ns() + RETRY_OPEN_NS;
    if (hung)
        kni_breaker_ease(&f->breakers[KNI_STORE_USE_READ], kni_now_ns());
    pthread_mutex_unlock(&f->lock);
}

void kni_fetcher_keep(struct kni_fetch_thread *t)
{
    struct kni_fetcher *f = t->fetcher;
    uint64_t now = kni_now_ns(), due = UINT64_MAX;
    bool is_open = kni_store_is_open(f->store);
    if (!is_open)
        due = f->retry_ns;
    for (int use = 0; use < 2 && is_open; use++)
        if (f->breakers[use].open_until_ns && f->breakers[use].open_until_ns < due)
            due = f->breakers[use].open_until_ns;
    if (due == UINT64_MAX) {
        pthread_cond_wait(&f->work, &f->lock);
        return;
    }
    if (now < due) {
        kni_fetcher_cond_wait(&f->work, &f->lock, due);
        return;
    }
    bool read = is_due(f, KNI_STORE_USE_READ, now), write = is_due(f, KNI_STORE_USE_WRITE, now);
    pthread_mutex_unlock(&f->lock);
    retry(t);
    if (read && kni_store_is_open(f->store))
        probe(t, KNI_STORE_CALL_LOOKUP);
    if (write && kni_store_is_open(f->store))
        probe(t, KNI_STORE_CALL_WRITE);
    pthread_mutex_lock(&f->lock);
}

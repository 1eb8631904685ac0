/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server as a whole, over real sockets on 127.0.0.1: options and their errors, answers, keys, drains, and closing in each state.
 * The main thread owns the server; clients are threads. Clients count what was wrong; cmocka's asserts are for the main thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "support/engine_bed.h"

static struct kn_model *model;
static char model_name[64];

static int set_up(void **state)
{
    (void)state;
    char path[256];
    struct kn_tiny_opts o = {.seed = 5};
    snprintf(model_name, sizeof model_name, "test-%ld-served", (long)getpid());
    kn_bed_path(path, "served.gguf");
    assert_int_equal(kn_tiny_model_write(path, &o), 0);
    struct kn_model_opts mo = {.size = sizeof mo, .path = path};
    assert_int_equal(kn_model_open(&model, &mo, NULL), KN_OK);
    unlink(path);
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1}; /* the model keeps what its first engine packs */
    struct kn_engine *e;
    assert_int_equal(kn_engine_open(&e, model, &eo, NULL), KN_OK);
    kn_engine_close(&e);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kn_model_close(&model);
    return 0;
}

/* ---- a client */

static int dial(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 120};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool send_request(int fd, const char *method, const char *path, const char *key, const char *body)
{
    char text[2048];
    int n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s%s%sContent-Length: %zu\r\n\r\n%s", method, path,
                     key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "", strlen(body), body);
    return n > 0 && (size_t)n < sizeof text && send(fd, text, (size_t)n, MSG_NOSIGNAL) == n;
}

/* Everything to the connection's end; the status, 0 without an answer. text may be NULL. */
static int read_answer(int fd, char *text, size_t room)
{
    char own[65536];
    size_t n = 0;
    if (!text) {
        text = own;
        room = sizeof own;
    }
    for (;;) {
        ssize_t k = recv(fd, text + n, room - 1 - n, 0);
        if (k <= 0)
            break;
        n += (size_t)k;
    }
    text[n] = 0;
    close(fd);
    return n > 12 && !strncmp(text, "HTTP/1.1 ", 9) ? (int)strtol(text + 9, NULL, 10) : 0;
}

static int ask(uint16_t port, const char *method, const char *path, const char *key, const char *body, char *text, size_t room)
{
    int fd = dial(port);
    if (fd < 0)
        return -1;
    if (!send_request(fd, method, path, key, body)) {
        close(fd);
        return -1;
    }
    return read_answer(fd, text, room);
}

/* ---- options */

static void test_options(void **state)
{
    (void)state;
    const struct kn_server_key none[] = {{.key = ""}}, blank[] = {{.key = "a b"}}, twice[] = {{.key = "k"}, {.key = "k"}};
    struct kn_engine_opts bad_engine = {.size = sizeof bad_engine, .n_threads = 1000}, sizeless = {0};
    const struct { struct kn_server_opts o; const char *says; } cases[] = {
        {{.max_connections = 10001}, "max_connections"}, {{.max_choices = 129}, "max_choices"},   {{.max_header_bytes = 10}, "max_header_bytes"},
        {{.max_body_bytes = 1}, "max_body_bytes"},       {{.host = ""}, "host"},                   {{.model_name = ""}, "model_name"},
        {{.n_keys = 1}, "keys"},                         {{.keys = none, .n_keys = 1}, "key 1"},   {{.keys = blank, .n_keys = 1}, "key 1"},
        {{.keys = twice, .n_keys = 2}, "keys 1 and 2"},  {{.engine = &bad_engine}, "n_threads"},   {{.engine = &sizeless}, "size"},
        {{.host = "no such address"}, "no such address"},
    };
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kn_server_opts o = cases[i].o;
        struct kn_server *s = (void *)1;
        struct kn_err err = {0};
        o.size = sizeof o;
        enum kn_status status = kn_server_open(&s, model, &o, &err);
        assert_true(status == KN_E_ARG || (i == 12 && status == KN_E_IO));
        assert_null(s);
        if (!strstr(err.text, cases[i].says))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err.text, cases[i].says);
    }
    struct kn_server_opts o = {0};
    struct kn_server *s;
    assert_int_equal(kn_server_open(&s, model, &o, NULL), KN_E_ARG); /* no size */
    assert_int_equal(kn_server_open(&s, NULL, &o, NULL), KN_E_ARG);
    assert_int_equal(kn_server_open(NULL, model, &o, NULL), KN_E_ARG);
    s = NULL;
    kn_server_close(&s);
    kn_server_close(NULL);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
}

static struct kn_server *open_server(const struct kn_server_opts *opts, const struct kn_engine_opts *engine)
{
    struct kn_engine_opts eo = engine ? *engine : (struct kn_engine_opts){0};
    struct kn_server_opts o = opts ? *opts : (struct kn_server_opts){0};
    struct kn_server *s = NULL;
    struct kn_err err = {0};
    eo.size = sizeof eo;
    eo.n_threads = 1;
    o.size = sizeof o;
    o.engine = &eo;
    if (kn_server_open(&s, model, &o, &err))
        fail_msg("%s", err.text);
    assert_true(kn_server_port(s) != 0);
    return s;
}

/* ---- serving */

struct visit {
    struct kn_server *server;
    pthread_t thread;
    int wrong; /* the number of what failed; 0: nothing */
};

static void *visit_plain(void *user)
{
    struct visit *v = user;
    uint16_t port = kn_server_port(v->server);
    char text[65536];
    if (ask(port, "GET", "/health", NULL, "", text, sizeof text) != 200 || !strstr(text, "\"ok\""))
        v->wrong = 1;
    if (ask(port, "GET", "/v1/models", NULL, "", text, sizeof text) != 401)
        v->wrong = 2;
    if (ask(port, "GET", "/v1/models", "second", "", text, sizeof text) != 200 || !strstr(text, model_name))
        v->wrong = 3;
    if (ask(port, "POST", "/v1/completions", "first", "{\"prompt\":\"abc\",\"max_tokens\":4,\"ignore_eos\":true}", text, sizeof text) != 200 ||
        !strstr(text, "\"text\""))
        v->wrong = 4;
    if (ask(port, "POST", "/v1/completions", "wrong", "{\"prompt\":\"abc\"}", text, sizeof text) != 401)
        v->wrong = 5;
    if (ask(port, "GET", "/metrics", "first", "", text, sizeof text) != 200 || !strstr(text, "kinema_"))
        v->wrong = 6;
    if (ask(port, "GET", "/stats", "first", "", text, sizeof text) != 200 || ask(port, "GET", "/stats", NULL, "", text, sizeof text) != 401)
        v->wrong = 7;
    if (ask(port, "GET", "/", NULL, "", text, sizeof text) != 200)
        v->wrong = 8;
    if (ask(port, "POST", "/tokenize", "first", "{\"content\":\"abc\"}", text, sizeof text) != 200 || !strstr(text, "\"tokens\""))
        v->wrong = 9;
    char path[128];
    snprintf(path, sizeof path, "/v1/models/%s", model_name);
    if (ask(port, "GET", path, "first", "", text, sizeof text) != 200 || !strstr(text, model_name))
        v->wrong = 11;
    if (ask(port, "GET", "/nowhere", NULL, "", text, sizeof text) != 404)
        v->wrong = 10;
    kn_server_stop(v->server);
    return NULL;
}

static void test_serve(void **state)
{
    (void)state;
    const struct kn_server_key keys[] = {{.key = "first"}, {.key = "second", .name = "other"}};
    struct kn_server_opts o = {.keys = keys, .n_keys = 2};
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    struct visit v = {.server = open_server(&o, NULL)};
    assert_int_equal(pthread_create(&v.thread, NULL, visit_plain, &v), 0);
    assert_int_equal(kn_server_run(v.server), KN_OK);
    pthread_join(v.thread, NULL);
    assert_int_equal(v.wrong, 0);
    assert_int_equal(kn_server_run(v.server), KN_E_STATE);
    kn_server_close(&v.server);
    assert_null(v.server);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
}

/* A stream under way ends whole although the server was told to stop; who comes meanwhile is turned away. */
static void *visit_drain(void *user)
{
    struct visit *v = user;
    uint16_t port = kn_server_port(v->server);
    char text[1 << 17];
    size_t n = 0;
    int fd = dial(port), late = dial(port);
    if (fd < 0 || late < 0 || !send_request(fd, "POST", "/v1/completions", NULL, "{\"prompt\":\"abc\",\"max_tokens\":300,\"ignore_eos\":true,\"stream\":true}"))
        v->wrong = 1;
    while (!v->wrong && !memmem(text, n, "data:", 5)) { /* it runs */
        ssize_t k = recv(fd, text + n, 256, 0);
        if (k <= 0)
            v->wrong = 2;
        else
            n += (size_t)k;
    }
    kn_server_stop(v->server);
    if (!send_request(late, "POST", "/v1/completions", NULL, "{\"prompt\":\"abc\",\"max_tokens\":3}"))
        v->wrong = 3;
    int status = read_answer(late, NULL, 0);
    if (status != 503 && status != 0) /* 0: the drain was over before it was read */
        v->wrong = 4;
    for (ssize_t k; (k = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0;)
        n += (size_t)k;
    close(fd);
    text[n] = 0;
    if (!v->wrong && (!strstr(text, "[DONE]") || !strstr(text, "\"length\"")))
        v->wrong = 5;
    return NULL;
}

static void test_drain(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct visit v = {.server = open_server(NULL, NULL)};
        assert_int_equal(pthread_create(&v.thread, NULL, visit_drain, &v), 0);
        assert_int_equal(kn_server_run(v.server), KN_OK);
        kn_server_close(&v.server);
        pthread_join(v.thread, NULL);
        assert_int_equal(v.wrong, 0);
    }
}

/* Reads nothing until the engine has long drained, an answer larger than what the kernel buffers: its rest comes all the same. */
static void *visit_slow(void *user)
{
    struct visit *v = user;
    const uint16_t port = kn_server_port(v->server);
    int fd = dial(port), small = 65536;
    static char text[1 << 20];
    size_t n = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    if (fd < 0 || !send_request(fd, "POST", "/v1/completions", NULL,
                                "{\"prompt\":\"abc\",\"max_tokens\":480,\"ignore_eos\":true,\"stream\":true,\"n\":16,\"logprobs\":20}"))
        v->wrong = 1;
    if (recv(fd, text, 1, 0) != 1)
        v->wrong = 2;
    kn_server_stop(v->server);
    for (int probe; (probe = dial(port)) >= 0; usleep(10000))
        close(probe); /* until it listens no more: the engine is done */
    usleep(200000);
    size_t n_all = 0;
    for (ssize_t k; (k = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0;) {
        n_all += (size_t)k;
        n += (size_t)k;
        if (n > sizeof text / 2) { /* the end is enough */
            memmove(text, text + n - 4096, 4096);
            n = 4096;
        }
    }
    close(fd);
    text[n] = 0;
    if (!v->wrong && (n_all < 5000000 || !memmem(text, n, "[DONE]", 6)))
        v->wrong = 3;
    return NULL;
}

static void test_slow_reader(void **state)
{
    (void)state;
    struct kn_server_opts o = {.drain_timeout_ms = 600000, .send_timeout_ms = 600000, .max_choices = 16}; /* also where everything is slow */
    struct visit v = {.server = open_server(&o, NULL)};
    assert_int_equal(pthread_create(&v.thread, NULL, visit_slow, &v), 0);
    assert_int_equal(kn_server_run(v.server), KN_OK);
    kn_server_close(&v.server);
    pthread_join(v.thread, NULL);
    assert_int_equal(v.wrong, 0);
}

/* Not drained in time: the answer says so, and nothing hangs. */
static void *visit_cancelled(void *user)
{
    struct visit *v = user;
    int fd = dial(kn_server_port(v->server));
    char text[1 << 17];
    size_t n = 0;
    if (fd < 0 || !send_request(fd, "POST", "/v1/completions", NULL, "{\"prompt\":\"abc\",\"max_tokens\":480,\"ignore_eos\":true,\"stream\":true,\"n\":8}"))
        v->wrong = 1;
    while (!v->wrong && !memmem(text, n, "data:", 5)) {
        ssize_t k = recv(fd, text + n, 256, 0);
        if (k <= 0)
            v->wrong = 2;
        else
            n += (size_t)k;
    }
    kn_server_stop(v->server);
    kn_server_stop(v->server);
    for (ssize_t k; (k = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0;)
        n += (size_t)k;
    close(fd);
    return NULL;
}

static void test_cancelled_drain(void **state)
{
    (void)state;
    struct visit v = {.server = open_server(NULL, NULL)};
    assert_int_equal(pthread_create(&v.thread, NULL, visit_cancelled, &v), 0);
    assert_int_equal(kn_server_run(v.server), KN_OK);
    pthread_join(v.thread, NULL); /* before the close: its second stop may come late */
    kn_server_close(&v.server);
    assert_int_equal(v.wrong, 0);
}

static void *visit_unserved(void *user)
{
    struct visit *v = user;
    read_answer((int)v->wrong, NULL, 0);
    v->wrong = 0;
    return NULL;
}

/* Closed without having run: a client that has asked already gets an end. */
static void test_close_without_run(void **state)
{
    (void)state;
    for (int asks = 0; asks < 2; asks++) {
        struct visit v = {.server = open_server(NULL, NULL)};
        if (asks) {
            v.wrong = dial(kn_server_port(v.server));
            assert_true(v.wrong >= 0);
            assert_true(send_request(v.wrong, "POST", "/v1/completions", NULL, "{\"prompt\":\"abc\",\"max_tokens\":400,\"ignore_eos\":true}"));
            assert_int_equal(pthread_create(&v.thread, NULL, visit_unserved, &v), 0);
            usleep(50000); /* most likely it waits for its call by now */
        }
        kn_server_close(&v.server);
        if (asks)
            pthread_join(v.thread, NULL);
        if (asks)
            assert_int_equal(v.wrong, 0);
    }
}

static struct kn_server *signalled;

static void on_signal(int number)
{
    (void)number;
    kn_server_stop(signalled);
}

/* Stopped by a signal while it sleeps: the handler runs in the owner's thread. */
static void *send_signal(void *user)
{
    usleep(100000);
    pthread_kill(*(pthread_t *)user, SIGUSR1);
    return NULL;
}

static void test_signal(void **state)
{
    (void)state;
    struct sigaction action = {.sa_handler = on_signal}, before;
    pthread_t self = pthread_self(), thread;
    signalled = open_server(NULL, NULL);
    sigaction(SIGUSR1, &action, &before);
    assert_int_equal(pthread_create(&thread, NULL, send_signal, &self), 0);
    assert_int_equal(kn_server_run(signalled), KN_OK);
    pthread_join(thread, NULL);
    sigaction(SIGUSR1, &before, NULL);
    kn_server_close(&signalled);
}

/* Each allocation of open fails once. */
static void test_no_memory(void **state)
{
    (void)state;
    const struct kn_server_key keys[] = {{.key = "first"}};
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    for (uint64_t n = 1;; n++) {
        struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1};
        struct kn_server_opts o = {.size = sizeof o, .engine = &eo, .keys = keys, .n_keys = 1};
        struct kn_server *s = NULL;
        struct kn_err err = {0};
        kni_alloc_fault_arm(n, false);
        enum kn_status status = kn_server_open(&s, model, &o, &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(status, hit ? KN_E_NOMEM : KN_OK);
        assert_int_equal(s == NULL, hit);
        if (hit)
            assert_true(*err.text);
        kn_server_close(&s);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        if (!hit)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),         cmocka_unit_test(test_serve),  cmocka_unit_test(test_drain), cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_cancelled_drain),
        cmocka_unit_test(test_close_without_run), cmocka_unit_test(test_signal), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Names of this machine: which addresses are ours, and what a server without keys on loopback makes of Host, Origin and targets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/http/http_host.h"
#include "support/http_ask.h"

#define T(test) cmocka_unit_test_teardown(test, bed_cleanup)

static const char *const ours[] = {"localhost", "localhost:80", "LocalHost:8080", "localhost.", "localhost.:1", "localhost:", "127.0.0.1", "127.0.0.1:65535",
                                   "127.1.2.3", "[::1]", "[::1]:80", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]:80"};
static const char *const foreign[] = {"evil.example", "evil.example:80", "localhost.evil.example", "evil-localhost", "localhostx", "127.0.0.1.evil.example",
    "127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "0.0.0.0", "128.0.0.1", "[::]", "[::2]", "[::1", "::1", "[::1]x", "[::1]:x", "[::1%25lo]",
    "localhost:80:80", "localhost:x", "localhost:-1", "user@localhost", "localhost@evil.example", "evil.example@localhost", "localhost,evil.example",
    "localhost/evil", "localhost\\evil", "localhost evil", "", ".", "..", ":", ":80", "localhost..", "*", "[localhost]", "local%68ost", "[127.0.0.1]"};

static void names(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!kni_http_host_is_ours(ours[i], strlen(ours[i]), NULL, NULL))
            fail_msg("\"%s\" is ours", ours[i]);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (kni_http_host_is_ours(foreign[i], strlen(foreign[i]), "127.0.0.1", "box,llm.example.org"))
            fail_msg("\"%s\" is not ours", foreign[i]);
    static const struct { const char *host, *listening, *allowed; bool ours; } more[] = {
        {"box:8080", "box", NULL, true}, {"BOX", "box", NULL, true}, {"bo", "box", NULL, false}, {"boxx", "box", NULL, false},
        {"llm.example.org.:1", NULL, "box,llm.example.org", true}, {"box", NULL, "llm.example.org,box", true}, {"x", NULL, "llm.example.org,box", false},
        {"example.org", NULL, "llm.example.org", false}, {"a.llm.example.org", NULL, "llm.example.org", false}, {"192.168.1.2:80", NULL, "192.168.1.2", true},
        {"[fe80::1]:80", "fe80::1", NULL, true}, {"[fe80:0::1]", NULL, "[fe80::1]", true}, {"[fe80::2]", "fe80::1", "[fe80::1]", false},
        {"[::1]", "[::1]", NULL, true}, {"", "", NULL, false}, {"", NULL, "", false}, {"0.0.0.0:1", "0.0.0.0", NULL, true}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (kni_http_host_is_ours(more[i].host, strlen(more[i].host), more[i].listening, more[i].allowed) != more[i].ours)
            fail_msg("%zu: \"%s\"", i, more[i].host);
    char text[600];
    memset(text, 'a', sizeof text);
    assert_false(kni_http_host_is_ours(text, sizeof text, NULL, NULL));
    assert_false(kni_http_host_is_ours("localhost\0x", 11, NULL, NULL));
}

static void lists(void **state)
{
    static const char *const good[] = {"a", "a,b", "llm.example.org", "[::1]", "192.168.0.1,box"}, *const wrong[] = {"", "a,", ",a", "a,,b", "a:80", "[::1]:80", "http://a",
                                                                                                            "a/b", "a b", "user@a"};
    const char *bad;
    size_t n;
    (void)state;
    assert_true(kni_http_hosts_are_good(NULL, &bad, &n));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(kni_http_hosts_are_good(good[i], &bad, &n));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (kni_http_hosts_are_good(wrong[i], &bad, &n))
            fail_msg("\"%s\" is no list", wrong[i]);
    assert_string_equal(kni_http_host_of("https://a.example:80/x", &n), "a.example:80/x");
    assert_int_equal(n, 12);
    assert_null(kni_http_host_of("null", &n));
    assert_null(kni_http_host_of("", &n));
    assert_null(kni_http_host_of("/a://b", &n));
    assert_null(kni_http_host_of("://b", &n));
}

static void ask_host(struct bed *bed, const char *target, const char *lines, unsigned status, const char *part)
{
    char text[2000];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n%s\r\n", target, lines);
    check(bed, text, status, part);
}

static void requests(void **state)
{
    static struct bed bed;
    char line[400];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        snprintf(line, sizeof line, "Host: %s\r\n", ours[i]);
        ask_host(&bed, "/health", line, 200, "fine");
        snprintf(line, sizeof line, "Host: localhost\r\nOrigin: http://%s\r\n", ours[i]);
        ask_host(&bed, "/health", line, 200, "fine");
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        snprintf(line, sizeof line, "Host: %s\r\n", foreign[i]);
        ask_host(&bed, "/health", line, 403, "host_not_allowed");
        snprintf(line, sizeof line, "Host: localhost\r\nOrigin: http://%s\r\n", foreign[i]);
        if (*foreign[i] && !strchr(foreign[i], '/'))
            ask_host(&bed, "/health", line, 403, "origin_not_allowed");
    }
    ask_host(&bed, "/health", "", 200, "fine"); /* no browser */
    check(&bed, "GET /health HTTP/1.0\r\n\r\n", 200, "fine");
    ask_host(&bed, "/health", "Host: localhost\r\nOrigin: null\r\n", 403, "origin_not_allowed");
    ask_host(&bed, "/health", "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n", 403, "origin_not_allowed");
    ask_host(&bed, "/health", "Host: localhost\r\nHost: localhost\r\n", 400, "bad_host");
    ask_host(&bed, "/health", "Host: localhost\r\nhOST: evil.example\r\n", 400, "bad_host");
    ask_host(&bed, "http://localhost:1/health", "Host: evil.example\r\n", 200, "fine"); /* the target's authority is the request's */
    ask_host(&bed, "http://evil.example/health", "Host: localhost\r\n", 403, "host_not_allowed");
    ask_host(&bed, "HTTPS://evil.example/health", "Host: localhost\r\n", 403, "host_not_allowed");
    ask_host(&bed, "http://localhost@evil.example/health", "Host: localhost\r\n", 403, "host_not_allowed");
    ask_host(&bed, "http://localhost/nothing", "Host: localhost\r\n", 404, "there is no GET /nothing");
    ask_host(&bed, "http:///health", "Host: localhost\r\n", 403, "host_not_allowed");
    ask_host(&bed, "ftp://localhost/health", "Host: localhost\r\n", 404, NULL);
    check(&bed, "POST /echo HTTP/1.1\r\nHost: evil.example\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi", 403, "host_not_allowed");
    check(&bed, "POST /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi", 403,
          "origin_not_allowed");
    check(&bed, "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n", 403, "origin_not_allowed");
    assert_int_equal(atomic_load(&bed.n_echoed), 0);
    bed_close(&bed);
}

static void what_the_operator_allows(void **state)
{
    static struct bed bed;
    struct kn_server_key key = {"k", NULL, NULL};
    struct kni_http *http;
    struct kn_err err = {0};
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){.allow_hosts = "llm.example.org,box", .allow_origin = "https://a.example"});
    ask_host(&bed, "/health", "Host: LLM.example.org:8080\r\n", 200, "fine");
    ask_host(&bed, "/health", "Host: box\r\nOrigin: https://box:1\r\n", 200, "fine");
    ask_host(&bed, "/health", "Host: example.org\r\n", 403, "host_not_allowed");
    ask_host(&bed, "/health", "Host: localhost\r\nOrigin: https://a.example\r\n", 200, "fine");
    ask_host(&bed, "/health", "Host: localhost\r\nOrigin: https://b.example\r\n", 403, "origin_not_allowed");
    ask_host(&bed, "/health", "Host: localhost\r\nOrigin: https://a.example.b\r\n", 403, "origin_not_allowed");
    bed_close(&bed);
    bed_open(&bed, &(struct kn_server_opts){.allow_origin = "*"}); /* pages may ask, but not under names of their own */
    ask_host(&bed, "/health", "Host: localhost\r\nOrigin: https://b.example\r\n", 200, "fine");
    ask_host(&bed, "/health", "Host: localhost\r\nOrigin: null\r\n", 200, "fine");
    ask_host(&bed, "/health", "Host: evil.example\r\n", 403, "host_not_allowed");
    bed_close(&bed);
    bed_open(&bed, &(struct kn_server_opts){.keys = &key, .n_keys = 1}); /* a page has no key */
    ask_host(&bed, "/health", "Host: evil.example\r\nOrigin: https://evil.example\r\n", 200, "fine");
    ask_host(&bed, "/who", "Host: evil.example\r\nAuthorization: Bearer k\r\n", 200, NULL);
    ask_host(&bed, "/who", "Host: evil.example\r\n", 401, NULL);
    bed_close(&bed);
    bed_open(&bed, &(struct kn_server_opts){.host = "0.0.0.0"}); /* others' names for it are not known */
    ask_host(&bed, "/health", "Host: evil.example\r\nOrigin: https://evil.example\r\n", 200, "fine");
    bed_close(&bed);
    struct kni_http_opts opts = bed_opts(&bed, &(struct kn_server_opts){.allow_hosts = "good,http://bad"});
    assert_int_equal(kni_http_open(&http, &opts, &err), KN_E_ARG);
    assert_null(http);
    assert_non_null(strstr(err.text, "\"http://bad\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names), cmocka_unit_test(lists), T(requests), T(what_the_operator_allows),
    };
    return cmocka_run_group_tests_name("http_host", tests, NULL, NULL);
}

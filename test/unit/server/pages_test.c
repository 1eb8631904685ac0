/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages as a connection's thread calls them, over a snapshot of this test's own: statuses, types, bodies, and what happens without
 * memory. The loop and the error object are doubles, because their own tests hold them to their contracts; so nothing is opened here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <sodium.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/api/api.h"
#include "server/web.h"
#include "support/prom_parser.h"

struct kni_loop { struct kni_snapshot snapshot; };

void kni_loop_get_snapshot(struct kni_loop *loop, struct kni_snapshot *out)
{
    *out = loop->snapshot;
}

void kni_http_error(struct kni_http_reply *reply, unsigned status, const char *param, const char *code, const char *format, ...)
{
    (void)param;
    (void)code;
    assert_non_null(strstr(format, "out of memory"));
    reply->status = status;
}

struct bed {
    struct kni_loop loop;
    struct kni_metrics metrics;
    struct kni_api api;
    struct kni_http_request request;
    struct kni_tenant tenant;
    struct kni_http_reply reply;
};

static int setup(void **state)
{
    static struct bed b;

    memset(&b, 0, sizeof b);
    kni_metrics_init(&b.metrics);
    b.loop.snapshot.taken_ns = kni_now_ns();
    b.loop.snapshot.engine.n_blocks = b.loop.snapshot.engine.n_free_blocks = 8;
    b.api.loop = &b.loop;
    b.api.metrics = &b.metrics;
    b.api.limits.model_name = "tiny";
    b.tenant = (struct kni_tenant){.name = "", .salt = ""};
    b.request = (struct kni_http_request){.body = "", .tenant = &b.tenant, .socket = -1};
    *state = &b;
    return 0;
}

static struct kni_http_reply *ask(struct bed *b, kni_http_fn page)
{
    kni_free(b->reply.body);
    memset(&b->reply, 0, sizeof b->reply);
    page(&b->api, &b->request, &b->reply);
    return &b->reply;
}

static int teardown(void **state)
{
    struct bed *b = *state;
    kni_free(b->reply.body);
    return 0;
}

static json_t *load(const struct kni_http_reply *reply)
{
    json_t *o = json_loadb(reply->body, reply->n_body, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    assert_null(reply->content_type); /* application/json */
    return o;
}

static void expect_health(struct bed *b, unsigned status, const char *word)
{
    struct kni_http_reply *r = ask(b, kni_page_health);
    json_t *o = load(r);

    assert_int_equal(r->status, status);
    assert_string_equal(json_string_value(json_object_get(o, "status")), word);
    assert_string_equal(json_string_value(json_object_get(o, "model")), "tiny");
    json_decref(o);
}

static void health_has_a_status(void **state)
{
    struct bed *b = *state;

    expect_health(b, 200, "ok");
    b->loop.snapshot.engine.has_store = true; /* and not open */
    expect_health(b, 200, "degraded");        /* it serves: a load balancer must not take it out */
    b->loop.snapshot.draining = true;
    expect_health(b, 503, "draining");
}

static void metrics_are_text(void **state)
{
    static struct kn_prom p;
    struct bed *b = *state;
    struct kni_http_reply *r;

    b->loop.snapshot.engine.n_running = 3;
    r = ask(b, kni_page_metrics);
    assert_int_equal(r->status, 200);
    assert_string_equal(r->content_type, "text/plain; version=0.0.4; charset=utf-8");
    assert_int_equal(strlen(r->body), r->n_body);
    if (kn_prom_parse(&p, r->body))
        fail_msg("%s", p.error);
    assert_true(kn_prom_value(&p, "kinema_requests", "{state=\"running\"}") == 3);
}

/* Names in doc/metrics.md and in /metrics are the same set. */
static void metrics_are_documented(void **state)
{
    static struct kn_prom p;
    static char text[65536];
    struct bed *b = *state;
    size_t n_documented = 0;
    FILE *f = fopen(KN_SOURCE_DIR "/doc/metrics.md", "r");

    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    assert_null(kn_prom_parse(&p, ask(b, kni_page_metrics)->body));
    for (size_t i = 0; i < p.n_families; i++) {
        char row[160];
        snprintf(row, sizeof row, "| `%s` | %s |", p.families[i], p.types[i]);
        if (!strstr(text, row))
            fail_msg("doc/metrics.md has no row \"%s\"", row);
    }
    for (const char *at = text; (at = strstr(at, "| `kinema_")); at++)
        n_documented++;
    assert_int_equal(n_documented, p.n_families);
}

static void stats_are_json(void **state)
{
    struct bed *b = *state;
    struct kni_http_reply *r = ask(b, kni_page_stats);
    json_t *o = load(r);

    assert_int_equal(r->status, 200);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "pool"), "blocks")), 8);
    json_decref(o);
}

/* The hash of what lies between <tag> and </tag>, as a Content-Security-Policy names it. */
static void find_hash(const char *page, const char *tag, char out[80])
{
    char open[16], close[16];
    unsigned char hash[crypto_hash_sha256_BYTES];

    snprintf(open, sizeof open, "<%s>", tag);
    snprintf(close, sizeof close, "</%s>", tag);
    const char *first = strstr(page, open), *last = strstr(page, close);
    assert_true(first && last && !strstr(first + 1, open)); /* one only */
    first += strlen(open);
    crypto_hash_sha256(hash, (const unsigned char *)first, (unsigned long long)(last - first));
    memcpy(out, "'sha256-", 9);
    sodium_bin2base64(out + 8, 60, hash, sizeof hash, sodium_base64_VARIANT_ORIGINAL);
    snprintf(out + strlen(out), 2, "'");
}

static void dashboard_is_one_safe_page(void **state)
{
    static const char *const forbidden[] = {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "@SCRIPT_SHA256@", "@STYLE_SHA256@",
                                            "unsafe-inline", "<script src", "<link rel=\"stylesheet", "@import", "https://", "style=\"", "onclick="};
    struct bed *b = *state;
    struct kni_http_reply *r = ask(b, kni_page_dashboard);
    char hash[80], wanted[120];

    assert_int_equal(r->status, 200);
    assert_string_equal(r->content_type, "text/html; charset=utf-8");
    assert_int_equal(r->n_body, kni_web_dashboard_bytes);
    assert_memory_equal(r->body, "<!DOCTYPE html>", 15);
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++)
        if (strstr(r->body, forbidden[i]))
            fail_msg("the dashboard contains %s", forbidden[i]);
    /* a browser runs this script and this style, and nothing else */
    find_hash(r->body, "script", hash);
    snprintf(wanted, sizeof wanted, "script-src %s;", hash);
    assert_non_null(strstr(r->body, wanted));
    find_hash(r->body, "style", hash);
    snprintf(wanted, sizeof wanted, "style-src %s;", hash);
    assert_non_null(strstr(r->body, wanted));
    assert_non_null(strstr(r->body, "default-src 'none'"));
}

/* Whichever allocation fails: a page as always, or status 500. */
static void out_of_memory_is_a_500(void **state)
{
    static const kni_http_fn pages[] = {kni_page_health, kni_page_metrics, kni_page_stats, kni_page_dashboard};
    struct bed *b = *state;

    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        bool hit = true;
        for (uint64_t n = 1; hit; n++) {
            assert_true(n < 100);
            kni_alloc_fault_arm(n, false);
            unsigned status = ask(b, pages[i])->status;
            hit = kni_alloc_fault_hit();
            kni_alloc_fault_arm(0, false);
            assert_int_equal(status, hit ? 500 : 200);
            assert_true(hit ? !b->reply.body : b->reply.n_body > 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(health_has_a_status, setup, teardown), cmocka_unit_test_setup_teardown(metrics_are_text, setup, teardown),
        cmocka_unit_test_setup_teardown(metrics_are_documented, setup, teardown), cmocka_unit_test_setup_teardown(stats_are_json, setup, teardown),
        cmocka_unit_test_setup_teardown(dashboard_is_one_safe_page, setup, teardown),
        cmocka_unit_test_setup_teardown(out_of_memory_is_a_500, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers of the pages that watch the server: /health, /metrics, /stats, and the dashboard at /.
 *
 *     kni_metrics (counters) + kni_loop_get_snapshot (engine) --> metrics_render.c, metrics_json.c --> reply
 *     web/dashboard.html --build--> bytes in the library -------------------------------------------> reply
 *
 * The engine is never asked: its loop leaves a snapshot, so a page costs the engine nothing and comes also while a step is long or the
 * engine hangs, which is when somebody looks. The dashboard is one static page without any data; it fetches /stats by itself.
 *
 * Threads: the connection's. Failure: out of memory is a 500 with OpenAI's error object.
 */
#include <string.h>

#include "base/alloc.h"
#include "server/api/api.h"
#include "server/web.h"

/* Hands text over as the reply's body. */
static void finish(struct kni_http_reply *reply, unsigned status, const char *content_type, struct kni_buf *text)
{
    reply->body = kni_buf_take(text, &reply->n_body);
    if (reply->body) {
        reply->status = status;
        reply->content_type = content_type;
    } else {
        kni_http_error(reply, 500, NULL, NULL, "out of memory while writing this page; ask again");
    }
    kni_buf_fini(text);
}

void kni_page_health(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    const struct kni_api *api = user;
    struct kni_snapshot snapshot;
    struct kni_buf text = {0};
    bool ready;
    (void)request;

    kni_loop_get_snapshot(api->loop, &snapshot);
    ready = kni_metrics_render_health(api->metrics, &snapshot, api->limits.model_name, &text);
    finish(reply, ready ? 200 : 503, NULL, &text);
}

void kni_page_metrics(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    const struct kni_api *api = user;
    struct kni_snapshot snapshot;
    struct kni_buf text = {0};
    (void)request;

    kni_loop_get_snapshot(api->loop, &snapshot);
    kni_metrics_render(api->metrics, &snapshot, api->limits.model_name, &text);
    finish(reply, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

void kni_page_stats(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    const struct kni_api *api = user;
    struct kni_snapshot snapshot;
    struct kni_buf text = {0};
    (void)request;

    kni_loop_get_snapshot(api->loop, &snapshot);
    kni_metrics_render_json(api->metrics, &snapshot, api->limits.model_name, &text);
    finish(reply, 200, NULL, &text);
}

void kni_page_dashboard(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    struct kni_buf text = {0};
    (void)user;
    (void)request;

    kni_buf_add(&text, kni_web_dashboard, kni_web_dashboard_bytes);
    finish(reply, 200, "text/html; charset=utf-8", &text);
}

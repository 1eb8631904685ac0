/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers of OpenAI's routes: parameters -> calls -> events -> text -> JSON or server-sent events. user is a struct kni_api.
 */
#ifndef KNI_SERVER_API_H
#define KNI_SERVER_API_H

#include "server/http/http.h"
#include "server/loop/loop.h"
#include "server/api/params.h"

struct kni_api {
    struct kn_model *model;    /* borrowed, as is all below */
    struct kni_loop *loop;
    struct kni_metrics *metrics;
    struct kni_params_limits limits;
    uint32_t wait_timeout_ms, request_timeout_ms;
    uint64_t created_s;        /* for /v1/models */
    uint32_t keep_alive_ms;    /* a stream that is quiet for so long gets a comment; 0: 15000 */
};

void kni_api_chat(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
void kni_api_completions(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
void kni_api_models(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
/* The one model alone, for /v1/models/NAME; 404 for other names. */
void kni_api_model(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
/* api_tokens.c */
void kni_api_tokenize(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
void kni_api_detokenize(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
void kni_api_tokenizer_info(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);

/* pages.c: /health, /metrics, /stats, / */
void kni_page_health(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
void kni_page_metrics(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
void kni_page_stats(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);
void kni_page_dashboard(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);

#endif

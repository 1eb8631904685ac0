/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies of requests. The first byte chooses the route (c chat, p completions, t tokenize, d detokenize), the rest is the body. What is accepted must
 * be in range and fit the context, what is refused must say why, and nothing may be left allocated. The same bytes as a JSON string's
 * inside must come back as JSON.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "server/api/params.h"
#include "server/api/params_json.h"
#include "support/open_tiny.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct kni_params_limits limits = {.n_ctx = 256, .max_choices = 8, .model_name = "tiny"};

static void need(bool truth)
{
    if (!truth)
        abort();
}

static void check_prompt(const struct kni_params_prompt *p)
{
    for (uint32_t i = 0; i < p->n_tokens; i++)
        need(p->tokens[i] >= 0 && (uint32_t)p->tokens[i] < kn_tiny_n_vocab());
}

static void check_params(const struct kni_params *p)
{
    const struct kn_sampler_opts *s = &p->sampler;
    uint32_t shortest = UINT32_MAX;
    need(p->n_prompts >= 1 && p->n_prompts <= KNI_PARAMS_MAX_PROMPTS && p->n >= 1 && p->n <= limits.max_choices && p->n_top <= KNI_CALL_MAX_TOP);
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        check_prompt(&p->prompts[i]);
        need(p->prompts[i].n_tokens >= 1 && p->prompts[i].n_tokens + !p->no_answer <= limits.n_ctx);
        shortest = p->prompts[i].n_tokens < shortest ? p->prompts[i].n_tokens : shortest;
    }
    need((p->max_tokens >= 1) != p->no_answer && shortest + p->max_tokens <= limits.n_ctx);
    need(!p->no_answer || p->echo);
    need(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    need(s->repeat_penalty >= 0 && s->repeat_penalty <= 10 && s->repeat_last <= UINT16_MAX);
    for (uint32_t i = 0; i < p->n_stops; i++)
        need(p->stops[i][0] && strlen(p->stops[i]) <= KNI_PARAMS_MAX_STOP_BYTES);
}

static void check_json(const char *bytes, size_t n)
{
    struct kni_buf b = {0};
    kni_buf_text(&b, "[\"");
    kni_buf_json(&b, bytes, n);
    kni_buf_text(&b, "\"]");
    json_t *json = json_loadb(b.data, b.n, JSON_ALLOW_NUL, NULL);
    need(json != NULL);
    json_decref(json);
    kni_buf_fini(&b);
}

/* Our walk takes what jansson takes, but for numbers that are too large, and leaves JSON when it has blanked what nobody reads. */
static void check_walk(const char *body, size_t n)
{
    for (int route = 0; route < KNI_PARAMS_ROUTE_COUNT; route++) {
        struct kni_json_cost cost, after;
        json_error_t e;
        kni_json_measure(&cost, (enum kni_params_route)route, body, n);
        json_t *json = json_loadb(body, n, JSON_DECODE_ANY, &e);
        need(!json || cost.is_json || cost.too_deep);
        need(json || !cost.is_json || json_error_code(&e) == json_error_numeric_overflow);
        char *copy = cost.is_json ? malloc(n + 1) : NULL;
        if (copy) {
            memcpy(copy, body, n);
            kni_json_prune((enum kni_params_route)route, copy, n);
            kni_json_measure(&after, (enum kni_params_route)route, copy, n);
            need(after.is_json && !after.ignored && after.bytes == cost.bytes && after.n_values == cost.n_values);
        }
        json_t *left = json && copy ? json_loadb(copy, n, JSON_DECODE_ANY, NULL) : NULL;
        need(!json || !copy || left);
        json_decref(left);
        json_decref(json);
        free(copy);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kn_model *model; /* kept for the life of the process */
    struct kni_params_error error;
    enum kn_status s;
    if (!model)
        model = kn_open_tiny(&(struct kn_tiny_opts){.n_layer = 1});
    need(model != NULL);
    if (!size)
        return 0;
    const char *body = (const char *)data + 1;
    const uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    if (data[0] == 't') {
        struct kni_params_tokenize t;
        s = kni_params_parse_tokenize(&t, model, &limits, body, size - 1, &error);
        if (s == KN_OK)
            check_prompt(&t.prompt);
        kni_free(t.prompt.tokens);
    } else if (data[0] == 'd') {
        struct kni_params_detokenize d;
        s = kni_params_parse_detokenize(&d, model, &limits, body, size - 1, &error);
        kni_free(d.text);
    } else {
        struct kni_params p;
        s = kni_params_parse(&p, data[0] != 'p', model, &limits, body, size - 1, &error);
        if (s == KN_OK)
            check_params(&p);
        kni_params_fini(&p);
    }
    need(s == KN_OK || ((error.status == 400 || error.status == 404 || error.status == 413) && error.text[0]));
    need(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes == before);
    check_json(body, size - 1);
    check_walk(body, size - 1);
    return 0;
}

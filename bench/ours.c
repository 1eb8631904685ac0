/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of all sequences are submitted together. The first to have its prompt done decodes while the others still compute
 * theirs, so a request may generate more than the timed steps; the clock of decoding starts when all have their first token.
 * Stop tokens are ignored.
 */
#include "ours.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

int32_t *kn_ours_make_tokens(const struct kn_model *model, size_t n)
{
    static const char words[] = " the quick brown fox jumps over a lazy dog while seven small rivers run down to the old harbour and";
    size_t have = sizeof words;
    int32_t ids[sizeof words];
    int32_t *tokens = malloc(n * sizeof *tokens);
    if (!tokens || kn_model_tokenize(model, words, sizeof words - 1, 0, ids, &have) || !have) {
        kn_app_fail("bench", "cannot make the prompt");
        free(tokens);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        tokens[i] = ids[i % have];
    return tokens;
}

/* Steps of the earliest sequence's decoding before the last has its first token, at most. */
static uint32_t n_spare(const struct kn_ours_opts *o)
{
    uint32_t chunk = o->chunk ? o->chunk : 64, per_step = chunk > o->n_seqs ? chunk - o->n_seqs : 1; /* the default is larger */
    return o->n_seqs > 1 ? o->n_seqs * (o->n_tokens / per_step + 2) : 0;
}

uint32_t kn_ours_n_ctx(const struct kn_ours_opts *o)
{
    return o->n_tokens + o->n_decode + n_spare(o) + 8;
}

bool kn_ours_open(struct kn_ours *ours, const struct kn_ours_opts *o)
{
    const struct kn_model_info *info = kn_model_info(o->model);
    struct kn_engine_opts eo = {.size = sizeof eo, .n_ctx = kn_ours_n_ctx(o), .n_threads = o->n_threads, .prefill_chunk = o->chunk, .no_prefix_cache = !o->reuse};
    struct kn_err err = {0};
    *ours = (struct kn_ours){.model = o->model, .tokens = o->tokens, .n_tokens = o->n_tokens, .n_seqs = o->n_seqs, .n_decode = o->n_decode,
                             .n_max_new = o->n_decode + n_spare(o) + 1};
    if (eo.n_ctx > info->n_ctx_train) {
        kn_app_fail("bench", "%" PRIu32 " tokens do not fit the model's context of %" PRIu32, eo.n_ctx, info->n_ctx_train);
        return false;
    }
    if (o->n_seqs > 1)
        eo.pool_bytes = o->n_seqs * (eo.n_ctx + 64ull) * info->kv_bytes_per_token;
    enum kn_status s = kn_engine_open(&ours->engine, o->model, &eo, &err);
    if (s)
        kn_app_fail("bench", "%s", err.text[0] ? err.text : kn_status_message(s));
    return s == KN_OK;
}

void kn_ours_close(struct kn_ours *ours)
{
    kn_engine_close(&ours->engine);
}

uint32_t kn_ours_n_threads(const struct kn_ours *ours)
{
    struct kn_engine_stats stats = {.size = sizeof stats};
    kn_engine_get_stats(ours->engine, &stats);
    return stats.n_threads;
}

/* Sum and least of the tokens that the requests have generated. */
static void count(struct kn_request *const *requests, uint32_t n, uint64_t *sum, uint64_t *least)
{
    *sum = 0;
    *least = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct kn_request_stats st = {.size = sizeof st};
        kn_request_get_stats(requests[i], &st);
        *sum += st.n_generated;
        *least = st.n_generated < *least ? st.n_generated : *least;
    }
}

bool kn_ours_round(struct kn_ours *o, double *prefill_seconds, double *decode_speed)
{
    struct kn_request *requests[KN_WORK_MAX_SEQS] = {NULL};
    struct kn_err err = {0};
    enum kn_status s = KN_OK;
    uint64_t sum = 0, least = 0, begin = kn_app_now_ns(), first_ns = 0, first_sum = 0, now = begin;
    for (uint32_t i = 0; i < o->n_seqs && s == KN_OK; i++) {
        struct kn_sampler_opts sampler = o->sampler;
        sampler.size = sizeof sampler;
        sampler.seed += i;
        struct kn_request_opts ro = {.size = sizeof ro, .tokens = o->tokens + KN_OURS_SEQ_OFFSET * i, .n_tokens = o->n_tokens,
                                     .max_tokens = o->n_max_new, .ignore_stop = true, .sampler = &sampler,
                                     .want_logprobs = o->want_logprobs,
                                     .n_top_logprobs = o->n_top};
        s = kn_request_submit(&requests[i], o->engine, &ro, &err);
    }
    while (s == KN_OK && (!first_ns || sum < first_sum + (uint64_t)o->n_seqs * o->n_decode)) {
        uint64_t before = sum;
        s = kn_engine_step(o->engine);
        now = kn_app_now_ns();
        count(requests, o->n_seqs, &sum, &least);
        if (s == KN_AGAIN)
            s = sum > before ? KN_OK : KN_E_STATE; /* nothing left to do and not done: a request failed */
        if (s == KN_OK && kn_app_interrupted())
            s = KN_E_CANCELLED;
        if (!first_ns && least) {
            first_ns = now;
            first_sum = sum;
        }
    }
    if (s == KN_OK) {
        *prefill_seconds = (double)(first_ns - begin) / 1e9;
        *decode_speed = now > first_ns ? (double)(sum - first_sum) * 1e9 / (double)(now - first_ns) : 0;
    } else {
        kn_app_fail("bench", "%s", s == KN_E_CANCELLED ? "interrupted" : err.text[0] ? err.text : kn_status_message(s));
    }
    for (uint32_t i = 0; i < o->n_seqs; i++)
        kn_request_close(&requests[i]);
    return s == KN_OK;
}

bool kn_ours_memory(uint64_t *resident, uint64_t *peak)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    *resident = *peak = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmRSS: %" SCNu64, resident) == 1)
            *resident *= 1024;
        else if (sscanf(line, "VmHWM: %" SCNu64, peak) == 1)
            *peak *= 1024;
    }
    if (file)
        fclose(file);
    return *resident && *peak;
}

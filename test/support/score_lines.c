/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log-probabilities of given tokens as kn_engine_score has them, to hold the server's answers against: score_lines MODEL [N_CTX]. A line
 * of the standard input is token ids with blanks between them; it becomes a line of JSON:
 *
 *     {"logprobs": [null, -3.1, ...], "greedy": [null, 17, ...]}
 *
 * token by token: natural logarithm of its probability after those before it, and the likeliest token there (of equals the smallest
 * id). Exit status 0: all was scored.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kinema/engine.h"

struct scores {
    const int32_t *tokens;
    uint32_t n_tokens, n_vocab;
    double *logprobs; /* [n_tokens]; of token i at i */
    int32_t *greedy;
};

static enum kn_status take(void *user, uint64_t position, const float *logits)
{
    struct scores *s = user;
    double sum = 0;
    uint32_t best = 0;
    if (position + 1 >= s->n_tokens)
        return KN_OK;
    for (uint32_t i = 1; i < s->n_vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        sum += exp((double)logits[i] - (double)logits[best]);
    s->logprobs[position + 1] = (double)logits[s->tokens[position + 1]] - (double)logits[best] - log(sum);
    s->greedy[position + 1] = (int32_t)best;
    return KN_OK;
}

static void print(const struct scores *s)
{
    printf("{\"logprobs\": [null");
    for (uint32_t i = 1; i < s->n_tokens; i++)
        printf(", %.9g", s->logprobs[i]);
    printf("], \"greedy\": [null");
    for (uint32_t i = 1; i < s->n_tokens; i++)
        printf(", %d", (int)s->greedy[i]);
    printf("]}\n");
}

/* Ids of a line; what is no number ends it. */
static uint32_t read_ids(char *line, int32_t *ids, uint32_t room)
{
    uint32_t n = 0;
    char *end;
    for (char *at = line; n < room; at = end) {
        long id = strtol(at, &end, 10);
        if (end == at)
            break;
        ids[n++] = (int32_t)id;
    }
    return n;
}

int main(int argc, char **argv)
{
    struct kn_err err = {0};
    struct kn_model *model = NULL;
    struct kn_engine *engine = NULL;
    char *line = NULL;
    size_t room = 0;
    int status = 1;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: score_lines MODEL [N_CTX] <IDS\n");
        return 2;
    }
    struct kn_model_opts mo = {.size = sizeof mo, .path = argv[1]};
    struct kn_engine_opts eo = {.size = sizeof eo, .n_ctx = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2048};
    struct scores s = {.tokens = NULL};
    int32_t *ids = calloc(eo.n_ctx, sizeof *ids);
    s.logprobs = calloc(eo.n_ctx, sizeof *s.logprobs);
    s.greedy = calloc(eo.n_ctx, sizeof *s.greedy);
    if (!ids || !s.logprobs || !s.greedy || kn_model_open(&model, &mo, &err) || kn_engine_open(&engine, model, &eo, &err))
        goto done;
    s.tokens = ids;
    s.n_vocab = kn_model_info(model)->n_vocab;
    while (getline(&line, &room, stdin) > 0) {
        s.n_tokens = read_ids(line, ids, eo.n_ctx);
        struct kn_score_opts o = {.size = sizeof o, .tokens = ids, .n_tokens = s.n_tokens, .on_row = take, .user = &s};
        if (kn_engine_score(engine, &o, NULL, &err))
            goto done;
        print(&s);
    }
    status = 0;
done:
    if (status)
        fprintf(stderr, "score_lines: %s\n", err.text[0] ? err.text : "out of memory");
    kn_engine_close(&engine);
    kn_model_close(&model);
    free(line);
    free(ids);
    free(s.logprobs);
    free(s.greedy);
    return status;
}

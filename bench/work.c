/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows and floors; see work.h. Floors count what cannot be left out: every multiply of the layers and of causal attention in
 * single precision for a prompt; one read of the weights for a step and of each sequence's K and V for decodes, or their
 * arithmetic when that takes longer; the file and K and V for memory. A floor in single precision can be beaten by 8-bit
 * arithmetic, which makes more operations a cycle.
 */
#include "work.h"

#include <inttypes.h>
#include <string.h>

static const char *const kinds[] = {"prefill", "decode", "resident", "sampled"};

bool kn_work_parse(const char *name, struct kn_work *work)
{
    char copy[KN_WORK_NAME_BYTES];
    if (strlen(name) >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%s", name);
    char *rest = copy, *kind = strsep(&rest, "_"), *tokens = strsep(&rest, "_");
    int k = kn_app_parse_name(kind, kinds, sizeof kinds / sizeof *kinds);
    *work = (struct kn_work){.kind = (enum kn_work_kind)k, .n_seqs = 1};
    if (k < 0 || !tokens || !kn_app_parse_u32(tokens, 1, 1u << 20, &work->n_tokens))
        return false;
    if (!rest)
        return true;
    return (work->kind == KN_WORK_KIND_DECODE || work->kind == KN_WORK_KIND_SAMPLED) && rest[0] == 'x' && kn_app_parse_u32(rest + 1, 2, KN_WORK_MAX_SEQS, &work->n_seqs);
}

void kn_work_name(const struct kn_work *work, char name[KN_WORK_NAME_BYTES])
{
    int n = snprintf(name, KN_WORK_NAME_BYTES, "%s_%" PRIu32, kinds[work->kind], work->n_tokens);
    if (work->n_seqs > 1)
        snprintf(name + n, KN_WORK_NAME_BYTES - (size_t)n, "_x%" PRIu32, work->n_seqs);
}

double kn_work_target(const struct kn_work *work)
{
    static const struct { const char *name; double ratio; } targets[] = {
        {"prefill_512", 2.0}, {"prefill_4096", 2.0}, {"prefill_7168", 2.0},  {"decode_512", 1.2},
        {"decode_7168", 2.0}, {"decode_512_x8", 1.5}, {"resident_7168", 1.0},
    };
    char name[KN_WORK_NAME_BYTES];
    kn_work_name(work, name);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (!strcmp(targets[i].name, name))
            return targets[i].ratio;
    return 0;
}

double kn_work_floor(const struct kn_work *work, const struct kn_model_info *m, uint32_t n_decode, double read_bytes_s, double flops)
{
    double q = (double)m->n_head * m->d_head, kv = (double)m->n_kv_head * m->d_head, embd = m->n_embd, layers = m->n_layer;
    double linear = 2 * layers * (2 * embd * q + 2 * embd * kv + 3 * embd * m->n_ff); /* operations a token, without the output rows */
    double output = 2 * embd * m->n_vocab;
    double end = work->n_tokens + (double)n_decode, middle = work->n_tokens + n_decode / 2.0;
    if (work->kind == KN_WORK_KIND_RESIDENT)
        return (double)m->file_bytes + (double)m->kv_bytes_per_token * end;
    if (work->kind == KN_WORK_KIND_PREFILL)
        return flops / (linear + 4 * layers * q * (work->n_tokens / 2.0) + output / work->n_tokens);
    double bytes = (double)m->file_bytes + work->n_seqs * (double)m->kv_bytes_per_token * middle;
    double operations = work->n_seqs * (linear + output + 4 * layers * q * middle);
    double seconds = bytes / read_bytes_s > operations / flops ? bytes / read_bytes_s : operations / flops;
    return work->n_seqs / seconds;
}

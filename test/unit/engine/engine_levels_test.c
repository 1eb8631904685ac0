/* SPDX-License-Identifier: Apache-2.0 */
/* CPU levels of engines: each has its own, whatever others are open, on this machine and on lesser ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernel/kernels.h"
#include "support/cpu_levels.h"
#include "support/engine_bed.h"

static struct kn_model *model;
static uint32_t n_vocab;
static char model_path[256];

static int set_up(void **state)
{
    (void)state;
    kn_bed_path(model_path, "engine_levels.gguf");
    if (kn_tiny_model_write(model_path, NULL) ||
        kn_model_open(&model, KN_OPTS(kn_model_opts, .path = model_path), NULL))
        return -1;
    n_vocab = kn_model_info(model)->n_vocab;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kn_model_close(&model);
    unlink(model_path);
    return 0;
}

/* level_max_plus_1: as in the options. */
static struct kn_engine *engine_open(uint32_t level_max_plus_1)
{
    struct kn_engine *e;
    assert_int_equal(kn_engine_open(&e, model, KN_OPTS(kn_engine_opts, .n_threads = 1,
                                                       .cpu_level_max_plus_1 = level_max_plus_1), NULL), KN_OK);
    return e;
}

/* The level is that of the kernels, stays the engine's when another one opens, and is never above what was asked for:
 * here, and on every machine with fewer flags. */
static void levels_are_as_asked_for(void **state)
{
    (void)state;
    for (unsigned set = 0; set < cpu_sets_count(N_CPU_SETS); set++) {
        kni_cpu_pretend(cpu_sets[set]);
        const enum kn_cpu_level has = kni_kernels_level(cpu_sets[set]);
        struct kn_engine *e[4];
        for (unsigned i = 0; i < 4; i++) { /* limits ref, AVX2, AVX-512, none */
            e[i] = engine_open((i + 1) % 4);
            assert_int_equal(kni_cpu_flags(), cpu_sets[set]); /* the others' level, and the process's, is as before */
        }
        for (unsigned i = 0; i < 4; i++) {
            struct kn_engine_stats s = {.size = sizeof s};
            kn_engine_get_stats(e[i], &s);
            assert_int_equal(s.cpu_level, i < (unsigned)has ? i : (unsigned)has);
            kn_engine_close(&e[i]);
        }
    }
    kni_cpu_pretend(UINT32_MAX);
}

static enum kn_status keep_row(void *user, uint64_t position, const float *logits)
{
    (void)position;
    memcpy(user, logits, n_vocab * sizeof *logits);
    return KN_OK;
}

static void score_last(struct kn_engine *e, float *row)
{
    int32_t p[60];
    kn_bed_prompt(p, 60, 4);
    assert_int_equal(kn_engine_score(e, KN_OPTS(kn_score_opts, .tokens = p, .n_tokens = 60, .first = 59,
                                                .on_row = keep_row, .user = row), NULL, NULL), KN_OK);
}

/* An engine of references beside one of the machine's best computes as on a machine that has nothing better. */
static void levels_side_by_side(void **state)
{
    (void)state;
    struct kn_engine *ref, *best, *alone;
    float *rows[3];
    for (unsigned i = 0; i < 3; i++)
        rows[i] = malloc(n_vocab * sizeof(float));
    ref = engine_open(1 + KN_CPU_LEVEL_REF);
    best = engine_open(0);
    score_last(ref, rows[0]);
    score_last(best, rows[1]);
    kni_cpu_pretend(0);
    alone = engine_open(0);
    kni_cpu_pretend(UINT32_MAX);
    score_last(alone, rows[2]);
    assert_memory_equal(rows[0], rows[2], n_vocab * sizeof(float));
    assert_true(cpu_sets_count(N_CPU_SETS) < 2 || memcmp(rows[0], rows[1], n_vocab * sizeof(float)));
    kn_engine_close(&ref);
    kn_engine_close(&best);
    kn_engine_close(&alone);
    for (unsigned i = 0; i < 3; i++)
        free(rows[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_as_asked_for),
        cmocka_unit_test(levels_side_by_side),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention tiles and parts against the plain form in double, over pools whose unused slots hold NaN.
 *
 * Budget: scores are sums of d_head products (relative error d * eps of sum |q k|, at most 3 here), probabilities inherit
 * that absolute error, and the weighted mean of values up to 2 rounds n_keys more times: 2e-5 covers it with d up to 256;
 * measured maxima are near 1e-6.
 */
#include <sys/mman.h>

#include "check.h"
#include "probe.h"

#define BUDGET 2e-5

struct fixture {
    struct kni_kv_host kv;
    uint32_t *table;
    uint16_t *base;
    float *q, *out, *scratch;
    uint32_t group, n_tokens, n_pos, window;
    float softcap;
    size_t ldq;
};

static void make(struct fixture *f, enum kn_kv_type type, uint32_t d, uint32_t group, uint32_t n_pos, float k_scale)
{
    uint32_t n_blocks = (n_pos + 15) / 16, n_head = 2;
    *f = (struct fixture){.group = group, .n_pos = n_pos, .ldq = (size_t)n_head * group * d};
    struct kni_kv_layout l = {.n_layer = 2, .n_kv_head = n_head, .d_head = d, .type = type};
    f->table = guarded(n_blocks * sizeof *f->table);
    f->base = guarded((n_blocks + 1) * kni_kv_block_bytes(&l));
    memset(f->base, 0xff, (n_blocks + 1) * kni_kv_block_bytes(&l)); /* NaN in both types */
    for (uint32_t i = 0; i < n_blocks; i++)
        f->table[i] = n_blocks - i; /* block 0 of the pool is nobody's */
    f->kv = kni_kv_host_by_block(&l, f->base, f->table, n_blocks);
    for (uint32_t pos = 0; pos < n_pos; pos++)
        for (uint32_t i = 0; i < d; i++) {
            float k = rnd_unit() * k_scale, v = rnd_unit() * 2;
            check_tables[0].to_half[type](kni_kv_row(&f->kv, 1, 0, 1, pos) + i, &k, 1);
            check_tables[0].to_half[type](kni_kv_row(&f->kv, 1, 1, 1, pos) + i, &v, 1);
        }
    f->q = floats(n_pos * f->ldq);
    f->out = floats(n_pos * f->ldq);
    f->scratch = floats(kni_attn_scratch_floats(group, d, n_head));
    fill(f->q, n_pos * f->ldq, PATTERN_RANDOM);
}

static void drop(struct fixture *f)
{
    guarded_check_free(f->table);
    guarded_check_free(f->base);
    guarded_check_free(f->q);
    guarded_check_free(f->out);
    guarded_check_free(f->scratch);
}

/* Arguments for tokens from first on; KV head 1 of 2. */
static struct kni_attn_args args(struct fixture *f, int v, uint32_t first, uint32_t n, float *out)
{
    size_t at = first * f->ldq + (size_t)f->group * f->kv.layout.d_head;
    return (struct kni_attn_args){.kernels = &check_tables[v], .kv = &f->kv, .layer = 1, .kv_head = 1, .n_heads = 1, .group = f->group,
        .scale = 1.0f / sqrtf((float)f->kv.layout.d_head), .softcap = f->softcap, .window = f->window, .q = f->q + at, .ldq = f->ldq, .out = out + at, .ldo = f->ldq, .n_tokens = n, .first_pos = first, .scratch = f->scratch};
}

static void tiles(struct fixture *f, int v, uint32_t step, float *out)
{
    for (uint32_t t = 0; t < f->n_pos; t += step) {
        struct kni_attn_args a = args(f, v, t, f->n_pos - t < step ? f->n_pos - t : step, out);
        kni_attn_tile(&a);
    }
}

static void compare(struct fixture *f, const float *out, uint32_t pos, const char *what)
{
    size_t n = (size_t)f->group * f->kv.layout.d_head, at = pos * f->ldq + n;
    float *want = floats(f->n_pos * f->ldq);
    struct kni_attn_args a = args(f, 0, pos, 1, want);
    kni_attn_ref(&a);
    for (size_t i = 0; i < n; i++)
        CHECK_NEAR(out[at + i], want[at + i], BUDGET, "%s d %u group %u pos %u of %u component %zu", what, f->kv.layout.d_head, f->group, pos, f->n_pos, i);
    guarded_check_free(want);
}

static const uint32_t ds[] = {8, 24, 64, 80, 128, 256}, groups[] = {1, 2, 3, 5, 8}, lengths[] = {1, 2, 15, 16, 17, 63, 128, 129, 200, 300};

static void tiles_are_right(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < 6; i++)
            for (unsigned g = 0; g < 5; g++)
                for (int type = 0; type < 2; type++) {
                    struct fixture f;
                    uint32_t n = lengths[rnd() % 10], most = kni_attn_tile_tokens(groups[g]);
                    make(&f, (enum kn_kv_type)type, ds[i], groups[g], n, 2);
                    tiles(&f, v, 1 + rnd() % most, f.out);
                    compare(&f, f.out, n - 1, check_names[v]);
                    compare(&f, f.out, rnd() % n, check_names[v]);
                    for (uint32_t t = 0; t < n; t++) /* the other head's outputs are untouched */
                        for (uint32_t c = 0; c < groups[g] * ds[i]; c++)
                            assert_true(f.out[t * f.ldq + c] == 0);
                    drop(&f);
                }
}

static void every_position_at_one_shape(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, KN_KV_TYPE_F16, 64, 3, 290, 2);
    for (int v = 0; v < 2; v++) {
        tiles(&f, v, 64, f.out);
        for (uint32_t t = 0; t < 290; t += 1 + t % 7)
            compare(&f, f.out, t, check_names[v]);
    }
    drop(&f);
}

/* Same bits however tokens are grouped into tiles. */
static void tiles_do_not_depend_on_the_chunk(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (int type = 0; type < 2; type++) {
            struct fixture f;
            make(&f, (enum kn_kv_type)type, 40, 3, 277, 2);
            float *other = floats(277 * f.ldq);
            tiles(&f, v, 64, f.out);
            for (uint32_t step = 1; step < 64; step += 5) {
                memset(other, 0, 277 * f.ldq * sizeof *other);
                tiles(&f, v, step, other);
                assert_memory_equal(other, f.out, 277 * f.ldq * sizeof *other);
            }
            guarded_check_free(other);
            drop(&f);
        }
}

static void parts(struct fixture *f, int v, uint32_t pos)
{
    const uint32_t keys = KNI_ATTN_PART_KEYS;
    uint32_t d = f->kv.layout.d_head;
    size_t n = kni_attn_part_floats(f->group, d);
    float *acc = floats(n), *part = floats(n);
    struct kni_attn_args a = args(f, v, pos, 1, f->out);
    uint32_t start = kni_attn_first_key(pos, f->window) / keys * keys;
    for (uint32_t key0 = start; key0 <= pos; key0 += keys) {
        kni_attn_part(&a, key0, pos + 1 - key0 < keys ? pos + 1 - key0 : keys, key0 > start ? part : acc);
        if (key0 > start)
            kni_attn_part_merge(a.kernels, acc, part, f->group, d);
    }
    kni_attn_part_finish(a.out, acc, f->group, d);
    guarded_check_free(acc);
    guarded_check_free(part);
}

static void parts_are_right(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < 6; i++)
            for (unsigned g = 0; g < 5; g++)
                for (int type = 0; type < 2; type++) {
                    struct fixture f;
                    uint32_t n = lengths[rnd() % 10];
                    make(&f, (enum kn_kv_type)type, ds[i], groups[g], n, 2);
                    parts(&f, v, n - 1);
                    compare(&f, f.out, n - 1, check_names[v]);
                    drop(&f);
                }
}

/* A decode gives the bits that the token has inside a chunk: over the ends of blocks, tiles and parts, with windows too. */
static void parts_have_the_bits_of_tiles(void **state)
{
    (void)state;
    static const struct { uint32_t d, group, window; float softcap; } shapes[] = {{64, 3, 0, 0}, {40, 1, 0, 0}, {128, 4, 0, 0}, {64, 2, 200, 0},
        {64, 8, 530, 2}, {256, 5, 16, 0}, {8, 7, 1, 0}};
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < 7; i++)
            for (int type = 0; type < 2; type++) {
                struct fixture f;
                uint32_t n_pos = v ? 1100 : 290; /* the references are slow */
                make(&f, (enum kn_kv_type)type, shapes[i].d, shapes[i].group, n_pos, 2);
                f.window = shapes[i].window;
                f.softcap = shapes[i].softcap;
                size_t n = (size_t)shapes[i].group * shapes[i].d;
                tiles(&f, v, kni_attn_tile_tokens(shapes[i].group), f.out);
                float *want = floats(n_pos * f.ldq);
                memcpy(want, f.out, n_pos * f.ldq * sizeof *want);
                static const uint32_t at[] = {0, 15, 16, 127, 128, 255, 256, 289, 511, 512, 640, 1024, 1099};
                for (unsigned j = 0; j < 13 && at[j] < n_pos; j++) {
                    memset(f.out + at[j] * f.ldq + n, 0, n * sizeof *f.out);
                    parts(&f, v, at[j]);
                    assert_memory_equal(f.out + at[j] * f.ldq + n, want + at[j] * f.ldq + n, n * sizeof *want);
                }
                guarded_check_free(want);
                drop(&f);
            }
}

/* AVX-512 gives the bits of AVX2: every sum is the same chain. */
static void wider_vectors_give_the_same_bits(void **state)
{
    (void)state;
    if (!(check_tables[1].cpu_flags & KNI_CPU_FLAG_AVX512))
        skip();
    struct kni_kernels avx2;
    kni_kernels_init(&avx2, KNI_CPU_FLAG_AVX2);
    static const uint32_t sizes[] = {8, 24, 40, 64, 72, 128, 256};
    for (unsigned i = 0; i < 7; i++)
        for (uint32_t group = 1; group <= 9; group++)
            for (int type = 0; type < 2; type++) {
                struct fixture f;
                make(&f, (enum kn_kv_type)type, sizes[i], group, 205, 2);
                size_t n = kni_attn_part_floats(group, sizes[i]);
                float *part[2] = {floats(n), floats(n)};
                for (int v = 0; v < 2; v++) {
                    struct kni_attn_args a = args(&f, 1, 204, 1, f.out);
                    a.kernels = v ? &check_tables[1] : &avx2;
                    kni_attn_part(&a, 0, 205, part[v]);
                }
                assert_memory_equal(part[0], part[1], n * sizeof(float));
                guarded_check_free(part[0]);
                guarded_check_free(part[1]);
                drop(&f);
            }
}

/* A window of every size around the limits of blocks and tiles: whole blocks before it are of no sequence (poisoned here),
 * older keys of its first block have no weight. */
static void windows_are_right(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1, 2, 15, 16, 17, 100, 127, 128, 129, 256, 299, 300, 301};
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < 13; i++)
            for (int type = 0; type < 2; type++) {
                struct fixture f;
                make(&f, (enum kn_kv_type)type, 64, 3, 300, 2);
                f.window = windows[i];
                f.softcap = i % 3 ? 0.0f : 1.5f;
                tiles(&f, v, 1 + rnd() % 64, f.out);
                for (uint32_t t = 0; t < 300; t += 1 + rnd() % 20)
                    compare(&f, f.out, t, check_names[v]);
                compare(&f, f.out, 299, check_names[v]);
                uint32_t start = kni_attn_first_key(299, windows[i]) / 16 * 16;
                for (uint32_t pos = 0; pos < start; pos += 16)
                    for (int is_v = 0; is_v < 2; is_v++)
                        memset(kni_kv_row(&f.kv, 1, (uint32_t)is_v, 1, pos), 0xff, 16 * 64 * 2);
                memset(f.out, 0, 300 * f.ldq * sizeof *f.out);
                parts(&f, v, 299);
                compare(&f, f.out, 299, check_names[v]);
                drop(&f);
            }
}

/* softcap * tanh(score / softcap), against tanh in double; the cap's own error is 50 * eps * 4. */
static void soft_caps_are_right(void **state)
{
    (void)state;
    static const float caps[] = {0.5f, 4, 50};
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < 3; i++) {
            struct fixture f;
            make(&f, KN_KV_TYPE_BF16, 64, 2, 180, 20);
            f.softcap = caps[i];
            tiles(&f, v, 50, f.out);
            compare(&f, f.out, 179, check_names[v]);
            compare(&f, f.out, 99, check_names[v]);
            parts(&f, v, 179);
            compare(&f, f.out, 179, check_names[v]);
            drop(&f);
        }
}

/* Scores in the hundreds: one key takes all the weight, in whichever tile or part it lies; nothing overflows. */
static void extreme_scores(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < 20; i++) {
            struct fixture f;
            make(&f, KN_KV_TYPE_F16, 64, 3, 260, 400);
            tiles(&f, v, 64, f.out);
            uint32_t pos = 120 + rnd() % 140;
            size_t n = (size_t)3 * 64, at = pos * f.ldq + n;
            for (int form = 0; form < 2; form++) {
                if (form)
                    parts(&f, v, pos);
                float *want = floats(f.n_pos * f.ldq);
                struct kni_attn_args a = args(&f, 0, pos, 1, want);
                kni_attn_ref(&a);
                for (size_t c = 0; c < n; c++) /* scores up to 800 carry an absolute error of 800 * 64 * eps = 3e-3 */
                    CHECK_NEAR(f.out[at + c], want[at + c], 0.02, "%s form %d", check_names[v], form);
                guarded_check_free(want);
            }
            drop(&f);
        }
}

static void zero_queries_average_the_values(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        struct fixture f;
        make(&f, KN_KV_TYPE_BF16, 16, 2, 150, 2);
        memset(f.q, 0, 150 * f.ldq * sizeof *f.q);
        tiles(&f, v, 31, f.out);
        for (uint32_t c = 0; c < 16; c++) {
            double mean = 0;
            for (uint32_t t = 0; t < 150; t++)
                mean += (double)kni_bf16_to_f32(kni_kv_row(&f.kv, 1, 1, 1, t)[c]) / 150;
            CHECK_NEAR(f.out[149 * f.ldq + 2 * 16 + c], mean, BUDGET, "%s mean", check_names[v]);
        }
        drop(&f);
    }
}

/* Bytes that this thread reads a second from this very memory, pages and all. */
static double read_peak(const uint64_t *data, size_t n)
{
    double s;
    uint64_t sum[8] = {0};
    BENCH_SECONDS(s, for (size_t k = 0; k + 8 <= n; k += 8) for (size_t l = 0; l < 8; l++) sum[l] += data[k + l]);
    volatile uint64_t sink = sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
    (void)sink;
    return (double)n * 8 / s;
}

/* Three KV heads of three query heads, in a pool larger than the caches: one token at the end of all of it, layer by layer, and
 * the last tile of a prompt of 4096. */
static void bench_shape(int v, enum kn_kv_type type, uint32_t d, double flops)
{
    enum { N_POS = 4096, GROUP = 3, HEADS = 3 };
    struct kni_kv_layout l = {.n_layer = 1920 / d, .n_kv_head = HEADS, .d_head = d, .type = type};
    size_t bytes = N_POS / 16 * kni_kv_block_bytes(&l), huge = (size_t)2 << 20;
    uint16_t *base = aligned_alloc(huge, (bytes + huge - 1) / huge * huge);
    uint32_t table[N_POS / 16], rows = HEADS * GROUP;
    float *q = floats((size_t)64 * rows * d), *out = floats((size_t)64 * rows * d), *part = floats(kni_attn_part_floats(rows, d));
    float *scratch = floats(kni_attn_scratch_floats(GROUP, d, HEADS));
    double s;
    assert_non_null(base);
    madvise(base, bytes, MADV_HUGEPAGE); /* as the pool does */
    for (size_t i = 0; i < bytes / 2; i++)
        base[i] = (uint16_t)(0x3000 | (rnd() & 0x8fff));
    for (uint32_t i = 0; i < N_POS / 16; i++)
        table[i] = i;
    fill(q, (size_t)64 * rows * d, PATTERN_RANDOM);
    const struct kni_kv_host kv = kni_kv_host_by_block(&l, base, table, N_POS / 16);
    struct kni_attn_args a = {.kernels = &check_tables[v], .kv = &kv, .n_heads = HEADS, .group = GROUP, .scale = 1.0f / sqrtf((float)d), .q = q,
        .ldq = (size_t)rows * d, .out = out, .ldo = (size_t)rows * d, .n_tokens = 1, .first_pos = N_POS - 1, .scratch = scratch};
    double peak = read_peak((const uint64_t *)(const void *)base, bytes / 8);
    BENCH_SECONDS(s, a.layer = (a.layer + 1) % l.n_layer; for (uint32_t key = 0; key < N_POS; key += KNI_ATTN_PART_KEYS) kni_attn_part(&a, key, KNI_ATTN_PART_KEYS, part));
    double rate = (double)bytes / l.n_layer / s;
    printf("%s %s d %3u: decode %5.2f GB/s of K and V, %3.0f %% of plain reading (%.1f); ", check_names[v], type ? "bf16" : "f16", d, rate * 1e-9, 100 * rate / peak, peak * 1e-9);
    a.n_tokens = kni_attn_tile_tokens(GROUP);
    a.first_pos = N_POS - a.n_tokens;
    BENCH_SECONDS(s, kni_attn_tile(&a));
    rate = 4.0 * a.n_tokens * (N_POS - a.n_tokens / 2) * GROUP * d / s;
    printf("tile at %u keys %5.1f GFLOP/s, %3.0f %% of multiply-adds alone (%.1f)\n", N_POS, rate * 1e-9, flops > 0 ? 100 * rate / flops : 0, flops * 1e-9);
    free(base);
    guarded_check_free(q);
    guarded_check_free(out);
    guarded_check_free(part);
    guarded_check_free(scratch);
}

static void bench(void)
{
    static const uint32_t wide[] = {64, 128, 256};
    double flops = probe_fma_gflops() * 1e9;
    for (int type = 0; type < 2; type++)
        for (int i = 0; i < 3; i++)
            bench_shape(1, (enum kn_kv_type)type, wide[i], flops);
}

int main(int argc, char **argv)
{
    if (check_start(argc, argv)) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_are_right), cmocka_unit_test(every_position_at_one_shape), cmocka_unit_test(tiles_do_not_depend_on_the_chunk),
        cmocka_unit_test(parts_are_right), cmocka_unit_test(parts_have_the_bits_of_tiles), cmocka_unit_test(wider_vectors_give_the_same_bits), cmocka_unit_test(windows_are_right), cmocka_unit_test(soft_caps_are_right), cmocka_unit_test(extreme_scores), cmocka_unit_test(zero_queries_average_the_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

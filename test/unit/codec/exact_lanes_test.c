/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout exact's lanes and loops: every level of the machine gives the bytes of the reference, streams come back whole, and streams
 * that are cut, longer or damaged are noticed without a read outside (exact buffers, for sanitizers).
 */
#include "unit/codec/codec_support.h"

#include "base/cpu.h"
#include "codec/exact/exact_lanes.h"
#include "codec/exact/exact_loops.h"

#define N_TABLES 21u
#define N_RUN 320u

struct bed {
    uint16_t freq[N_TABLES][256];
    struct kni_exact_encode_table encode[N_TABLES];
    struct kni_exact_decode_table decode[N_TABLES];
    uint8_t notes[N_RUN * 8], symbols[N_RUN * 8];
};

/* Tables from nearly flat to nearly one symbol, and symbols that they can code. */
static struct bed *bed_make(void)
{
    struct bed *b = malloc(sizeof *b);
    assert_non_null(b);
    for (uint32_t t = 0; t < N_TABLES; t++) {
        double weights[256];
        for (uint32_t s = 0; s < 256; s++)
            weights[s] = test_random() % 4 ? exp(-(double)t * fabs((double)s - 90.0) / 40) : 0;
        weights[90] = 1;
        kni_rans_normalise(weights, b->freq[t]);
        kni_rans_make_symbols(b->freq[t], b->encode[t].symbols);
        kni_rans_make_slots(b->freq[t], b->decode[t].slots);
    }
    for (size_t i = 0; i < sizeof b->notes; i++) {
        uint32_t t = test_random() % N_TABLES, slot = test_random() % KNI_RANS_SCALE;
        b->notes[i] = (uint8_t)(t | (test_random() % 2 ? 0x80 : 0));
        b->symbols[i] = (uint8_t)b->decode[t].slots[slot];
    }
    return b;
}

static size_t encode(const struct bed *b, kni_exact_write_fn write, uint32_t n_runs, uint32_t n, uint8_t **stream)
{
    size_t bound = kni_exact_stream_bound((size_t)n_runs * n);
    uint8_t *room = malloc(bound);
    assert_non_null(room);
    struct kni_exact_writer w;
    kni_exact_writer_init(&w, room, room + bound);
    for (uint32_t r = n_runs; r-- > 0;)
        write(&w, b->encode, b->notes + (size_t)r * n, b->symbols + (size_t)r * n, n);
    const uint8_t *begin = kni_exact_writer_finish(&w);
    size_t size = (size_t)(room + bound - begin);
    *stream = malloc(size); /* no byte more: sanitizers see any read outside */
    assert_non_null(*stream);
    memcpy(*stream, begin, size);
    free(room);
    return size;
}

/* True when the stream holds exactly these runs' symbols, as far as the reader can know. */
static bool decode(const struct bed *b, kni_exact_read_fn read, const uint8_t *stream, size_t size, uint32_t n_runs, uint32_t n, uint8_t *out)
{
    struct kni_exact_reader r;
    if (!kni_exact_reader_init(&r, stream, size))
        return false;
    for (uint32_t k = 0; k < n_runs; k++)
        read(&r, b->decode, b->notes + (size_t)k * n, out + (size_t)k * n, n);
    return kni_exact_reader_finish(&r);
}

static void streams(void **state)
{
    (void)state;
    struct bed *b = bed_make();
    static const uint32_t sizes[][2] = {{1, 16}, {3, 16}, {1, 48}, {8, N_RUN}, {5, 256}, {0, 16}};
    const struct kni_exact_lane_ops ref = kni_exact_lane_ops(0), best = kni_exact_lane_ops(kni_cpu_flags_all());
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t n_runs = sizes[i][0], n = sizes[i][1];
        uint8_t *one, *two, *out = calloc(1, (size_t)n_runs * n + 1);
        size_t size = encode(b, ref.write, n_runs, n, &one);
        assert_int_equal(encode(b, best.write, n_runs, n, &two), size);
        assert_memory_equal(one, two, size);
        assert_true(decode(b, ref.read, one, size, n_runs, n, out));
        assert_memory_equal(out, b->symbols, (size_t)n_runs * n);
        memset(out, 0, (size_t)n_runs * n);
        assert_true(decode(b, best.read, one, size, n_runs, n, out));
        assert_memory_equal(out, b->symbols, (size_t)n_runs * n);
        free(one);
        free(two);
        free(out);
    }
    free(b);
}

static void bad_streams(void **state)
{
    (void)state;
    struct bed *b = bed_make();
    uint8_t *good, *out = malloc(sizeof b->symbols), *same = malloc(sizeof b->symbols);
    const uint32_t n_runs = 4, n = 64;
    size_t size = encode(b, kni_exact_write_ref, n_runs, n, &good);
    const struct kni_exact_lane_ops levels[] = {kni_exact_lane_ops(0), kni_exact_lane_ops(kni_cpu_flags_all())};
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1);
        memcpy(copy, good, cut);
        for (int l = 0; l < 2; l++)
            assert_false(decode(b, levels[l].read, copy, cut, n_runs, n, out));
        free(copy);
    }
    uint8_t *longer = malloc(size + 2);
    memcpy(longer, good, size);
    longer[size] = longer[size + 1] = 0;
    for (int l = 0; l < 2; l++)
        assert_false(decode(b, levels[l].read, longer, size + 2, n_runs, n, out));
    uint32_t n_missed = 0;
    for (uint32_t k = 0; k < 2000; k++) { /* any bytes decode to something, both levels to the same */
        memcpy(longer, good, size);
        for (uint32_t flips = 1 + k % 3; flips-- > 0;)
            longer[test_random() % size] ^= (uint8_t)(1 + test_random() % 255);
        bool ok = decode(b, levels[0].read, longer, size, n_runs, n, out);
        assert_int_equal(decode(b, levels[1].read, longer, size, n_runs, n, same), ok);
        if (ok) {
            assert_memory_equal(out, same, (size_t)n_runs * n);
            n_missed += memcmp(out, b->symbols, (size_t)n_runs * n) != 0;
        }
    }
    assert_true(n_missed < 20); /* symbols of one frequency may change places unseen: sections have checksums */
    free(longer);
    free(good);
    free(out);
    free(same);
    free(b);
}

static void transposition(void **state)
{
    (void)state;
    const struct kni_exact_loops *levels[] = {kni_exact_loops_get(0), kni_exact_loops_get(kni_cpu_flags_all())};
    enum { D = 23, STRIDE = 40 };
    uint16_t block[16 * D], columns[16 * STRIDE], back[16 * D];
    for (size_t i = 0; i < 16 * D; i++)
        block[i] = (uint16_t)test_random();
    for (int l = 0; l < 2; l++)
        for (uint32_t n = 1; n <= 16; n++) {
            memset(columns, 0xa5, sizeof columns);
            memset(back, 0x5a, sizeof back);
            levels[l]->load(block + 3, D, n, columns + 1, STRIDE);
            levels[l]->store(back + 3, D, n, columns + 1, STRIDE);
            for (uint32_t i = 0; i < 16; i++)
                for (uint32_t t = 0; t < STRIDE; t++)
                    assert_int_equal(columns[i * STRIDE + t], i < n && t >= 1 && t <= 16 ? block[(t - 1) * D + 3 + i] : 0xa5a5);
            for (uint32_t t = 0; t < 16; t++)
                for (uint32_t i = 0; i < D; i++)
                    assert_int_equal(back[t * D + i], i >= 3 && i < 3 + n ? block[t * D + i] : 0x5a5a);
        }
}

static void symbols_and_values(void **state)
{
    (void)state;
    const struct kni_exact_loops *levels[] = {kni_exact_loops_get(0), kni_exact_loops_get(kni_cpu_flags_all())};
    enum { N = 4096 };
    static uint16_t values[N], back[N];
    static uint8_t notes[N], symbols[2][N];
    for (uint32_t bits = 1; bits <= 15; bits++)
        for (uint32_t k = 0; k < 32; k++) {
            uint16_t base = (uint16_t)test_random();
            for (uint32_t i = 0; i < N; i++) {
                values[i] = (uint16_t)(k % 2 ? test_random() : ((base + test_random() % 140) << bits & 0x7fff) | (test_random() & 0x8000) | (test_random() & ((1u << bits) - 1)));
                notes[i] = (uint8_t)test_random();
            }
            uint32_t n_escapes = levels[0]->symbols(values, notes, bits, base, symbols[0], N);
            assert_int_equal(levels[1]->symbols(values, notes, bits, base, symbols[1], N), n_escapes);
            assert_memory_equal(symbols[0], symbols[1], N);
            uint16_t largest[2];
            for (int l = 0; l < 2; l++) {
                for (uint32_t i = 0; i < N; i++)
                    back[i] = values[i] & ((1u << bits) - 1);
                assert_int_equal(levels[l]->values(symbols[0], notes, bits, base, back, N, &largest[l]), n_escapes);
                assert_int_equal(largest[l], kni_kv_largest(back, N));
                for (uint32_t i = 0; i < N; i++)
                    if (symbols[0][i] != KNI_EXACT_ESCAPE)
                        assert_int_equal(back[i], values[i]);
            }
        }
}

static void packing(void **state)
{
    (void)state;
    const struct kni_exact_loops *levels[] = {kni_exact_loops_get(0), kni_exact_loops_get(kni_cpu_flags_all())};
    static const uint32_t cuts[] = {16, 48, 16, 160, 32, 16};
    uint16_t values[288], back[288];
    for (size_t i = 0; i < 288; i++)
        values[i] = (uint16_t)test_random();
    for (uint32_t bits = 1; bits <= 15; bits++) {
        size_t size = kni_exact_packed_bytes(288, bits);
        uint8_t *out[2];
        for (int l = 0; l < 2; l++) {
            out[l] = malloc(size);
            struct kni_exact_packer p = {.n_bits = bits, .out = out[l]};
            for (size_t k = 0, at = 0; k < 6; at += cuts[k++])
                levels[l]->pack(&p, values + at, cuts[k]);
            kni_exact_pack_end(&p);
            assert_ptr_equal(p.out, out[l] + size);
            struct kni_exact_unpacker u = {.n_bits = bits, .in = out[l]};
            for (size_t k = 0, at = 0; k < 6; at += cuts[k++])
                levels[l]->unpack(&u, back + at, cuts[k]);
            assert_true(kni_exact_unpack_end(&u));
            for (size_t i = 0; i < 288; i++)
                assert_int_equal(back[i], values[i] & ((1u << bits) - 1));
        }
        assert_memory_equal(out[0], out[1], size);
        if (18 * bits % 16) { /* padding must be zero */
            out[0][size - 1] |= 0x80;
            struct kni_exact_unpacker u = {.n_bits = bits, .in = out[0]};
            levels[0]->unpack(&u, back, 288);
            assert_false(kni_exact_unpack_end(&u));
        }
        free(out[0]);
        free(out[1]);
    }
}

static void notes_and_sums(void **state)
{
    (void)state;
    const struct kni_exact_loops *ref = kni_exact_loops_get(0), *best = kni_exact_loops_get(kni_cpu_flags_all());
    static const uint8_t edges[] = {1, 2, 7, 33, 100, 127};
    int16_t means[400], other[400];
    uint8_t a[400], b[400];
    for (int i = 0; i < 400; i++)
        means[i] = (int16_t)(i - 200);
    for (uint32_t n = 16; n <= 400; n += 16) {
        ref->tables(means, a, n, edges, 6);
        best->tables(means, b, n, edges, 6);
        assert_memory_equal(a, b, n);
    }
    assert_int_equal(a[200], 0);
    assert_int_equal(a[201], 1);
    assert_int_equal(a[199], 0x81);
    assert_int_equal(a[200 + 32], 3);
    assert_int_equal(a[200 + 199], 6);
    int16_t cosines[400], sines[400];
    float x[400], y[400], re[2], im[2];
    for (int i = 0; i < 400; i++) {
        cosines[i] = (int16_t)lrint(16384 * cos(i * 0.1));
        sines[i] = (int16_t)lrint(16384 * sin(i * 0.1));
        x[i] = (float)cos(i * 0.3);
        y[i] = (float)sin(i * 0.3) + (float)(test_random() % 100) * 1e-3f;
    }
    ref->turn(cosines, sines, 100, -127, means, 400);
    best->turn(cosines, sines, 100, -127, other, 400);
    assert_memory_equal(means, other, sizeof means);
    for (int i = 0; i < 400; i++)
        assert_true(fabs(means[i] - (100 * cos(i * 0.1) - 127 * sin(i * 0.1))) < 0.6);
    for (uint32_t n = 0; n < 400; n += 37) { /* the same order of additions: the same bits */
        assert_true(ref->sum(y, n) == best->sum(y, n) && ref->dot(x, y, n) == best->dot(x, y, n));
        ref->product(x, y, y, x, n, &re[0], &im[0]);
        best->product(x, y, y, x, n, &re[1], &im[1]);
        assert_true(re[0] == re[1] && im[0] == im[1]);
    }
    double want = 0;
    for (int i = 0; i < 400; i++)
        want += (double)x[i] * (double)y[i];
    assert_true(fabs((double)ref->dot(x, y, 400) - want) < 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams),       cmocka_unit_test(bad_streams),          cmocka_unit_test(transposition),
        cmocka_unit_test(packing),       cmocka_unit_test(symbols_and_values),   cmocka_unit_test(notes_and_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

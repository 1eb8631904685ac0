/* SPDX-License-Identifier: Apache-2.0 */
/* The pool alone: open's refusals, states of a block, copy on write, its device, failures. Random walks: seq_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cpu/device_cpu.h"
#include "kv/pool.h"

static const struct kni_kv_layout layout = {.n_layer = 2, .n_kv_head = 3, .d_head = 4, .type = KN_KV_TYPE_F16};

static void test_open(void **state)
{
    (void)state;
    struct kni_pool *pool = NULL;
    struct kn_err err = {0};
    struct kni_pool_opts none = {.layout = layout};
    assert_int_equal(kni_pool_open(&pool, &none, &err), KN_E_ARG);
    assert_null(pool);
    assert_non_null(strstr(err.text, "bytes"));
    struct kni_pool_opts o = {.layout = layout, .n_blocks = 4};
    assert_int_equal(kni_pool_open(&pool, &o, &err), KN_OK);
    assert_int_equal(kni_pool_view(pool, NULL, 0).k.at % 64, 0);
    assert_int_equal(kni_pool_available(pool), 4);
    kni_pool_close(&pool);
    assert_null(pool);
    kni_pool_close(&pool);
}

static void states_in(enum kni_pool_order order)
{
    struct kni_pool *pool;
    struct kni_pool_opts o = {.layout = layout, .n_blocks = 2, .order = order};
    assert_int_equal(kni_pool_open(&pool, &o, NULL), KN_OK);
    uint32_t a, b, c;
    assert_true(kni_pool_take(pool, &a));
    assert_true(kni_pool_take(pool, &b));
    assert_false(kni_pool_take(pool, &c));
    assert_int_not_equal(a, b);
    struct kni_hash parent = kni_hash_bytes("p", 1), own = kni_hash_bytes("o", 1);
    int32_t tokens[16] = {5};
    assert_true(kni_prefix_index_insert(kni_pool_index(pool), a, &parent, &own, tokens, KN_KV_QUALITY_EXACT));
    assert_false(kni_pool_is_writable(pool, a));
    assert_true(kni_pool_is_writable(pool, b));
    kni_pool_ref(pool, b);
    assert_false(kni_pool_is_writable(pool, b));
    uint32_t mine = b;
    assert_false(kni_pool_make_writable(pool, &mine)); /* shared, and no room */
    kni_pool_unref(pool, a);
    assert_int_equal(kni_pool_get_stats(pool).n_cached_blocks, 1);
    const struct kni_kv_view all = kni_pool_view(pool, (const uint32_t[]){0, 1}, 2);
    const struct kni_kv_host host = kni_kv_host_of(&all);
    kni_kv_block_fill(&host, a, 0);
    kni_kv_block_fill(&host, b, 0x5a);
    assert_true(kni_pool_make_writable(pool, &mine)); /* evicts a and copies into it */
    assert_int_equal(mine, a);
    assert_true(kni_kv_block_equal(&host, a, &host, b));
    assert_int_equal(kni_kv_row(&host, layout.n_layer - 1, 1, layout.n_kv_head - 1, 16 * a + 15)[layout.d_head - 1], 0x5a5a);
    assert_int_equal(kni_prefix_index_find(kni_pool_index(pool), &own, tokens), KNI_NO_BLOCK);
    assert_int_equal(kni_pool_refs(pool, b), 1);
    assert_null(kni_pool_check(pool));
    kni_pool_unref(pool, mine);
    kni_pool_unref(pool, b);
    assert_int_equal(kni_pool_get_stats(pool).n_free_blocks, 2);
    assert_null(kni_pool_check(pool));
    kni_pool_close(&pool);
}

static void test_states(void **state)
{
    (void)state;
    for (enum kni_pool_order order = KNI_POOL_ORDER_DEFAULT; order <= KNI_POOL_ORDER_LAYER; order++)
        states_in(order);
}

/* The check must be able to fail. */
static void test_check_finds_damage(void **state)
{
    (void)state;
    struct kni_pool *pool;
    struct kni_pool_opts o = {.layout = layout, .n_blocks = 3};
    assert_int_equal(kni_pool_open(&pool, &o, NULL), KN_OK);
    uint32_t a;
    assert_true(kni_pool_take(pool, &a));
    struct kni_hash parent = kni_hash_bytes("p", 1), own = kni_hash_bytes("o", 1);
    int32_t tokens[16] = {5};
    assert_true(kni_prefix_index_insert(kni_pool_index(pool), a, &parent, &own, tokens, KN_KV_QUALITY_EXACT));
    kni_pool_unref(pool, a);
    assert_null(kni_pool_check(pool));
    kni_prefix_index_remove(kni_pool_index(pool), a); /* behind the pool's back: a cached block without a prefix */
    assert_non_null(kni_pool_check(pool));
    assert_true(kni_prefix_index_insert(kni_pool_index(pool), a, &parent, &own, tokens, KN_KV_QUALITY_EXACT));
    assert_null(kni_pool_check(pool));
    kni_pool_index(pool)->entries[a].own.bytes[0] ^= 1; /* in a bucket where it does not belong */
    assert_non_null(kni_pool_check(pool));
    kni_pool_index(pool)->entries[a].own.bytes[0] ^= 1;
    kni_pool_close(&pool);
}

/* Memory and copies come from the device that the pool is given, and go back to it. A twin that delays copies in queues
 * must not delay the pool's own, which its callers cannot wait for. */
static void test_on_a_device(void **state)
{
    (void)state;
    const uint64_t tagged = kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).current_bytes;
    const size_t block_bytes = kni_kv_block_bytes(&layout);
    struct kni_device *device;
    struct kni_device_cpu_opts little = {.memory_bytes = 2 * block_bytes, .delay_queries = 5};
    assert_int_equal(kni_device_cpu_open(&device, &little, NULL), KN_OK);
    struct kni_pool *pool;
    struct kn_err err = {0};
    struct kni_pool_opts o = {.layout = layout, .n_blocks = 3, .device = device};
    assert_int_equal(kni_pool_open(&pool, &o, &err), KN_E_NOMEM);
    assert_null(pool);
    assert_int_equal(err.status, KN_E_NOMEM);
    assert_non_null(strstr(err.text, "set a smaller pool"));
    o.n_blocks = 2;
    assert_int_equal(kni_pool_open(&pool, &o, &err), KN_OK);
    assert_ptr_equal(kni_pool_device(pool), device);
    assert_int_equal(device->ops->get_stats(device).alloc_bytes, 2 * block_bytes);
    assert_true(kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).current_bytes >= tagged + 2 * block_bytes);
    const struct kni_kv_view all = kni_pool_view(pool, NULL, 0);
    assert_ptr_equal(all.device, device);
    assert_true(kni_kv_is_host(&all));
    assert_int_equal(kni_kv_part_addr(&all, 0, 0, 1).at - kni_kv_part_addr(&all, 0, 0, 0).at, block_bytes);
    uint32_t a, mine;
    assert_true(kni_pool_take(pool, &a));
    memset(device->ops->host(device, kni_kv_part_addr(&all, 0, 0, a)), 0x5a, block_bytes);
    kni_pool_ref(pool, a);
    mine = a;
    assert_true(kni_pool_make_writable(pool, &mine)); /* copies */
    assert_int_not_equal(mine, a);
    assert_memory_equal(device->ops->host(device, kni_kv_part_addr(&all, 0, 0, mine)),
                        device->ops->host(device, kni_kv_part_addr(&all, 0, 0, a)), block_bytes);
    kni_pool_unref(pool, mine);

    /* A copy that the device refuses leaves the caller with what it had. */
    struct kni_device_queue *queue;
    assert_int_equal(device->ops->queue_open(device, &queue, &err), KN_OK);
    assert_int_equal(device->ops->copy_block(device, queue, kni_kv_part_addr(&all, 0, 0, mine),
                                             kni_kv_part_addr(&all, 0, 0, a), block_bytes, &err),
                     KN_OK); /* under way in the free block */
    kni_pool_ref(pool, a);
    mine = a;
    assert_false(kni_pool_make_writable(pool, &mine));
    assert_int_equal(mine, a);
    assert_int_equal(kni_pool_refs(pool, a), 2);
    assert_int_equal(kni_pool_available(pool), 1);
    assert_null(kni_pool_check(pool));
    device->ops->queue_close(device, &queue);
    kni_pool_close(&pool);
    const struct kni_device_stats s = device->ops->get_stats(device), empty = {0};
    assert_memory_equal(&s, &empty, sizeof s);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).current_bytes, tagged);
    device->ops->close(&device);
}

static void test_on_the_process_device(void **state)
{
    (void)state;
    struct kni_device *device = kni_device_cpu();
    const uint64_t before = device->ops->get_stats(device).alloc_bytes;
    struct kni_pool *pool;
    struct kni_pool_opts o = {.layout = layout, .n_blocks = 3};
    assert_int_equal(kni_pool_open(&pool, &o, NULL), KN_OK);
    assert_ptr_equal(kni_pool_device(pool), device);
    assert_int_equal(device->ops->get_stats(device).alloc_bytes, before + 3 * kni_kv_block_bytes(&layout));
    kni_pool_close(&pool);
    assert_int_equal(device->ops->get_stats(device).alloc_bytes, before);
}

/* A pool of 2 MB and more begins at a page of that size and asks for such pages: smaps says "hg". */
static void test_huge_pages(void **state)
{
    (void)state;
    const size_t huge = (size_t)2 << 20;
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK)) {
        print_message("skipped: this kernel has no transparent huge pages\n");
        skip();
    }
    struct kni_pool *pool;
    struct kni_pool_opts o = {.layout = layout, .n_blocks = (uint32_t)(3 * huge / kni_kv_block_bytes(&layout))};
    assert_int_equal(kni_pool_open(&pool, &o, NULL), KN_OK);
    const uintptr_t base = (uintptr_t)kni_device_cpu()->ops->host(kni_device_cpu(), kni_pool_view(pool, NULL, 0).k);
    assert_int_equal(base % huge, 0);
    FILE *maps = fopen("/proc/self/smaps", "r");
    assert_non_null(maps);
    char line[512];
    bool inside = false, asked = false;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = base >= from && base < to;
        else if (inside && !strncmp(line, "VmFlags:", 8))
            asked = strstr(line, " hg") != NULL;
    }
    fclose(maps);
    assert_true(asked);
    kni_pool_close(&pool);
}

static void test_alloc_failures(void **state)
{
    (void)state;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    struct kni_pool_opts o = {.layout = layout, .n_blocks = 3};
    for (uint64_t n = 1;; n++) {
        struct kni_pool *pool;
        struct kn_err err = {0};
        kni_alloc_fault_arm(n, false);
        enum kn_status status = kni_pool_open(&pool, &o, &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        if (!hit) {
            assert_int_equal(status, KN_OK);
            assert_true(n > 3);
            kni_pool_close(&pool);
            break;
        }
        assert_int_equal(status, KN_E_NOMEM);
        assert_null(pool);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_open), cmocka_unit_test(test_states), cmocka_unit_test(test_check_finds_damage),
                                       cmocka_unit_test(test_on_a_device), cmocka_unit_test(test_on_the_process_device),
                                       cmocka_unit_test(test_huge_pages), cmocka_unit_test(test_alloc_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real store behind fault: for a test program, made and removed for each test, and ordered about while it is open:
 *
 *     cmocka_unit_test_setup_teardown(test, fault_set_up, fault_tear_down)
 *     order("fail\n");   order("");
 */
#ifndef KN_TEST_FAULT_BED_H
#define KN_TEST_FAULT_BED_H

#include "unit/store/store_support.h"

static struct folder folder;
static char control[96], fault_url[256];

/* Never half a file. */
static void order(const char *text)
{
    char temp[128];
    snprintf(temp, sizeof temp, "%s.new", control);
    FILE *file = fopen(temp, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(temp, control), 0);
}

static int fault_set_up(void **state)
{
    (void)state;
    folder_make(&folder);
    snprintf(control, sizeof control, "%s.orders", folder.path);
    snprintf(fault_url, sizeof fault_url, "fault:%s:%s", control, folder.url);
    return 0;
}

static int fault_tear_down(void **state)
{
    (void)state;
    remove(control);
    folder_remove(&folder);
    return 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "server/server_opts.h"

void kni_server_opts_fill(struct kn_server_opts *o)
{
    const struct { uint32_t *field, value; } numbers[] = {
        {&o->max_connections, 256},    {&o->max_queue, 256},          {&o->max_choices, 16},        {&o->max_header_bytes, 16u << 10},
        {&o->header_timeout_ms, 10000}, {&o->body_timeout_ms, 30000}, {&o->idle_timeout_ms, 60000}, {&o->send_timeout_ms, 30000},
        {&o->wait_timeout_ms, 300000},  {&o->request_timeout_ms, 1800000}, {&o->drain_timeout_ms, 30000},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!*numbers[i].field)
            *numbers[i].field = numbers[i].value;
    if (!o->max_body_bytes)
        o->max_body_bytes = (uint64_t)8 << 20;
    if (!o->max_parse_bytes)
        o->max_parse_bytes = (uint64_t)256 << 20;
}

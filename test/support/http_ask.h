/* SPDX-License-Identifier: Apache-2.0 */
/* One question, one answer, on a connection of its own; include after cmocka.h. */
#ifndef KNI_TEST_HTTP_ASK_H
#define KNI_TEST_HTTP_ASK_H

#include "support/http_bed.h"

/* Asks and hears one answer on a connection of its own. */
static inline struct peer_answer ask(struct bed *bed, const char *text)
{
    struct peer peer;
    struct peer_answer answer;
    assert_true(peer_try_open(&peer, kni_http_port(bed->http), 0));
    assert_true(peer_say(&peer, text));
    assert_true(peer_take_answer(&peer, &answer, !strncmp(text, "HEAD ", 5)));
    peer_close(&peer);
    return answer;
}

/* As ask, for the status and a part of the body. */
static inline void check(struct bed *bed, const char *text, unsigned status, const char *part)
{
    struct peer_answer answer = ask(bed, text);
    if (answer.status != status || (part && !strstr(answer.body, part)))
        print_error("asked:\n%.300s\ngot:\n%s%.500s\n", text, answer.head, answer.body);
    assert_int_equal(answer.status, status);
    if (part)
        assert_non_null(strstr(answer.body, part));
    peer_answer_fini(&answer);
}

#define H "HTTP/1.1\r\nHost: localhost\r\n"

#endif

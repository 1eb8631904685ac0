/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as what a client says to a running HTTP server with handlers that use what they get. The client then says
 * no more. The server must end the connection by itself within seconds, with nothing said or with answers that begin as HTTP
 * answers do; every 32nd time, and at the first, a good request must get its answer. Bytes after a 0xff 0xff are said in a
 * second piece, so that boundaries between reads are covered.
 */
#include <assert.h>

#include "support/http_bed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct bed bed;

static void check_alive(void)
{
    static struct peer peer;
    struct peer_answer answer;
    bool open = peer_try_open(&peer, kni_http_port(bed.http), 0);
    bool heard = open && peer_say(&peer, "POST /echo HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n\r\nok") &&
                 peer_take_answer(&peer, &answer, false);
    if (!heard || answer.status != 200 || strcmp(answer.body, "ok")) {
        fprintf(stderr, "a good request got no good answer\n");
        abort();
    }
    peer_answer_fini(&answer);
    peer_reset(&peer); /* no port in TIME_WAIT: they would run out */
}

static void check_answers(const char *heard, size_t n)
{
    size_t k = n < 9 ? n : 9;
    if (memcmp(heard, "HTTP/1.1 ", k) && memcmp(heard, "HTTP/1.0 ", k)) {
        fprintf(stderr, "an answer that is none: %.100s\n", heard);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned n_runs;
    static struct peer peer;
    static const struct kn_server_key key = {"k", NULL, NULL};
    const uint8_t *mark = memmem(data, size, "\xff\xff", 2);
    size_t first = mark ? (size_t)(mark - data) : size;
    ssize_t n = 0;
    if (!bed.http) {
        bed_open(&bed, &(struct kn_server_opts){.max_body_bytes = 4096, .max_header_bytes = 2048, .keys = &key, .n_keys = 1});
        for (int i = 0; i < 1000000; i++)
            sem_post(&bed.go); /* no handler waits */
    }
    if (n_runs++ % 32 == 0)
        check_alive();
    if (!peer_try_open(&peer, kni_http_port(bed.http), 0))
        abort();
    peer_say_bytes(&peer, data, first); /* may be cut short by an early answer */
    if (mark)
        peer_say_bytes(&peer, mark + 2, size - first - 2);
    shutdown(peer.fd, SHUT_WR);
    for (uint64_t total = 0; total < 100000 && (n = peer_hear(&peer)) > 0; total += (uint64_t)n) { /* one route has no end */
        check_answers(peer.heard, peer.n < 9 || total < 9 ? peer.n : 0);
        if (peer.n > sizeof peer.heard / 2)
            peer.n = 9; /* the beginning is checked; room for more */
    }
    if (n < 0 && errno != ECONNRESET) {
        fprintf(stderr, "the server does not end the connection\n");
        abort();
    }
    peer_reset(&peer);
    return 0;
}

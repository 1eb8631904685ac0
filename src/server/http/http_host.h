/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which names a request may be addressed to.
 *
 * A server without keys on somebody's own machine trusts whoever reaches it, and so must not be reached by web pages. Two ways lead
 * there. A page's own name can be made to resolve to 127.0.0.1 (DNS rebinding): its requests then carry that name in Host. And any page
 * may send simple requests to other origins, though it may not read the answers: these carry the page's Origin. So such a server
 * (listening on loopback, no keys) takes requests for names of this machine only:
 *
 *     localhost, 127.0.0.0/8, [::1], the address it was told to listen on, and names that the operator allows; any port
 *
 * as Host, as the authority of an absolute target, and within Origin, where the allowed origin is one more. A request without Host or
 * without Origin comes from no browser of today. Elsewhere, with keys or on other addresses, all names are taken: keys stop pages, and
 * the server cannot know what others call it. Pure; any thread.
 */
#ifndef KNI_SERVER_HTTP_HOST_H
#define KNI_SERVER_HTTP_HOST_H

#include <stdbool.h>
#include <stddef.h>

#define KNI_HTTP_MAX_HOST 255u

/* Whether an address such as "127.0.0.1:80", "[::1]" or "name:1" (n bytes) is for us. listening: what it was told to listen on, may be
 * NULL; allowed: names with commas between them, or NULL. */
bool kni_http_host_is_ours(const char *host, size_t n, const char *listening, const char *allowed);
/* The host of an origin or absolute URL "scheme://host...", n bytes of it; NULL: it has none. */
const char *kni_http_host_of(const char *url, size_t *n);
/* Whether names of that list can be hosts; *bad, *n_bad: the first that cannot. */
bool kni_http_hosts_are_good(const char *allowed, const char **bad, size_t *n_bad);

#endif

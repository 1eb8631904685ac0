/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of this machine; see http_host.h. What is not understood is not ours: addresses in other spellings ("127.1", "0x7f.1") are sent
 * by no browser, which writes them in full.
 */
#include "server/http/http_host.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* Splits n bytes "host[:digits]" into the host without brackets and without the root's dot. False: it is none. */
static bool split(const char *host, size_t n, char name[KNI_HTTP_MAX_HOST + 1], bool *ipv6)
{
    const char *end = host + n, *colon;
    *ipv6 = n && *host == '[';
    if (*ipv6) {
        const char *close = memchr(host, ']', n);
        if (!close)
            return false;
        host++;
        colon = close + 1;
        n = (size_t)(close - host);
    } else {
        colon = memchr(host, ':', n);
        colon = colon ? colon : end;
        n = (size_t)(colon - host);
    }
    if (colon < end && *colon++ != ':')
        return false;
    for (; colon < end; colon++)
        if (*colon < '0' || *colon > '9')
            return false;
    if (!*ipv6 && n > 1 && host[n - 1] == '.')
        n--;
    if (!n || n > KNI_HTTP_MAX_HOST)
        return false;
    for (size_t i = 0; i < n; i++)
        if (host[i] <= ' ' || host[i] == 127 || strchr("@/\\,?#[]%\"<>", host[i]))
            return false;
    memcpy(name, host, n);
    name[n] = '\0';
    return true;
}

static bool is_loopback(const char *name, bool ipv6)
{
    struct in6_addr six;
    struct in_addr four;
    if (ipv6)
        return inet_pton(AF_INET6, name, &six) == 1 &&
               (IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127));
    return !strcasecmp(name, "localhost") || (inet_pton(AF_INET, name, &four) == 1 && ntohl(four.s_addr) >> 24 == 127);
}

/* Whether both are the same host, however they are written: a list's names may be given with brackets. */
static bool equals(const char *name, bool ipv6, const char *other, size_t n)
{
    char theirs[KNI_HTTP_MAX_HOST + 1];
    struct in6_addr a, b;
    bool six;
    if (ipv6 && n && *other != '[' && n <= KNI_HTTP_MAX_HOST) { /* an address to listen on has none */
        memcpy(theirs, other, n);
        theirs[n] = '\0';
        six = true;
    } else if (!split(other, n, theirs, &six)) {
        return false;
    }
    if (ipv6)
        return six && inet_pton(AF_INET6, name, &a) == 1 && inet_pton(AF_INET6, theirs, &b) == 1 && !memcmp(&a, &b, sizeof a);
    return !six && !strcasecmp(name, theirs);
}

/* Of a list with commas; NULL: that was the last. */
static const char *next_name(const char *at)
{
    at = strchr(at, ',');
    return at ? at + 1 : NULL;
}

bool kni_http_host_is_ours(const char *host, size_t n, const char *listening, const char *allowed)
{
    char name[KNI_HTTP_MAX_HOST + 1];
    bool ipv6;
    if (!split(host, n, name, &ipv6))
        return false;
    if (is_loopback(name, ipv6) || (listening && equals(name, ipv6, listening, strlen(listening))))
        return true;
    for (const char *at = allowed; at; at = next_name(at))
        if (equals(name, ipv6, at, strcspn(at, ",")))
            return true;
    return false;
}

const char *kni_http_host_of(const char *url, size_t *n)
{
    const size_t n_scheme = strcspn(url, ":/?#");
    if (!n_scheme || strncmp(url + n_scheme, "://", 3))
        return NULL;
    url += n_scheme + 3;
    *n = strcspn(url, "/?#");
    return url;
}

bool kni_http_hosts_are_good(const char *allowed, const char **bad, size_t *n_bad)
{
    char name[KNI_HTTP_MAX_HOST + 1];
    bool ipv6;
    for (const char *at = allowed; at; at = next_name(at)) {
        *bad = at;
        *n_bad = strcspn(at, ",");
        const char *colon = *at == '[' ? memchr(at, ']', *n_bad) : at;
        if (!split(at, *n_bad, name, &ipv6) || (colon && memchr(colon, ':', *n_bad - (size_t)(colon - at))))
            return false; /* a port, too: any is taken */
    }
    return true;
}

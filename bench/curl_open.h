/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The border to libcurl, opened when the load generator begins: linked, it would bring nineteen shared objects into
 * every other command. Functions keep libcurl's names, as fields: curl->curl_easy_init().
 */
#ifndef KN_CURL_OPEN_H
#define KN_CURL_OPEN_H

/* Its macros call functions by name. What is passed must be long, curl_off_t or a pointer, as each option says. */
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

#define KN_CURL_SYMBOLS(x) \
    x(curl_easy_init) \
    x(curl_easy_setopt) \
    x(curl_easy_perform) \
    x(curl_easy_getinfo) \
    x(curl_easy_strerror) \
    x(curl_easy_cleanup) \
    x(curl_multi_init) \
    x(curl_multi_setopt) \
    x(curl_multi_add_handle) \
    x(curl_multi_perform) \
    x(curl_multi_poll) \
    x(curl_multi_info_read) \
    x(curl_multi_remove_handle) \
    x(curl_multi_cleanup) \
    x(curl_slist_append) \
    x(curl_slist_free_all)

struct kn_curl {
#define KN_CURL_POINTER(name) __typeof__(name) *name;
    KN_CURL_SYMBOLS(KN_CURL_POINTER)
#undef KN_CURL_POINTER
};

/* The table; the first call that succeeds loads it, and it stays. NULL when libcurl cannot be used, *why (or NULL)
 * says why (static). Any thread. */
const struct kn_curl *kn_curl_open(const char **why);

#endif

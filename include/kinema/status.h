/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes and error sentences.
 *
 * Every fallible function of Kinema returns an enum kn_status. Functions that open, load or parse also take an optional
 * struct kn_err, which receives one sentence that says what failed, where, and what to do. Hot paths return codes only.
 *
 * Our own bugs are assertions; the environment is a status; bytes from outside (files, wire, JSON, bitstreams) that make
 * no sense are KN_E_FORMAT and are never trusted.
 */
#ifndef KINEMA_STATUS_H
#define KINEMA_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KN_API __attribute__((visibility("default")))
#else
#define KN_API
#endif

/* name, value, message. Values are part of the ABI: append, never renumber. */
#define KN_STATUS_LIST(X)                                                    \
    X(OK, 0, "success")                                                      \
    X(AGAIN, 1, "nothing to return yet: run a step and ask again")           \
    X(END, 2, "no more items")                                               \
    X(E_ARG, 3, "an argument is out of range")                               \
    X(E_NOMEM, 4, "out of memory")                                           \
    X(E_IO, 5, "input or output failed")                                     \
    X(E_FORMAT, 6, "malformed or damaged data")                              \
    X(E_UNSUPPORTED, 7, "not supported by this build or machine")            \
    X(E_NOT_FOUND, 8, "not found")                                           \
    X(E_FULL, 9, "no space left")                                            \
    X(E_MISMATCH, 10, "data belongs to another model, version or setting")   \
    X(E_TIMEOUT, 11, "deadline passed")                                      \
    X(E_CANCELLED, 12, "cancelled")                                          \
    X(E_CONTEXT, 13, "longer than the model's context")                      \
    X(E_STATE, 14, "not allowed in this state")                             \
    X(E_NOT_FINITE, 15, "a computed value is infinite or not a number")      \
    X(E_CHANGED, 16, "a model file has changed on disk while it was in use")

enum kn_status {
#define KN_STATUS_ENUM(name, value, message) KN_##name = value,
    KN_STATUS_LIST(KN_STATUS_ENUM)
#undef KN_STATUS_ENUM
};

/* One sentence about a failure. The text is NUL-terminated and owned by the struct. Zero-initialise before use. */
struct kn_err {
    enum kn_status status;
    char text[508];
};

/* The code's name, such as "KN_E_IO". Static string, never NULL. Any thread. */
KN_API const char *kn_status_name(enum kn_status status);

/* The code's message in plain words. Static string, never NULL. Any thread. */
KN_API const char *kn_status_message(enum kn_status status);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file and the key file of `kinema serve`, and --print-config. */
#ifndef KN_SERVE_CONFIG_H
#define KN_SERVE_CONFIG_H

#include "serve_opts.h"

/* Reads a JSON object of settings; opts keeps it, for its strings. Without the keys in it where skip_keys. KN_APP_EXIT_OK, or FAILED
 * after a message that names file and setting. */
int kn_serve_config_read(struct kn_serve_opts *opts, const char *path, bool skip_keys);
/* Adds the tenants of a key file: a line each, KEY [NAME [SALT]]. KN_APP_EXIT_OK, or FAILED after a message. */
int kn_serve_keys_read(struct kn_serve_opts *opts, const char *path);
/* Prints what is in force as a configuration file, keys masked. False: the file cannot be written. */
bool kn_serve_config_print(const struct kn_serve_opts *opts, FILE *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The options of HEVC encoders (struct kn_hevc_opts), which several subcommands take under the same names. */
#ifndef KN_HEVC_OPTS_H
#define KN_HEVC_OPTS_H

#include "app.h"

/* Values of getopt_long's options, far from those of the commands. */
enum { KN_APP_OPT_HEVC_ENCODER = 0x4801, KN_APP_OPT_HEVC_TOOLS, KN_APP_OPT_HEVC_SLICES };
/* Entries of a getopt_long table. */
#define KN_APP_HEVC_OPTIONS                                        \
    {"hevc-encoder", required_argument, NULL, KN_APP_OPT_HEVC_ENCODER}, \
    {"hevc-tools", required_argument, NULL, KN_APP_OPT_HEVC_TOOLS},     \
    {"hevc-slices", required_argument, NULL, KN_APP_OPT_HEVC_SLICES}

/* Takes one of these options. 0, or KN_APP_EXIT_USAGE after a message of the command. */
int kn_app_hevc_option(const char *command, int option, const char *text, struct kn_hevc_opts *out);
/* Whether any was given. */
bool kn_app_hevc_given(const struct kn_hevc_opts *opts);

/* "kinema", "x265-ultrafast", "x265-medium": the encoder that opts choose. */
const char *kn_app_hevc_encoder_name(const struct kn_hevc_opts *opts);
/* "full" or "basic": those that streams may use; x265 uses basic ones only. */
const char *kn_app_hevc_tools_name(const struct kn_hevc_opts *opts);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* kinema codec inspect: see cmd_codec_inspect.c. */
#ifndef KN_CMD_CODEC_INSPECT_H
#define KN_CMD_CODEC_INSPECT_H

#include "app.h"

/* argv[0] is "inspect". Returns the exit status. */
int kn_cmd_codec_inspect(int argc, char **argv);

#endif

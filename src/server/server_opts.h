/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that kinema/server.h promises for a zero, in one place: the server has them filled in, and so has http by itself. */
#ifndef KNI_SERVER_SERVER_OPTS_H
#define KNI_SERVER_SERVER_OPTS_H

#include "kinema/server.h"

/* Fills in limits and timeouts that are zero; what is filled in already stays. */
void kni_server_opts_fill(struct kn_server_opts *opts);

#endif

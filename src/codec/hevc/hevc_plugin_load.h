/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds and loads the encoder plugin (hevc_plugin.h). Any thread.
 */
#ifndef KNI_CODEC_HEVC_PLUGIN_LOAD_H
#define KNI_CODEC_HEVC_PLUGIN_LOAD_H

#include "base/status.h"
#include "codec/hevc/hevc_plugin.h"

/* The plugin, loaded by the first call and never unloaded. KN_E_UNSUPPORTED with a sentence when it is missing or of another
 * version; a later call looks again. */
enum kn_status kni_hevc_plugin_load(const struct kn_hevc_plugin **out, struct kn_err *err);

#endif

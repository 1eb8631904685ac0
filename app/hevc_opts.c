/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing of --hevc-encoder, --hevc-tools and --hevc-slices; see hevc_opts.h. Names are in the order of the enums. */
#include "hevc_opts.h"

static const char *const encoders[] = {"kinema", "x265-ultrafast", "x265-medium"}, *const tools[] = {"full", "basic"};

int kn_app_hevc_option(const char *command, int option, const char *text, struct kn_hevc_opts *out)
{
    int i;
    switch (option) {
    case KN_APP_OPT_HEVC_ENCODER:
        if ((i = kn_app_parse_name(text, encoders, 3)) < 0)
            return kn_app_usage_error(command, "--hevc-encoder takes kinema, x265-ultrafast or x265-medium, not \"%s\"", text);
        out->encoder = (enum kn_hevc_encoder)(KN_HEVC_ENCODER_KINEMA + i);
        return 0;
    case KN_APP_OPT_HEVC_TOOLS:
        if ((i = kn_app_parse_name(text, tools, 2)) < 0)
            return kn_app_usage_error(command, "--hevc-tools takes full or basic, not \"%s\"", text);
        out->tools = (enum kn_hevc_tools)(KN_HEVC_TOOLS_FULL + i);
        return 0;
    default:
        if (!kn_app_parse_u32(text, 1, 64, &out->n_slices))
            return kn_app_usage_error(command, "--hevc-slices takes 1 to 64 slices a picture, not \"%s\"", text);
        return 0;
    }
}

bool kn_app_hevc_given(const struct kn_hevc_opts *opts)
{
    return opts->encoder || opts->tools || opts->n_slices;
}

const char *kn_app_hevc_encoder_name(const struct kn_hevc_opts *opts)
{
    return encoders[opts->encoder ? opts->encoder - KN_HEVC_ENCODER_KINEMA : 0];
}

const char *kn_app_hevc_tools_name(const struct kn_hevc_opts *opts)
{
    if (opts->encoder > KN_HEVC_ENCODER_KINEMA)
        return tools[1];
    return tools[opts->tools ? opts->tools - KN_HEVC_TOOLS_FULL : 0];
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presets by name, and where a model's profile is found when none is named: the file that `make demo` leaves in the cache folder,
 * called by the model's fingerprint, so that it can only be that model's.
 */
#include "app.h"

#include "kinema/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const kn_app_preset_names[KN_APP_N_PRESETS] = {"default", "exact", "tiles", "fine", "medium", "small"};

bool kn_app_preset_needs_profile(enum kn_preset preset)
{
    return preset == KN_PRESET_FINE || preset == KN_PRESET_MEDIUM || preset == KN_PRESET_SMALL;
}

bool kn_app_default_profile(const struct kn_model *model, char *out, size_t out_bytes)
{
    const char *named = getenv("KINEMA_PROFILE"), *path, *why;
    if (named && *named) {
        path = kn_app_expand(named, &why);
        int n = snprintf(out, out_bytes, "%s", path ? path : named); /* whoever opens it says what is wrong with it */
        return n > 0 && (size_t)n < out_bytes;
    }
    char file[64], hex[33];
    kn_app_hex(kn_model_info(model)->fingerprint, hex);
    snprintf(file, sizeof file, "profiles/%s.knp", hex);
    return kn_app_cache_path(file, out, out_bytes) && !access(out, R_OK);
}

bool kn_app_settle_preset(struct kn_engine_opts *opts, const struct kn_model *model, char *path, size_t path_bytes, struct kn_err *err)
{
    if (opts->preset == KN_PRESET_DEFAULT)
        opts->preset = opts->profile_path ? KN_PRESET_MEDIUM : KN_PRESET_EXACT;
    if (!kn_app_preset_needs_profile(opts->preset))
        return true;
    if (!opts->profile_path && kn_app_default_profile(model, path, path_bytes))
        opts->profile_path = path;
    if (opts->profile_path)
        return true;
    err->status = KN_E_ARG;
    snprintf(err->text, sizeof err->text,
             "preset %s needs a profile of the model and there is none: build one with `kinema profile build` and give it with --profile",
             kn_app_preset_names[opts->preset]);
    return false;
}

void kn_app_say_preset(const char *command, const struct kn_engine_opts *opts, const struct kn_model *model, bool by_default)
{
    struct kn_profile_info info = {.size = sizeof info};
    char path[4096];
    if (kn_app_preset_needs_profile(opts->preset) && by_default)
        fprintf(stderr, "kinema %s: the store is used with preset %s, which is lossy (profile %s); --preset exact returns the cache bit for bit\n",
                command, kn_app_preset_names[opts->preset], opts->profile_path);
    else if (opts->preset == KN_PRESET_EXACT && by_default && kn_app_default_profile(model, path, sizeof path) &&
             kn_profile_read_info(path, &info, NULL) == KN_OK && !memcmp(info.fingerprint, kn_model_info(model)->fingerprint, sizeof info.fingerprint))
        fprintf(stderr, "kinema %s: the store keeps the cache bit for bit; --preset medium would store %.0fx fewer bytes, but is lossy (profile %s)\n",
                command, (double)info.presets[1].ratio, path);
}

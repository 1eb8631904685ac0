/* SPDX-License-Identifier: Apache-2.0 */
/* What architectures share: metadata and tensors by name, each checked, each failure named. */
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

static bool full_key(const struct kni_model_load *load, const char *key, char out[160])
{
    int n = snprintf(out, 160, "%s.%s", load->prefix, key);
    return n > 0 && n < 160;
}

static enum kn_status missing(const struct kni_model_load *load, const char *key)
{
    return kni_err_set(load->err, KN_E_FORMAT, "%s: key %s is missing; convert the model again", load->gguf->path, key);
}

enum kn_status kni_arch_get_u32(struct kni_model_load *load, const char *key, uint32_t low, uint32_t high, bool required, uint32_t *out)
{
    char full[160];
    uint32_t value;
    if (!full_key(load, key, full))
        return KN_E_ARG;
    enum kn_status status = kni_gguf_get_u32(load->gguf, full, &value, load->err);
    if (status == KN_E_NOT_FOUND)
        return required ? missing(load, full) : KN_OK;
    if (status != KN_OK)
        return status;
    if (value < low || value > high)
        return kni_err_set(load->err, KN_E_FORMAT, "%s: %s is %u, outside %u..%u; the file is damaged or not for Kinema", load->gguf->path, full, value, low,
                           high);
    *out = value;
    return KN_OK;
}

enum kn_status kni_arch_get_f32(struct kni_model_load *load, const char *key, float low, float high, bool required, float *out)
{
    char full[160];
    float value;
    if (!full_key(load, key, full))
        return KN_E_ARG;
    enum kn_status status = kni_gguf_get_f32(load->gguf, full, &value, load->err);
    if (status == KN_E_NOT_FOUND)
        return required ? missing(load, full) : KN_OK;
    if (status != KN_OK)
        return status;
    if (!(value > low && value <= high)) /* NaN fails too */
        return kni_err_set(load->err, KN_E_FORMAT, "%s: %s is %g, outside %g..%g; the file is damaged or not for Kinema", load->gguf->path, full,
                           (double)value, (double)low, (double)high);
    *out = value;
    return KN_OK;
}

enum kn_status kni_arch_refuse(struct kni_model_load *load, const char *key, const char *what)
{
    char full[160];
    uint32_t value = 0;
    if (!full_key(load, key, full))
        return KN_E_ARG;
    enum kn_status status = kni_gguf_get_u32(load->gguf, full, &value, load->err);
    if (status == KN_E_NOT_FOUND || (status == KN_OK && !value))
        return KN_OK;
    if (status != KN_OK)
        return status;
    return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: %s is %u, but Kinema does not compute %s; use another model", load->gguf->path, full, value, what);
}

enum kn_status kni_arch_get_tensor(struct kni_model_load *load, const char *name, uint64_t n_in, uint64_t n_out, bool required,
                                   const struct kni_tensor **out)
{
    const struct kni_gguf *g = load->gguf;
    const struct kni_tensor *t = kni_gguf_find_tensor(g, name);
    *out = NULL;
    if (!t && required)
        return kni_err_set(load->err, KN_E_FORMAT, "%s: tensor %s is missing; the file is incomplete, convert the model again", g->path, name);
    if (!t)
        return KN_OK;
    uint64_t rows = n_out ? n_out : 1;
    if (t->ne[0] != n_in || t->ne[1] != rows || t->ne[2] != 1 || t->ne[3] != 1)
        return kni_err_set(load->err, KN_E_FORMAT, "%s: tensor %s has shape [%llu, %llu, %llu, %llu] where the metadata asks for [%llu, %llu]; convert the model again",
                           g->path, name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                           (unsigned long long)t->ne[3], (unsigned long long)n_in, (unsigned long long)rows);
    if (!n_out && t->type != KNI_DTYPE_F32)
        return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: vector %s has type %s, only F32 is supported; convert the model again", g->path, name,
                           kni_dtype_name(t->type));
    load->used[t - g->tensors] = true;
    *out = t;
    return KN_OK;
}

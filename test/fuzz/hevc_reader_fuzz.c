/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: an Annex B stream for the reader of HEVC, which rebuilds its pictures. Small pictures only; whatever it accepts must add up.
 */
#include <stdlib.h>

#include "measure/reader/hevc_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen { struct kn_hevc_params params; uint64_t n_bytes; uint32_t n_slices, n_pictures; volatile uint32_t sum; };

static enum kn_status on_params(void *user, const struct kn_hevc_params *params, struct kn_err *err)
{
    (void)err;
    ((struct seen *)user)->params = *params;
    return KN_OK;
}

static enum kn_status on_slice(void *user, const struct kn_hevc_slice *slice, struct kn_err *err)
{
    struct seen *s = user;
    (void)err;
    if (slice->first_row + slice->n_rows > s->params.height || slice->header_bytes > slice->n_bytes)
        abort();
    s->n_slices++;
    return KN_OK;
}

static enum kn_status on_picture(void *user, const struct kn_hevc_picture *picture, const struct kni_hevc_rebuilt *rebuilt, struct kn_err *err)
{
    struct seen *s = user;
    (void)err;
    if (picture->index != s->n_pictures++ || !rebuilt->plane[0] != !!rebuilt->why)
        abort();
    s->n_bytes += picture->n_bytes;
    for (uint32_t k = 0; k < 3 && rebuilt->plane[k]; k++)
        for (uint32_t y = 0; y < s->params.height; y++)
            s->sum += rebuilt->plane[k][y * rebuilt->stride] +
                      rebuilt->plane[k][y * rebuilt->stride + s->params.width - 1]; /* both ends must be readable */
    return KN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen s = {0};
    struct kn_err err = {0};
    struct kni_hevc_reader *r = NULL;
    struct kn_hevc_stream end;
    struct kni_hevc_reader_opts opts = {
        .rebuild = true, .max_samples = 128 * 128, .on_params = on_params, .on_slice = on_slice, .on_picture = on_picture, .user = &s};
    if (kni_hevc_reader_open(&r, &opts, &err) != KN_OK)
        return 0;
    enum kn_status status = kni_hevc_reader_read(r, data, size, &err);
    if (status == KN_OK)
        status = kni_hevc_reader_end(r, &end, &err);
    if (status != KN_OK ? !err.text[0] || (status != KN_E_FORMAT && status != KN_E_UNSUPPORTED && status != KN_E_NOMEM)
                        : end.n_pictures != s.n_pictures || end.n_slices != s.n_slices || end.n_bytes != size || s.n_bytes > size)
        abort();
    kni_hevc_reader_close(&r);
    return 0;
}

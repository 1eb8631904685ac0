/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libx265 behind codec/hevc/hevc_plugin.h. Built as a module of its own that Kinema opens at run time; it includes nothing of
 * Kinema but that header.
 *
 * Settings aim at cheap decoding and cheap encoding of noise-like lossless pictures: one I picture, then P pictures with one
 * reference, no lookahead, no threads inside (Kinema codes streams side by side), no filters, no SEI. For ultrafast, coding units
 * are 16 x 16 with rdLevel 1: on the first 256 tokens of SmolLM2's KV, 16 tokens a picture, that gave a ratio of 3.390 at 760 tokens/s of
 * CPU time, against 3.397 at about 320 with units down to 8 x 8 and the preset's rdLevel 2; 32 x 32 with units down to 16 gave
 * 3.396 at 400-500. Motion search, merge candidates and fast intra left the size alone. Decoding speed differed by less than
 * its noise (a busy machine, single runs, +-15 %).
 *
 * medium is there to be compared with at its best, so what it searches is left as x265 has it, but for the size of its coding
 * trees. Of 64, 32 and 16, 32 was the smallest on every picture tried and faster than 64 (which needs pictures that large):
 *
 *     bytes of one picture     ultrafast     medium 64     medium 32     medium 16
 *     medium K, 256 x 784        104,708       103,750       103,710       104,232
 *     medium V, 256 x 992        130,414       129,281       129,232       130,084
 *     fine K, 256 x 1104          43,768        43,076        43,058        43,621
 *     tiles V, 16 of 48 x 64     100,445             -        99,127        99,828
 *
 * psyRd, rdLevel 4, temporal motion candidates and deeper transform trees changed these by 0.3 % at most, both ways.
 *
 * x265.h asks for one size of coding trees in a process. x265 3.5 keeps it in each encoder: ultrafast and medium opened together
 * and fed in turn give the bytes that each gives alone (hevc_plugin_test). One thread at a time an encoder.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <x265.h>

#include "codec/hevc/hevc_plugin.h"

struct encoder {
    const x265_api *api;
    x265_param *param;
    x265_picture *picture;
    x265_encoder *x265;
    int64_t n_in;
};

static void plugin_close(void *opaque)
{
    struct encoder *e = opaque;
    if (!e)
        return;
    if (e->x265)
        e->api->encoder_close(e->x265);
    if (e->picture)
        e->api->picture_free(e->picture);
    if (e->param)
        e->api->param_free(e->param);
    free(e);
}

static void configure(const x265_api *api, x265_param *p, const struct kn_hevc_params *want)
{
    api->param_default_preset(p, want->preset, NULL);
    p->logLevel = X265_LOG_NONE;
    p->sourceWidth = (int)want->width;
    p->sourceHeight = (int)want->height;
    p->internalCsp = X265_CSP_I444;
    p->fpsNum = 25;
    p->fpsDenom = 1;
    p->bEnableWavefront = 0; /* with no other pool feature on, x265 makes no thread pool */
    p->frameNumThreads = 1;
    p->lookaheadThreads = 0;
    p->bframes = 0;
    p->bBPyramid = 0;
    p->bFrameAdaptive = 0;
    p->maxNumReferences = 1;
    p->keyframeMax = -1; /* only where we say so */
    p->scenecutThreshold = 0;
    p->bOpenGOP = 0;
    p->lookaheadDepth = 0;
    p->rc.cuTree = 0;
    p->rc.aqMode = X265_AQ_NONE;
    p->bEnableLoopFilter = 0;
    p->bEnableSAO = 0;
    p->bEnableWeightedPred = 0;
    p->bRepeatHeaders = 1;
    p->bAnnexB = 1;
    p->bEmitInfoSEI = 0;
    p->bEmitHRDSEI = 0;
    p->bEnableAccessUnitDelimiters = 0;
    p->bLossless = 1;
    if (strcmp(want->preset, "ultrafast")) {
        p->maxCUSize = want->width < 32 || want->height < 32 ? 16 : 32;
        p->maxTUSize = p->maxCUSize;
        return;
    }
    p->maxCUSize = 16;
    p->minCUSize = 16;
    p->rdLevel = 1;
    p->maxTUSize = 16;
    p->bEnableStrongIntraSmoothing = 0;
    p->bEnableTemporalMvp = 0;
    p->psyRd = 0;
    p->psyRdoq = 0;
}

/* Guards x265's process-wide tables, which the first encoder builds. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

static enum kn_hevc_result plugin_open(void **out, const struct kn_hevc_params *params)
{
    *out = NULL;
    const x265_api *api = x265_api_get(8);
    if (!api || !params->preset || (strcmp(params->preset, "ultrafast") && strcmp(params->preset, "medium")))
        return KN_HEVC_RESULT_FAILED;
    struct encoder *e = calloc(1, sizeof *e);
    if (!e)
        return KN_HEVC_RESULT_NOMEM;
    e->api = api;
    e->param = api->param_alloc();
    e->picture = api->picture_alloc();
    if (!e->param || !e->picture) {
        plugin_close(e);
        return KN_HEVC_RESULT_NOMEM;
    }
    configure(api, e->param, params);
    if (api->param_apply_profile(e->param, "main444-8") == 0) {
        pthread_mutex_lock(&open_lock);
        e->x265 = api->encoder_open(e->param);
        pthread_mutex_unlock(&open_lock);
    }
    if (!e->x265) {
        plugin_close(e);
        return KN_HEVC_RESULT_FAILED;
    }
    *out = e;
    return KN_HEVC_RESULT_OK;
}

static enum kn_hevc_result plugin_encode(void *opaque, int first, const uint8_t *const planes[3], const size_t strides[3], struct kn_hevc_unit *unit)
{
    struct encoder *e = opaque;
    x265_nal *nals;
    uint32_t n_nals = 0;
    *unit = (struct kn_hevc_unit){0};
    e->api->picture_init(e->param, e->picture);
    for (int i = 0; i < 3; i++) {
        e->picture->planes[i] = (void *)(uintptr_t)planes[i]; /* x265 only reads it, and copies */
        e->picture->stride[i] = (int)strides[i];
    }
    e->picture->bitDepth = 8;
    e->picture->pts = e->n_in++;
    e->picture->sliceType = first ? X265_TYPE_IDR : X265_TYPE_P;
    /* No lookahead, no B pictures, one frame thread, one slice: x265 then returns each picture at once. */
    if (e->api->encoder_encode(e->x265, &nals, &n_nals, e->picture, NULL) != 1 || !n_nals)
        return KN_HEVC_RESULT_FAILED;
    unit->bytes = nals[0].payload; /* x265 promises that the payloads follow each other in memory */
    for (uint32_t i = 0; i < n_nals; i++)
        unit->n_bytes += nals[i].sizeBytes;
    return KN_HEVC_RESULT_OK;
}

__attribute__((visibility("default"))) const struct kn_hevc_plugin *kn_hevc_plugin(void);

const struct kn_hevc_plugin *kn_hevc_plugin(void)
{
    static const struct kn_hevc_plugin plugin = {
        .abi_version = KN_HEVC_PLUGIN_ABI,
        .struct_bytes = sizeof plugin,
        .name = "libx265 (lossless)",
        .open = plugin_open,
        .encode = plugin_encode,
        .close = plugin_close,
    };
    return &plugin;
}

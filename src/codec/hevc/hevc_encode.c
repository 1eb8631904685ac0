/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the encoder plugin and turns pictures into a section. The plugin is looked for next to the file that holds this
 * code (libkinema.so or the program), one folder above, then by the loader, which also knows the program's run path. It stays
 * loaded: x265 keeps global state.
 */
#include "codec/hevc/hevc_encode.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/le.h"
#include "codec/hevc/hevc_plugin.h"

#define PLUGIN_FILE "libkinema_x265.so"

struct kni_hevc_encoder {
    const struct kn_hevc_plugin *plugin;
    void *stream; /* the plugin's encoder, kept for streams of the same size */
    uint32_t width, height;
    uint32_t n_pictures, n_units;
    uint32_t *unit_bytes; /* n_pictures sizes */
    size_t unit_capacity;
    uint8_t *payload;
    size_t payload_bytes, payload_capacity;
};

/* Guards nothing but the one load: plugin is written once under it and only read afterwards. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct kn_hevc_plugin *loaded;

static void *open_in(const char *folder, int folder_bytes, const char *below)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%.*s%s%s", folder_bytes, folder, below, PLUGIN_FILE);
    return n > 0 && (size_t)n < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_library(void)
{
    Dl_info here;
    char program[4096];
    const char *file = dladdr((const void *)&load_lock, &here) ? here.dli_fname : NULL;
    if (!file || !strchr(file, '/')) { /* a program found through PATH is known by its bare name only */
        ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
        program[n > 0 ? n : 0] = 0;
        file = program;
    }
    const char *slash = strrchr(file, '/');
    void *library = NULL;
    if (slash)
        library = open_in(file, (int)(slash - file), "/");
    if (slash && !library) /* programs in a folder below, such as tests */
        library = open_in(file, (int)(slash - file), "/../");
    return library ? library : dlopen(PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
}

static enum kn_status load_plugin(const struct kn_hevc_plugin **out, struct kn_err *err)
{
    enum kn_status s = KN_OK;
    pthread_mutex_lock(&load_lock);
    if (!loaded) {
        void *library = open_library();
        kn_hevc_plugin_fn get = NULL;
        if (library) {
            void *symbol = dlsym(library, KN_HEVC_PLUGIN_SYMBOL);
            memcpy(&get, &symbol, sizeof get); /* ISO C has no cast from object to function pointers */
        }
        const struct kn_hevc_plugin *plugin = get ? get() : NULL;
        if (!library)
            s = kni_err_set(err, KN_E_UNSUPPORTED, "preset tiles and backend hevc need the HEVC encoder plugin " PLUGIN_FILE
                            " next to kinema: install libx265 (libx265-dev) and build with KN_X265=ON, or use preset exact or backend rans");
        else if (!plugin || plugin->abi_version != KN_HEVC_PLUGIN_ABI || plugin->struct_bytes != sizeof *plugin)
            s = kni_err_set(err, KN_E_UNSUPPORTED, PLUGIN_FILE " is of another version than this Kinema: build both together");
        else
            loaded = plugin;
    }
    *out = loaded;
    pthread_mutex_unlock(&load_lock);
    return s;
}

uint32_t kni_hevc_encoder_tools(const struct kn_hevc_opts *opts)
{
    return opts->encoder <= KN_HEVC_ENCODER_KINEMA && opts->tools != KN_HEVC_TOOLS_BASIC ? KNI_HEVC_TOOLS_ALL : KNI_HEVC_TOOLS_BASIC;
}

enum kn_status kni_hevc_encoder_open(struct kni_hevc_encoder **out, const struct kn_hevc_opts *opts, enum kni_hevc_content content, struct kn_err *err)
{
    (void)opts;
    (void)content;
    *out = NULL;
    const struct kn_hevc_plugin *plugin;
    enum kn_status s = load_plugin(&plugin, err);
    if (s != KN_OK)
        return s;
    struct kni_hevc_encoder *e = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *e, 0);
    if (!e)
        return kni_err_set(err, KN_E_NOMEM, "no memory for an HEVC encoder");
    e->plugin = plugin;
    *out = e;
    return KN_OK;
}

static void end_stream(struct kni_hevc_encoder *e)
{
    e->plugin->close(e->stream);
    e->stream = NULL;
}

void kni_hevc_encoder_close(struct kni_hevc_encoder **encoder)
{
    struct kni_hevc_encoder *e = *encoder;
    if (!e)
        return;
    end_stream(e);
    kni_free(e->unit_bytes);
    kni_free(e->payload);
    kni_free(e);
    *encoder = NULL;
}

size_t kni_hevc_encoder_bytes(const struct kni_hevc_encoder *e)
{
    return e ? sizeof *e + e->unit_capacity * sizeof *e->unit_bytes + e->payload_capacity : 0;
}

static enum kn_status no_memory(struct kn_err *err)
{
    return kni_err_set(err, KN_E_NOMEM, "no memory while encoding HEVC");
}

static enum kn_status plugin_status(const struct kni_hevc_encoder *e, enum kn_hevc_result r, const char *what, struct kn_err *err)
{
    if (r == KN_HEVC_RESULT_OK)
        return KN_OK;
    if (r == KN_HEVC_RESULT_NOMEM)
        return no_memory(err);
    return kni_err_set(err, KN_E_UNSUPPORTED, "%s could not %s", e->plugin->name, what);
}

enum kn_status kni_hevc_encode_begin(struct kni_hevc_encoder *e, uint32_t width, uint32_t height, uint32_t n_pictures, const uint16_t *row_scale,
                                     struct kn_err *err)
{
    (void)row_scale;
    assert(n_pictures >= 1 && width % 16 == 0 && height % 16 == 0);
    e->n_pictures = n_pictures;
    e->n_units = 0;
    e->payload_bytes = 0;
    if (n_pictures > e->unit_capacity) {
        kni_free(e->unit_bytes);
        e->unit_capacity = 0;
        e->unit_bytes = kni_alloc(KNI_ALLOC_TAG_CODEC, n_pictures * sizeof *e->unit_bytes, 0);
        if (!e->unit_bytes)
            return no_memory(err);
        e->unit_capacity = n_pictures;
    }
    if (e->stream && e->width == width && e->height == height)
        return KN_OK;
    end_stream(e);
    e->width = width;
    e->height = height;
    struct kn_hevc_params params = {.width = width, .height = height};
    return plugin_status(e, e->plugin->open(&e->stream, &params), "open an encoder for this picture size", err);
}

static enum kn_status keep_unit(struct kni_hevc_encoder *e, const struct kn_hevc_unit *unit, struct kn_err *err)
{
    if (unit->n_bytes > UINT32_MAX)
        return kni_err_set(err, KN_E_UNSUPPORTED, "%s returned an access unit of %zu bytes", e->plugin->name, unit->n_bytes);
    size_t need = e->payload_bytes + unit->n_bytes;
    if (need > e->payload_capacity) {
        size_t grown = need + need / 2;
        uint8_t *payload = kni_realloc(KNI_ALLOC_TAG_CODEC, e->payload, grown);
        if (!payload)
            return no_memory(err);
        e->payload = payload;
        e->payload_capacity = grown;
    }
    memcpy(e->payload + e->payload_bytes, unit->bytes, unit->n_bytes);
    e->payload_bytes = need;
    e->unit_bytes[e->n_units++] = (uint32_t)unit->n_bytes;
    return KN_OK;
}

enum kn_status kni_hevc_encode_picture(struct kni_hevc_encoder *e, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    assert(e->stream && e->n_units < e->n_pictures);
    struct kn_hevc_unit unit = {0};
    enum kn_status s = plugin_status(e, e->plugin->encode(e->stream, e->n_units == 0, planes, strides, &unit), "encode a picture", err);
    if (s == KN_OK)
        s = keep_unit(e, &unit, err);
    if (s != KN_OK)
        end_stream(e);
    return s;
}

enum kn_status kni_hevc_encode_end(struct kni_hevc_encoder *e, struct kni_container_writer *w, struct kn_err *err)
{
    assert(e->n_units == e->n_pictures);
    size_t table = 4 + 4 * (size_t)e->n_pictures;
    uint8_t *room = kni_container_writer_reserve(w, table + e->payload_bytes);
    if (!room)
        return no_memory(err);
    kni_le32_put(room, e->n_pictures);
    for (uint32_t i = 0; i < e->n_pictures; i++)
        kni_le32_put(room + 4 + 4 * (size_t)i, e->unit_bytes[i]);
    memcpy(room + table, e->payload, e->payload_bytes);
    kni_container_writer_commit(w, table + e->payload_bytes);
    return KN_OK;
}

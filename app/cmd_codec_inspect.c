/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema codec inspect FILE: where the bits of lossless HEVC go, by syntax element, by plane and by row band; of a stream in a file,
 * or of every HEVC section of a chunk. Results on stdout: tables, or one JSON object a stream and line.
 * Exit status: 0 done, 1 failed, 2 used wrongly.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cmd_codec_inspect.h"

struct args { const char *file; uint32_t band_rows, picture; bool one_picture, json, help; };

static const char help_text[] =
    "usage: kinema codec inspect FILE [options]\n\n"
    "  Where the bits of lossless HEVC go: headers and tools, pictures and slices with their sizes, bits of each class of syntax\n"
    "  elements, and of each band of rows; and whether the stream keeps to the level that it declares. FILE is an Annex B stream\n"
    "  (.h265) or a chunk as stores hold it; - is standard input.\n"
    "  Bits are what an ideal arithmetic coder would spend; they come within some tenths of a percent of the bytes.\n\n"
    "      --rows N         rows of a band, a multiple of 4 (16)\n"
    "      --picture N      bits of this picture only, counted from 0 (all pictures together)\n"
    "      --json           one JSON object a line and stream\n"
    "  -h, --help           this text\n";

/* What callbacks gather. Only one stream is told about at a time. */
struct telling {
    const struct args *args;
    json_t *object, *pictures, *slices; /* json */
    const struct kn_hevc_stream *stream;
    struct kn_hevc_params params;
    struct kn_hevc_counts counts; /* of the picture that was asked for */
    struct kn_hevc_counts *bands;
    uint32_t n_bands;
    bool found, no_memory;
    char line[160];               /* sizes of a picture's slices, as far as they fit */
};

static double bits_of(const struct kn_hevc_counts *c)
{
    double bits = 0;
    for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++)
        bits += c->element[e].bits;
    return bits;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* ---- the head of a stream */

static const struct {
    uint32_t bit;
    const char *name;
} tools[] = {{1, "transform_skip_context"}, {2, "implicit_rdpcm"}, {4, "explicit_rdpcm"}, {8, "persistent_rice_adaptation"}};

struct flag { const char *name; bool on; };

static uint32_t flags_of(const struct kn_hevc_params *p, struct flag out[16])
{
    const struct flag all[] = {{"amp", p->amp}, {"sao", p->sao}, {"deblocking", p->deblocking}, {"strong_intra_smoothing", p->strong_intra_smoothing},
                               {"temporal_mvp", p->temporal_mvp}, {"sign_data_hiding", p->sign_hiding}, {"weighted_pred", p->weighted_pred},
                               {"wavefront", p->wavefront}, {"cu_qp_delta", p->cu_qp_delta}, {"constrained_intra_pred", p->constrained_intra}};
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}

static void print_begin(const struct telling *t, const struct kn_hevc_stream *s)
{
    const struct kn_hevc_params *p = &s->params;
    struct flag flags[16];
    if (s->section)
        printf("%s %" PRIu32 "\n", s->section, s->index);
    else
        printf("%s\n", t->args->file);
    printf("pictures  %" PRIu32 " x %" PRIu32 ", 8-bit 4:4:4, shown %" PRIu32 " x %" PRIu32 "; profile %" PRIu32 ", level %.1f, %s tier\n", p->width,
           p->height, p->width - p->window_right, p->height - p->window_bottom, p->profile_idc, p->level_idc / 30.0, p->high_tier ? "high" : "main");
    printf("blocks    coding tree %" PRIu32 ", coding units from %" PRIu32 ", transforms %" PRIu32 " to %" PRIu32 ", depth %" PRIu32
           " intra, %" PRIu32 " inter\n",
           p->ctu, p->min_cu, p->min_tu, p->max_tu, p->depth_intra, p->depth_inter);
    printf("tools    ");
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (p->tools & tools[i].bit)
            printf(" %s", tools[i].name);
    printf("%s\nflags    ", p->tools ? "" : " none of the range extensions'");
    bool any = false;
    for (uint32_t i = 0, n = flags_of(p, flags); i < n; i++) {
        if (flags[i].on)
            printf(" %s", flags[i].name);
        any |= flags[i].on;
    }
    printf("%s\n\n%7s %4s %10s %8s  %s\n", any ? "" : " none", "picture", "type", "bytes", "bits/sym", "slices, bytes");
}

static json_t *json_begin(const struct telling *t, const struct kn_hevc_stream *s)
{
    const struct kn_hevc_params *p = &s->params;
    struct flag flags[16];
    json_t *names = json_array(), *on = json_array();
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (p->tools & tools[i].bit)
            json_array_append_new(names, json_string(tools[i].name));
    for (uint32_t i = 0, n = flags_of(p, flags); i < n; i++)
        if (flags[i].on)
            json_array_append_new(on, json_string(flags[i].name));
    json_t *params = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "width", (json_int_t)p->width, "height",
                               (json_int_t)p->height, "window_right", (json_int_t)p->window_right, "window_bottom", (json_int_t)p->window_bottom,
                               "profile_idc", (json_int_t)p->profile_idc, "level_idc", (json_int_t)p->level_idc, "ctu", (json_int_t)p->ctu, "min_cu",
                               (json_int_t)p->min_cu, "min_tu", (json_int_t)p->min_tu, "max_tu", (json_int_t)p->max_tu, "depth_intra",
                               (json_int_t)p->depth_intra, "depth_inter", (json_int_t)p->depth_inter, "tools", names, "flags", on);
    json_object_set_new(params, "tier", json_string(p->high_tier ? "high" : "main"));
    json_object_set_new(params, "pcm_min", json_integer((json_int_t)p->pcm_min));
    json_object_set_new(params, "pcm_max", json_integer((json_int_t)p->pcm_max));
    return json_pack("{s:o, s:o, s:I, s:o}", "file", kn_app_json_text(t->args->file, strlen(t->args->file)), "section",
                     s->section ? json_string(s->section) : json_null(), "index", (json_int_t)s->index, "params", params);
}

static void on_begin(void *user, const struct kn_hevc_stream *stream)
{
    struct telling *t = user;
    t->params = stream->params;
    t->found = false;
    if (!t->args->json) {
        print_begin(t, stream);
        return;
    }
    t->object = json_begin(t, stream);
    t->pictures = json_array();
    t->slices = json_array();
}

/* ---- slices and pictures */

static void on_slice(void *user, const struct kn_hevc_slice *s)
{
    struct telling *t = user;
    const char type[2] = {s->type, 0};
    if (t->args->json) {
        json_array_append_new(t->slices, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "type", type, "first_row", (json_int_t)s->first_row,
                                                   "rows", (json_int_t)s->n_rows, "ctus", (json_int_t)s->n_ctus, "qp", (json_int_t)s->qp, "bytes",
                                                   (json_int_t)s->n_bytes, "header_bytes", (json_int_t)s->header_bytes, "bits", bits_of(&s->counts)));
        return;
    }
    size_t used = s->index ? strlen(t->line) : 0;
    if (used + 16 < sizeof t->line)
        snprintf(t->line + used, sizeof t->line - used, "%s%s %" PRIu64, s->index ? " " : "", type, s->n_bytes);
    else if (used + 4 < sizeof t->line && t->line[used - 1] != '.')
        snprintf(t->line + used, sizeof t->line - used, "...");
}

static void keep_picture(struct telling *t, const struct kn_hevc_picture *p)
{
    struct kn_hevc_counts *bands = realloc(t->bands, p->n_bands * sizeof *bands);
    t->no_memory |= !bands;
    if (!bands)
        return;
    memcpy(bands, p->bands, p->n_bands * sizeof *bands);
    t->bands = bands;
    t->n_bands = p->n_bands;
    t->counts = p->counts;
    t->found = true;
}

static void on_picture(void *user, const struct kn_hevc_picture *p)
{
    struct telling *t = user;
    double samples = 3.0 * t->params.width * t->params.height;
    if (t->args->one_picture && p->index == t->args->picture)
        keep_picture(t, p);
    if (t->args->json) {
        json_array_append_new(t->pictures,
                              json_pack("{s:I, s:b, s:I, s:f, s:I, s:I, s:I, s:o}", "index", (json_int_t)p->index, "idr", (int)p->idr, "bytes",
                                        (json_int_t)p->n_bytes, "bits", bits_of(&p->counts), "units", (json_int_t)p->counts.n_cu, "units_skipped",
                                        (json_int_t)p->counts.n_cu_skipped, "units_intra", (json_int_t)p->counts.n_cu_intra, "slices", t->slices));
        t->slices = json_array();
        return;
    }
    printf("%7" PRIu32 " %4s %10" PRIu64 " %8.4f  %s\n", p->index, p->idr ? "IDR" : "", p->n_bytes, 8.0 * (double)p->n_bytes / samples, t->line);
}

/* ---- totals */

static double band_samples(const struct telling *t, uint32_t band, uint32_t rows, uint32_t n_pictures)
{
    uint32_t left = t->params.height - band * rows;
    return 3.0 * t->params.width * (left < rows ? left : rows) * n_pictures;
}

/* What the declared level allows, and the picture that comes closest. */
static void print_limits(const struct kn_hevc_stream *s)
{
    printf("\n%-16s %14s %14s %9s\n", "limit", "most", "allowed", "picture");
    for (uint32_t i = 0; i < KN_HEVC_LIMIT_COUNT; i++) {
        const struct kn_hevc_limit *l = &s->limits[i];
        if (l->known)
            printf("%-16s %14.0f %14.0f %9" PRIu32 "%s\n", kn_hevc_limit_name((enum kn_hevc_limit_kind)i), l->value, l->allowed, l->picture, l->exceeded ? "  BEYOND" : "");
        else
            printf("%-16s %14s %14s\n", kn_hevc_limit_name((enum kn_hevc_limit_kind)i), "", "unknown level");
    }
    if (s->pictures_s > 0)
        printf("the level allows %.1f pictures a second; coding units that are PCM: %" PRIu32 "\n", s->pictures_s, s->n_pcm);
}

static json_t *json_limits(const struct kn_hevc_stream *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < KN_HEVC_LIMIT_COUNT; i++) {
        const struct kn_hevc_limit *l = &s->limits[i];
        json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:I, s:b}", "name", kn_hevc_limit_name((enum kn_hevc_limit_kind)i), "most",
                                              l->known ? json_real(l->value) : json_null(), "allowed", l->known ? json_real(l->allowed) : json_null(), "picture",
                                              (json_int_t)l->picture, "exceeded", (int)l->exceeded));
    }
    return list;
}

static void print_totals(const struct telling *t, const struct kn_hevc_counts *c, const struct kn_hevc_counts *bands, uint32_t n_bands, uint32_t rows,
                         uint32_t n_pictures)
{
    double all = bits_of(c), samples = 3.0 * t->params.width * t->params.height * n_pictures;
    printf("\n%-10s %12s %12s %14s %7s %9s\n", "element", "coded bins", "bypass bins", "bits", "share", "bits/sym");
    for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++) {
        const struct kn_hevc_count *n = &c->element[e];
        if (n->n_coded + n->n_bypass)
            printf("%-10s %12" PRIu64 " %12" PRIu64 " %14.0f %6.2f%% %9.5f\n", kn_hevc_element_name((enum kn_hevc_element)e), n->n_coded, n->n_bypass,
                   n->bits, 100 * share(n->bits, all), n->bits / samples);
    }
    printf("%-10s %12s %12s %14.0f %6.2f%% %9.5f\n", "all", "", "", all, 100.0, all / samples);
    printf("residuals of Y, Cb, Cr: %.0f, %.0f, %.0f bits; coding units: %" PRIu64 ", skipped %" PRIu64 ", intra %" PRIu64 "\n", c->plane_bits[0],
           c->plane_bits[1], c->plane_bits[2], c->n_cu, c->n_cu_skipped, c->n_cu_intra);
    printf("\n%6s %12s %9s %8s %8s %8s %8s %8s\n", "row", "bits", "bits/sym", "sig", "greater", "sign", "remain", "rest");
    for (uint32_t i = 0; i < n_bands; i++) {
        const struct kn_hevc_count *n = bands[i].element;
        double bits = bits_of(&bands[i]), greater = n[KN_HEVC_ELEMENT_GREATER1].bits + n[KN_HEVC_ELEMENT_GREATER2].bits;
        double sig = n[KN_HEVC_ELEMENT_SIG].bits, sign = n[KN_HEVC_ELEMENT_SIGN].bits, remaining = n[KN_HEVC_ELEMENT_REMAINING].bits;
        printf("%6" PRIu32 " %12.0f %9.5f %7.2f%% %7.2f%% %7.2f%% %7.2f%% %7.2f%%\n", i * rows, bits, bits / band_samples(t, i, rows, n_pictures),
               100 * share(sig, bits), 100 * share(greater, bits), 100 * share(sign, bits), 100 * share(remaining, bits),
               100 * share(bits - sig - greater - sign - remaining, bits));
    }
    printf("\n");
}

static json_t *json_elements(const struct kn_hevc_counts *c)
{
    json_t *o = json_object();
    for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++) {
        const struct kn_hevc_count *n = &c->element[e];
        json_object_set_new(o, kn_hevc_element_name((enum kn_hevc_element)e),
                            json_pack("{s:I, s:I, s:f}", "coded", (json_int_t)n->n_coded, "bypass", (json_int_t)n->n_bypass, "bits", n->bits));
    }
    return o;
}

static void json_totals(struct telling *t, const struct kn_hevc_stream *s, const struct kn_hevc_counts *c, const struct kn_hevc_counts *bands,
                        uint32_t n_bands, uint32_t n_pictures)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n_bands; i++)
        json_array_append_new(list, json_pack("{s:I, s:f, s:f, s:o}", "row", (json_int_t)i * s->band_rows, "samples",
                                              band_samples(t, i, s->band_rows, n_pictures), "bits", bits_of(&bands[i]), "elements",
                                              json_elements(&bands[i])));
    json_object_set_new(t->object, "hash", s->hash ? json_pack("{s:s, s:I, s:I}", "kind", s->hash, "pictures", (json_int_t)s->n_hashed, "matching",
                                                               (json_int_t)s->n_hash_checked) : json_null());
    json_object_set_new(t->object, "limits", json_limits(s));
    json_object_set_new(t->object, "pictures_per_second", s->pictures_s > 0 ? json_real(s->pictures_s) : json_null());
    json_object_set_new(t->object, "units_pcm", json_integer((json_int_t)s->n_pcm));
    json_object_set_new(t->object, "bytes", json_integer((json_int_t)s->n_bytes));
    json_object_set_new(t->object, "samples", json_integer((json_int_t)(3 * (uint64_t)t->params.width * t->params.height * n_pictures)));
    json_object_set_new(t->object, "pictures", t->pictures);
    json_object_set_new(t->object, "picture", t->args->one_picture ? json_integer((json_int_t)t->args->picture) : json_null());
    json_object_set_new(t->object, "bits", json_real(bits_of(c)));
    json_object_set_new(t->object, "elements", json_elements(c));
    json_object_set_new(t->object, "plane_bits", json_pack("[f, f, f]", c->plane_bits[0], c->plane_bits[1], c->plane_bits[2]));
    json_object_set_new(t->object, "band_rows", json_integer((json_int_t)s->band_rows));
    json_object_set_new(t->object, "bands", list);
    t->pictures = NULL;
}

static void drop_json(struct telling *t)
{
    json_decref(t->object);
    json_decref(t->pictures);
    json_decref(t->slices);
    t->object = t->pictures = t->slices = NULL;
}

static void on_end(void *user, const struct kn_hevc_stream *s)
{
    struct telling *t = user;
    bool one = t->args->one_picture;
    if (one && !t->found) {
        fprintf(stderr, "kinema codec: there is no picture %" PRIu32 " in a stream of %" PRIu32 "\n", t->args->picture, s->n_pictures);
        drop_json(t);
        return;
    }
    const struct kn_hevc_counts *c = one ? &t->counts : &s->counts, *bands = one ? t->bands : s->bands;
    uint32_t n_pictures = one ? 1 : s->n_pictures;
    if (!t->args->json) {
        if (!s->section && !s->hash)
            printf("hash      none: not checked\n");
        else if (!s->section)
            printf("hash      %s of %" PRIu32 " of %" PRIu32 " pictures, %" PRIu32 " rebuilt and matching\n", s->hash, s->n_hashed, s->n_pictures, s->n_hash_checked);
        print_limits(s);
        print_totals(t, c, bands, s->n_bands, s->band_rows, n_pictures);
        return;
    }
    json_totals(t, s, c, bands, s->n_bands, n_pictures);
    kn_app_json_print(t->object, stdout);
    drop_json(t);
}

/* ---- arguments */

enum { OPT_ROWS = 256, OPT_PICTURE, OPT_JSON };

static int parse(int argc, char **argv, struct args *a)
{
    static const struct option table[] = {{"rows", required_argument, NULL, OPT_ROWS},
                                          {"picture", required_argument, NULL, OPT_PICTURE},
                                          {"json", no_argument, NULL, OPT_JSON},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":h", table, NULL)) != -1;) {
        switch (option) {
        case '?':
        case ':': return kn_app_usage_error("codec", option == ':' ? "%s needs a value" : "there is no option %s", argv[optind - 1]);
        case 'h': a->help = true; return 0;
        case OPT_JSON: a->json = true; break;
        case OPT_PICTURE:
            a->one_picture = true;
            if (!kn_app_parse_u32(optarg, 0, UINT32_MAX, &a->picture))
                return kn_app_usage_error("codec", "--picture takes a number, not \"%s\"", optarg);
            break;
        case OPT_ROWS:
            if (!kn_app_parse_u32(optarg, 4, 8192, &a->band_rows) || a->band_rows % 4)
                return kn_app_usage_error("codec", "--rows takes a multiple of 4 up to 8192, not \"%s\"", optarg);
        }
    }
    if (optind == argc)
        return kn_app_usage_error("codec", "inspect needs a file; kinema codec inspect --help explains");
    if (kn_app_path("codec", "inspect", argv[optind++], &a->file))
        return KN_APP_EXIT_USAGE;
    if (optind < argc)
        return kn_app_usage_error("codec", "unexpected \"%s\"", argv[optind]);
    return 0;
}

int kn_cmd_codec_inspect(int argc, char **argv)
{
    struct args args = {0};
    int exit_status = parse(argc, argv, &args);
    if (exit_status)
        return exit_status;
    if (args.help) {
        fputs(help_text, stdout);
        return KN_APP_EXIT_OK;
    }
    size_t n_bytes;
    const char *why = NULL;
    char *bytes = kn_app_read_file(args.file, &n_bytes, &why);
    if (!bytes)
        return kn_app_fail("codec", "%s: %s", args.file, why);
    struct telling t = {.args = &args, .found = true};
    struct kn_err err = {0};
    struct kn_hevc_inspect_opts io = {.size = sizeof io,
                                      .band_rows = args.band_rows,
                                      .on_begin = on_begin,
                                      .on_slice = on_slice,
                                      .on_picture = on_picture,
                                      .on_end = on_end,
                                      .user = &t};
    enum kn_status status = kn_hevc_inspect(bytes, n_bytes, &io, &err);
    if (status)
        exit_status = kn_app_fail("codec", "%s: %s", args.file, err.text[0] ? err.text : kn_status_message(status));
    else if (t.no_memory)
        exit_status = kn_app_fail("codec", "out of memory");
    else if (args.one_picture && !t.found)
        exit_status = KN_APP_EXIT_FAILED;
    drop_json(&t);
    free(t.bands);
    free(bytes);
    return exit_status;
}

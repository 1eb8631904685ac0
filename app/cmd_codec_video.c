/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema codec encode|decode: raw pictures to lossless HEVC and back (kinema/video.h), so that encoders can be tried on pictures of any
 * origin and streams looked at with other tools. Raw means planar 8-bit 4:4:4: picture after picture, three planes each, no headers.
 *
 * Data goes to -o or, when that is no terminal, to the standard output; the summary to stderr, or as JSON to the standard output when
 * data does not go there. A file is replaced only by a complete one (output.h). Exit status: 0 done, 1 failed, 2 used wrongly.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hevc_opts.h"
#include "output.h"

#define PIECE_BYTES ((size_t)1 << 20) /* read at once when decoding */

struct args {
    const char *what, *input, *output; /* "-": standard input, standard output */
    uint32_t width, height, n_pictures, section_plus_1;
    struct kn_hevc_opts hevc;
    enum kn_video_content content;
    enum kn_video_hash hash;
    bool verify, json, help;
};

static const char *const hash_names[] = {"md5", "crc", "checksum", "none"};

struct job {
    struct args args;
    FILE *in;
    struct kn_app_output out;
    uint64_t n_in_bytes; /* of the input, 0: unknown */
    struct kn_app_progress progress;
    uint64_t n_pictures, n_read, n_written;
    uint64_t n_stream; /* bytes of the stream that the pictures took */
    bool enough;
    enum kn_video_hash hash; /* encode: of each picture */
    char checked[64]; /* decode: how, or that not */
    uint32_t width, height;
    uint64_t begin_ns;
};

static const char help_text[] =
    "usage: kinema codec encode --size WxH [-o FILE] [options] FILE\n"
    "       kinema codec decode [-o FILE] [options] FILE\n\n"
    "  encode               raw pictures to a lossless HEVC stream (Annex B, .h265). Raw is planar 8-bit 4:4:4: picture after picture, each as\n"
    "                       three planes of W x H samples; each picture carries a hash of itself,\n"
    "                       and the stream a seal: how many pictures it holds, of what size and in which order\n"
    "  decode               such a stream, or the video of a chunk, to raw pictures. Pictures are held against the hashes in the\n"
    "                       stream, and all of it against its seal; without them some damage only shows in the pictures. A chunk has checksums\n\n"
    "  FILE                 - is the standard input\n"
    "  -o, --output FILE    where to; default: the standard output\n"
    "      --size WxH       encode: of the pictures, such as 256x1024, 16 to 8192 samples a side\n"
    "      --pictures N     stop after N pictures (all); what follows in the input is not looked at\n"
    "      --content NAME   encode: noise, around 128, as spectral presets have it (default), or tiles: like its neighbours or the picture before\n"
    "      --hevc-encoder NAME  encode: kinema (default), x265-ultrafast or x265-medium\n"
    "      --hevc-tools NAME    encode: full (default) or basic range extension tools\n"
    "      --hevc-slices N      encode: of a picture, 1 to 64 (chosen by size)\n"
    "      --hash NAME      encode: md5 (default), crc, checksum or none: of each picture, in the stream, for whoever decodes it;\n"
    "                       none leaves the seal away, too\n"
    "      --verify         encode: decode each picture and compare it\n"
    "      --section N      decode: of a chunk, by its number in the chunk's table (the first one that is video)\n"
    "      --json           the summary as JSON, on the standard output; needs -o\n"
    "  -h, --help           this text\n";

/* ---- files */

static int open_files(struct job *j)
{
    const struct args *a = &j->args;
    struct stat st;
    bool std_in = !strcmp(a->input, "-"), std_out = !a->output || !strcmp(a->output, "-");
    if (std_out && isatty(STDOUT_FILENO))
        return kn_app_usage_error("codec", "%s writes bytes that no terminal shows: name a file with -o", a->what);
    j->in = std_in ? stdin : fopen(a->input, "rb");
    if (!j->in)
        return kn_app_fail("codec", "cannot open %s: %s", a->input, strerror(errno));
    if (!fstat(fileno(j->in), &st) && S_ISREG(st.st_mode))
        j->n_in_bytes = (uint64_t)st.st_size;
    return kn_app_output_open(&j->out, "codec", a->output);
}

static int close_files(struct job *j, int exit_status)
{
    exit_status = kn_app_output_close(&j->out, "codec", exit_status);
    if (j->in && j->in != stdin)
        fclose(j->in);
    return exit_status;
}

static bool write_all(struct job *j, const void *bytes, size_t n)
{
    j->n_written += n;
    return fwrite(bytes, 1, n, j->out.file) == n;
}

static int write_failed(struct job *j)
{
    int why = errno; /* before anything else fails */
    kn_app_progress_clear(&j->progress);
    if (why == EPIPE && j->out.file == stdout) /* main says what that means */
        return KN_APP_EXIT_FAILED;
    return kn_app_fail("codec", "cannot write %s: %s", j->out.name, strerror(why));
}

static int status_failed(struct job *j, enum kn_status status, const struct kn_err *err)
{
    kn_app_progress_clear(&j->progress);
    return kn_app_fail("codec", "%s: %s", j->args.input, err->text[0] ? err->text : kn_status_message(status));
}

/* ---- summaries */

static double seconds_since(uint64_t begin_ns)
{
    return (double)(kn_app_now_ns() - begin_ns) / 1e9;
}

/* n_stream: bytes of the HEVC stream. encode_s 0: it was decoded. */
static int summary(const struct job *j, uint64_t n_stream, double encode_s)
{
    const struct args *a = &j->args;
    const bool encoded = !strcmp(a->what, "encode");
    const double samples = 3.0 * j->width * j->height * (double)j->n_pictures, seconds = seconds_since(j->begin_ns);
    const double bits = samples > 0 ? 8 * (double)n_stream / samples : 0, timed = encoded ? encode_s : seconds, speed = timed > 0 ? samples / timed / 1e6 : 0;
    if (!a->json) {
        fprintf(stderr, "codec: %" PRIu64 " picture%s of %" PRIu32 " x %" PRIu32 ", %s, %s in the stream, %.4f bits a sample, %.1f MB/s%s%s%s%s\n", j->n_pictures,
                j->n_pictures == 1 ? "" : "s", j->width, j->height, kn_app_bytes_text(samples), kn_app_bytes_text((double)n_stream), bits, speed, encoded ? " by " : "",
                encoded ? kn_app_hevc_encoder_name(&a->hevc) : "", encoded ? "" : ", ", encoded ? "" : j->checked);
        return KN_APP_EXIT_OK;
    }
    json_t *o = json_object();
    json_object_set_new(o, "pictures", json_integer((json_int_t)j->n_pictures));
    json_object_set_new(o, "width", json_integer((json_int_t)j->width));
    json_object_set_new(o, "height", json_integer((json_int_t)j->height));
    json_object_set_new(o, "samples", json_integer((json_int_t)samples));
    json_object_set_new(o, "bytes", json_integer((json_int_t)n_stream));
    json_object_set_new(o, "bits_per_sample", json_real(bits));
    json_object_set_new(o, encoded ? "encode_s" : "decode_s", json_real(timed)); /* processor time of one thread; by the clock */
    json_object_set_new(o, "mb_s", json_real(speed));
    if (encoded) {
        json_object_set_new(o, "hevc_encoder", json_string(kn_app_hevc_encoder_name(&a->hevc)));
        json_object_set_new(o, "hevc_tools", json_string(kn_app_hevc_tools_name(&a->hevc)));
        json_object_set_new(o, "content", json_string(a->content == KN_VIDEO_CONTENT_TILES ? "tiles" : "noise"));
        json_object_set_new(o, "hash", json_string(hash_names[j->hash - KN_VIDEO_HASH_MD5]));
        json_object_set_new(o, "verified", json_boolean(a->verify));
    }
    if (!encoded)
        json_object_set_new(o, "checked", json_string(j->checked));
    json_object_set_new(o, "seconds", json_real(seconds));
    json_object_set_new(o, "commit", json_string(kn_app_commit));
    bool ok = kn_app_json_print(o, stdout);
    json_decref(o);
    return ok ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED;
}

/* ---- encode */

/* One picture. false at the end of the input, or after a message, *exit_status then. */
static bool read_picture(struct job *j, uint8_t *samples, size_t n_bytes, int *exit_status)
{
    if (j->args.n_pictures && j->n_pictures == j->args.n_pictures)
        return false;
    size_t n = fread(samples, 1, n_bytes, j->in);
    if (n == n_bytes)
        return true;
    int why = errno;
    kn_app_progress_clear(&j->progress);
    if (ferror(j->in))
        *exit_status = kn_app_fail("codec", "cannot read %s: %s", j->args.input, strerror(why));
    else if (n)
        *exit_status = kn_app_fail("codec", "%s ends after %zu of the %zu bytes of picture %" PRIu64 ": is it %" PRIu32 "x%" PRIu32 ", three planes?", j->args.input, n, n_bytes,
                                   j->n_pictures, j->width, j->height);
    else if (!j->n_pictures || j->args.n_pictures)
        *exit_status = kn_app_fail("codec", "%s holds %" PRIu64 " pictures of %zu bytes%s", j->args.input, j->n_pictures, n_bytes,
                                   j->n_pictures ? ", fewer than --pictures asks for" : "");
    return false;
}

static int encode(struct job *j)
{
    const struct args *a = &j->args;
    struct kn_video_encoder *encoder = NULL;
    struct kn_err err = {0};
    struct kn_video_encode_opts eo = {.size = sizeof eo,
                                      .width = a->width,
                                      .height = a->height,
                                      .hevc = &a->hevc,
                                      .content = a->content,
                                      .verify = a->verify,
                                      .hash = a->hash,
                                      .sealed = a->hash != KN_VIDEO_HASH_NONE};
    size_t n_bytes = 3 * (size_t)a->width * a->height;
    uint8_t *samples = malloc(n_bytes);
    int exit_status = KN_APP_EXIT_OK;
    j->width = a->width;
    j->height = a->height;
    uint64_t n_all = a->n_pictures ? a->n_pictures : j->n_in_bytes / n_bytes;
    enum kn_status status = samples ? kn_video_encoder_open(&encoder, &eo, &err) : KN_E_NOMEM;
    if (status)
        exit_status = status_failed(j, status, &err);
    while (exit_status == KN_APP_EXIT_OK && read_picture(j, samples, n_bytes, &exit_status)) {
        const uint8_t *unit;
        size_t n_unit;
        if ((status = kn_video_encode(encoder, samples, &unit, &n_unit, &err)))
            exit_status = status_failed(j, status, &err);
        else if (!write_all(j, unit, n_unit))
            exit_status = write_failed(j);
        else
            j->n_pictures++;
        if (n_all)
            kn_app_progress_show(&j->progress, a->verify ? "encode, verify" : "encode", j->n_pictures, n_all, "pictures");
    }
    kn_app_progress_clear(&j->progress);
    if (exit_status == KN_APP_EXIT_OK) {
        const uint8_t *unit;
        size_t n_unit;
        if ((status = kn_video_encoder_end(encoder, &unit, &n_unit, &err)))
            exit_status = status_failed(j, status, &err);
        else if (!write_all(j, unit, n_unit))
            exit_status = write_failed(j);
    }
    if (exit_status == KN_APP_EXIT_OK) {
        struct kn_video_encode_stats stats = {.size = sizeof stats};
        kn_video_encoder_get_stats(encoder, &stats);
        j->hash = kn_video_encoder_hash(encoder);
        exit_status = summary(j, stats.n_bytes, (double)stats.encode_ns / 1e9);
    }
    kn_video_encoder_close(&encoder);
    free(samples);
    return exit_status;
}

/* ---- decode */

static enum kn_status on_picture(void *user, const struct kn_video_picture *picture)
{
    struct job *j = user;
    j->width = picture->width;
    j->height = picture->height;
    for (int k = 0; k < 3; k++)
        for (uint32_t y = 0; y < picture->height; y++)
            if (!write_all(j, picture->plane[k] + y * picture->stride[k], picture->width))
                return KN_E_IO;
    j->n_pictures++;
    j->n_stream = picture->n_stream_bytes;
    j->enough = j->n_pictures == j->args.n_pictures;
    return j->enough ? KN_E_CANCELLED : KN_OK;
}

static void say_checked(struct job *j, const struct kn_video_decoder *decoder)
{
    struct kn_video_decode_stats stats = {.size = sizeof stats};
    kn_video_decoder_get_stats(decoder, &stats);
    snprintf(j->checked, sizeof j->checked, "%s", stats.chunk ? "checked by the chunk's checksums" : stats.n_hashed && stats.n_hashed == stats.n_pictures ? "checked by hashes"
                                                  : stats.sealed && !j->enough ? "checked by the stream's seal" : stats.n_hashed ? "checked in part" : "not checked: no hashes in the stream");
}

static int decode(struct job *j)
{
    const struct args *a = &j->args;
    struct kn_video_decoder *decoder = NULL;
    struct kn_err err = {0};
    struct kn_video_decode_opts opts = {.size = sizeof opts, .on_picture = on_picture, .user = j, .section_plus_1 = a->section_plus_1};
    uint8_t *piece = malloc(PIECE_BYTES);
    enum kn_status status = piece ? kn_video_decoder_open(&decoder, &opts, &err) : KN_E_NOMEM;
    bool last = false;
    while (!status && !last) {
        size_t n = fread(piece, 1, PIECE_BYTES, j->in);
        if (n < PIECE_BYTES && ferror(j->in)) {
            snprintf(err.text, sizeof err.text, "cannot be read: %s", strerror(errno));
            status = KN_E_IO;
            break;
        }
        last = n < PIECE_BYTES;
        j->n_read += n;
        status = kn_video_decode(decoder, piece, n, last, &err);
        if (status && j->enough) { /* what follows is not looked at */
            status = KN_OK;
            last = true;
        }
        if (j->n_in_bytes)
            kn_app_progress_show(&j->progress, "decode", j->n_read, j->n_in_bytes, "bytes");
    }
    kn_app_progress_clear(&j->progress);
    int exit_status = !status ? KN_APP_EXIT_OK : ferror(j->out.file) ? write_failed(j) : status_failed(j, status, &err);
    if (exit_status == KN_APP_EXIT_OK && a->n_pictures > j->n_pictures)
        exit_status = kn_app_fail("codec", "%s holds %" PRIu64 " pictures, fewer than --pictures asks for", a->input, j->n_pictures);
    if (exit_status == KN_APP_EXIT_OK) {
        say_checked(j, decoder);
        exit_status = summary(j, j->n_stream, 0);
    }
    kn_video_decoder_close(&decoder);
    free(piece);
    return exit_status;
}

/* ---- arguments */

enum { OPT_SIZE = 256, OPT_PICTURES, OPT_CONTENT, OPT_VERIFY, OPT_SECTION, OPT_JSON, OPT_HASH };

static bool parse_size(const char *text, struct args *a)
{
    char width[16];
    const char *x = strchr(text, 'x');
    if (!x || (size_t)(x - text) >= sizeof width)
        return false;
    memcpy(width, text, (size_t)(x - text));
    width[x - text] = '\0';
    return kn_app_parse_u32(width, 16, 8192, &a->width) && kn_app_parse_u32(x + 1, 16, 8192, &a->height);
}

static int parse_option(int option, struct args *a)
{
    static const char *const contents[] = {"noise", "tiles"};
    int i;
    switch (option) {
    case 'o': return kn_app_path("codec", "-o", optarg, &a->output);
    case 'h': a->help = true; return 0;
    case OPT_VERIFY: a->verify = true; return 0;
    case OPT_JSON: a->json = true; return 0;
    case OPT_SIZE: return parse_size(optarg, a) ? 0 : kn_app_usage_error("codec", "--size takes WxH with 16 to 8192 samples a side, such as 256x1024, not \"%s\"", optarg);
    case OPT_PICTURES:
        return kn_app_parse_u32(optarg, 1, UINT32_MAX, &a->n_pictures) ? 0 : kn_app_usage_error("codec", "--pictures takes a number from 1 on, not \"%s\"", optarg);
    case OPT_SECTION:
        if (!kn_app_parse_u32(optarg, 0, 8191, &a->section_plus_1))
            return kn_app_usage_error("codec", "--section takes 0 to 8191, not \"%s\"", optarg);
        a->section_plus_1++;
        return 0;
    case OPT_HASH:
        if ((i = kn_app_parse_name(optarg, hash_names, 4)) < 0)
            return kn_app_usage_error("codec", "--hash takes md5, crc, checksum or none, not \"%s\"", optarg);
        a->hash = (enum kn_video_hash)(KN_VIDEO_HASH_MD5 + i);
        return 0;
    case OPT_CONTENT:
        if ((i = kn_app_parse_name(optarg, contents, 2)) < 0)
            return kn_app_usage_error("codec", "--content takes noise or tiles, not \"%s\"", optarg);
        a->content = (enum kn_video_content)i;
        return 0;
    default: return kn_app_hevc_option("codec", option, optarg, &a->hevc);
    }
}

static int check(const struct args *a)
{
    bool is_encode = !strcmp(a->what, "encode");
    if (!a->input)
        return kn_app_usage_error("codec", "%s needs a FILE, or - for the standard input; kinema codec %s --help explains", a->what, a->what);
    if (is_encode && !a->width)
        return kn_app_usage_error("codec", "encode needs --size WxH: raw pictures do not say it themselves");
    if (is_encode && a->section_plus_1)
        return kn_app_usage_error("codec", "--section belongs to decode");
    if (!is_encode && (a->width || a->verify || a->content || a->hash || kn_app_hevc_given(&a->hevc)))
        return kn_app_usage_error("codec", "--size, --content, --hash, --verify and --hevc-... belong to encode");
    if (a->json && (!a->output || !strcmp(a->output, "-")))
        return kn_app_usage_error("codec", "--json goes to the standard output, and so do the data: name a file with -o");
    return KN_APP_EXIT_OK;
}

static int parse(int argc, char **argv, struct args *a)
{
    static const struct option table[] = {
        {"output", required_argument, NULL, 'o'},      {"size", required_argument, NULL, OPT_SIZE},    {"pictures", required_argument, NULL, OPT_PICTURES},
        {"content", required_argument, NULL, OPT_CONTENT}, {"verify", no_argument, NULL, OPT_VERIFY},  {"section", required_argument, NULL, OPT_SECTION},
        {"hash", required_argument, NULL, OPT_HASH},   {"json", no_argument, NULL, OPT_JSON},         {"help", no_argument, NULL, 'h'},               KN_APP_HEVC_OPTIONS,
        {NULL, 0, NULL, 0},
    };
    a->what = argv[0];
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":o:h", table, NULL)) != -1;) {
        if (option == '?' || option == ':')
            return kn_app_usage_error("codec", option == ':' ? "%s needs a value" : "there is no option %s", argv[optind - 1]);
        if (parse_option(option, a))
            return KN_APP_EXIT_USAGE;
    }
    if (a->help)
        return KN_APP_EXIT_OK;
    if (optind < argc && kn_app_path("codec", a->what, argv[optind++], &a->input))
        return KN_APP_EXIT_USAGE;
    if (optind < argc)
        return kn_app_usage_error("codec", "unexpected \"%s\"", argv[optind]);
    return check(a);
}

int kn_cmd_codec_video(int argc, char **argv)
{
    struct job j = {.begin_ns = kn_app_now_ns(), .args.hevc.size = sizeof j.args.hevc};
    int exit_status = parse(argc, argv, &j.args);
    if (exit_status)
        return exit_status;
    if (j.args.help) {
        fputs(help_text, stdout);
        return KN_APP_EXIT_OK;
    }
    kn_app_log_to_stderr(KN_LOG_LEVEL_WARN);
    kn_app_progress_init(&j.progress, true);
    exit_status = open_files(&j);
    if (exit_status == KN_APP_EXIT_OK)
        exit_status = strcmp(j.args.what, "encode") ? decode(&j) : encode(&j);
    return close_files(&j, exit_status);
}

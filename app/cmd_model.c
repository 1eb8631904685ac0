/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema model show|tokenize: what a GGUF file holds, and what its tokenizer makes of a text. Tables for people, one JSON
 * object with --json. Opening checks the whole file, so show is also the quickest test of a download.
 * Exit status: 0 done, 1 failed (one sentence on stderr), 2 used wrongly.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "prompt.h"

struct args {
    const char *what, *model, *text, *file;
    bool json, tensors, special;
};

static const char help_text[] =
    "usage: kinema model show [-m FILE] [options]\n"
    "       kinema model tokenize [-m FILE] (-p TEXT | -f FILE) [options]\n\n"
    "  show               architecture, sizes, tokenizer, fingerprint\n"
    "  tokenize           the token ids of a text, one a line with its bytes\n\n"
    "  -m, --model FILE   GGUF file, of a split model the first part; default: $KINEMA_MODEL or the demo model\n"
    "  --tensors          show: list every tensor too\n"
    "  -p, --prompt TEXT  tokenize: this text\n"
    "  -f, --file FILE    tokenize: this file; - is the standard input\n"
    "  --special          tokenize: recognise special tokens such as <|im_end|>\n"
    "  --json             one JSON object instead of a table\n"
    "  -h, --help         this text\n";

static json_t *text_json(const char *s)
{
    return kn_app_json_text(s, strlen(s));
}

/* Prints bytes from a file to a terminal: control characters become escapes. */
static void print_safe(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c == '\\')
            fputs("\\\\", stdout);
        else if (c < 32 || c == 127)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

/* "[576, 1536]" */
static const char *shape_text(const struct kn_tensor_info *t, char out[96])
{
    size_t n = 0;
    for (uint32_t i = 0; i < t->n_dims; i++)
        n += (size_t)snprintf(out + n, 96 - n, "%s%llu", i ? ", " : "[", (unsigned long long)t->shape[i]);
    snprintf(out + n, 96 - n, "]");
    return out;
}

static json_t *tensors_json(const struct kn_model *model)
{
    json_t *list = json_array();
    struct kn_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0; kn_model_get_tensor(model, i, &t) == KN_OK; i++) {
        json_t *shape = json_array();
        for (uint32_t k = 0; k < t.n_dims; k++)
            json_array_append_new(shape, json_integer((json_int_t)t.shape[k]));
        json_array_append_new(list, json_pack("{s:o, s:s, s:o, s:I, s:I, s:I}", "name", text_json(t.name), "type", t.type, "shape", shape, "bytes",
                                              (json_int_t)t.n_bytes, "part", (json_int_t)t.part, "offset",
                                              (json_int_t)t.file_offset));
    }
    return list;
}

static int show_json(const struct kn_model *model, const struct args *args)
{
    const struct kn_model_info *i = kn_model_info(model);
    char hex[33];
    kn_app_hex(i->fingerprint, hex);
    json_t *j = json_pack("{s:o, s:s, s:o, s:s, s:s, s:o, s:s, s:I, s:I, s:I}", "path", text_json(i->path), "arch", i->arch, "name", text_json(i->name), "quant",
                          i->quant, "chat_template", i->chat_template, "pre_tokenizer", text_json(i->pre_tokenizer), "fingerprint", hex, "file_bytes",
                          (json_int_t)i->file_bytes, "n_params", (json_int_t)i->n_params, "kv_bytes_per_token", (json_int_t)i->kv_bytes_per_token);
    const struct { const char *key; json_int_t value; } numbers[] = {
        {"n_layer", i->n_layer}, {"n_embd", i->n_embd},   {"n_head", i->n_head},           {"n_kv_head", i->n_kv_head}, {"d_head", i->d_head}, {"n_ff", i->n_ff},
        {"n_vocab", i->n_vocab}, {"n_ctx_train", i->n_ctx_train}, {"n_tensors", i->n_tensors}, {"bos", i->bos},        {"eos", i->eos},       {"eot", i->eot},
        {"n_parts", i->n_parts}, {"window", i->window},   {"n_window_layer", i->n_window_layer},
    };
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        json_object_set_new(j, numbers[k].key, json_integer(numbers[k].value));
    json_object_set_new(j, "tokenizer", json_string(i->tokenizer));
    json_object_set_new(j, "has_chat_template", json_boolean(i->has_chat_template));
    json_object_set_new(j, "rope_base", json_real((double)i->rope_base));
    json_object_set_new(j, "rms_eps", json_real((double)i->rms_eps));
    if (args->tensors)
        json_object_set_new(j, "tensors", tensors_json(model));
    if (!j)
        return kn_app_fail("model", "out of memory");
    kn_app_json_print(j, stdout);
    json_decref(j);
    return KN_APP_EXIT_OK;
}

static void print_token(const struct kn_model *model, const char *label, int32_t id)
{
    const char *bytes;
    size_t n;
    printf("%-14s ", label);
    if (kn_model_token_bytes(model, id, &bytes, &n) == KN_OK) {
        printf("%d ", id);
        print_safe(bytes, n);
    } else {
        putchar('-');
    }
    putchar('\n');
}

static int show_table(const struct kn_model *model, const struct args *args)
{
    const struct kn_model_info *i = kn_model_info(model);
    char hex[33], shape[96];
    struct kn_tensor_info t = {.size = sizeof t};
    kn_app_hex(i->fingerprint, hex);
    printf("%-14s ", "name");
    print_safe(i->name, strlen(i->name));
    printf("\n%-14s ", "file");
    print_safe(i->path, strlen(i->path));
    if (i->n_parts > 1)
        printf(" and %u parts more", i->n_parts - 1);
    printf(", %s\n", kn_app_bytes_text((double)i->file_bytes));
    printf("%-14s %s, %.1f M parameters, mostly %s, %u tensors\n", "architecture", i->arch, (double)i->n_params / 1e6, i->quant, i->n_tensors);
    printf("%-14s %u layers, width %u, feed-forward %u\n", "shape", i->n_layer, i->n_embd, i->n_ff);
    printf("%-14s %u query heads, %u KV heads of %u, RoPE base %g", "attention", i->n_head, i->n_kv_head, i->d_head, (double)i->rope_base);
    if (i->window)
        printf(", a window of %u tokens in %u of the layers", i->window, i->n_window_layer);
    putchar('\n');
    printf("%-14s %u tokens\n", "context", i->n_ctx_train);
    printf("%-14s %s a token, %s for the whole context, as 16-bit floats\n", "KV cache", kn_app_bytes_text((double)i->kv_bytes_per_token),
           kn_app_bytes_text((double)i->kv_bytes_per_token * i->n_ctx_train));
    printf("%-14s %u tokens, %s", "vocabulary", i->n_vocab, i->tokenizer);
    if (*i->pre_tokenizer && strncmp(i->tokenizer, "Sentence", 8)) {
        fputs(", pre-tokenizer ", stdout);
        print_safe(i->pre_tokenizer, strlen(i->pre_tokenizer));
    }
    const char *why = kn_prompt_no_template(model);
    printf("\n%-14s %s%s%s\n", "chat template", i->chat_template, why ? ": " : "", why ? why : "");
    if (why)
        printf("%-14s text is continued (run, /v1/completions), chats are refused; --chat-template NAME of run and serve chooses one\n", "");
    print_token(model, "BOS", i->bos);
    print_token(model, "EOS", i->eos);
    print_token(model, "end of turn", i->eot);
    printf("%-14s %s\n", "fingerprint", hex);
    if (args->tensors)
        printf("\n%-32s %-5s %-18s %12s\n", "tensor", "type", "shape", "bytes");
    for (uint32_t k = 0; args->tensors && kn_model_get_tensor(model, k, &t) == KN_OK; k++) {
        print_safe(t.name, strlen(t.name));
        printf("%*s %-5s %-18s %12llu\n", strlen(t.name) < 32 ? (int)(32 - strlen(t.name)) : 0, "", t.type, shape_text(&t, shape), (unsigned long long)t.n_bytes);
    }
    return KN_APP_EXIT_OK;
}

static int tokenize(const struct kn_model *model, const struct args *args)
{
    size_t n = args->text ? strlen(args->text) : 0, n_ids;
    char *file = NULL;
    int32_t *ids = NULL;
    int rc = KN_APP_EXIT_FAILED;
    if (args->file) {
        const char *why = "";
        if (!(file = kn_app_read_file(args->file, &n, &why)))
            return kn_app_fail("model", "cannot read %s: %s", args->file, why);
    }
    n_ids = 3 * n + 2;
    ids = malloc(n_ids * sizeof *ids);
    enum kn_status s = ids ? kn_model_tokenize(model, file ? file : args->text, n, args->special ? KN_TOKENIZE_SPECIAL : 0, ids, &n_ids) : KN_E_NOMEM;
    if (s) {
        kn_app_fail("model", "cannot tokenize %zu bytes: %s (%s)", n, kn_status_message(s), kn_status_name(s));
        goto done;
    }
    json_t *list = args->json ? json_array() : NULL;
    for (size_t i = 0; i < n_ids; i++) {
        const char *bytes = "";
        size_t k = 0;
        if (args->json) {
            json_array_append_new(list, json_integer(ids[i]));
            continue;
        }
        kn_model_token_bytes(model, ids[i], &bytes, &k);
        printf("%6d  ", ids[i]);
        print_safe(bytes, k);
        putchar('\n');
    }
    if (args->json) {
        json_t *j = json_pack("{s:I, s:I, s:o}", "bytes", (json_int_t)n, "n_tokens", (json_int_t)n_ids, "tokens", list);
        kn_app_json_print(j, stdout);
        json_decref(j);
    } else {
        printf("%zu tokens, %zu bytes\n", n_ids, n);
    }
    rc = KN_APP_EXIT_OK;
done:
    free(ids);
    free(file);
    return rc;
}

/* Fills args; returns -1 to go on, otherwise the exit status. */
static int parse(struct args *args, int argc, char **argv)
{
    enum { OPT_TENSORS = 256, OPT_SPECIAL, OPT_JSON };
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'}, {"prompt", required_argument, NULL, 'p'}, {"file", required_argument, NULL, 'f'},
        {"tensors", no_argument, NULL, OPT_TENSORS}, {"special", no_argument, NULL, OPT_SPECIAL}, {"json", no_argument, NULL, OPT_JSON},
        {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
    };
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "m:p:f:h", options, NULL)) != -1;) {
        switch (c) {
        case 'm':
            if (kn_app_path("model", "-m", optarg, &args->model))
                return KN_APP_EXIT_USAGE;
            break;
        case 'p': args->text = optarg; break;
        case 'f':
            if (kn_app_path("model", "-f", optarg, &args->file))
                return KN_APP_EXIT_USAGE;
            break;
        case OPT_TENSORS: args->tensors = true; break;
        case OPT_SPECIAL: args->special = true; break;
        case OPT_JSON: args->json = true; break;
        case 'h': fputs(help_text, stdout); return KN_APP_EXIT_OK;
        default: return kn_app_usage_error("model", "see kinema model --help"); /* getopt has said what is wrong */
        }
    }
    if (optind + 1 != argc)
        return kn_app_usage_error("model", optind == argc ? "what to do is missing: show or tokenize" : "there are arguments too many after %s", argv[optind]);
    args->what = argv[optind];
    bool show = !strcmp(args->what, "show");
    if (!show && strcmp(args->what, "tokenize"))
        return kn_app_usage_error("model", "there is no %s: show and tokenize are", args->what);
    if (show && (args->text || args->file || args->special))
        return kn_app_usage_error("model", "show takes no -p, -f or --special");
    if (!show && (!args->text == !args->file || args->tensors))
        return kn_app_usage_error("model", "tokenize takes either -p TEXT or -f FILE, and no --tensors");
    return -1;
}

int kn_cmd_model(int argc, char **argv)
{
    struct args args = {0};
    struct kn_err err = {0};
    struct kn_model *model = NULL;
    char path[4096];
    int rc = parse(&args, argc, argv);
    if (rc >= 0)
        return rc;
    if (!args.model && !kn_app_default_model("model", path, sizeof path))
        return KN_APP_EXIT_FAILED;
    struct kn_model_opts o = {.size = sizeof o, .path = args.model ? args.model : path};
    kn_app_log_to_stderr(KN_LOG_LEVEL_WARN);
    if (kn_model_open(&model, &o, &err))
        return kn_app_fail("model", "%s", err.text);
    if (strcmp(args.what, "show"))
        rc = tokenize(model, &args);
    else
        rc = args.json ? show_json(model, &args) : show_table(model, &args);
    kn_model_close(&model);
    return rc;
}

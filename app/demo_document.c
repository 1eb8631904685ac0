/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and cuts the demo's document; see demo_document.h. */
#include "demo_document.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"

/* Chapter 3 of the user manual, "Moving around": about 6,000 tokens of prose. Debian: package vim-runtime. */
#define DEFAULT_PATTERN "/usr/share/vim/vim*/doc/usr_03.txt"

static bool find_default(char *out, size_t out_bytes)
{
    glob_t found = {0};
    bool ok = !glob(DEFAULT_PATTERN, 0, NULL, &found) && found.gl_pathc;
    if (ok)
        snprintf(out, out_bytes, "%s", found.gl_pathv[found.gl_pathc - 1]);
    else
        kn_app_fail("demo", "no document: " DEFAULT_PATTERN " is missing; install vim-runtime (tools/setup does), or give --document FILE");
    globfree(&found);
    return ok;
}

/* Bytes of text that the first max_tokens tokens cover, back to the end of a line; *n_tokens: tokens of that part. */
static size_t cut(const struct kn_model *model, const char *text, const int32_t *ids, size_t n_ids, size_t max_tokens, size_t *n_tokens)
{
    size_t bytes = 0, line_end = 0, line_tokens = 0, n = n_ids < max_tokens ? n_ids : max_tokens;
    for (size_t i = 0; i < n; i++) {
        const char *piece;
        size_t length;
        if (kn_model_token_bytes(model, ids[i], &piece, &length))
            break;
        bytes += length;
        if (memchr(piece, '\n', length) && text[bytes - 1] == '\n') {
            line_end = bytes;
            line_tokens = i + 1;
        }
    }
    *n_tokens = n_ids <= max_tokens ? n_ids : line_tokens ? line_tokens : n;
    return n_ids <= max_tokens ? bytes : line_end ? line_end : bytes;
}

bool kn_demo_document_write(const struct kn_model *model, const char *path, size_t min_tokens, size_t max_tokens,
                            const char *out_path, size_t *n_tokens, char *source, size_t source_bytes)
{
    bool ok = false;
    char *text = NULL;
    int32_t *ids = NULL;
    struct kn_app_output out;
    size_t n_bytes, n_ids;
    const char *why;
    if (path)
        snprintf(source, source_bytes, "%s", path);
    else if (!find_default(source, source_bytes))
        goto done;
    text = kn_app_read_file(source, &n_bytes, &why);
    if (!text) {
        kn_app_fail("demo", "cannot read the document %s: %s", source, why);
        goto done;
    }
    n_ids = 3 * n_bytes + 2;
    ids = malloc(n_ids * sizeof *ids);
    if (!ids || kn_model_tokenize(model, text, n_bytes, 0, ids, &n_ids)) {
        kn_app_fail("demo", "cannot tokenize the document %s", source);
        goto done;
    }
    size_t keep = cut(model, text, ids, n_ids, max_tokens, n_tokens);
    if (*n_tokens < min_tokens) {
        kn_app_fail("demo", "the document %s has %zu tokens; %zu at least are needed to fill a stored chunk", source, *n_tokens, min_tokens);
        goto done;
    }
    if (kn_app_output_open(&out, "demo", out_path))
        goto done;
    kn_app_output_write(&out, text, keep);
    ok = kn_app_output_close(&out, "demo", KN_APP_EXIT_OK) == KN_APP_EXIT_OK;
done:
    free(ids);
    free(text);
    return ok;
}

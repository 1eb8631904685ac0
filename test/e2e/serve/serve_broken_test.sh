#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A server whose model gives no finite number.
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
"$(dirname "$bin")/test/tiny_gguf" --broken "$work/broken.gguf" || fail "cannot write the model"
client serve_broken.py "$work/broken.gguf"
finish

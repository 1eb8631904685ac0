#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A model whose results are not numbers: run ends with an error and its reason, greedy or sampled, in words or as JSON, and stores nothing.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

"$(dirname "$bin")/test/tiny_gguf" --broken "$work/broken.gguf" || fail "cannot write the model"
for how in "" "--temp 1" "--json"; do
  # shellcheck disable=SC2086
  expect 1 "infinite or not a number" "$bin" run -m "$work/broken.gguf" --prompt "some words to begin with" -n 4 --store "lmdb:$work/store" $how
done
finish

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that need the model fail without it and say how to get it: a test that skipped would look like one that passed.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

programs=$(dirname "$bin")/test
for test in tokens_test logits_test; do
  for missing in "" "$work/none.gguf"; do
    expect 1 "make model" env KN_MODEL="$missing" "$programs/$test"
  done
done
expect 1 "make model" env KN_MODEL= bash "$KN_SOURCE/test/e2e/run_store_test.sh"

# all others open it the same way
own=$(grep -rl --include='*_test.c' 'getenv("KN_MODEL")' "$KN_SOURCE/test" | xargs -r grep -L 'kn_real_model_open()' || true)
[ -z "$own" ] || fail "open the model by support/real_model.h in: $own"

expect 0 "KN_MODEL is empty: tests that need the model will fail" cmake -S "$KN_SOURCE" -B "$work/build" -DKN_MODEL=
expect 0 "is not there yet" cmake -S "$KN_SOURCE" -B "$work/build" -DKN_MODEL="$work/none.gguf"
finish

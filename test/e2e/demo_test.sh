#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demo on a short document: its table, its JSON, a store that is kept when named, nothing left behind otherwise.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

python3 -c 'print("\n".join(f"Line {i}: the keeper of lighthouse number {i * 7 % 31} counts {i * 13 % 97} ships." for i in range(60)))' >"$work/doc.txt"
mkdir "$work/tmp"
TMPDIR=$work/tmp "$bin" demo -m "$model" --document "$work/doc.txt" --document-tokens 600 -n 8 --presets exact --store "lmdb:$work/kept" \
  --json "$work/demo.json" >"$work/out" 2>"$work/err" </dev/null || fail "demo: $(cat "$work/err")"
[ "$(json "$work/demo.json" 'len(o["rows"]) == 1 and o["prefix_tokens"] >= 256')" = true ] || fail "rows: $(cat "$work/demo.json")"
[ "$(json "$work/demo.json" 'o["rows"][0]["same_tokens"] and o["rows"][0]["same_cache"] and not o["rows"][0]["lossy"]')" = true ] ||
  fail "the exact preset changed the answer"
[ "$(json "$work/demo.json" 'o["rows"][0]["raw_bytes"] > o["rows"][0]["stored_bytes"] > 0')" = true ] || fail "bytes do not fit"
[ "$(json "$work/demo.json" 'abs(o["rows"][0]["speedup"] - o["rows"][0]["ttft_recompute_s"] / o["rows"][0]["ttft_fetch_s"]) < 0.01')" = true ] ||
  fail "the speed-up is not the ratio of the times"
for word in exact speed-up "lossless" "document"; do
  grep -q -- "$word" "$work/out" || fail "the table lacks \"$word\""
done
[ -z "$(ls -A "$work/tmp")" ] || fail "the demo left something behind: $(ls "$work/tmp")"
[ -d "$work/kept" ] || fail "the named store is gone"
expect 0 "exact" "$bin" store ls "lmdb:$work/kept"
export TMPDIR=$work/tmp
kept "cannot read the document" "$bin" demo -m "$model" --document "$work/nothing" --presets exact --json "$work/old"
kept "at least are needed" "$bin" demo -m "$model" --document <(head -c 100 "$work/doc.txt") --presets exact --json "$work/old"
kept "leave no room" "$bin" demo -m "$model" --document "$work/doc.txt" --document-tokens 9000 --presets exact --json "$work/old"
[ -z "$(ls -A "$work/tmp")" ] || fail "a demo that failed left something behind: $(ls "$work/tmp")"
finish

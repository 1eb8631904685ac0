#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The presets fine, medium and small from outside, on the tiny model of the fuzzers' corpus: a profile is named, found or missing;
# what is published is fetched, said to be lossy, and kept apart by preset, backend, type and profile.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"
source_dir=${KN_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
tiny=$source_dir/test/fuzz/corpus/gguf_fuzz/tiny_q4_0
texts=("$source_dir/app/app.c" "$source_dir/tools/check" "$source_dir/doc/format-chunk.md" "$source_dir/README.md")
profile=$work/tiny.knp
store=lmdb:$work/store
"$bin" profile build -m "$tiny" -o "$profile" --max-tokens 512 "${texts[@]}" >/dev/null 2>"$work/err" || fail "profile build: $(cat "$work/err")"
head -c 400 "$source_dir/LICENSE" >"$work/doc.txt"

run() { # OUTPUT then options
  local out=$1
  shift
  "$bin" run -m "$tiny" -f "$work/doc.txt" --raw -n 4 --ignore-stop --chunk-tokens 64 --json "$@" >"$out" 2>"$out.err" </dev/null || fail "run $*: $(cat "$out.err")"
}

# ---- every preset and backend: published once, fetched by the next process, never by another setting
backends=(rans hevc)
for preset in fine medium small; do
  for backend in "${backends[@]}"; do
    options=(--store "$store" --profile "$profile" --preset $preset --backend "$backend")
    run "$work/a.json" "${options[@]}"
    run "$work/b.json" "${options[@]}"
    [ "$(json "$work/a.json" 'o["fetched_tokens"] == 0 and o["published"]["chunks"] >= 2 and o["published"]["errors"] == 0')" = true ] || fail "$preset $backend: not published afresh"
    [ "$(json "$work/b.json" 'o["fetched_tokens"] >= 128 and o["misses"] == 0 and 0 < o["decode_bytes"] < 70e6')" = true ] || fail "$preset $backend: not fetched"
    [ "$(json "$work/b.json" '[o["preset"], o["backend"], o["lossy"]]')" = "[\"$preset\", \"$backend\", true]" ] || fail "$preset $backend: called otherwise"
    [ "$(json "$work/b.json" 'o["fetch_bytes"]')" = "$(json "$work/a.json" 'o["published"]["bytes"]')" ] || fail "$preset $backend: other bytes came back"
    cp "$work/b.json" "$work/$preset-$backend.json"
    expect 0 ":$preset-f16-64-v3-$backend" "$bin" store ls "$store"
  done
  same "$work/$preset-rans.json" "$work/$preset-hevc.json" 'o["kv_digest"]' "$preset by both backends"
done

# ---- video: basic tools have a place of their own in the store; who coded it, and in how many slices, makes no difference to who fetches it
video=(--profile "$profile" --preset small --backend hevc)
[ "$(json "$work/small-hevc.json" '[o["hevc_encoder"], o["hevc_tools"]]')" = '["kinema", "full"]' ] || fail "video is not said to be by kinema with full tools"
[ "$(json "$work/small-rans.json" '[o["hevc_encoder"], o["hevc_tools"]]')" = '[null, null]' ] || fail "rans is said to be video"
run "$work/a.json" --store "$store" "${video[@]}" --hevc-tools basic
run "$work/b.json" --store "$store" "${video[@]}" --hevc-tools basic
[ "$(json "$work/a.json" '[o["fetched_tokens"], o["published"]["errors"], o["hevc_tools"]]')" = '[0, 0, "basic"]' ] || fail "basic tools: streams with others were fetched"
[ "$(json "$work/b.json" 'o["fetched_tokens"] >= 128 and o["misses"] == 0')" = true ] || fail "basic tools: not fetched"
expect 0 ":small-f16-64-v3-hevc-basic" "$bin" store ls "$store"
same "$work/small-rans.json" "$work/b.json" 'o["kv_digest"]' "basic tools"
encoders=(kinema)
if [ -e "$(dirname "$bin")/libkinema_x265.so" ]; then encoders+=(x265-ultrafast x265-medium); fi
for encoder in "${encoders[@]}"; do
  run "$work/a.json" --store "lmdb:$work/$encoder" "${video[@]}" --hevc-encoder "$encoder" --hevc-slices 3
  run "$work/b.json" --store "lmdb:$work/$encoder" "${video[@]}"
  [ "$(json "$work/a.json" '[o["published"]["errors"], o["hevc_encoder"]]')" = "[0, \"$encoder\"]" ] || fail "$encoder: not published"
  [ "$(json "$work/b.json" 'o["fetched_tokens"] >= 128 and o["misses"] == 0')" = true ] || fail "$encoder: not fetched"
  same "$work/small-rans.json" "$work/b.json" 'o["kv_digest"]' "$encoder"
done
expect 0 "0 bad" "$bin" store verify "$store"

# ---- the video of a stored chunk as pictures
key=$("$bin" store ls "lmdb:$work/kinema" --json >"$work/ls.json" && json "$work/ls.json" 'o["chunks"][0]["key"]')
expect 0 "$key" "$bin" store get "lmdb:$work/kinema" "$key" -o "$work/chunk"
"$bin" codec decode "$work/chunk" -o "$work/pictures.yuv" --json >"$work/d.json" 2>"$work/err" || fail "decode of a chunk: $(cat "$work/err")"
[ "$(json "$work/d.json" 'o["pictures"] == 2 and o["width"] >= 144 and o["height"] % 16 == 0')" = true ] || fail "pictures of a chunk: $(cat "$work/d.json")"
python3 - "$work/pictures.yuv" <<'PY' || fail "the first picture of a chunk is not flat, or the second one is"
import sys
data = open(sys.argv[1], "rb").read()
half = len(data) // 2
sys.exit(set(data[:half]) != {128} or len(set(data[half:])) < 3)
PY

# ---- kept apart by type and profile
run "$work/bf16.json" --store "$store" --profile "$profile" --preset small --kv-type bf16
[ "$(json "$work/bf16.json" 'o["fetched_tokens"]')" = 0 ] || fail "f16 chunks were restored into a bf16 pool"
"$bin" profile build -m "$tiny" -o "$work/other.knp" --max-tokens 500 "${texts[@]}" >/dev/null 2>&1 || fail "second profile"
run "$work/other.json" --store "$store" --profile "$work/other.knp" --preset small
[ "$(json "$work/other.json" '[o["fetched_tokens"], o["misses"]]')" = "[0, 0]" ] || fail "chunks of one profile were fetched with another"

# ---- the default: exact unless --profile asks for more; a profile that is merely there is advice, and what is used is said
run "$work/d.json" --store "$store"
[ "$(json "$work/d.json" '[o["preset"], o["lossy"]]')" = '["exact", false]' ] || fail "the default without a profile is not exact"
run "$work/d.json" --store "$store" --profile "$profile"
[ "$(json "$work/d.json" '[o["preset"], o["lossy"], o["fetched_tokens"] >= 128]')" = '["medium", true, true]' ] || fail "the default with --profile is not medium"
grep -q "preset medium, which is lossy" "$work/d.json.err" || fail "a lossy default is not said"
fingerprint=$("$bin" model show -m "$tiny" --json >"$work/m" && json "$work/m" 'o["fingerprint"]')
mkdir -p "$work/cache/profiles"
cp "$profile" "$work/cache/profiles/$fingerprint.knp"
advised() { # what a run with these settings says and uses
  [ "$(json "$work/d.json" '[o["preset"], o["lossy"], o["quality"]]')" = '["exact", false, "exact"]' ] || fail "$1 makes the default lossy"
  grep -q -- "--preset medium would store [0-9]*x fewer bytes" "$work/d.json.err" || fail "$1 is no advice: $(cat "$work/d.json.err")"
}
KINEMA_PROFILE=$profile run "$work/d.json" --store "$store"
advised "KINEMA_PROFILE"
KINEMA_PROFILE=$profile run "$work/d.json" --store "$store" --preset medium
[ "$(json "$work/d.json" '[o["preset"], o["quality"]]')" = '["medium", "medium"]' ] || fail "KINEMA_PROFILE is not used where a preset asks for it"
export KINEMA_CACHE=$work/cache
run "$work/d.json" --store "$store"
advised "a profile in the cache folder"
run "$work/d.json" --store "$store" --preset medium
[ "$(json "$work/d.json" '[o["preset"], o["fetched_tokens"] >= 128]')" = '["medium", true]' ] || fail "the profile in the cache folder is not found"
run "$work/d.json" --store "$store" --preset medium --kv-quality fine
[ "$(json "$work/d.json" '[o["fetched_tokens"], o["quality"]]')" = '[0, "exact"]' ] || fail "--kv-quality fine takes medium"
run "$work/d.json" --store "$store" --preset exact
[ "$(json "$work/d.json" '[o["preset"], o["lossy"]]')" = '["exact", false]' ] || fail "--preset exact is not exact"
"$bin" run -m "$tiny" -f "$work/doc.txt" --raw -n 4 --ignore-stop --json >"$work/d.json" 2>"$work/d.json.err" </dev/null || fail "run without a store: $(cat "$work/d.json.err")"
[ "$(json "$work/d.json" '[o["preset"], o["lossy"]]')" = '["exact", false]' ] || fail "without a store a profile plays a part"
unset KINEMA_CACHE

# ---- refused, with a sentence
bad() { # TEXT then options
  local text=$1
  shift
  expect 1 "$text" "$bin" run -m "$tiny" -f "$work/doc.txt" --raw -n 1 --store "lmdb:$work/never" "$@"
}
bad "preset small needs a profile" --preset small
misused() { # TEXT then options
  local text=$1
  shift
  expect 2 "$text" "$bin" run -m "$tiny" -f "$work/doc.txt" --raw -n 1 "$@"
}
misused "kinema, x265-ultrafast or x265-medium" "${video[@]}" --hevc-encoder x264
misused "full or basic" "${video[@]}" --hevc-tools none
misused "1 to 64 slices" "${video[@]}" --hevc-slices 65
misused "belong to video" --preset exact --hevc-tools basic
misused "belong to video" --profile "$profile" --preset small --backend rans --hevc-encoder kinema
bad "no such file" --preset small --profile "$work/none"
bad "is no profile" --profile "$tiny"
head -c 5000 "$profile" >"$work/cut.knp"
bad "damaged profile" --preset fine --profile "$work/cut.knp"
expect 1 "the profile is for" "$bin" run -m "$model" -f "$work/doc.txt" --raw -n 1 --store "lmdb:$work/never" --profile "$profile"
[ ! -e "$work/never" ] || fail "a refused run made a store"
expect 1 "needs a profile" "$bin" demo -m "$model" --document "$source_dir/LICENSE" --document-tokens 300 --presets small
finish

# SPDX-License-Identifier: Apache-2.0
# kinema codec inspect as a user meets it: a stream and chunks, tables and JSON whose sums fit, one picture, wrong usage and files that are
# something else.
# shellcheck shell=bash disable=SC1091
source "$(dirname "$0")/e2e.sh"
corpus=$KN_SOURCE/test/fuzz/corpus
ours=$corpus/hevc_reader_fuzz/ours_all_tools

expect 0 "transform_skip_context implicit_rdpcm explicit_rdpcm persistent_rice_adaptation" "$bin" codec inspect "$ours"
grep -q "^pictures  48 x 64, 8-bit 4:4:4" "$work/out" || fail "no picture size"
[ "$(grep -cE "^ +[0-9]+ +(IDR)? +[0-9]+ +[0-9.]+  [IP] [0-9]+ [IP] [0-9]+$" "$work/out")" -eq 3 ] || fail "three pictures of two slices"
[ "$(grep -cE "^ +[0-9]+ +[0-9]+ +[0-9.]+( +[0-9.]+%){5}$" "$work/out")" -eq 4 ] || fail "four bands of 16 rows"
expect 0 "none of the range extensions'" "$bin" codec inspect "$corpus/hevc_reader_fuzz/ours_basic"
expect 0 "sign_data_hiding" "$bin" codec inspect "$corpus/hevc_reader_fuzz/x265"

expect 0 '"section": null' "$bin" codec inspect "$ours" --json --rows 8
cp "$work/out" "$work/all.json"
[ "$(json "$work/all.json" 'o["bytes"] == sum(p["bytes"] for p in o["pictures"])')" = true ] || fail "pictures do not add up to bytes"
[ "$(json "$work/all.json" 'abs(o["bits"] - sum(e["bits"] for e in o["elements"].values())) < 0.01')" = true ] || fail "elements do not add up"
[ "$(json "$work/all.json" 'len(o["bands"]) == 8 and abs(o["bits"] - sum(b["bits"] for b in o["bands"])) < 0.01')" = true ] || fail "bands do not add up"
[ "$(json "$work/all.json" '0.97 < o["bits"] / 8 / sum(s["bytes"] - s["header_bytes"] for p in o["pictures"] for s in p["slices"]) < 1.02')" = true ] || fail "bits are not the bytes"
[ "$(json "$work/all.json" '(o["params"]["width"], len(o["params"]["tools"]), [p["idr"] for p in o["pictures"]], o["samples"])')" = "[48, 4, [true, false, false], 27648]" ] || fail "head"
"$bin" codec inspect --json --picture 1 - <"$ours" >"$work/one.json" || fail "standard input"
[ "$(python3 -c 'import json,sys
a,b=(json.load(open(f)) for f in sys.argv[1:3])
print(abs(a["pictures"][1]["bits"]-b["bits"])<0.01 and b["samples"]*3==a["samples"])' "$work/all.json" "$work/one.json")" = True ] || fail "one picture"

expect 0 "tiles-video 0" "$bin" codec inspect "$corpus/chunk_fuzz/tiles_bf16"
expect 0 '"section": "spectral-video", "index": 1' "$bin" codec inspect "$corpus/chunk_fuzz/fine_hevc_f16" --json
[ "$(wc -l <"$work/out")" -ge 2 ] || fail "a line for each of K and V"
expect 1 "holds no HEVC: it was coded with preset exact over rans" "$bin" codec inspect "$corpus/chunk_fuzz/exact_f16"
expect 1 "neither an HEVC stream (Annex B) nor a chunk" "$bin" codec inspect "$KN_SOURCE/README.md"
head -c 700 "$ours" >"$work/cut"
expect 1 "$work/cut: the HEVC stream" "$bin" codec inspect "$work/cut"
expect 1 "there is no picture 3 in a stream of 3" "$bin" codec inspect "$ours" --picture 3
expect 1 "no.h265" "$bin" codec inspect "$work/no.h265"
expect 0 "usage: kinema codec inspect FILE" "$bin" codec inspect --help
expect 0 "inspect" "$bin" codec --help
expect 2 "needs a file" "$bin" codec inspect
expect 2 "multiple of 4" "$bin" codec inspect "$ours" --rows 10
expect 2 "there is no option --lines" "$bin" codec inspect "$ours" --lines 10
expect 2 "unexpected" "$bin" codec inspect "$ours" "$ours"
finish

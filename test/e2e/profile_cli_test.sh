#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kinema profile from outside, on the tiny model of the fuzzers' corpus: build, show, what is refused; and make demo's way to a profile.
source "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"
source_dir=${KN_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
tiny=$source_dir/test/fuzz/corpus/gguf_fuzz/tiny_q4_0
texts=("$source_dir/app/app.c" "$source_dir/tools/check" "$source_dir/doc/format-chunk.md" "$source_dir/README.md")
profile=$work/tiny.knp

# ---- build and show
expect 0 "learned from" "$bin" profile build -m "$tiny" -o "$profile" --max-tokens 512 "${texts[@]}"
[ -s "$work/err" ] && fail "build writes to stderr without a terminal: $(head -c 200 "$work/err")"
expect 0 "of 32" "$bin" profile show "$profile"
expect 0 '"preset"' "$bin" profile show "$profile" --json
cp "$work/out" "$work/shown"
[ "$(json "$work/shown" 'len(o["presets"])')" = 3 ] || fail "there are not three presets"
[ "$(json "$work/shown" '[p["preset"] for p in o["presets"]]')" = '["fine", "medium", "small"]' ] || fail "presets are named otherwise"
[ "$(json "$work/shown" 'o["bytes"]')" = "$(stat -c %s "$profile")" ] || fail "bytes is not the file's size"
[ "$(json "$work/shown" 'o["fingerprint"]')" = "$("$bin" model show -m "$tiny" --json >"$work/m" && json "$work/m" 'o["fingerprint"]')" ] || fail "another fingerprint than the model's"
[ "$(json "$work/shown" 'all(p["ratio"] > 1 and p["kl"] > 0 and 0 < p["top1"] <= 1 and p["step_v"] > p["step_k"] > 0 for p in o["presets"])')" = true ] || fail "a measured figure is out of range"
[ "$(json "$work/shown" 'o["n_calibration_tokens"]')" = 1524 ] || fail "not three texts of 512 tokens, less four each"

# ---- used wrongly
expect 2 "what to do is missing" "$bin" profile
expect 2 "there is no bake" "$bin" profile bake
expect 2 "needs -o" "$bin" profile build -m "$tiny" "${texts[@]}"
expect 2 "needs texts" "$bin" profile build -m "$tiny" -o "$profile"
expect 2 "takes one profile" "$bin" profile show
expect 2 "takes one profile" "$bin" profile show "$profile" "$profile"
expect 2 "no option but --json" "$bin" profile show "$profile" -o x
expect 2 "--threads takes" "$bin" profile build -m "$tiny" -o "$profile" -t 0 "${texts[@]}"
expect 2 "--max-tokens takes" "$bin" profile build -m "$tiny" -o "$profile" --max-tokens 1 "${texts[@]}"
expect 2 "--group takes" "$bin" profile build -m "$tiny" -o "$profile" --group x "${texts[@]}"

# ---- refused, with a sentence; the old file stays, nothing half-written appears
before=$(sha256sum <"$profile")
expect 1 "too little text" "$bin" profile build -m "$tiny" -o "$profile" "$source_dir/LICENSE" --max-tokens 64
expect 1 "cannot read the text $work/none: No such file" "$bin" profile build -m "$tiny" -o "$profile" "$work/none"
expect 1 "cannot read the text $work" "$bin" profile build -m "$tiny" -o "$profile" "$work"
expect 1 "cannot write $work/no/such/folder.knp" "$bin" profile build -m "$tiny" -o "$work/no/such/folder.knp" "${texts[@]}"
expect 1 "cannot open" "$bin" profile build -m "$work/none" -o "$profile" "${texts[@]}"
expect 1 "n_group is 2: use 1 to 1" "$bin" profile build -m "$tiny" -o "$profile" --group 2 "${texts[@]}"
[ "$before" = "$(sha256sum <"$profile")" ] || fail "a failed build changed the old profile"
[ -z "$(find "$work" -name '*.tmp')" ] || fail "a failed build left a temporary file"
expect 1 "no such file" "$bin" profile show "$work/none"
expect 1 "is no profile" "$bin" profile show "$tiny"
head -c 5000 "$profile" >"$work/cut.knp"
expect 1 "damaged profile" "$bin" profile show "$work/cut.knp"
{ head -c 4 "$profile"; printf '\x03'; tail -c +6 "$profile"; } >"$work/next.knp"
expect 1 "profile of version 3" "$bin" profile show "$work/next.knp"

# ---- what it was learned on, and texts given twice or doubtful
[ "$(json "$work/shown" '[[t["name"], t["tokens"], t["held_back"]] for t in o["texts"]]')" = \
  '[["app.c", 512, false], ["check", 512, false], ["format-chunk.md", 512, false], ["README.md", 512, true]]' ] || fail "texts: $(json "$work/shown" 'o["texts"]')"
expect 0 "measured on  README.md" "$bin" profile show "$profile"
cp "$source_dir/README.md" "$work/copy.md"
expect 0 "text 5 ($work/copy.md) is left out" "$bin" profile build -m "$tiny" -o "$work/twice.knp" --max-tokens 512 "${texts[@]}" "$work/copy.md"
cmp -s "$profile" "$work/twice.knp" || fail "a text given twice made another profile"
printf 'text \xff\xfe text' >"$work/bad.txt"
expect 1 "text 5 ($work/bad.txt) is no UTF-8: byte 0xff at offset 5" "$bin" profile build -m "$tiny" -o "$work/twice.knp" --max-tokens 512 "${texts[@]}" "$work/bad.txt"
expect 0 "left out: text 5" "$bin" profile build -m "$tiny" -o "$work/twice.knp" --max-tokens 512 --skip-bad-texts "${texts[@]}" "$work/bad.txt"
cmp -s "$profile" "$work/twice.knp" || fail "a text that was left out made another profile"
head -c 5000 /dev/urandom | head -c 3000 >"$work/random"
expect 1 "text 5 ($work/random) is no" "$bin" profile build -m "$tiny" -o "$work/twice.knp" --max-tokens 512 "${texts[@]}" "$work/random"
eval_=("$bin" codec eval -m "$tiny" --profile "$profile" --prefix 256 --continue 64 --only small --json)
"${eval_[@]}" --text "$source_dir/README.md" 2>/dev/null >"$work/e.json" || fail "eval"
[ "$(json "$work/e.json" '["this very text" in " ".join(o["hints"]), o["profile"]["texts"][3]["name"]]')" = '[true, "README.md"]' ] || fail "a text of the profile: $(json "$work/e.json" 'o["hints"]')"
"${eval_[@]}" --text "$source_dir/CONTRIBUTING.md" 2>/dev/null >"$work/e.json" || fail "eval"
[ "$(json "$work/e.json" 'o["hints"]')" = '[]' ] || fail "hints on a text like the profile's: $(json "$work/e.json" 'o["hints"]')"
for _ in $(seq 200); do printf 'яблоко 漢字かな ещё '; done >"$work/foreign.txt"
"${eval_[@]}" --text "$work/foreign.txt" 2>/dev/null >"$work/e.json" || fail "eval"
[ "$(json "$work/e.json" '"unlike" in " ".join(o["hints"])')" = true ] || fail "no hint on a foreign script: $(json "$work/e.json" 'o["rows"]')"
expect 0 "learned from 1524 tokens of app.c, check" "$bin" codec eval -m "$tiny" --profile "$profile" --prefix 256 --continue 64 --only small --text "$work/foreign.txt"

# ---- the cache folder
mapfile -t list < <("$source_dir/tools/calibration-texts")
[ ${#list[@]} -ge 8 ] || fail "calibration-texts lists ${#list[@]} files"
for f in "${list[@]}"; do
  [ -r "$f" ] || fail "calibration-texts lists $f, which cannot be read"
  case $f in */usr_*.txt | */Apache-2.0 | */MPL-* | */LGPL*) fail "calibration-texts lists $f, which is kept for judging" ;; esac
done
export KINEMA_CACHE=$work/cache
expect 0 "$work/cache/profiles/" "$source_dir/tools/build-profile" "$bin" "$tiny"
made=$(tail -n 1 "$work/out")
expect 0 "of 32" "$bin" profile show "$made"
first=$(stat -c %Y.%i "$made")
expect 0 "$made" "$source_dir/tools/build-profile" "$bin" "$tiny"
[ "$first" = "$(stat -c %Y.%i "$made")" ] || fail "a good profile was built again"
head -c 100 "$profile" >"$made"
expect 0 "$made" "$source_dir/tools/build-profile" "$bin" "$tiny"
expect 0 "of 32" "$bin" profile show "$made"
expect 0 /some/where "$(command -v env)" KINEMA_PROFILE=/some/where "$source_dir/tools/build-profile" "$bin" "$tiny"
expect 2 "usage:" "$source_dir/tools/build-profile"

[ "$failures" -eq 0 ]

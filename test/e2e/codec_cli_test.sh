# SPDX-License-Identifier: Apache-2.0
# kinema codec as a user meets it: the JSON of eval in its documented form, several texts and their mean, tables, and wrong usage.
# shellcheck shell=bash disable=SC1091
source "$(dirname "$0")/e2e.sh"
head -c 6000 "$KN_SOURCE/CONTRIBUTING.md" >"$work/a.txt"
head -c 6000 "$KN_SOURCE/doc/format-store.md" >"$work/b.txt"
small=(-m "$model" --prefix 256 --continue 24 --only raw,cachegen -t 2)

expect 0 cachegen "$bin" codec eval "${small[@]}" --text "$work/a.txt" --text "$work/b.txt" --json
[ "$(wc -l <"$work/out")" -eq 3 ] || fail "two texts and a mean are three lines"
for i in 1 2 3; do sed -n "${i}p" "$work/out" >"$work/$i.json"; done
[ "$(json "$work/1.json" 'o["text"].endswith("a.txt")')" = true ] || fail "the first line is the first text"
[ "$(json "$work/3.json" 'o["text"]')" = mean ] || fail "the last line is the mean"
[ "$(json "$work/1.json" '(o["prefix"], o["continue"], len(o["rows"]))')" = "[256, 24, 5]" ] || fail "prefix, continue, rows"
keys='set("method preset bytes ratio bits_k bits_v kl top1 nll encode_tok_s decode_tok_s".split()) <= set(o["rows"][1])'
[ "$(json "$work/1.json" "$keys")" = true ] || fail "a row lacks a key"
[ "$(json "$work/1.json" '[r["preset"] for r in o["rows"]]')" = '["16-bit", "64/64", "32/32", "32/16", "16/16"]' ] || fail "presets"
[ "$(json "$work/1.json" 'o["rows"][0]["bytes"] == 256*23040 and o["rows"][0]["kl"] == 0 and o["rows"][0]["exact"]')" = true ] || fail "raw is 23,040 bytes a token"
[ "$(json "$work/1.json" 'o["rows"][4]["kl"] > o["rows"][1]["kl"] > 0 and 3 < o["rows"][1]["ratio"] < o["rows"][4]["ratio"]')" = true ] || fail "fewer levels: smaller and worse"
mean=$(python3 -c 'import json,sys
a,b,m=(json.load(open(f)) for f in sys.argv[1:4])
print(all(abs(x["kl"]+y["kl"]-2*z["kl"])<1e-6 and abs(x["bytes"]+y["bytes"]-2*z["bytes"])<=1 for x,y,z in zip(a["rows"],b["rows"],m["rows"])))' "$work/1.json" "$work/2.json" "$work/3.json")
[ "$mean" = True ] || fail "the mean is not the mean"

expect 0 "bit for bit" "$bin" codec eval "${small[@]}" --only raw --text "$work/a.txt"
expect 0 "--needle" "$bin" codec --help
expect 2 "eval, search, encode, decode or inspect" "$bin" codec
expect 2 "needs --text" "$bin" codec eval -m "$model"
expect 2 "multiple of 256" "$bin" codec eval -m "$model" --text "$work/a.txt" --prefix 300
expect 2 "takes one --text" "$bin" codec search -m "$model" --text "$work/a.txt" --text "$work/b.txt"
expect 1 "longer text" "$bin" codec eval -m "$model" --text "$work/a.txt" --prefix 4096
expect 1 "no method \"cachegem\"" "$bin" codec eval -m "$model" --text "$work/a.txt" --prefix 256 --continue 4 --only cachegem
expect 1 "needs a profile" "$bin" codec eval -m "$model" --text "$work/a.txt" --prefix 256 --continue 4 --only small
expect 1 "no.txt" "$bin" codec eval -m "$model" --text "$work/no.txt"
finish

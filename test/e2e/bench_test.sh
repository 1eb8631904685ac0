#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The benchmarks as programs: rows, a rival played by a script that answers fixed times, quality against the references.
# Speeds are not judged.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

# ---- a rival that is not there is said before anything is measured
expect 1 "make bench-peers" "$bin" bench engine -m "$model" --peer llama.cpp
expect 1 "peer_llamacpp.py is not there" "$bin" bench engine -m "$model" --peer llama.cpp --peer-python /bin/true --peer-script "$work/none.py"
expect 1 "before it could measure anything" "$bin" bench engine -m "$model" --peer llama.cpp --peer-python /bin/true --rows prefill_16

# ---- each kind of row, small; numbers are not judged, only that they are there
expect 0 "" "$bin" bench engine -m "$model" --rows prefill_24,decode_24,decode_8_x3,resident_24 --decode 2 --repeat 1 --chunk 16 --json
cp "$work/out" "$work/rows"
[ "$(json "$work/rows" "[r['work'] for r in o['rows']]")" = '["prefill_24", "decode_24", "decode_8_x3", "resident_24"]' ] || fail "rows of bench engine"
[ "$(json "$work/rows" "all(r['ours'] > 0 and r['floor'] > 0 and r['peer'] is None for r in o['rows'])")" = true ] || fail "values of bench engine"

# ---- speed of the codecs: rows that need no profile, both directions, in both forms; speeds are not judged
text=$KN_SOURCE/README.md
expect 2 "say what the model is to read" "$bin" bench codec -m "$model"
expect 2 "multiple of 256" "$bin" bench codec -m "$model" --text "$text" --prefix 300
expect 1 "no row \"exakt\"" "$bin" bench codec -m "$model" --text "$text" --only exakt
expect 1 "use a multiple of 256 that the text has" "$bin" bench codec -m "$model" --text "$text" --prefix 1048576
expect 1 "none.knp" "$bin" bench codec -m "$model" --text "$text" --prefix 256 --profile "$work/none.knp"
expect 0 "GFLOP/s" "$bin" bench codec -m "$model" --text "$text" --prefix 256 --seconds 0.01 --only memcpy
expect 0 "" "$bin" bench codec -m "$model" --text "$text" --prefix 512 --kv-type bf16 --seconds 0.01 --only memcpy,exact,zstd --json
cp "$work/out" "$work/codecs"
[ "$(json "$work/codecs" "[r['what'] for r in o['rows']]")" = '["exact", "zstd", "memcpy"]' ] || fail "rows of bench codec"
[ "$(json "$work/codecs" "all(r[d][k] > 0 for r in o['rows'] for d in ('encode', 'decode') for k in ('tok_s', 'mb_s', 'wall_tok_s'))")" = true ] || fail "values of bench codec"
[ "$(json "$work/codecs" "o['rows'][0]['ratio'] > 1.5 and o['rows'][2]['ratio'] is None")" = true ] || fail "ratios of bench codec"

# ---- encoders of video: options, rows of both layouts on the tiny model of the fuzzers' corpus, targets, an encoder that is not there
expect 2 "goes with --encoder" "$bin" bench codec -m "$model" --text "$text" --ablation
expect 2 "--text-order goes with --encoder" "$bin" bench codec -m "$model" --text "$text" --text-order
expect 2 "--slices takes 1 to 64" "$bin" bench codec -m "$model" --text "$text" --encoder ours --slices 0
expect 2 "--hevc-tools goes with --encoder" "$bin" bench codec -m "$model" --text "$text" --hevc-tools full
expect 2 "say what the model is to read" "$bin" bench codec -m "$model" --encoder ours
expect 2 "needs a value" "$bin" bench codec -m "$model" --text "$text" --encoder
expect 0 "--hevc-tools" "$bin" bench codec --help
tiny=$KN_SOURCE/test/fuzz/corpus/gguf_fuzz/tiny_q4_0
"$bin" profile build -m "$tiny" -o "$work/tiny.knp" --max-tokens 512 "$KN_SOURCE/app/app.c" "$text" >/dev/null 2>"$work/err" || fail "profile build: $(cat "$work/err")"
video() { "$bin" bench codec -m "$tiny" --text "$KN_SOURCE/README.md" --prefix 256 --seconds 0.01 "$@"; }
expect 1 "no encoder \"x266\"" video --encoder ours,x266
expect 1 "no set of tools \"most\"" video --encoder ours --hevc-tools most
expect 1 "no preset over video \"exact\"" video --encoder ours --only exact
expect 1 "none.knp" video --encoder ours --profile "$work/none.knp"
expect 0 "as in the text" video --encoder ours --only tiles --text-order -t 1
expect 0 "tiles, tools" video --encoder ours,x265-ultrafast --only tiles --hevc-tools full,basic --json
expect 0 "medium, tools full: bytes above the rows' entropy" video --encoder ours --profile "$work/tiny.knp" --only medium --hevc-tools full -t 1
# x265 medium gets spectral pictures only: of token tiles as small as the tiny model's it makes, now and then, a stream that does not come back
expect 0 "" video --encoder ours,x265-ultrafast,x265-medium --only fine,medium,small --profile "$work/tiny.knp" --ablation --json
cp "$work/out" "$work/video"
[ "$(json "$work/video" "[r['preset'] for r in o['rows'] if (r['part'], r['tools']) == ('K+V', 'full')]")" = '["fine", "medium", "small"]' ] || fail "presets of encoders"
[ "$(json "$work/video" "len([r for r in o['rows'] if r['encoder'] == 'ours'])")" = 108 ] || fail "rows of our encoder" # 3 presets, 12 sets of tools, 3 parts
[ "$(json "$work/video" "o['exact'] and all(r['exact'] and r['encode']['mb_s'] > 0 and r['decode_mb_s'] > 0 for r in o['rows'])")" = true ] || fail "values of encoders"
[ "$(json "$work/video" "all((r['above_entropy'] is None) == (r['preset'] == 'tiles') for r in o['rows'])")" = true ] || fail "entropies of encoders"
[ "$(json "$work/video" "all(abs(r['bits_per_symbol'] * r['symbols'] / 8 - r['bytes']) < 1 for r in o['rows'])")" = true ] || fail "bits of encoders"
[ "$(json "$work/video" "{t['what']: t['is'] for t in o['targets']}['medium, tools full: encoding on one core, MB/s'] > 0")" = true ] || fail "targets of encoders"
[ "$(json "$work/video" "all(t['met'] == (t['is'] <= t['at_most'] if 'at_most' in t else t['is'] >= t['at_least']) for t in o['targets'])")" = true ] || fail "targets met"
if [ -e "$(dirname "$bin")/libkinema_x265.so" ]; then
  [ "$(json "$work/video" "len([r for r in o['rows'] if r['encoder'] != 'ours' and r['tools'] is None])")" = 18 ] || fail "rows of x265"
  ratio="{(r['preset'], r['part'], r['encoder'], r['tools']): r['bytes'] for r in o['rows']}"
  [ "$(json "$work/video" "[b := $ratio, all(abs(r['to_x265_medium'] - r['bytes'] / b[r['preset'], r['part'], 'x265-medium', None]) < 1e-6 for r in o['rows'])][1]")" = true ] || fail "ratios to x265"
else
  grep -q "x265-ultrafast is left out" "$work/err" || fail "an encoder that is not there is not said"
  [ "$(json "$work/video" "all(r['to_x265_medium'] is None for r in o['rows'])")" = true ] || fail "ratios to x265"
fi

# ---- predictions beside the plain C kernels': close over a few tokens, and other weights are told apart
text=$KN_SOURCE/README.md
expect 1 "give a longer text" "$bin" bench quality -m "$model" --text "$text" --continue 900000
expect 1 "No such file" "$bin" bench quality -m "$model" --text "$work/none.txt"
expect 1 "missing.gguf" "$bin" bench quality -m "$model" --text "$text" --reference "$work/missing.gguf"
expect 0 "" "$bin" bench quality -m "$model" --text "$text" --prefix 4 --continue 12 --steps 12,1 --json
cp "$work/out" "$work/quality"
[ "$(json "$work/quality" "[r['step_tokens'] for r in o['rows']]")" = "[12, 1]" ] || fail "rows of bench quality"
[ "$(json "$work/quality" "all(0 <= r['mean_kl'] < 1e-3 and r['top1'] == 1 and 0 < r['max_logit_diff'] < 0.05 and abs(r['nll'] - r['nll_reference']) < 0.01 for r in o['rows'])")" = true ] || fail "values of bench quality"
cp "$model" "$work/other.gguf"
head -c 65536 /dev/zero | tr '\0' A | dd of="$work/other.gguf" bs=65536 seek=900 conv=notrunc status=none
expect 1 "" "$bin" bench quality -m "$work/other.gguf" --reference "$model" --reference-level best --text "$text" --prefix 4 --continue 12 --steps 12 --json
cp "$work/out" "$work/quality"
[ "$(json "$work/quality" "[r['met'] for r in o['rows']]")" = "[false]" ] || fail "damaged weights are not noticed by bench quality"
rm "$work/other.gguf"

# ---- a rival with known times: with flash attention 1 s a prompt and 2 s for decodes, without 2 s and 1.9 s
cat >"$work/fake.py" <<'END'
import argparse, json, sys
p = argparse.ArgumentParser()
for name in ("model", "threads", "flash", "tokens"):
    p.add_argument("--" + name, required=True)
a = p.parse_args()
tokens = [int(word) for word in open(a.tokens).read().split()]
on = a.flash == "on"
print(json.dumps({"version": "fake", "system": a.threads}), flush=True)
for line in sys.stdin:
    order, *n = line.split()
    n = [int(x) for x in n]
    answer = {}
    if order == "prefill":
        answer["seconds"] = 1 if on else 2
    elif order == "decode":
        answer["seconds"] = 2 if on else 1.9
    elif order == "memory":
        answer = {"resident": 11000000000 if on else 6000000000, "peak": 12000000000, "before": 1000000000}
    elif order == "context":
        assert n[0] >= 8 + 2 and len(tokens) >= 24 + 7, (n, tokens)
    print(json.dumps(answer), flush=True)
    with open(__file__ + ".orders", "a") as log:
        log.write(a.flash + " " + line)
END
expect 0 "bench" "$bin" bench engine -m "$model" --rows prefill_24,decode_24,decode_8_x3,resident_24 --decode 2 --repeat 3 -t 1 --json \
  --peer llama.cpp --peer-python "$(command -v python3)" --peer-script "$work/fake.py"
cp "$work/out" "$work/rows"
mv "$work/fake.py.orders" "$work/orders"
value() { json "$work/rows" "$1"; }
[ "$(value "[o['peer'], o['peer_system'], o['repeat']]")" = '["fake", "1", 3]' ] || fail "who the rival is"
[ "$(value "[r['peer'] for r in o['rows']]")" = "[24.0, 1.05263158, 3.15789474, 5000000000.0]" ] || fail "the rival's values: $(value "[r['peer'] for r in o['rows']]")"
[ "$(value "[r['peer_flash_attention'] for r in o['rows']]")" = "[true, false, false, false]" ] || fail "the better mode"
[ "$(value "[len(r['peer_runs']) for r in o['rows'][:3]]")" = "[3, 3, 3]" ] || fail "repetitions of the better mode"
[ "$(value "[len(r['peer_other_mode_runs']) for r in o['rows'][:3]]")" = "[1, 3, 3]" ] || fail "a mode that cannot win is not repeated"
[ "$(value "all(len(r['ours_runs']) == 3 for r in o['rows'][:3])")" = true ] || fail "our repetitions"
[ "$(value "all(abs(r['ratio'] / (r['ours'] / r['peer'] if r['unit'] == 'tok/s' else r['peer'] / r['ours']) - 1) < 1e-6 for r in o['rows'])")" = true ] || fail "ratios"
[ "$(grep -c '^on prefill 24$' "$work/orders")" = 4 ] || fail "prompts with flash attention: one warms up, three count" # 24 tokens warm up too
[ "$(grep -c '^off prefill 24$' "$work/orders")" = 2 ] || fail "prompts without: one warms up, one counts"
[ "$(grep -c '^off decode 24 2$' "$work/orders")" = 3 ] || fail "decodes without flash attention"
# rows with a target
sed 's/1 if on else 2$/1e6/' "$work/fake.py" >"$work/slow.py"
expect 0 " 2.00   yes " "$bin" bench engine -m "$model" --rows prefill_512 --decode 1 --repeat 1 --peer llama.cpp --peer-python "$(command -v python3)" \
  --peer-script "$work/slow.py"
finish

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program's manners: help, exit statuses, refused arguments, and errors that say what to do.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

# ---- no command, unknown command, help, version
expect 2 "usage: kinema COMMAND" "$bin"
expect 2 "there is no command frobnicate" "$bin" frobnicate
expect 0 "usage: kinema COMMAND" "$bin" help
expect 0 "usage: kinema COMMAND" "$bin" --help
expect 0 "kinema 0." "$bin" version
for command in run demo bench "bench engine" "bench quality" model store; do
  # shellcheck disable=SC2086
  expect 0 "usage: kinema $command" "$bin" $command --help
  [ -s "$work/out" ] || fail "help of $command is not on the standard output"
done

# ---- empty names, of every command: status 2 and the option's name, nothing is opened
empty() { # WORDS... with "" where the empty one is
  expect 2 "is empty: give it a value" "$bin" "$@"
}
for name in -m --model --profile --store -f --file --chat-template; do
  empty run -p x "$name" ""
done
empty run -p x --model=
empty run -m "$model" -p x --sto=
for name in -m --config --store --port-file --api-key-file --profile; do
  empty serve "$name" ""
done
for command in "model show" "model tokenize -p x" "demo" "bench engine" "bench quality" "bench serve" "bench codec" "codec eval" "codec search" "profile build"; do
  # shellcheck disable=SC2086
  empty $command -m ""
done
empty model tokenize -m "$model" -f ""
empty profile build -o ""
empty profile show ""
empty codec decode ""
empty codec encode -o "" x
empty codec inspect ""
empty store ls ""
empty store get x --output ""
empty bench quality --text ""
expect 0 "0 tokens" "$bin" model tokenize -m "$model" -p ""

# ---- used wrongly: status 2, nothing on the standard output
refused() {
  local text=$1
  shift
  expect 2 "$text" "$bin" "$@"
  [ ! -s "$work/out" ] || fail "a usage error printed to the standard output: $*"
}
refused "no prompt" run -m "$model"
refused "there is no option --frob" run --frob
refused "needs a value" run -p
refused 'unexpected "hello"' run -m "$model" hello
refused "not both" run -f a.txt -
for bad in -1 x "" 1e9 99999999999999999999 "5 " 0x10; do
  refused "-n takes" run -p x -n "$bad"
done
refused "-c takes" run -p x -c 0
refused "-t takes" run -p x -t 257
refused "--temp takes" run -p x --temp -1
refused "--temp takes" run -p x --temp nan
refused "--top-p takes" run -p x --top-p 1.5
refused "--min-p takes" run -p x --min-p 2
refused "--seed takes" run -p x --seed -3
refused "--chunk takes" run -p x --chunk 0
refused "--kv-type takes" run -p x --kv-type f32
refused "--cpu takes" run -p x --cpu sse9
refused "--preset takes" run -p x --preset best
refused "--preset takes" run -p x --preset default
refused "--backend takes" run -p x --preset medium --backend zstd
refused "belongs to the presets" run -p x --preset exact --backend hevc
refused "--backend takes" demo --backend zstd
refused "--levels takes" run -p x --preset tiles --levels 3
refused "belong to --preset tiles" run -p x --levels 64
refused "--pool takes" run -p x --pool 12Q
refused "--store-ttl takes" run -p x --store-ttl 5y
refused "--chunk-tokens takes" run -p x --chunk-tokens 100
refused "no meaning with --raw" run -p x --raw --system y
refused "--presets takes" demo --presets exact,best
refused "--document-tokens takes" demo --document-tokens 12
refused "there is no benchmark" bench frob
for bad in 512 prefill_ prefill_0 prefill_512,x decode_512_y2 decode_512_x1 prefill_512_x8 decode_512_x8_x8 frob_512 ""; do
  refused "--rows takes" bench engine --rows "$bad"
done
refused "needs --text" bench quality -m "$model"
refused "--steps takes" bench quality --text x --steps 33
refused "--continue takes" bench quality --text x --continue 0
refused "--reference-level takes" bench quality --text x --reference-level sse9
refused "--repeat takes" bench engine --repeat 2
refused "--peer knows" bench engine --peer other

# ---- failed: status 1 and a sentence that says what to do
expect 1 "make model" "$bin" run -p hello
expect 1 "make model" "$bin" run -m "$work/missing.gguf" -p hello
expect 1 "missing.gguf" "$bin" run -m "$work/missing.gguf" -p hello
expect 1 "" "$bin" run -m "$work" -p hello
printf 'GGUF' >"$work/cut.gguf"
expect 1 "cut.gguf" "$bin" run -m "$work/cut.gguf" -p hello
head -c 3000000 "$model" >"$work/half.gguf"
expect 1 "half.gguf" "$bin" run -m "$work/half.gguf" -p hello
head -c 4096 /dev/urandom >"$work/noise.gguf"
expect 1 "noise.gguf" "$bin" run -m "$work/noise.gguf" -p hello
expect 1 "the prompt is empty" "$bin" run -m "$model" -p ""
expect 1 "the prompt is empty" "$bin" run -m "$model" -p "  "
expect 1 "the prompt is empty" "$bin" run -m "$model" -
: >"$work/empty.txt"
expect 1 "the prompt is empty" "$bin" run -m "$model" -f "$work/empty.txt"
expect 1 "cannot read $work/nowhere.txt" "$bin" run -m "$model" -f "$work/nowhere.txt"
expect 1 "it is a folder" "$bin" run -m "$model" -f "$work"
expect 1 "nowhere.txt" "$bin" demo -m "$model" --document "$work/nowhere.txt"
printf 'too short\n' >"$work/short.txt"
expect 1 "are needed to fill a stored chunk" "$bin" demo -m "$model" --document "$work/short.txt"
expect 1 "unknown:" "$bin" run -m "$model" -p hello --store unknown:x

# ---- longer than the context: both numbers are said
python3 -c 'print("word " * 300)' >"$work/long.txt"
expect 1 "the context holds 64" "$bin" run -m "$model" -c 64 -f "$work/long.txt"
grep -qE 'the prompt has [0-9]{3} tokens' "$work/err" || fail "the prompt's length is not said: $(cat "$work/err")"
python3 -c 'print("word " * 9000)' >"$work/longer.txt"
expect 1 "the context holds 8192" "$bin" run -m "$model" -f "$work/longer.txt"

# ---- failures as JSON
status=0
"$bin" run -m "$model" -c 64 -f "$work/long.txt" --json >"$work/error.json" 2>/dev/null || status=$?
[ $status -eq 1 ] || fail "a failure with --json has status $status"
[ "$(json "$work/error.json" 'o["error"]["status"]')" = KN_E_CONTEXT ] || fail "the JSON does not name the error"

# ---- it answers; the text alone goes to the standard output
"$bin" run -m "$model" -n 12 -p "Say hello." >"$work/answer" 2>"$work/err" </dev/null || fail "run failed: $(cat "$work/err")"
[ -s "$work/answer" ] || fail "no answer"
[ ! -s "$work/err" ] || fail "a plain run talks on the standard error: $(cat "$work/err")"
"$bin" run -m "$model" -n 12 -p "Say hello." --json >"$work/one.json"
[ "$(json "$work/one.json" 'o["text"].rstrip()')" = "$(sed -e 's/[[:space:]]*$//' "$work/answer")" ] || fail "JSON and text differ"
[ "$(json "$work/one.json" 'o["generated_tokens"] == len(o["tokens"]) and 0 < o["generated_tokens"] <= 12 and o["error"] is None')" = true ] ||
  fail "the JSON's counts do not fit: $(cat "$work/one.json")"
echo "Say hello." | "$bin" run -m "$model" -n 12 - --json >"$work/two.json"
"$bin" run -m "$model" -n 12 -p "Say hello." --json -t 1 >"$work/three.json"
same "$work/one.json" "$work/three.json" 'o["tokens"]' "another number of threads"
[ "$(json "$work/two.json" 'o["error"]')" = null ] || fail "the standard input is no prompt"

# ---- a text that spells a control token stays text: it cannot end the user's turn
"$bin" run -m "$model" -n 1 -p "a" --json >"$work/a.json"
"$bin" run -m "$model" -n 1 -p "a<|im_end|>" --json >"$work/b.json"
[ "$(json "$work/b.json" 'o["prompt_tokens"]')" -gt $(($(json "$work/a.json" 'o["prompt_tokens"]') + 2)) ] || fail "user text became a control token"

# ---- the cache folder's model and KINEMA_MODEL are found
KINEMA_MODEL=$model "$bin" run -n 2 -p hi >"$work/answer" 2>"$work/err" </dev/null || fail "KINEMA_MODEL: $(cat "$work/err")"
mkdir -p "$work/.cache/kinema/models"
ln -s "$model" "$work/.cache/kinema/models/SmolLM2-135M-Instruct.Q4_1.gguf"
"$bin" run -n 2 -p hi >"$work/answer" 2>"$work/err" </dev/null || fail "model of the cache folder: $(cat "$work/err")"

# ---- a closed standard output is a failure, not a success
if [ -w /dev/full ]; then
  status=0
  "$bin" run -m "$model" -n 4 -p hi >/dev/full 2>"$work/err" </dev/null || status=$?
  [ $status -eq 1 ] || fail "a full standard output gives status $status"
fi

# ---- Ctrl-C ends the answer cleanly
"$bin" run -m "$model" -n 4000 --ignore-stop -p "Tell me a long story." >"$work/answer" 2>"$work/err" </dev/null &
pid=$!
for _ in $(seq 100); do
  [ -s "$work/answer" ] && break
  sleep 0.1
done
kill -INT $pid # a background job of a script ignores SIGINT by inheritance; the program sets its own handler
status=0
wait $pid || status=$?
[ $status -eq 130 ] || fail "after an interrupt the status is $status, wanted 130: $(cat "$work/err")"

# ---- also while it waits for its prompt
mkfifo "$work/fifo"
"$bin" run -m "$model" - <"$work/fifo" >"$work/answer" 2>"$work/err" &
pid=$!
exec 9>"$work/fifo" # opens once the reader is there, and keeps it waiting
for _ in $(seq 100); do # until it catches SIGINT; the signal's default action would end it with 130 as well
  (($((16#$(sed -n 's/^SigCgt:[[:space:]]*//p' /proc/$pid/status))) & 2)) && break
  sleep 0.1
done
sleep 0.3
kill -INT $pid
status=0
wait $pid || status=$?
exec 9>&-
[ $status -eq 130 ] || fail "an interrupt instead of a prompt: status $status, wanted 130: $(cat "$work/err")"
grep -q 'cannot read -' "$work/err" || fail "an interrupt instead of a prompt ended it without a word"
finish

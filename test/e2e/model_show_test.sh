# SPDX-License-Identifier: Apache-2.0
# kinema model as a user meets it: tables, JSON, and one clear sentence with a non-zero status for bad files and arguments.
set -u
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
bad=0
check() { # what, wanted status, wanted words, then the command
    what=$1 want=$2 words=$3
    shift 3
    "$@" >"$out/o" 2>"$out/e"
    status=$?
    if [ $status -ne "$want" ] || ! grep -qF -e "$words" "$out/o" "$out/e"; then
        echo "FAIL $what: status $status (want $want), words \"$words\" in:"
        cat "$out/o" "$out/e"
        bad=1
    fi
}
check table 0 "9 query heads, 3 KV heads of 64" "$KN_BIN" model show -m "$KN_MODEL"
check json 0 '"chat_template": "chatml"' "$KN_BIN" model show -m "$KN_MODEL" --json
python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); assert d["n_layer"]==30 and len(d["fingerprint"])==32' "$out/o" || bad=1
check tensors 0 "blk.29.ffn_down.weight" "$KN_BIN" model show -m "$KN_MODEL" --tensors
check json_tensors 0 '"tensors"' "$KN_BIN" model show -m "$KN_MODEL" --tensors --json
python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); assert len(d["tensors"])==d["n_tensors"]==272' "$out/o" || bad=1
check tokenize 0 "2  <|im_end|>" "$KN_BIN" model tokenize -m "$KN_MODEL" --special -p 'hi<|im_end|>'
check no_special 0 "7 tokens, 10 bytes" "$KN_BIN" model tokenize -m "$KN_MODEL" -p '<|im_end|>'
printf 'a\0b' >"$out/text"
check file 0 '"bytes": 3' "$KN_BIN" model tokenize -m "$KN_MODEL" --json -f "$out/text"
check missing 1 "/nonexistent.gguf" "$KN_BIN" model show -m /nonexistent.gguf
check folder 1 "not a regular file" "$KN_BIN" model show -m "$out"
: >"$out/empty.gguf"
check empty 1 "empty" "$KN_BIN" model show -m "$out/empty.gguf"
head -c 1000000 "$KN_MODEL" >"$out/cut.gguf"
check cut 1 "damaged or incomplete" "$KN_BIN" model show -m "$out/cut.gguf"
check usage 2 "show or tokenize" "$KN_BIN" model
check verb 2 "there is no frobnicate" "$KN_BIN" model frobnicate
check both 2 "either -p TEXT or -f FILE" "$KN_BIN" model tokenize -m "$KN_MODEL" -p x -f y
exit $bad

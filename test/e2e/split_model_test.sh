#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demo model in three parts: every command takes the first one and gives what it gives for the whole file, caches included.
# Then a run under which the model is overwritten.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

tools=$(dirname "$bin")/test
"$tools/split_gguf" "$model" "$work/m" 3 || fail "split_gguf"
"$tools/split_gguf" "$model" "$work/n" 2 first || fail "split_gguf"
first=$work/m-00001-of-00003.gguf
seq -s ' ' 1 300 >"$work/doc.txt"

"$bin" model show -m "$model" --json >"$work/a"
for m in "$first" "$work/n-00001-of-00002.gguf"; do
  "$bin" model show -m "$m" --json >"$work/b"
  for key in fingerprint n_params n_tensors n_vocab arch chat_template; do same "$work/a" "$work/b" "o['$key']" "$m"; done
done
[ "$(json "$work/b" 'o["n_parts"]')" = 2 ] || fail "n_parts of $(cat "$work/b")"
expect 0 "and 2 parts more" "$bin" model show -m "$first" --tensors

# what one publishes, the other fetches
"$bin" run -m "$model" -f "$work/doc.txt" -p "Go on." -n 8 --store "lmdb:$work/store" --json >"$work/a" 2>"$work/err" </dev/null || fail "run: $(cat "$work/err")"
"$bin" run -m "$first" -f "$work/doc.txt" -p "Go on." -n 8 --json >"$work/b" 2>"$work/err" </dev/null || fail "run: $(cat "$work/err")"
same "$work/a" "$work/b" 'o["tokens"]' "the split model"
same "$work/a" "$work/b" 'o["kv_digest"]' "the split model"
"$bin" run -m "$first" -f "$work/doc.txt" -p "Go on." -n 8 --store "lmdb:$work/store" --json >"$work/b" 2>"$work/err" </dev/null || fail "run: $(cat "$work/err")"
same "$work/a" "$work/b" 'o["tokens"]' "the split model with a store"
[ "$(json "$work/b" 'o["fetched_tokens"]')" -gt 0 ] || fail "the split model fetches nothing: $(cat "$work/b")"

expect 1 "part 2 of 3" "$bin" run -m "$work/m-00002-of-00003.gguf" -p a -n 1
expect 1 "00001-of-00003.gguf" "$bin" model show -m "$work/m-00003-of-00003.gguf"
mv "$work/m-00003-of-00003.gguf" "$work/kept"
expect 1 "m-00003-of-00003.gguf" "$bin" serve -m "$first" --port 0
cp "$work/n-00002-of-00002.gguf" "$work/m-00003-of-00003.gguf"
expect 1 "m-00003-of-00003.gguf" "$bin" run -m "$first" -p a -n 1
head -c 5000000 "$work/kept" >"$work/m-00003-of-00003.gguf"
expect 1 "m-00003-of-00003.gguf" "$bin" run -m "$first" -p a -n 1
mv "$work/kept" "$work/m-00003-of-00003.gguf"

# overwritten in place while it answers: the last part counts, too
"$bin" run -m "$first" --raw -p "1, 2, 3, 4, 5, 6, 7," -n 4000 >"$work/out" 2>"$work/err" </dev/null &
pid=$!
for _ in $(seq 600); do [ -s "$work/out" ] && break; sleep 0.1; done
dd if=/dev/urandom of="$work/m-00003-of-00003.gguf" bs=4096 seek=2000 count=4 conv=notrunc status=none
status=0
wait $pid || status=$?
[ $status -eq 1 ] || fail "status $status of a run whose model was overwritten"
grep -q "m-00003-of-00003.gguf has changed" "$work/err" || fail "the run says: $(cat "$work/err")"
finish

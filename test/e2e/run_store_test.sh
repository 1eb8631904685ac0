#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A prefix moves between processes: published by one, fetched by another, bit for bit with the exact preset; damage, a dead
# store, a full store and a killed publisher never change an answer.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

python3 - "$work/doc.txt" <<'P'
import sys
words = "river stone light paper green table winter music seven ladder copper window garden silver letter".split()
state, out = 12345, []
for _ in range(420):
    state = (state * 1103515245 + 12345) % 2**31
    out.append(words[(state >> 16) % len(words)])
open(sys.argv[1], "w").write(" ".join(out) + ".\n")
P
store=lmdb:$work/store
run() { # OUTPUT then options
  local out=$1
  shift
  "$bin" run -m "$model" -f "$work/doc.txt" -n 16 --json "$@" >"$out" 2>"$out.err" </dev/null || fail "run $*: $(cat "$out.err")"
}
ask=(-p "Which word comes first?")

# ---- publish in one process, fetch in another
run "$work/a.json" -p "What is this?" --store "$store"
[ "$(json "$work/a.json" 'o["published"]["chunks"]')" -ge 1 ] || fail "nothing was published: $(cat "$work/a.json")"
[ "$(json "$work/a.json" 'o["fetched_tokens"]')" = 0 ] || fail "something was fetched from an empty store"
run "$work/plain.json" "${ask[@]}"
run "$work/fetched.json" "${ask[@]}" --store "$store"
[ "$(json "$work/fetched.json" 'o["fetched_tokens"] >= 256 and o["fetched_tokens"] % 256 == 0')" = true ] || fail "nothing was fetched"
same "$work/plain.json" "$work/fetched.json" 'o["tokens"]' "exact"
same "$work/plain.json" "$work/fetched.json" 'o["kv_digest"]' "exact"
[ "$(json "$work/plain.json" 'o["kv_digest"]')" != null ] || fail "no digest to compare"
run "$work/nofetch.json" "${ask[@]}" --store "$store" --no-fetch --no-publish
[ "$(json "$work/nofetch.json" 'o["fetched_tokens"]')" = 0 ] || fail "--no-fetch fetched"

# ---- another tenant, another KV type, another preset: nothing is shared
run "$work/salt.json" "${ask[@]}" --store "$store" --salt other --no-publish
[ "$(json "$work/salt.json" 'o["fetched_tokens"]')" = 0 ] || fail "salts share a prefix"
run "$work/bf16.json" "${ask[@]}" --store "$store" --kv-type bf16 --no-publish
[ "$(json "$work/bf16.json" 'o["fetched_tokens"]')" = 0 ] || fail "f16 chunks were restored into a bf16 pool"

# ---- an operator's view
expect 0 "exact" "$bin" store ls "$store"
expect 0 "" "$bin" store verify "$store"

# ---- damage: any byte of a stored container; the answer comes by recomputation, the reason is logged
cp -r "$work/store" "$work/damaged"
python3 - "$work/damaged" <<'P'
import os, sys
data = os.path.join(sys.argv[1], "data.mdb")
with open(data, "r+b") as f:
    size = f.seek(0, 2)
    # past LMDB's own first pages: a run of bytes every 64 KiB, so that each chunk is hit in its body
    for at in range(size // 3, size - 64, 65536):
        f.seek(at)
        old = f.read(16)
        f.seek(at)
        f.write(bytes(b ^ 0x5a for b in old))
P
run "$work/damaged.json" "${ask[@]}" --store "lmdb:$work/damaged" --no-publish
same "$work/plain.json" "$work/damaged.json" 'o["tokens"]' "damaged store"
same "$work/plain.json" "$work/damaged.json" 'o["kv_digest"]' "damaged store"
[ "$(json "$work/damaged.json" 'o["misses"] + o["warnings"] > 0 and o["fetched_tokens"] < 512')" = true ] || fail "damage went unnoticed"

# ---- an unusable store: refused by name at once, or answered without it; never a crash or a wrong answer
printf 'no store\n' >"$work/file"
status=0
"$bin" run -m "$model" -f "$work/doc.txt" "${ask[@]}" -n 4 --store "lmdb:$work/file" >"$work/out" 2>"$work/err" </dev/null || status=$?
[ $status -le 1 ] || fail "a file as a store: status $status"
grep -q "$work/file" "$work/err" || fail "the message does not name the store: $(cat "$work/err")"

# ---- no space: the answer comes, the failure is said once, the status is 0
run "$work/full.json" "${ask[@]}" --store "lmdb:$work/small" --store-max 64K
same "$work/plain.json" "$work/full.json" 'o["tokens"]' "full store"
[ "$(json "$work/full.json" 'o["published"]["chunks"]')" = 0 ] || fail "a chunk went into a store that is too small for it"
[ "$(grep -c 'not published' "$work/full.json.err")" = 1 ] || fail "the failure to publish is not said exactly once: $(cat "$work/full.json.err")"

# ---- a publisher killed at any moment: what is listed is whole, and the answer is right
run "$work/reference.json" "${ask[@]}"
for delay in 0.2 0.5 0.8 1.1 1.4 1.7 2.0 2.3; do
  "$bin" run -m "$model" -f "$work/doc.txt" -p "What is this?" -n 4 --json --store "lmdb:$work/killed" >/dev/null 2>&1 </dev/null &
  pid=$!
  sleep $delay
  kill -9 $pid 2>/dev/null || true
  wait $pid 2>/dev/null || true
  [ -d "$work/killed" ] || continue
  [ -e "$work/killed/data.mdb" ] && { "$bin" store verify "lmdb:$work/killed" >"$work/out" 2>&1 || fail "after kill at $delay: $(head -c 300 "$work/out")"; }
done
run "$work/after.json" "${ask[@]}" --store "lmdb:$work/killed"
same "$work/reference.json" "$work/after.json" 'o["tokens"]' "after kills"
same "$work/reference.json" "$work/after.json" 'o["kv_digest"]' "after kills"
"$bin" store gc "lmdb:$work/killed" >/dev/null 2>&1 || fail "gc after kills"
expect 0 "" "$bin" store verify "lmdb:$work/killed"

# ---- spectral presets need a profile, and say so
for preset in fine medium small; do
  "$bin" run -m "$model" -f "$work/doc.txt" -n 1 --store "$store" --preset $preset >"$work/out" 2>"$work/err" </dev/null && fail "$preset without a profile"
  grep -q "preset $preset needs a profile.*kinema profile build" "$work/err" || fail "$preset: $(cat "$work/err")"
done
[ "$(json "$work/fetched.json" '[o["preset"], o["lossy"], o["backend"]]')" = '["exact", false, null]' ] || fail "without a profile the default is not exact"

# ---- tiles: fetched, labelled lossy
run "$work/t1.json" -p "What is this?" --store "$store" --preset tiles
run "$work/t2.json" "${ask[@]}" --store "$store" --preset tiles
[ "$(json "$work/t1.json" 'o["fetched_tokens"]')" = 0 ] || fail "a tiles run took exact chunks"
[ "$(json "$work/t2.json" 'o["fetched_tokens"] >= 256 and o["lossy"]')" = true ] || fail "tiles was not fetched, or is not labelled"
[ "$(json "$work/t2.json" 'o["fetch_bytes"]')" -lt "$(json "$work/fetched.json" 'o["fetch_bytes"]')" ] || fail "tiles is larger than exact"
finish

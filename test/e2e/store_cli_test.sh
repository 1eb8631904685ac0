#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kinema store: its subcommands on a store that a run has filled, its JSON, its exit codes, its refusals.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

store=lmdb:$work/store
seq -s ' ' 1 400 >"$work/doc.txt"
"$bin" run -m "$model" -f "$work/doc.txt" -p "Go on." -n 2 --store "$store" >/dev/null 2>"$work/err" </dev/null || fail "run: $(head -c 300 "$work/err")"

# ---- looking
expect 0 "exact" "$bin" store ls "$store"
expect 0 "kn1:" "$bin" store ls --store "$store"
expect 0 "0..256" "$bin" store ls "$store"
expect 0 "chunks" "$bin" store stat "$store"
expect 0 "0 bad" "$bin" store verify "$store"
"$bin" store ls "$store" --json >"$work/ls.json"
"$bin" store stat "$store" --json >"$work/stat.json"
"$bin" store verify "$store" --json >"$work/verify.json"
n=$(json "$work/ls.json" 'o["n_chunks"]')
[ "$n" -ge 2 ] || fail "only $n chunks after a long prompt"
[ "$(json "$work/ls.json" 'len(o["chunks"])')" = "$n" ] || fail "ls counts and lists differently"
[ "$(json "$work/ls.json" 'sum(c["bytes"] for c in o["chunks"]) == o["bytes"]')" = true ] || fail "ls adds up wrongly"
[ "$(json "$work/stat.json" 'o["n_chunks"]')" = "$n" ] || fail "stat counts differently"
[ "$(json "$work/stat.json" 'o["n_orphans"] == 0 and o["used_bytes"] >= o["bytes"]')" = true ] || fail "stat is wrong"
[ "$(json "$work/verify.json" '[o["n_chunks"], o["n_bad"]]')" = "[$n, 0]" ] || fail "verify: $(cat "$work/verify.json")"

# ---- one chunk as a file
key=$(json "$work/ls.json" 'o["chunks"][0]["key"]')
expect 0 "$key" "$bin" store get "$store" "$key" -o "$work/chunk"
[ "$(stat -c %s "$work/chunk")" = "$(json "$work/ls.json" 'o["chunks"][0]["bytes"]')" ] || fail "get wrote another number of bytes"
[ "$(head -c 4 "$work/chunk")" = KNC1 ] || fail "get wrote no container"
expect 1 "give more of the key" "$bin" store get "$store" kn1: -o "$work/none"
expect 1 "no chunk has a key" "$bin" store get "$store" kn1:xyz -o "$work/none"
expect 1 "cannot write" "$bin" store get "$store" "$key" -o "$work/no/folder"
expect 2 "get takes a key" "$bin" store get "$store" -o "$work/none"
expect 1 "preset is exact over rans" "$bin" codec decode "$work/chunk" -o "$work/none"
[ ! -e "$work/none" ] || fail "a failed command left a file"
kept "give more of the key" "$bin" store get "$store" kn1: -o "$work/old"
kept "no chunk has a key" "$bin" store get "$store" kn1:xyz -o "$work/old"
kept "File too large" bash -c 'trap "" XFSZ; ulimit -f 4; exec "$@"' - "$bin" store get "$store" "$key" -o "$work/old"
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "a full disk is said more than once: $(cat "$work/err")"
echo garbage >"$work/orders"
kept "do not match the checksum" "$bin" store get "fault:$work/orders:$store" "$key" -o "$work/old"
expect 0 "$key" "$bin" store get "$store" "$key" -o "$work/old"
cmp -s "$work/chunk" "$work/old" || fail "over an old file: another chunk"
[ "$(stat -c %a "$work/old")" = 640 ] || fail "the old file's mode is lost"
nothing_beside "get"
if [ -w /dev/full ]; then
  status=0
  "$bin" store get "$store" "$key" -o - >/dev/full 2>"$work/err" || status=$?
  [ $status -eq 1 ] && grep -q "No space left" "$work/err" || fail "get onto a full disk: status $status, $(cat "$work/err")"
fi
{ sleep 0.2; status=0; "$bin" store get "$store" "$key" -o - 2>"$work/err" || status=$?; echo $status >"$work/status"; } | true
[ "$(cat "$work/status")" = 141 ] && [ ! -s "$work/err" ] || fail "get into a closed pipe: status $(cat "$work/status"), $(cat "$work/err")"

# ---- looking changes nothing
before=$(sha256sum <"$work/store/data.mdb")
"$bin" store ls "$store" >/dev/null
"$bin" store verify "$store" >/dev/null
[ "$before" = "$(sha256sum <"$work/store/data.mdb")" ] || fail "looking changed data.mdb"

# ---- damage in the middle of a container: found, named, status 1
cp -r "$work/store" "$work/damaged"
python3 - "$work/damaged/data.mdb" <<'PY'
import sys
path = sys.argv[1]
data = bytearray(open(path, "rb").read())
at = len(data) * 3 // 4  # containers are all but a few pages of the file
for i in range(at, at + 4096 * 8, 512):
    data[i] ^= 0x40
open(path, "wb").write(data)
PY
expect 1 "checksum" "$bin" store verify "lmdb:$work/damaged"
status=0
"$bin" store verify "lmdb:$work/damaged" --json >"$work/bad.json" || status=$?
[ $status -eq 1 ] || fail "verify --json of a damaged store: status $status"
[ "$(json "$work/bad.json" 'o["n_bad"] >= 1 and o["bad"][0]["key"].startswith("kn1:")')" = true ] || fail "no bad key in $(cat "$work/bad.json")"

# ---- removing
key=$(json "$work/ls.json" 'o["chunks"][0]["key"]')
expect 0 "1 chunks removed" "$bin" store rm "$store" --prefix "$key"
expect 0 "0 chunks removed" "$bin" store rm "$store" "$key"
expect 0 "0 chunks removed" "$bin" store gc "$store" --ttl 7d
expect 0 "chunks removed" "$bin" store gc "$store" --max-bytes 1K
expect 0 "0 chunks, 0 B" "$bin" store ls "$store"
expect 0 "0 chunks removed" "$bin" store rm "$store" --all

# ---- refusals
expect 2 "say what to do" "$bin" store
expect 2 "name the store" "$bin" store ls
expect 2 "there is no \"list\"" "$bin" store list "$store"
expect 2 "either --prefix KEY or --all" "$bin" store rm "$store"
expect 2 "either --prefix KEY or --all" "$bin" store rm "$store" --all --prefix kn1
expect 2 "say --all" "$bin" store rm "$store" --prefix ""
expect 2 "--max-bytes takes" "$bin" store gc "$store" --max-bytes 5X
expect 2 "--ttl takes" "$bin" store gc "$store" --ttl soon
expect 2 "needs a value" "$bin" store gc "$store" --ttl
expect 2 "there is no option" "$bin" store ls "$store" --frobnicate
expect 2 "unexpected" "$bin" store ls "$store" more
expect 1 "no such folder" "$bin" store ls "lmdb:$work/nowhere"
expect 1 "lmdb:PATH" "$bin" store ls "redis://localhost"
expect 1 "other files" "$bin" store gc "lmdb:$work"
expect 0 "usage: kinema store" "$bin" store --help
[ ! -e "$work/nowhere" ] || fail "looking created a store"

finish

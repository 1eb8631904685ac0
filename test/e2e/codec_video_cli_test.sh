#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kinema codec encode and decode from outside: raw pictures through every encoder and back bit for bit, files and pipes, summaries, wrong usage.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"
w=70 h=50 n=5
raw=$work/raw.yuv
python3 - "$w" "$h" "$n" >"$raw" <<'PY'
import random, sys
w, h, n = map(int, sys.argv[1:])
r = random.Random(5)
for t in range(n):
    for plane in range(3):
        for y in range(h):
            scale = 12 * 0.93 ** y
            sys.stdout.buffer.write(bytes(max(1, min(255, 128 + round(r.gauss(0, scale)))) for x in range(w)))
PY
[ "$(stat -c %s "$raw")" -eq $((3 * w * h * n)) ] || fail "the raw pictures have the wrong size"

encoders=(kinema)
if [ -e "$(dirname "$bin")/libkinema_x265.so" ]; then encoders+=(x265-ultrafast x265-medium); fi
for encoder in "${encoders[@]}"; do
  for content in noise tiles; do
    "$bin" codec encode --size ${w}x$h --hevc-encoder "$encoder" --content $content --verify --json -o "$work/a.h265" "$raw" >"$work/a.json" 2>"$work/err" || fail "$encoder $content: $(cat "$work/err")"
    [ "$(json "$work/a.json" '[o["pictures"], o["width"], o["height"], o["samples"], o["verified"], o["content"], o["hevc_encoder"]]')" = \
      "[$n, $w, $h, $((3 * w * h * n)), true, \"$content\", \"$encoder\"]" ] || fail "$encoder $content: summary $(cat "$work/a.json")"
    [ "$(json "$work/a.json" 'o["bytes"]')" -eq "$(stat -c %s "$work/a.h265")" ] || fail "$encoder $content: bytes of the summary are not the file's"
    [ "$(json "$work/a.json" '0 < o["bits_per_sample"] < 8 and o["mb_s"] > 0 and o["encode_s"] > 0')" = true ] || fail "$encoder $content: figures"
    "$bin" codec decode --json -o "$work/a.yuv" "$work/a.h265" >"$work/d.json" 2>"$work/err" || fail "decode $encoder $content: $(cat "$work/err")"
    cmp -s "$raw" "$work/a.yuv" || fail "$encoder $content: other pictures came back"
    [ "$(json "$work/d.json" '[o["pictures"], o["width"], o["height"], o["bytes"]]')" = "[$n, $w, $h, $(stat -c %s "$work/a.h265")]" ] || fail "summary of decode: $(cat "$work/d.json")"
  done
done

# ---- pipes, some of the pictures, slices, tools
"$bin" codec encode --size ${w}x$h - <"$raw" 2>"$work/err" | "$bin" codec decode - 2>/dev/null | cmp -s - "$raw" || fail "through pipes: $(cat "$work/err")"
grep -q "$n pictures of $w x $h" "$work/err" || fail "no summary on stderr"
"$bin" codec encode --size ${w}x$h --pictures 2 --hevc-slices 2 --hevc-tools basic -o "$work/two.h265" "$raw" 2>/dev/null || fail "two pictures"
"$bin" codec decode "$work/two.h265" 2>/dev/null | cmp -s - <(head -c $((3 * w * h * 2)) "$raw") || fail "two pictures, slices: other pictures"
"$bin" codec decode --pictures 1 "$work/two.h265" 2>/dev/null | cmp -s - <(head -c $((3 * w * h)) "$raw") || fail "one of two pictures"

"$bin" codec encode --size ${w}x$h --pictures 1 --hevc-slices 2 --hevc-tools basic -o "$work/one.h265" "$raw" 2>/dev/null || fail "one picture"
"$bin" codec decode --pictures 1 --json -o "$work/one.yuv" "$work/two.h265" >"$work/one.json" 2>/dev/null || fail "one of two pictures, summary"
one=$(stat -c %s "$work/one.h265") # with the end of its seal, at most 64 bytes
[ "$(json "$work/one.json" "[o[\"pictures\"], $one - 64 < o[\"bytes\"] < $one]")" = "[1, true]" ] || fail "one of two pictures takes the bytes of both: $(cat "$work/one.json")"

# ---- hashes: said, checked, and damage is refused
for hash in md5 crc checksum; do
  "$bin" codec encode --size ${w}x$h --hash $hash --json -o "$work/hash.h265" "$raw" >"$work/hash.json" 2>/dev/null || fail "hash $hash"
  [ "$(json "$work/hash.json" 'o["hash"]')" = $hash ] || fail "hash $hash is not said"
  expect 0 "checked by hashes" "$bin" codec decode -o "$work/hash.yuv" "$work/hash.h265"
  expect 0 "hash      $hash of $n of $n pictures, $n rebuilt and matching" "$bin" codec inspect "$work/hash.h265"
  python3 - "$work" <<'PY'
import sys
p = sys.argv[1]
b = bytearray(open(p + "/hash.h265", "rb").read())
for i in range(12):
    at = (2 * i + 1) * len(b) // 24
    c = bytearray(b)
    c[at] ^= 4
    open(f"{p}/bent.{i}", "wb").write(c)
PY
  for i in $(seq 0 11); do
    printf old >"$work/bent.yuv"
    if "$bin" codec decode -o "$work/bent.yuv" "$work/bent.$i" 2>"$work/err"; then
      cmp -s "$raw" "$work/bent.yuv" || fail "$hash: damage $i gives other pictures and status 0"
    elif ! grep -q "picture" "$work/err"; then
      fail "$hash: damage $i: $(cat "$work/err")"
    elif [ "$(cat "$work/bent.yuv")" != old ]; then
      fail "$hash: damage $i: the old file is gone"
    fi
  done
done

# ---- the seal: what hashes of pictures do not see
"$bin" codec encode --size ${w}x$h -o "$work/seal.h265" "$raw" 2>/dev/null || fail "sealed"
"$bin" codec encode --size $((w + 1))x$h -o "$work/wide.h265" <(head -c $((3 * (w + 1) * h)) "$raw") 2>/dev/null || fail "another width"
python3 - "$work" <<'PY'
import sys
p = sys.argv[1]
def nals(name):
    parts = open(p + name, "rb").read().split(b"\0\0\1")[1:]
    return [b"\0\0\1" + part for part in parts]
def kind(nal):
    return nal[3] >> 1
n = nals("/seal.h265")
begins = [i for i, nal in enumerate(n) if kind(nal) < 32 and nal[5] >> 7] + [len(n) - 1]
pictures = [n[a:b] for a, b in zip(begins, begins[1:])]
sps = [nal for nal in nals("/wide.h265") if kind(nal) == 33][0]
head, end = n[:begins[0]], n[-1:]
def write(name, *lists):
    open(f"{p}/bad.{name}", "wb").write(b"".join(b"".join(part) for part in lists))
write("cut", head, *pictures[:-1])
write("half", head, *pictures[:2], end)
write("missing", head, *pictures[:2], *pictures[3:], end)
write("twice", head, *pictures[:3], *pictures[2:], end)
write("open", [nal for nal in n if kind(nal) != 39])
write("close", n[:-1])
write("window", [sps if kind(nal) == 33 else nal for nal in n])
write("behind", n, pictures[-1])
PY
for pair in cut:"end was cut off" half:"its seal says 5" missing:"picture" twice:"picture" open:"opening of its seal" close:"closing of its seal" window:"its seal says ${w} x $h" \
  behind:"picture"; do
  kept "${pair#*:}" "$bin" codec decode -o "$work/old" "$work/bad.${pair%%:*}"
done
expect 0 "checked by hashes" "$bin" codec decode -o "$work/hash.yuv" "$work/seal.h265"
"$bin" codec decode --pictures 3 "$work/bad.cut" 2>/dev/null | cmp -s - <(head -c $((3 * w * h * 3)) "$raw") || fail "three pictures of a cut stream"
if [ ${#encoders[@]} -gt 1 ]; then # x265 beyond the edge: no hash, and the seal all the same
  "$bin" codec encode --size ${w}x$h --hevc-encoder x265-ultrafast -o "$work/x.h265" "$raw" 2>/dev/null || fail "x265, sealed"
  expect 0 "checked by the stream's seal" "$bin" codec decode -o "$work/hash.yuv" "$work/x.h265"
  head -c $((3 * 72 * 40)) "$raw" >"$work/eights" # ultrafast codes blocks of 16
  expect 1 "multiples of 16, or no hash" "$bin" codec encode --size 72x40 --hevc-encoder x265-ultrafast --hash md5 -o "$work/none" "$work/eights"
  for pair in ultrafast:none medium:md5; do
    "$bin" codec encode --size 72x40 --hevc-encoder x265-${pair%:*} --verify --json -o "$work/x.h265" "$work/eights" >"$work/x.json" 2>"$work/err" || fail "72x40: $(cat "$work/err")"
    [ "$(json "$work/x.json" 'o["hash"]')" = ${pair#*:} ] || fail "72x40: $(cat "$work/x.json")"
    "$bin" codec decode "$work/x.h265" 2>"$work/err" | cmp -s - "$work/eights" || fail "72x40, x265-${pair%:*}: $(cat "$work/err")"
  done
fi
"$bin" codec encode --size ${w}x$h --hash none -o "$work/hash.h265" "$raw" 2>/dev/null || fail "no hash"
expect 0 "not checked: no hashes" "$bin" codec decode -o "$work/hash.yuv" "$work/hash.h265"
expect 0 "hash      none: not checked" "$bin" codec inspect "$work/hash.h265"
expect 2 "md5, crc, checksum or none" "$bin" codec encode --size ${w}x$h --hash sha1 "$raw"

# ---- levels: for the slices, too, and for the loudest pictures of the size; and none beyond the last
head -c $((3 * 144 * 2048)) /dev/zero >"$work/tall.yuv"
for pair in 40:93 64:120; do
  "$bin" codec encode --size 144x2048 --hevc-slices ${pair%:*} -o "$work/tall.h265" "$work/tall.yuv" 2>/dev/null || fail "${pair%:*} slices"
  "$bin" codec inspect --json "$work/tall.h265" >"$work/tall.json" || fail "inspect ${pair%:*} slices"
  [ "$(json "$work/tall.json" 'o["params"]["level_idc"]')" = ${pair#*:} ] || fail "${pair%:*} slices: level $(json "$work/tall.json" 'o["params"]["level_idc"]')"
  [ "$(json "$work/tall.json" '[l["name"] for l in o["limits"] if l["exceeded"] or l["allowed"] is None]')" = "[]" ] || fail "${pair%:*} slices: beyond a limit"
  [ "$(json "$work/tall.json" 'o["limits"][3]["most"]')" = "${pair%:*}.0" ] || fail "${pair%:*} slices: not what limits say"
done
"$bin" codec inspect "$work/tall.h265" >"$work/tall.txt"
grep -q "^slices  *64  *75" "$work/tall.txt" || fail "inspect prints no limits"
head -c $((6 * 64 * 64)) /dev/urandom | LC_ALL=C tr '\000-\177' '\000' | LC_ALL=C tr '\200-\377' '\377' >"$work/loud.yuv" # 0 or 255
"$bin" codec encode --size 64x64 --hevc-tools basic -o "$work/loud.h265" "$work/loud.yuv" 2>/dev/null || fail "saturated samples"
"$bin" codec inspect --json "$work/loud.h265" >"$work/loud.json" || fail "inspect PCM"
[ "$(json "$work/loud.json" 'o["units_pcm"] > 0 and not any(l["exceeded"] for l in o["limits"])')" = true ] || fail "saturated samples with basic tools are no PCM"
"$bin" codec decode -o "$work/loud2.yuv" "$work/loud.h265" 2>/dev/null && cmp "$work/loud.yuv" "$work/loud2.yuv" || fail "PCM does not come back"
expect 1 "the highest level of HEVC, 6.2" "$bin" codec encode --size 8192x8192 -o "$work/none" "$raw"

# ---- refused, with a sentence and without a file
expect 1 "is it 64x64, three planes" "$bin" codec encode --size 64x64 -o "$work/none" "$raw"
[ ! -e "$work/none" ] || fail "a failed encode left a file"
expect 1 "fewer than --pictures asks for" "$bin" codec encode --size ${w}x$h --pictures 6 -o "$work/none" "$raw"
expect 1 "fewer than --pictures asks for" "$bin" codec decode --pictures 3 -o "$work/none" "$work/two.h265"
expect 1 "no stream that can be decoded" "$bin" codec decode -o "$work/none" "$raw"
expect 1 "there is no picture" "$bin" codec decode -o "$work/none" /dev/null
expect 1 "holds 0 pictures" "$bin" codec encode --size 16x16 -o "$work/none" /dev/null
expect 1 "No such file" "$bin" codec encode --size 16x16 -o "$work/none" "$work/nothing"
expect 1 "cannot write" "$bin" codec decode -o "$work/no/folder" "$work/two.h265"
[ ! -e "$work/none" ] || fail "a failed command left a file"
if [ -w /dev/full ]; then
  status=0
  "$bin" codec decode "$work/a.h265" >/dev/full 2>"$work/err" || status=$?
  [ $status -eq 1 ] && grep -q "No space left" "$work/err" || fail "a full disk: status $status, $(cat "$work/err")"
fi
mkfifo "$work/fifo"
cat "$work/fifo" >/dev/null &
expect 1 "no stream that can be decoded" "$bin" codec decode -o "$work/fifo" "$raw"
wait
[ -p "$work/fifo" ] || fail "something that is no regular file was removed"
expect 2 "needs --size" "$bin" codec encode "$raw"
expect 2 "16 to 8192 samples" "$bin" codec encode --size 8x16 "$raw"
expect 2 "16 to 8192 samples" "$bin" codec encode --size 64 "$raw"
expect 2 "noise or tiles" "$bin" codec encode --size 64x64 --content film "$raw"
expect 2 "kinema, x265-ultrafast or x265-medium" "$bin" codec encode --size 64x64 --hevc-encoder nvenc "$raw"
expect 2 "belong to encode" "$bin" codec decode --verify "$raw"
expect 2 "name a file with -o" "$bin" codec decode --json "$raw"
expect 2 "needs a FILE" "$bin" codec decode
expect 1 "only chunks have sections" "$bin" codec decode --section 1 -o "$work/none" "$work/two.h265"
[ "$(stat -c %s "$raw")" -eq $((3 * w * h * n)) ] || fail "the input was overwritten"
expect 0 "--section" "$bin" codec encode --help

# ---- what was there stays until the new one is whole
kept "is it 64x64, three planes" "$bin" codec encode --size 64x64 -o "$work/old" "$raw"
kept "holds 0 pictures" "$bin" codec encode --size 16x16 -o "$work/old" /dev/null
kept "No such file" "$bin" codec encode --size 16x16 -o "$work/old" "$work/nothing"
kept "no stream that can be decoded" "$bin" codec decode -o "$work/old" "$raw"
kept "fewer than --pictures asks for" "$bin" codec decode --pictures 3 -o "$work/old" "$work/two.h265"
head -c $(($(stat -c %s "$work/two.h265") - 9)) "$work/two.h265" >"$work/cut.h265"
kept "SEI" "$bin" codec decode -o "$work/old" "$work/cut.h265"
kept "File too large" bash -c 'trap "" XFSZ; ulimit -f 4; exec "$@"' - "$bin" codec decode -o "$work/old" "$work/a.h265"
mkfifo "$work/open"
exec 9<>"$work/open"
for signal in TERM HUP XCPU; do # while the input is still open
  printf 'the old one' >"$work/old"
  "$bin" codec encode --size ${w}x$h -o "$work/old" - <"$work/open" 2>/dev/null &
  pid=$!
  for ((i = 0; i < 200; i++)); do [ -n "$(find "$work" -name '.kinema-*')" ] && break; sleep 0.05; done
  kill -$signal $pid
  wait $pid 2>/dev/null && fail "SIG$signal did not end the program"
  [ "$(cat "$work/old")" = "the old one" ] || fail "SIG$signal: the old file is gone"
  nothing_beside "SIG$signal"
done
exec 9>&-
"$bin" codec decode -o "$work/old" "$work/two.h265" 2>/dev/null || fail "over an old file"
cmp -s "$work/old" <(head -c $((3 * w * h * 2)) "$raw") || fail "over an old file: other pictures"
[ "$(stat -c %a "$work/old")" = 640 ] || fail "the old file's mode is lost"
mkdir "$work/there"
ln -s there/new "$work/link"
"$bin" codec decode -o "$work/link" "$work/two.h265" 2>/dev/null || fail "through a link"
{ [ -L "$work/link" ] && cmp -s "$work/old" "$work/there/new"; } || fail "through a link: it is gone, or leads elsewhere"
expect 1 "Is a directory" "$bin" codec decode -o "$work/there" "$work/two.h265"
"$bin" codec decode -o /dev/null "$work/two.h265" 2>/dev/null || fail "into a device"
printf 'first' >"$work/both"
"$bin" codec decode -o /dev/stdout "$work/two.h265" >>"$work/both" 2>/dev/null || fail "behind what is there"
cmp -s "$work/both" <(printf first; cat "$work/old") || fail "/dev/stdout is not what the shell opened"
cp "$raw" "$work/same"
"$bin" codec encode --size ${w}x$h -o "$work/same" "$work/same" 2>/dev/null || fail "over its own input"
"$bin" codec decode -o "$work/same" "$work/same" 2>/dev/null || fail "over its own input, back"
cmp -s "$raw" "$work/same" || fail "over its own input: other pictures"
if [ "$(id -u)" != 0 ]; then
  chmod 440 "$work/old"
  expect 1 "Permission denied" "$bin" codec decode -o "$work/old" "$work/two.h265"
  chmod 550 "$work/there"
  expect 1 "its folder must be writable" "$bin" codec decode -o "$work/there/new" "$work/two.h265"
  chmod 750 "$work/there"
fi
nothing_beside "the end"

# ---- a reader that goes away ends the output quietly
for command in "codec inspect $work/a.h265" "codec inspect --json $work/a.h265" "codec decode $work/a.h265" "codec encode --size ${w}x$h $raw" "codec --help" "help" "version"; do
  # shellcheck disable=SC2086
  { sleep 0.2; status=0; "$bin" $command 2>"$work/err" || status=$?; echo $status >"$work/status"; } | true
  [ "$(cat "$work/status")" = 141 ] || fail "$command into a closed pipe: status $(cat "$work/status")"
  [ ! -s "$work/err" ] || fail "$command into a closed pipe: $(cat "$work/err")"
done
finish

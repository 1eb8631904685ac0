#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stores that may only be read: asked for, by permission, and on a read-only mount. Fetching works as ever, nothing is written, and that is
# said in one line. The last two need root; where it is missing the first is tested.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"

store=$work/store
seq -s ' ' 1 400 >"$work/doc.txt"
seq -s ' ' 500 900 >"$work/other.txt"
"$bin" run -m "$model" -f "$work/doc.txt" -p "Go on." -n 2 --store "lmdb:$store" --json >"$work/filled" 2>"$work/err" </dev/null || fail "run: $(head -c 300 "$work/err")"
wanted=$(json "$work/filled" 'o["published"]["chunks"] * 256')

# digest: of the store's folder and of all that is in it
digest() { (cd "$1" && ls -1 && sha256sum data.mdb) | sha256sum; }

# fetches TEXT PREFIX... : a run behind PREFIX fetches all chunks, publishes none of another prompt's, and says TEXT once ("": nothing)
fetches() {
  local text=$1
  shift
  "$@" "$bin" run -m "$model" -f "$work/doc.txt" -p "Go on." -n 2 --json "${flags[@]}" >"$work/out" 2>"$work/err" </dev/null || fail "$*: $(head -c 300 "$work/err")"
  [ "$(json "$work/out" '[o["fetched_tokens"], o["published"]["read_only"], o["published"]["errors"]]')" = "[$wanted, true, 0]" ] || fail "$*: $(cat "$work/out" "$work/err")"
  [ "$(json "$work/out" 'o["tokens"]')" = "$(json "$work/filled" 'o["tokens"]')" ] || fail "$*: other tokens"
  [ "$(grep -cF -- "$text" "$work/err")" = "$([ -n "$text" ] && wc -l <"$work/err")" ] || [ -z "$text" ] || fail "$*: says $(cat "$work/err")"
  [ -n "$text" ] || [ ! -s "$work/err" ] || fail "$*: says $(cat "$work/err")"
  "$@" "$bin" run -m "$model" -f "$work/other.txt" -p "Go on." -n 2 --json "${flags[@]}" >"$work/out" 2>"$work/err" </dev/null || fail "$*: $(head -c 300 "$work/err")"
  [ "$(json "$work/out" '[o["fetched_tokens"], o["published"]["chunks"], o["published"]["errors"], o["published"]["error"]]')" = "[0, 0, 0, null]" ] ||
    fail "$*: $(cat "$work/out" "$work/err")"
  [ "$(wc -l <"$work/err")" -le 1 ] || fail "$*: a stream of errors: $(cat "$work/err")"
}

# looks PREFIX...: every command that looks at a store works, those that change it say why not
looks() {
  expect 0 "exact" "$@" "$bin" store ls "lmdb:$store"
  expect 0 "orphans  0" "$@" "$bin" store stat "lmdb:$store"
  expect 0 "0 bad" "$@" "$bin" store verify "lmdb:$store"
  expect 1 "give more of the key" "$@" "$bin" store get "lmdb:$store" kn1: -o "$work/none"
}

# ---- asked for
before=$(digest "$store")
flags=(--store "lmdb:$store" --store-read-only)
fetches ""
[ "$before" = "$(digest "$store")" ] || fail "a store that is only read has changed"
expect 1 "no such folder" "$bin" run -m "$model" -p a -n 1 --store "lmdb:$work/none" --store-read-only
[ ! -e "$work/none" ] || fail "a store was made to be read only"
expect 0 '"store_read_only": true' "$bin" serve --store "lmdb:$store" --store-read-only --print-config
echo '{"store": "lmdb:x", "store_read_only": true}' >"$work/config"
expect 0 '"store_read_only": true' "$bin" serve --config "$work/config" --print-config
expect 2 "--store-read-only" "$bin" run -m "$model" -p a -n 1 --store-read-only

if [ "$(id -u)" = 0 ]; then
  # ---- a user who may read, and no more; with and without a lock.mdb to register in
  cp "$bin" "$work/kinema" && bin=$work/kinema
  chmod 755 "$work"
  chmod 666 "$work/err" "$work/out"
  nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
  # the model may lie where only its owner gets to: a link of it is enough when its file may be read
  if ln "$model" "$work/model.gguf" 2>/dev/null && ! "${nobody[@]}" test -r "$work/model.gguf"; then rm "$work/model.gguf"; fi
  [ -e "$work/model.gguf" ] || install -m 444 "$model" "$work/model.gguf"
  model=$work/model.gguf
  if "${nobody[@]}" test -r "$model"; then
    expect 0 "" "${nobody[@]}" "$bin" model show -m "$model"
    chmod 555 "$store" && chmod 444 "$store"/*
    flags=(--store "lmdb:$store" --store-read-only)
    fetches "" "${nobody[@]}"
    flags=(--store "lmdb:$store")
    fetches "--store-read-only" "${nobody[@]}"
    looks "${nobody[@]}"
    expect 1 "permission" "${nobody[@]}" "$bin" store gc "lmdb:$store"
    expect 1 "permission" "${nobody[@]}" "$bin" store rm "lmdb:$store" --all
    rm "$store/lock.mdb"
    fetches "--store-read-only" "${nobody[@]}"
    [ ! -e "$store/lock.mdb" ] || fail "something was written"
    chmod 755 "$store" && chmod 644 "$store"/*
  else
    echo "skipped: there is no setpriv, or another user cannot get to $work"
  fi

  # ---- a read-only mount
  cat >"$work/mounted" <<'END'
#!/bin/sh
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"
END
  chmod 755 "$work/mounted"
  mounted=(unshare -m "$work/mounted" "$store")
  if "${mounted[@]}" true 2>/dev/null; then
    flags=(--store "lmdb:$store" --store-read-only)
    fetches "" "${mounted[@]}"
    flags=(--store "lmdb:$store")
    fetches "--store-read-only" "${mounted[@]}"
    looks "${mounted[@]}"
    expect 1 "Read-only file system" "${mounted[@]}" "$bin" store gc "lmdb:$store"
    expect 1 "cannot create the folder" "${mounted[@]}" "$bin" run -m "$model" -p a -n 1 --store "lmdb:$store/new"
  else
    echo "skipped: no mount namespaces here"
  fi
fi
finish

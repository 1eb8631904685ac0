#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Flags and the configuration file of kinema serve: what is taken, what is refused and how, what is printed. No request is made.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/../e2e.sh"
serve() { "$bin" serve "$@"; }
config() { printf '%s' "$1" >"$work/c.json"; }
bad() { # TEXT CONFIG: a file that is refused, with TEXT
  config "$2"
  expect 1 "$1" "$bin" serve --config "$work/c.json" --print-config
}

expect 0 "--pool-size SIZE" "$bin" serve --help
for flag in $("$bin" serve --help | grep -oE '^ +(-., )?--[a-z-]+' | grep -oE -- '--[a-z-]+'); do
  grep -qF -- "\`$flag" "$KN_SOURCE/doc/server.md" || fail "$flag is not in doc/server.md"
done

# ---- flags
expect 2 "did you mean --pool-size?" "$bin" serve --pool-sise 2G
expect 2 "1 to 1048576, not \"0\"" "$bin" serve --max-queue 0
expect 2 "a time with its unit" "$bin" serve --header-timeout 30
expect 2 "a port, 0 to 65535" "$bin" serve --port 70000
expect 2 "exact|fine|medium|small|tiles" "$bin" serve --preset exakt
expect 2 "a multiple of 16" "$bin" serve --chunk-tokens 100
expect 2 "needs a value" "$bin" serve --port
expect 2 "unexpected \"model.gguf\"" "$bin" serve model.gguf
expect 2 "belong to preset tiles" "$bin" serve --levels 32
expect 1 "no model" "$bin" serve
expect 1 "nothing.gguf" "$bin" serve -m nothing.gguf
expect 1 "cannot read" "$bin" serve --config "$work/none.json"

# ---- the file
bad "did you mean \"pool_size\"?" '{"pool_sise": "2G"}'
bad "c.json:2:" $'{"port": 1,\n'
bad "duplicate" '{"port": 1, "port": 2}'
bad "\"port\" takes a whole number, not a string" '{"port": "8080"}'
bad "\"port\" takes a port, 0 to 65535, not \"65536\"" '{"port": 65536}'
bad "\"max_queue\" takes a whole number, not a number with a fraction" '{"max_queue": 1.5}'
bad "\"pool_size\" takes a size" '{"pool_size": "lots"}'
bad "\"no_prefix_cache\" takes true or false, not a string" '{"no_prefix_cache": "true"}'
bad "\"idle_timeout\" takes a time with its unit" '{"idle_timeout": 30}'
bad "\"api_keys\" takes an array" '{"api_keys": "k"}'
bad "\"api_keys[1]\" has no key" '{"api_keys": ["a", {"name": "b"}]}'
bad "\"api_keys[0].salz\"; did you mean salt" '{"api_keys": [{"key": "a", "salz": "b"}]}'
bad "is masked" '{"api_keys": [{"key": "***"}]}'
bad "\"allow_host\" takes a string or an array of strings, not a number" '{"allow_host": ["a", 1]}'
bad "\"allow_host\" takes a name" '{"allow_host": "a,b"}'
bad "takes an object" '[]'
bad "it is a flag only" '{"verbose": true}'
bad "did you mean medium?" '{"preset": "mediun"}'

# ---- lists: flags and the file add to them
config '{"allow_host": ["llm.lan", "box"], "max_parse": "1M"}'
serve --allow-host box --config "$work/c.json" --allow-host more --print-config >"$work/p.json" || fail "print-config"
[ "$(json "$work/p.json" '[sorted(o["allow_host"]), o["max_parse"]]')" = '[["box", "llm.lan", "more"], 1048576]' ] || fail "lists: $(cat "$work/p.json")"

# ---- flags override the file, whatever their order; what is printed can be read again
config '{"port": 1234, "pool_size": "64M", "idle_timeout": "1500ms", "store": "lmdb:/nowhere", "preset": "exact", "max_running": 7, "api_keys": [{"key": "secret-1", "name": "anna", "salt": "s"}]}'
serve --port 99 --config "$work/c.json" --max-running 9 --print-config >"$work/p.json" || fail "print-config"
[ "$(json "$work/p.json" '[o["port"], o["pool_size"], o["idle_timeout"], o["preset"], o["max_running"], o["max_queue"], o["body_timeout"]]')" = \
  '[99, 67108864, "1500ms", "exact", 9, 256, "30s"]' ] || fail "settings in force: $(cat "$work/p.json")"
[ "$(json "$work/p.json" 'o["api_keys"]')" = '[{"key": "***", "name": "anna", "salt": "s"}]' ] || fail "keys: $(cat "$work/p.json")"
grep -q secret "$work/p.json" && fail "a key was printed"
sed 's/\*\*\*/secret-1/' "$work/p.json" >"$work/again.json"
serve --config "$work/again.json" --print-config >"$work/q.json" || fail "what was printed cannot be read"
cmp -s "$work/p.json" "$work/q.json" || fail "what was printed means something else when it is read"
serve --config "$work/c.json" --api-key other --print-config >"$work/p.json"
[ "$(json "$work/p.json" '[len(o["api_keys"]), o["api_keys"][0]["name"]]')" = '[1, null]' ] || fail "keys of flags replace those of the file"

# ---- key files
printf '# keys\nk1\n\nk2 bert   # of the second team\r\nk3 carl team\n' >"$work/keys"
serve --api-key-file "$work/keys" --print-config >"$work/p.json" || fail "key file"
[ "$(json "$work/p.json" '[(k["name"], k["salt"]) for k in o["api_keys"]]')" = '[[null, null], ["bert", null], ["carl", "team"]]' ] || fail "key file: $(cat "$work/p.json")"
echo "k1 a b c" >"$work/keys"
expect 1 "keys:1: a line is KEY [NAME [SALT]]" "$bin" serve --api-key-file "$work/keys" --print-config
: >"$work/keys"
expect 1 "there is no key in it" "$bin" serve --api-key-file "$work/keys" --print-config

# ---- listening: the line, the port file, a port in use, and the end
"$bin" serve -m "$model" -c 256 --port 0 --json --port-file "$work/port" >"$work/server.out" 2>"$work/server.err" </dev/null &
child=$!
for _ in $(seq 600); do [ -s "$work/port" ] && [ -s "$work/server.out" ] && break; sleep 0.1; done
port=$(cat "$work/port" 2>/dev/null || echo none)
[ "$(json "$work/server.out" '[o["event"], o["port"], o["url"]]')" = "[\"listening\", $port, \"http://127.0.0.1:$port\"]" ] || fail "listening: $(cat "$work/server.out" "$work/server.err")"
grep -q "listening on http://127.0.0.1:$port.*dashboard" "$work/server.err" || fail "stderr: $(cat "$work/server.err")"
expect 1 "127.0.0.1" "$bin" serve -m "$model" -c 256 --port "$port"
grep -qi "in use" "$work/err" || fail "a port in use: $(cat "$work/err")"
kill -TERM $child
status=0
wait $child || status=$?
[ $status -eq 0 ] || fail "status $status after SIGTERM: $(cat "$work/server.err")"
[ "$(tail -n 1 "$work/server.out")" = '{"event": "stopped", "error": null}' ] || fail "stopped: $(cat "$work/server.out")"
finish

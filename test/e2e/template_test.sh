#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A chat template that Kinema does not know, or none: said at the start by every command, with what works and what to do.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"
tiny_gguf=$(dirname "$bin")/test/tiny_gguf
"$tiny_gguf" "$work/known.gguf" 512 || fail "tiny_gguf"
"$tiny_gguf" "$work/unknown.gguf" 512 "{% for m in messages %}<turn>{{ m.content }}{% endfor %}" || fail "tiny_gguf"
"$tiny_gguf" "$work/none.gguf" 512 "" || fail "tiny_gguf"
unknown="none of those that Kinema knows (chatml, llama3, mistral, gemma)"
none="brings no chat template"

expect 0 "chatml" "$bin" model show -m "$work/known.gguf"
grep -q "refused" "$work/out" && fail "model show warns of a known template"
expect 0 "$unknown" "$bin" model show -m "$work/unknown.gguf"
grep -q -- "--chat-template NAME" "$work/out" || fail "model show does not say what to do"
expect 0 "$none" "$bin" model show -m "$work/none.gguf"
"$bin" model show --json -m "$work/unknown.gguf" >"$work/unknown.json" && "$bin" model show --json -m "$work/none.gguf" >"$work/none.json"
[ "$(json "$work/unknown.json" '[o["chat_template"], o["has_chat_template"]]')" = '["none", true]' ] || fail "JSON of an unknown template"
[ "$(json "$work/none.json" '[o["chat_template"], o["has_chat_template"]]')" = '["none", false]' ] || fail "JSON of no template"

expect 0 "$unknown" "$bin" run -m "$work/unknown.gguf" -p hi -n 2
grep -q "continued as it is" "$work/err" || fail "run does not say what it does"
expect 0 "$none" "$bin" run -m "$work/none.gguf" -p hi -n 2
expect 2 "no meaning with --raw" "$bin" run -m "$work/none.gguf" -p hi --raw --chat-template chatml
expect 1 "no chat template \"frob\": known are chatml, llama3, mistral, gemma" "$bin" run -m "$work/none.gguf" -p hi --chat-template frob
expect 0 "no token <start_of_turn>" "$bin" run -m "$work/none.gguf" -p hi -n 2 --chat-template gemma
"$bin" run -m "$work/known.gguf" -p hi -n 8 --json >"$work/a.json" 2>"$work/err" || fail "run"
"$bin" run -m "$work/none.gguf" -p hi -n 8 --json --chat-template chatml >"$work/b.json" 2>"$work/err" || fail "run --chat-template"
[ -s "$work/err" ] && fail "run with a chosen template says: $(cat "$work/err")"
same "$work/a.json" "$work/b.json" 'o["text"]' "the chosen template"

serve() { # MODEL [OPTION...]: starts it, its port in $port
  rm -f "$work/port"
  "$bin" serve -m "$1" --port 0 --port-file "$work/port" --json "${@:2}" >"$work/serve.out" 2>"$work/serve.err" &
  pid=$!
  for _ in $(seq 600); do
    [ -s "$work/port" ] && break
    sleep 0.1
  done
  port=$(cat "$work/port") || fail "serve did not start: $(cat "$work/serve.err")"
}
stop() {
  kill "$pid"
  wait "$pid" || fail "serve ended with $?"
}
ask() { # PATH BODY: status and body
  python3 - "$port" "$1" "$2" <<'PY'
import http.client, sys
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=120)
c.request("POST" if sys.argv[3] else "GET", sys.argv[2], sys.argv[3] or None, {"Content-Type": "application/json"})
r = c.getresponse()
print(r.status, r.read().decode())
PY
}
chat='{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'
text='{"prompt": "hi", "max_tokens": 2}'
trap 'kill $pid 2>/dev/null || true; rm -rf "$work"' EXIT
serve "$work/unknown.gguf"
grep -qF "$unknown: /v1/chat/completions" "$work/serve.err" || fail "serve does not say that chats are refused: $(cat "$work/serve.err")"
grep -q -- "/v1/completions works; --chat-template" "$work/serve.err" || fail "serve does not say what works"
head -1 "$work/serve.out" >"$work/listening.json"
[ "$(json "$work/listening.json" 'o["chat_template"]')" = none ] || fail "the line that says where it listens has no template"
[[ $(ask /v1/chat/completions "$chat") == 400*--chat-template* ]] || fail "a chat without a template: $(ask /v1/chat/completions "$chat")"
[[ $(ask /v1/completions "$text") == 200* ]] || fail "a completion without a template"
[[ $(ask /v1/models "") == *'"chat_template":"none"'* ]] || fail "/v1/models does not name the template"
stop
serve "$work/unknown.gguf" --chat-template chatml
grep -q "refused" "$work/serve.err" && fail "serve warns of a chosen template"
[[ $(ask /v1/chat/completions "$chat") == 200* ]] || fail "a chat with a chosen template"
[[ $(ask /v1/models "") == *'"chat_template":"chatml"'* ]] || fail "/v1/models does not name the chosen template"
stop
expect 2 "--chat-template" "$bin" serve -m "$work/known.gguf" --chat-template frob
finish

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kinema bench serve: its options, a run against a fake server whose answers are known, and a fake rival. Times are not judged.
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"
export TMPDIR=$work

# ---- options that are wrong or do not go together
expect 0 "--scenario NAME" "$bin" bench serve --help
expect 2 "throughput, shared or fetch" "$bin" bench serve --scenario fast
expect 2 "--clients takes 1 to 1000" "$bin" bench serve --clients 0
expect 2 "--rate takes requests a second above 0" "$bin" bench serve --rate -1
expect 2 "--prompt-tokens takes N or N-M" "$bin" bench serve --prompt-tokens 9-8
expect 2 "--peer takes llama.cpp" "$bin" bench serve --peer other
expect 2 "--url takes http://HOST:PORT" "$bin" bench serve --url 127.0.0.1:80
expect 2 "--peer goes with a server of ours" "$bin" bench serve --url http://127.0.0.1:1 --peer llama.cpp
expect 2 "scenario fetch starts our server itself" "$bin" bench serve --scenario fetch --url http://127.0.0.1:1
expect 2 "--duration is for an open loop" "$bin" bench serve --clients 2 --duration 5s
expect 2 "options for our server follow --" "$bin" bench serve extra
expect 2 "needs a value" "$bin" bench serve --rate
expect 2 "there is no option" "$bin" bench serve --fast
expect 1 "make bench-peers" "$bin" bench serve -m "$model" --peer llama.cpp
expect 1 "ended with status 2 before it served" "$bin" bench serve -m "$model" --requests 1 -- --no-such-option

# ---- a server with known answers
cat >"$work/fake.py" <<'END'
"""fake.py LOG [options of llama-server]: prompt 100 tokens, 50 of them cached; pieces at once. Writes each request to LOG."""
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args):
        pass
    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.reply(200, {"data": [{"id": "fake-model"}]} if self.path == "/v1/models" else {"status": "ok"})
    def chunk(self, value):
        body = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
        self.wfile.write(b"%x\r\n" % len(body) + body + b"\r\n")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body["authorization"] = self.headers.get("Authorization")
        with open(log, "a") as f:
            f.write(json.dumps(body) + "\n")
        if self.path != "/v1/chat/completions":
            return self.reply(404, {"error": {"message": "there is no " + self.path}})
        if body["max_tokens"] == 13:
            return self.reply(503, {"error": {"message": "the queue is full"}})
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(body["max_tokens"]):
            self.chunk({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]})
        self.chunk({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": body["max_tokens"], "prompt_tokens_details": {"cached_tokens": 50}}})
        self.chunk(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

log = sys.argv[1]
port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 0
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
END
python3 "$work/fake.py" "$work/asked" >"$work/port" &
fake=$!
trap 'kill $fake 2>/dev/null || true; wait $fake 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 200); do grep -q listening "$work/port" && break; sleep 0.05; done
url=$(sed 's/listening on //' "$work/port")
asked() { python3 -c 'import json,sys; o=[json.loads(l) for l in open(sys.argv[1])][1:]; print(json.dumps(eval(sys.argv[2])))' "$work/asked" "$1"; } # without the warm-up

# open loop, a range of lengths
expect 0 "" "$bin" bench serve --url "$url" --api-key secret --rate 200 --requests 40 --prompt-tokens 5-9 --max-tokens 2-4 --slo-ttft 1000000 --json
cp "$work/out" "$work/open"
[ "$(json "$work/open" "[o['load'][k] for k in ('loop', 'rate', 'mix', 'requests')]")" = '["open", 200.0, "unique", 40]' ] || fail "load of an open loop"
[ "$(json "$work/open" "[o['servers']['server'][k] for k in ('completed', 'failed', 'unsent', 'tokens_prompt', 'tokens_cached')]")" = "[40, 0, 0, 4000, 2000]" ] || fail "sums"
[ "$(json "$work/open" "[s := o['servers']['server'], s['tokens_out'] == $(asked "sum(r['max_tokens'] for r in o)") and s['goodput_s'] == s['requests_s'] > 0][1]")" = true ] || fail "tokens"
[ "$(json "$work/open" "all(0 < o['servers']['server'][k]['p50'] <= o['servers']['server'][k]['p90'] <= o['servers']['server'][k]['p99'] for k in ('ttft_ms', 'e2e_ms'))")" = true ] ||
  fail "latencies"
[ "$(asked "[len(o), min(r['max_tokens'] for r in o), max(r['max_tokens'] for r in o), sorted({len(r['messages'][-1]['content'].split()) for r in o})]")" = "[40, 2, 4, [5, 6, 7, 8, 9]]" ] ||
  fail "ranges: $(asked "[len(o), sorted({len(r['messages'][-1]['content'].split()) for r in o})]")"
[ "$(asked "len({r['messages'][-1]['content'] for r in o})")" = 40 ] || fail "unique prompts"
[ "$(asked "all(r['stream'] and r['stream_options'] == {'include_usage': True} and r['ignore_eos'] and r['temperature'] == 0 and r['model'] == 'fake-model' and r['authorization'] == 'Bearer secret' and 'cache_prompt' not in r and 'kv_fetch' not in r for r in o)")" = true ] || fail "what is sent"
cp "$work/asked" "$work/first"

# the same seed asks the same, another one does not
: >"$work/asked"
expect 0 "tokens/s" "$bin" bench serve --url "$url/v1" --api-key secret --rate 200 --requests 40 --prompt-tokens 5-9 --max-tokens 2-4
cmp -s <(sort "$work/first") <(sort "$work/asked") || fail "the same seed asks something else"
: >"$work/asked"
expect 0 "" "$bin" bench serve --url "$url" --api-key secret --rate 200 --requests 40 --prompt-tokens 5-9 --max-tokens 2-4 --seed 2
cmp -s <(sort "$work/first") <(sort "$work/asked") && fail "another seed asks the same"

# shared: one system prompt, questions of their own
: >"$work/asked"
expect 0 "closed loop, 3 clients" "$bin" bench serve --url "$url" --mix shared --shared-tokens 50 --question-tokens 4 --clients 3 --requests 12 --max-tokens 1 --stop-early
[ "$(asked "[len(o), len({r['messages'][0]['content'] for r in o}), len({r['messages'][1]['content'] for r in o}), len(o[0]['messages'][0]['content'].split()), o[0]['messages'][0]['role'], 'ignore_eos' in o[0]]")" = \
  '[12, 1, 12, 50, "system", false]' ] || fail "shared prompts"

# turns: conversations that grow by the answers
: >"$work/asked"
expect 0 "" "$bin" bench serve --url "$url" --mix turns --turns 3 --prompt-tokens 5 --question-tokens 2 --rate 50 --requests 6 --max-tokens 2
[ "$(asked "sorted(len(r['messages']) for r in o)")" = "[1, 1, 3, 3, 5, 5]" ] || fail "turns"
[ "$(asked "[[m['content'] for m in r['messages'] if m['role'] == 'assistant'] for r in o if len(r['messages']) == 5]")" = '[["xx", "xx"], ["xx", "xx"]]' ] || fail "answers in turns"

# failures are counted and told, and a refused warm-up ends it
expect 0 "first failure of server: HTTP 503: the queue is full" "$bin" bench serve --url "$url" --rate 100 --requests 5 --max-tokens 13
expect 1 "the server refuses a short request: HTTP 404: there is no /nothing/v1/chat/completions" "$bin" bench serve --url "$url/nothing" --requests 1
# ---- our own server beside a fake rival, in both orders; the rival's figures are the better of two settings
cat >"$work/rival" <<END
#!/bin/sh
echo "\$*" >>"$work/rival.args"
exec python3 "$work/fake.py" "$work/rival.asked" "\$@"
END
chmod +x "$work/rival"
expect 0 "" "$bin" bench serve -m "$model" -t 1 -c 512 --peer llama.cpp --peer-server "$work/rival" --peer-parallel 1,3 --peer-args "-b 64 --flag" --repeat 2 \
  --rate 20 --requests 4 --prompt-tokens 10 --max-tokens 3 --json -- --max-running 4
cp "$work/out" "$work/both"
[ "$(json "$work/both" "list(o['servers'])")" = '["ours", "llama.cpp x1", "llama.cpp x3"]' ] || fail "servers"
[ "$(json "$work/both" "all(s['completed'] == 8 and s['failed'] == 0 and s['tokens_out'] == 24 and len(s['tokens_out_s_runs']) == 2 and s['ttft_ms']['p50'] > 0 for s in o['servers'].values())")" = true ] ||
  fail "runs of both: $(json "$work/both" "o['servers']")"
[ "$(json "$work/both" "o['servers']['ours']['tokens_prompt'] > 80 and o['servers']['ours']['server_peak_bytes'] > 1e7")" = true ] || fail "ours"
[ "$(json "$work/both" "abs([t['is'] for t in o['targets'] if t['what'].startswith('median TTFT')][0] / (o['servers']['ours']['ttft_ms']['p50'] / min(o['servers'][s]['ttft_ms']['p50'] for s in ('llama.cpp x1', 'llama.cpp x3'))) - 1) < 1e-3")" = true ] || fail "ratios"
[ "$(grep -c -- "-c 512 --parallel 1 --cache-prompt -t 1 -tb 1 -b 64 --flag --host 127.0.0.1 --port 0" "$work/rival.args")" = 2 ] || fail "the rival's options: $(cat "$work/rival.args")"
[ "$(grep -c -- "-c 1536 --parallel 3" "$work/rival.args")" = 2 ] || fail "the rival's slots: $(cat "$work/rival.args")"
grep -q '"cache_prompt": true' "$work/rival.asked" || fail "the rival's prompt cache"

# ---- fetches beside requests that need none, small
expect 0 "" "$bin" bench serve -m "$model" -t 1 -c 512 --scenario fetch --duration 3s --rate 1 --fetch-rate 1 --fetch-delay 300 --max-tokens 2 --prompt-tokens 16 --repeat 1 --json
cp "$work/out" "$work/fetch"
[ "$(json "$work/fetch" "[sorted(o['plain']), sorted(o['fetching']), len({p['completed'] for p in o['plain'].values()})]")" = '[["inline", "memory", "none", "separate"], ["inline", "memory", "separate"], 1]' ] || fail "runs of fetch"
[ "$(json "$work/fetch" "all(f['completed'] > 0 and f['failed'] == 0 and f['tokens_cached'] >= 200 * f['completed'] and (n == 'memory' or f['ttft_ms']['p50'] >= 300) for n, f in o['fetching'].items())")" = true ] || fail "fetches: $(json "$work/fetch" "o['fetching']")"
[ "$(json "$work/fetch" "len({(f['completed'], f['tokens_prompt']) for f in o['fetching'].values()}) == 1 and 0 <= o['fetching']['memory']['tokens_cached'] - o['fetching']['separate']['tokens_cached'] <= 16 * o['fetching']['memory']['completed']")" = true ] || fail "arithmetic in memory and fetched: $(json "$work/fetch" "o['fetching']")"
[ "$(json "$work/fetch" "[t['what'] for t in o['targets'] if 'met' in t]")" = '["median TTFT, separate over none", "mean TTFT, separate over none", "median TTFT, separate over memory", "mean TTFT, separate over memory"]' ] ||
  fail "targets of fetch"
# a pool that cannot keep the prefixes is no comparison
expect 1 "in the run in memory a request had only" "$bin" bench serve -m "$model" -t 1 -c 512 --scenario fetch --duration 2s --rate 1 --fetch-rate 1 --fetch-delay 0 --max-tokens 2 \
  --prompt-tokens 16 --repeat 1 -- --pool-size 12M
ls "$work"/kinema-bench-* >/dev/null 2>&1 && fail "files were left behind"
finish

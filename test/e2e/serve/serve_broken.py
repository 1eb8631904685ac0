# SPDX-License-Identifier: Apache-2.0
"""A server whose model gives NaN: every way to ask ends with 500 and code not_finite, a stream with an event that says so; nothing is kept
for others or published, and the server goes on. Arguments: MODEL."""
import atexit
import json
import os

from serve_bed import WORK, Server, run, words

STORE = "lmdb:" + os.path.join(WORK, "store")
server = Server("-c", "1024", "--store", STORE, "--chunk-tokens", "64")
atexit.register(server.kill)  # when a check has failed
PROMPT = words(60)
CHAT = [{"role": "user", "content": PROMPT}]
WAYS = (
    ("/v1/completions", {"prompt": PROMPT}),
    ("/v1/completions", {"prompt": PROMPT, "temperature": 0.8, "seed": 3}),
    ("/v1/completions", {"prompt": PROMPT, "n": 2, "temperature": 1}),
    ("/v1/completions", {"prompt": PROMPT, "logprobs": 3}),
    ("/v1/completions", {"prompt": PROMPT, "echo": True, "logprobs": 1}),
    ("/v1/chat/completions", {"messages": CHAT}),
    ("/v1/chat/completions", {"messages": CHAT, "logprobs": True, "top_logprobs": 2}),
)


def check_answers():
    for route, body in WAYS + (("/v1/completions", {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}),):
        a = server.post(route, {"max_tokens": 8, **body})
        assert a.status == 500, (route, body, a)
        error = a.json["error"]
        assert error["code"] == "not_finite" and error["type"] == "server_error" and "not numbers" in error["message"], (route, body, a)


def check_streams():
    for route, body in WAYS:
        a = server.post(route, {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}, **body})
        assert a.status == 200 and a.headers["Content-Type"] == "text/event-stream", (route, body, a)
        events = [line[6:] for line in a.body.decode().splitlines() if line.startswith("data: ")]
        assert len(events) == 1, (route, body, events)  # no text, no finish reason, no usage, no [DONE]
        error = json.loads(events[0])["error"]
        assert error["code"] == "not_finite" and error["type"] == "server_error", (route, body, events)


def check_nothing_is_left():
    server.wait_idle()
    assert server.health() == "ok"  # the failure is the requests', and each is told
    m = server.metrics()
    assert m["kinema_requests_ended_total{reason=error}"] >= 2 * len(WAYS), m
    assert all(m[f"kinema_requests_ended_total{{reason={r}}}"] == 0 for r in ("stop", "length")), m
    assert m["kinema_requests_ended_total{reason=cancelled}"] <= 2, m  # of two choices the second, where the first has failed before it
    assert m["kinema_pool_blocks{state=cached}"] == 0, m
    assert m["kinema_published_chunks_total"] == 0 and m["kinema_publish_errors_total"] == 0, m
    server.stop()


run(globals())

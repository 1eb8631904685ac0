# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own Python client against the server: every endpoint, streams, stop strings, logprobs, seeds, choices, usage, errors,
cancellation, many at once. Arguments: MODEL."""
import asyncio
import concurrent.futures
import json
import math
import socket

import openai

import serve_bed
from serve_bed import Server, run, wait_for, words

server = Server("--max-body", "1M", "-c", "2048", "--header-timeout", "3s")
client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=serve_bed.PATIENCE)
MODEL = client.models.list().data[0].id
ASK = [{"role": "user", "content": "Name three colours of the rainbow and say a word about each."}]


def chat(**fields):
    fields = {"model": MODEL, "messages": ASK, "max_tokens": 20, "temperature": 0, **fields}
    return client.chat.completions.create(**fields)


def collect(stream):
    """(text of each choice, finish reasons, usage, number of chunks with text) of a streamed chat."""
    text, reasons, usage, n = {}, {}, None, 0
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk", chunk
        usage = chunk.usage or usage
        for c in chunk.choices:
            assert c.index not in reasons, "text after the end"
            if c.delta.content:
                n += 1
                text[c.index] = text.get(c.index, "") + c.delta.content
            if c.finish_reason:
                reasons[c.index] = c.finish_reason
    return text, reasons, usage, n


def refused(status, fields, param=None, code=None, **more):
    try:
        chat(**fields, **more)
    except openai.APIStatusError as e:
        assert e.status_code == status, (fields, e.status_code, e.body)
        assert isinstance(e.body, dict) and len(e.body["message"]) > 8 and e.body["type"] == "invalid_request_error", e.body
        assert param is None or e.body["param"] == param, (fields, e.body)
        assert code is None or e.body["code"] == code, (fields, e.body)
        return e
    raise AssertionError(f"{fields} was taken")


def check_models():
    models = client.models.list().data
    assert len(models) == 1 and models[0].object == "model" and models[0].created > 1700000000 and models[0].owned_by, models


def check_chat():
    a = chat()
    assert a.object == "chat.completion" and a.id.startswith("chatcmpl-") and a.model == MODEL and a.created > 1700000000, a
    c = a.choices[0]
    assert len(a.choices) == 1 and c.index == 0 and c.message.role == "assistant" and c.message.content and c.finish_reason in ("stop", "length"), a
    u = a.usage
    assert u.prompt_tokens > 10 and 1 <= u.completion_tokens <= 20 and u.total_tokens == u.prompt_tokens + u.completion_tokens, u
    assert c.finish_reason == "stop" or u.completion_tokens == 20, a
    system = chat(messages=[{"role": "system", "content": "You are terse."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    assert system.choices[0].message.content, system


def check_lengths():
    a = chat(max_tokens=5, extra_body={"ignore_eos": True})
    assert a.usage.completion_tokens == 5 and a.choices[0].finish_reason == "length", a
    a = client.chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=3, temperature=0)
    assert a.usage.completion_tokens == 3, a


def check_completions():
    a = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=8, temperature=0)
    assert a.object == "text_completion" and a.id.startswith("cmpl-") and a.choices[0].text and a.usage.completion_tokens <= 8, a
    both = client.completions.create(model=MODEL, prompt=["One, two, three,", "The sea is"], max_tokens=8, temperature=0)
    assert [c.index for c in both.choices] == [0, 1] and both.choices[0].text == a.choices[0].text, both
    ids = server.post("/tokenize", {"content": "One, two, three,"}).json["tokens"]
    by_id = client.completions.create(model=MODEL, prompt=ids, max_tokens=8, temperature=0)
    assert by_id.choices[0].text == a.choices[0].text and by_id.usage.prompt_tokens == len(ids), by_id
    echo = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=8, temperature=0, echo=True)
    assert echo.choices[0].text == "One, two, three," + a.choices[0].text, echo
    stream = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=8, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in stream if c.choices) == a.choices[0].text
    default = client.completions.create(model=MODEL, prompt="One, two, three,", extra_body={"ignore_eos": True})
    assert default.usage.completion_tokens == 16, default.usage


def check_stream():
    whole = chat()
    text, reasons, usage, n = collect(chat(stream=True, stream_options={"include_usage": True}))
    assert text[0] == whole.choices[0].message.content and reasons[0] == whole.choices[0].finish_reason, (text, reasons)
    assert usage.completion_tokens == whole.usage.completion_tokens and n > 4, (usage, n)
    first = next(iter(chat(stream=True)))
    assert first.choices[0].delta.role == "assistant", first
    _, _, usage, _ = collect(chat(stream=True))
    assert usage is None, "usage was not asked for"
    utf8 = [{"role": "user", "content": "Write only emoji and Chinese characters: \U0001f600 \u4f60\u597d"}]
    whole = chat(messages=utf8, extra_body={"ignore_eos": True}).choices[0].message.content
    assert collect(chat(messages=utf8, stream=True, extra_body={"ignore_eos": True}))[0][0] == whole


def check_stop():
    text = chat(max_tokens=40).choices[0].message.content
    middle = text[len(text) // 2:len(text) // 2 + 5]
    for stop in (middle, ["never to be seen", middle], [text[-3:], middle]):
        a = chat(max_tokens=40, stop=stop)
        wanted = text[:min(text.index(s) for s in ([stop] if isinstance(stop, str) else stop) if s in text)]
        assert a.choices[0].message.content == wanted and a.choices[0].finish_reason == "stop", (stop, a)
        streamed, reasons, _, _ = collect(chat(max_tokens=40, stop=stop, stream=True))
        assert streamed.get(0, "") == wanted and reasons[0] == "stop", (stop, streamed)
    server.wait_idle()  # the engine stopped too


def check_logprobs():
    a = chat(logprobs=True, top_logprobs=3, max_tokens=12)
    items = a.choices[0].logprobs.content
    assert len(items) == a.usage.completion_tokens, (len(items), a.usage)
    assert b"".join(bytes(i.bytes) for i in items).decode() == a.choices[0].message.content, items
    for i in items:
        assert len(i.top_logprobs) == 3 and i.logprob <= 0, i
        assert i.token == i.top_logprobs[0].token and abs(i.logprob - i.top_logprobs[0].logprob) < 1e-6, i
        ps = [t.logprob for t in i.top_logprobs]
        assert ps == sorted(ps, reverse=True) and sum(math.exp(p) for p in ps) <= 1.00001, ps
    assert chat(max_tokens=12).choices[0].logprobs is None
    streamed = [t for chunk in chat(logprobs=True, top_logprobs=3, max_tokens=12, stream=True) for c in chunk.choices if c.logprobs for t in c.logprobs.content or []]
    assert [(t.token, round(t.logprob, 4)) for t in streamed] == [(t.token, round(t.logprob, 4)) for t in items], streamed
    old = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=6, temperature=0, logprobs=2).choices[0]
    assert len(old.logprobs.tokens) == len(old.logprobs.token_logprobs) == 6 and "".join(old.logprobs.tokens) == old.text, old
    assert all(len(t) >= 2 for t in old.logprobs.top_logprobs) and old.logprobs.text_offset[0] == 0, old
    # temperature does not change what is reported: the model's own distribution
    hot = chat(logprobs=True, top_logprobs=3, max_tokens=1, temperature=1.7, seed=3).choices[0].logprobs.content[0]
    assert [t.token for t in hot.top_logprobs] == [t.token for t in items[0].top_logprobs], hot
    assert abs(hot.top_logprobs[0].logprob - items[0].top_logprobs[0].logprob) < 1e-3, hot


def check_seed():
    first = chat(temperature=1.2, seed=11).choices[0].message.content
    assert chat(temperature=1.2, seed=11).choices[0].message.content == first
    assert any(chat(temperature=1.2, seed=s).choices[0].message.content != first for s in (12, 13, 14)), first
    drawn = {chat(temperature=1.5).choices[0].message.content for _ in range(4)}
    assert len(drawn) > 1, "without a seed the answers should differ"


def check_choices():
    a = chat(n=3, temperature=1.2, seed=11)
    assert [c.index for c in a.choices] == [0, 1, 2], a
    assert a.choices[0].message.content == chat(temperature=1.2, seed=11).choices[0].message.content
    assert len({c.message.content for c in a.choices}) > 1, a
    text, reasons, usage, _ = collect(chat(n=3, temperature=1.2, seed=11, stream=True, stream_options={"include_usage": True}))
    assert text == {c.index: c.message.content for c in a.choices} and len(reasons) == 3, text
    assert usage.completion_tokens == a.usage.completion_tokens and usage.prompt_tokens == a.usage.prompt_tokens, (usage, a.usage)


def check_cached_usage():
    long = [{"role": "system", "content": words(150, 77)}]
    one = chat(messages=long + [{"role": "user", "content": "First question?"}], max_tokens=2).usage
    two = chat(messages=long + [{"role": "user", "content": "Another question?"}], max_tokens=2).usage
    assert one.prompt_tokens_details.cached_tokens < 64, one
    assert two.prompt_tokens_details.cached_tokens > 128, two
    assert two.prompt_tokens_details.cached_tokens < two.prompt_tokens, two


def check_errors():
    refused(404, {"model": "no-such-model"}, code="model_not_found")
    refused(400, {"temperature": 5}, "temperature")
    refused(400, {"temperature": -1}, "temperature")
    refused(400, {"top_p": 2}, "top_p")
    refused(400, {"max_tokens": 0}, "max_tokens")
    refused(400, {"max_tokens": -3}, "max_tokens")
    refused(400, {"n": 0}, "n")
    refused(400, {"n": 1000}, "n")
    refused(400, {"messages": []}, "messages")
    refused(400, {"messages": "hello"}, "messages")
    refused(400, {"messages": [{"role": "nobody", "content": "x"}]})
    refused(400, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})
    refused(400, {"stop": [""]})
    refused(400, {"top_logprobs": 3}, "top_logprobs")
    refused(400, {"logprobs": True, "top_logprobs": 99}, "top_logprobs")
    refused(400, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools")
    refused(400, {"logit_bias": {"5": 3}}, "logit_bias")
    refused(400, {"response_format": {"type": "json_object"}}, "response_format")
    refused(400, {"stream": "yes"}, "stream")
    refused(400, {"seed": "x"}, "seed")
    e = refused(400, {"messages": [{"role": "user", "content": words(3000, 5)}]}, code="context_length_exceeded")
    assert "2048" in e.body["message"], e.body
    assert chat(tools=[], logit_bias={}, presence_penalty=0, user="me").choices, "neutral values must be taken"


def check_fields():
    """What changes the answer is done, or refused by its name, on each route; the unit test asks about every field."""
    for path, base in (("/v1/completions", {"prompt": "x", "max_tokens": 1}), ("/v1/chat/completions", {"messages": ASK, "max_tokens": 1}),
                       ("/tokenize", {"content": "x"}), ("/detokenize", {"tokens": [1]})):
        for field, value in (("tools", [{}]), ("guided_regex", "x"), ("reasoning_effort", "low"), ("options", {"num_ctx": 5}), ("n_probs", 3),
                             ("images", ["x"]), ("prompt_logprobs", 0), ("max_new_tokens", 5), ("min_tokens", 2), ("stop_token_ids", [1])):
            if "tokenize" in path and field not in ("tools", "reasoning_effort", "images"):
                continue
            if path == "/detokenize":
                continue
            a = server.post(path, {**base, field: value})
            assert a.status == 400 and a.json["error"]["param"] == field and a.json["error"]["code"] == "unsupported_parameter", (path, field, a)
            assert server.post(path, {**base, field: None}).status == 200, (path, field)
        assert server.post(path, {**base, "user": "u", "metadata": {"a": [1]}, "nobody_knows": [[1]]}).status == 200, path
    for path, base, field, value in (
            ("/v1/completions", {"prompt": "x"}, "messages", ASK), ("/v1/completions", {"prompt": "x"}, "top_logprobs", 3),
            ("/v1/chat/completions", {"messages": ASK}, "prompt", "x"), ("/v1/chat/completions", {"messages": ASK}, "suffix", "x"),
            ("/detokenize", {"tokens": [1]}, "content", "x"), ("/tokenize", {"content": "x"}, "tokens", [1]),
            ("/tokenize", {"messages": ASK}, "chat_template", "x")):
        a = server.post(path, {**base, field: value})
        assert a.status == 400 and a.json["error"]["param"] == field and a.json["error"]["code"] == "unsupported_parameter", (path, field, a)
    a = server.post("/v1/completions", {"prompt": "One, two,", "max_completion_tokens": 2, "ignore_eos": True})
    assert a.json["usage"]["completion_tokens"] == 2, a
    for message, param in (({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "messages[1].tool_calls"),
                           ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[1].tool_call_id"),
                           ({"role": "assistant", "content": "x", "reasoning_content": "y"}, "messages[1].reasoning_content"),
                           ({"role": "assistant", "refusal": "no"}, "messages[1].refusal")):
        refused(400, {"messages": ASK + [message]}, param, "unsupported_parameter")
    refused(400, {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}, "stream_options.continuous_usage_stats")
    whole = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=12, temperature=0).choices[0].text
    cut = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=12, temperature=0, stop=whole[3:6],
                                    extra_body={"include_stop_str_in_output": True}).choices[0]
    assert cut.text == whole[:whole.index(whole[3:6]) + 3] and cut.finish_reason == "stop", (whole, cut)


def check_unknown_models():
    for name in ("gpt-4o", "a/b", "a%2Fb", MODEL + "x", MODEL + "/", "%00", "", "caf%C3%A9", "..", "x?y=1"):
        a = server.get("/v1/models/" + name)
        assert a.status == 404, (name, a)
        e = a.json["error"]
        assert e["code"] == "model_not_found" and e["param"] == "model" and e["type"] == "invalid_request_error" and MODEL in e["message"], (name, e)
    assert server.get("/v1/models/" + MODEL).json["id"] == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    try:
        client.models.retrieve("no/such model")
        raise AssertionError("a model that is not there was found")
    except openai.NotFoundError as e:
        assert e.body["code"] == "model_not_found", e.body
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": ASK}), ("/tokenize", {"content": "x"}),
                       ("/detokenize", {"tokens": [1]})):
        a = server.post(path, {**body, "model": "gpt-4o"})
        assert a.status == 404 and a.json["error"]["code"] == "model_not_found" and a.json["error"]["param"] == "model", (path, a)
    assert server.ask("POST", "/v1/models/x", b"{}").status == 405


def check_words():
    """What JSON or a field cannot hold is named by the field, and no parser's words are in it."""
    for body, param, text in ((b'{"prompt": "a\\u0000b"}', "prompt", "U+0000"), (b'{"prompt": "x", "cache_salt": "\\u0000"}', "cache_salt", "U+0000"),
                              (b'{"prompt": "x", "seed": 9223372036854775808}', "seed", "9223372036854775807"),
                              (b'{"prompt": "x", "n": 1e400}', "n", "from 1 to"), (b'{"prompt": "x", "max_tokens": 2.5}', "max_tokens", "from 1 to"),
                              (b'{"prompt": "x", "temperature": 99999999999999999999}', "temperature", "from 0 to 2")):
        a = server.ask("POST", "/v1/completions", body)
        e = a.json["error"]
        assert a.status == 400 and e["param"] == param and text in e["message"] and "JSON_" not in e["message"], (body, e)


def check_echo():
    """OpenAI's older lists: the prompt's tokens first, the first of them without a probability; streams say the same piece by piece."""
    def ask(prompt, **fields):
        return client.completions.create(**{"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 2, **fields})
    prompt = "One, two, three, äö,"
    ids = server.post("/tokenize", {"prompt": prompt}).json["tokens"]
    a = ask(prompt).choices[0]
    p = a.logprobs
    n = len(ids)
    assert a.text.startswith(prompt) and len(p.tokens) == len(p.token_logprobs) == len(p.top_logprobs) == len(p.text_offset) > n, a
    assert p.token_logprobs[0] is None and p.top_logprobs[0] is None, p
    assert all(x is not None and x <= 0 for x in p.token_logprobs[1:]) and all(len(t) in (2, 3) for t in p.top_logprobs[1:]), p
    assert p.text_offset[0] == 0 and p.text_offset == sorted(p.text_offset) and p.text_offset[n] == len(prompt), p
    for token, at in zip(p.tokens, p.text_offset):
        assert token.startswith("bytes:") or a.text[at:at + len(token)] == token, (token, at, a.text)

    def close(x, y):
        assert len(x) == len(y) and all(u == v or abs(u - v) < 1e-3 for u, v in zip(x, y)), (x, y)
    alone = ask(prompt, max_tokens=0).choices[0]
    assert alone.text == prompt and len(alone.logprobs.tokens) == n and alone.finish_reason == "length", alone
    close(alone.logprobs.token_logprobs, p.token_logprobs[:n])
    quiet = ask(prompt, max_tokens=0, logprobs=None).choices[0]
    assert quiet.text == prompt and quiet.logprobs is None, quiet
    close(ask(ids).choices[0].logprobs.token_logprobs, p.token_logprobs)
    zero = ask(prompt, logprobs=0).choices[0].logprobs
    assert not zero.top_logprobs and len(zero.token_logprobs) == len(p.tokens), zero
    several = ask([prompt, "The sea is", "Once upon a time there was"], n=2, seed=4, temperature=1, max_tokens=5)
    assert len(several.choices) == 6 and several.usage.prompt_tokens > 2 * n / 2, several.usage
    for c in several.choices:
        assert c.logprobs.token_logprobs[0] is None and None not in c.logprobs.token_logprobs[1:], c
    for c in several.choices[:2]:
        close(c.logprobs.token_logprobs[:n], p.token_logprobs[:n])
    for fields in ({"n": 2}, {"max_tokens": 0}, {"stop": p.tokens[n + 1]}):
        whole = ask(prompt, **fields)
        texts, values, offsets = {}, {}, {}
        for chunk in ask(prompt, stream=True, **fields):
            for c in chunk.choices:
                if c.index not in texts:
                    assert c.text == prompt and len(c.logprobs.tokens) == n, c
                texts[c.index] = texts.get(c.index, "") + c.text
                if c.logprobs:
                    values.setdefault(c.index, []).extend(c.logprobs.token_logprobs)
                    offsets.setdefault(c.index, []).extend(c.logprobs.text_offset)
        for c in whole.choices:
            assert texts[c.index] == c.text and offsets[c.index] == c.logprobs.text_offset, (c, texts, offsets)
            close(values[c.index], c.logprobs.token_logprobs)
    full = (ids * 2048)[:2048]
    assert server.post("/v1/completions", {"prompt": full, "max_tokens": 1, "echo": True}).status == 400
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 0}).json["error"]["param"] == "max_tokens"
    a = server.post("/v1/completions", {"prompt": [full] * 64, "max_tokens": 0, "echo": True, "logprobs": 20, "n": 1})
    assert a.status == 400 and a.json["error"]["param"] == "prompt" and "at once" in a.json["error"]["message"], a


def check_detokenize():
    ids = server.post("/tokenize", {"content": "Grüße, 日本!<|im_end|>"}).json["tokens"]
    a = server.post("/detokenize", {"tokens": ids}).json
    assert a["content"] == a["prompt"] == a["text"] == "Grüße, 日本!<|im_end|>", a
    strings = server.post("/tokenize", {"prompt": "Hello world", "add_special_tokens": False, "return_token_strs": True}).json
    assert "".join(strings["token_strs"]) == "Hello world" and len(strings["tokens"]) == len(strings["token_strs"]), strings
    info = server.get("/tokenizer_info").json
    assert info["eos_token"] and server.post("/tokenize", {"content": info["eos_token"]}).json["count"] == 1, info


def check_bad_bodies():
    cases = {
        b"": 400, b"{": 400, b"[]": 400, b"null": 400, b"{}": 400, b'{"messages": }': 400, b'{"a":' * 5000: 400, b"[" * 100000: 400,
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}': 400, b'{"n": 1, "n": 2, "messages": []}': 400,
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1e999}': 400,
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 99999999999999999999999}': 400,
        b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 1}': 400,
        b'{"x": "' + b"y" * (1 << 21) + b'"}': 413,
    }
    for body, wanted in cases.items():
        a = server.post("/v1/chat/completions", body)
        assert a.status == wanted, (body[:60], a)
        assert a.json["error"]["message"], a
    for method, path, wanted in (("GET", "/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405), ("BREW", "/", 405)):
        a = server.ask(method, path)
        assert a.status in (wanted, 501) and b"error" in a.body, (method, path, a)
    assert chat().choices, "the server answers after all that"


def check_raw_http():
    def raw(data, seconds=20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as s:
            s.sendall(data)
            out = b""
            try:
                while piece := s.recv(65536):
                    out += piece
            except OSError:
                pass
            return out
    pair = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(pair).count(b"HTTP/1.1 200") == 2, "pipelined requests"
    assert b" 200 " in raw(b"GET /health HTTP/1.0\r\n\r\n")
    assert raw(b"\x00\x01\x02garbage\r\n\r\n")[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400", b""), "garbage"
    big = raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 100000 + b"\r\n\r\n")
    assert b" 431 " in big[:20] or b" 400 " in big[:20] or b" 413 " in big[:20] or big == b"", big[:100]
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7]) for i in range(0, len(body), 7)) + b"0\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 200 " in raw(head + chunked)[:20], "a chunked body"


def check_half_closed():
    """A client that has said all and says so by shutdown() gets its answer: every endpoint, whole and streamed, kept and closed, 1.0 and 1.1."""
    def ask(head, body, chunked=False):
        with socket.create_connection(("127.0.0.1", server.port), timeout=serve_bed.PATIENCE) as s:
            length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
            s.sendall(head + length + b"\r\n\r\n" + (b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body))
            s.shutdown(socket.SHUT_WR)
            out = b""
            while piece := s.recv(65536):
                out += piece
            return out
    before = server.metrics()["kinema_disconnects_total"]
    posts = [("/v1/completions", {"prompt": "One two", "max_tokens": 20, "ignore_eos": True}, b'"usage"'),
             ("/v1/completions", {"prompt": ["One", "Two"], "n": 2, "max_tokens": 8, "ignore_eos": True}, b'"usage"'),
             ("/v1/completions", {"prompt": "One two", "max_tokens": 20, "stream": True}, b"data: [DONE]"),
             ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}, b'"usage"'),
             ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, "stream": True}, b"data: [DONE]"),
             ("/tokenize", {"content": "Hello " * 20000}, b'"count"'), ("/detokenize", {"tokens": [1, 2, 3]}, b'"content"')]
    for path, body, wanted in posts:
        for version, line in ((b"1.1", b""), (b"1.1", b"Connection: close\r\n"), (b"1.0", b"")):
            for chunked in (False, True) if version == b"1.1" else (False,):
                got = ask(b"POST %s HTTP/%s\r\nHost: localhost\r\n%s" % (path.encode(), version, line), json.dumps(body).encode(), chunked)
                assert got.startswith(b"HTTP/1.1 200 ") and got.count(b"HTTP/1.1 ") == 1 and wanted in got, (path, version, line, got[:300])
    for path in ("/health", "/v1/models", "/metrics", "/stats", "/"):
        assert ask(b"GET %s HTTP/1.1\r\nHost: localhost\r\n" % path.encode(), b"").startswith(b"HTTP/1.1 200 "), path
    assert server.metrics()["kinema_disconnects_total"] == before


def check_names():
    """DNS rebinding and simple requests of pages; the dashboard goes on."""
    def status(**headers):
        return server.ask("POST", "/tokenize", b'{"content": "a"}', headers).status
    assert status(Host=f"localhost:{server.port}") == 200
    assert status(Host="evil.example") == 403
    assert status(Host="localhost", Origin="https://evil.example", **{"Content-Type": "text/plain"}) == 403
    assert status(Host="localhost", Origin=f"http://127.0.0.1:{server.port}") == 200
    assert status(**{"Content-Encoding": "gzip"}) == 415
    assert server.ask("GET", "/", headers={"Host": "evil.example"}).status == 403
    assert server.ask("GET", "/", headers={"Host": "[::1]"}).status == 200


def check_ignored_memory():
    """The body of 0.84 MB whose ignored field would make a tree of 68 MB, over 64 connections at once: answered, and no memory is kept."""
    def resident():
        with open(f"/proc/{server.child.pid}/status", encoding="ascii") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    ignored = b'{"user":[' + b",".join([b"{}"] * 280000) + b'],"content":"a"}'
    read = b'{"prompt":[' + b",".join([b"[]"] * 280000) + b"]}"
    before = resident()
    for path, body, wanted in (("/tokenize", ignored, {200}), ("/v1/completions", read, {400, 503})):
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            got = {a.status for a in pool.map(lambda _, p=path, b=body: server.ask("POST", p, b), range(64))}
        assert got <= wanted and got & {200, 400}, (path, got)
    wait_for("memory is given back", lambda: resident() < before + 100 * 1024)


def check_other_routes():
    t = server.post("/tokenize", {"content": "Hello world"}).json
    assert t["tokens"] and all(isinstance(i, int) for i in t["tokens"]) and t["count"] == len(t["tokens"]), t
    h = server.get("/health").json
    assert h["status"] == "ok", h
    server.expect("requests are counted", lambda m: m["kinema_time_to_first_token_seconds_count"] > 5 and m["kinema_generated_tokens_total"] > 50)
    server.expect("answers are counted", lambda m: min(m[f"kinema_http_responses_total{{class={c}xx,route=chat}}"] for c in (2, 4)) > 5)
    page = server.get("/")
    assert page.status == 200 and page.headers["Content-Type"].startswith("text/html") and b"</html>" in page.body, page
    assert server.get("/stats").json, "stats"
    assert server.ask("HEAD", "/health").status == 200


def check_cancel():
    def cancelled():
        return server.metrics()["kinema_requests_ended_total{reason=cancelled}"]
    before = cancelled()
    stream = chat(stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    for _, _ in zip(range(4), stream):
        pass
    stream.close()
    server.wait_idle()
    wait_for("the cancelled request is counted", lambda: cancelled() == before + 1)
    # one that waits for its whole answer
    s = socket.create_connection(("127.0.0.1", server.port))
    body = json.dumps({"prompt": "One", "max_tokens": 1500, "ignore_eos": True}).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    wait_for("it runs", lambda: server.metrics()["kinema_requests{state=running}"] > 0)
    s.close()
    server.wait_idle()
    wait_for("the second one is counted", lambda: cancelled() == before + 2)


def check_parallel():
    asks = [[{"role": "user", "content": f"Say something about the number {i}."}] for i in range(16)]
    alone = [chat(messages=m, max_tokens=10).choices[0].message.content for m in asks]

    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=2 * serve_bed.PATIENCE) as c:
            async def one(i):
                if i % 2:
                    return (await c.chat.completions.create(model=MODEL, messages=asks[i], max_tokens=10, temperature=0)).choices[0].message.content
                text = ""
                async for chunk in await c.chat.completions.create(model=MODEL, messages=asks[i], max_tokens=10, temperature=0, stream=True):
                    text += chunk.choices[0].delta.content or ""
                return text
            return await asyncio.gather(*(one(i) for i in range(16)))
    together = asyncio.run(all_at_once())
    assert together == alone, [(a, b) for a, b in zip(alone, together) if a != b]


def check_end():
    client.close()
    server.wait_idle()
    server.stop()


try:
    run(globals())
finally:
    server.kill()

# SPDX-License-Identifier: Apache-2.0
"""The same seed gives the same tokens as `kinema run`: alone and under load, with the prefix cache and without. Arguments: MODEL."""
import concurrent.futures
import json
import os
import subprocess
import sys
import threading

from serve_bed import BIN, PATIENCE, Server, run, words

MODEL = sys.argv[1]
N = 16
CASES = [  # (prompt, flags of run, fields of the request)
    ("What is a river?", [], {}),
    ("Tell me a story about " + words(60, 3), [], {}),
    ("What is a river?", ["--temp", "0.9", "--seed", "17"], {"temperature": 0.9, "seed": 17}),
    ("Count to ten.", ["--temp", "1.3", "--seed", "5", "--top-k", "40", "--top-p", "0.95"], {"temperature": 1.3, "seed": 5, "top_k": 40, "top_p": 0.95}),
    ("List some words.", ["--temp", "0.7", "--seed", "99", "--min-p", "0.05", "--repeat-penalty", "1.1"],
     {"temperature": 0.7, "seed": 99, "min_p": 0.05, "repeat_penalty": 1.1}),
]
wanted = []


def ask_run(prompt, flags, *more):
    done = subprocess.run([BIN, "run", "-m", MODEL, "-p", prompt, "-n", str(N), "--json", *flags, *more], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * PATIENCE, check=True)
    return json.loads(done.stdout)


def same(server, i, **more):
    prompt, _, fields = CASES[i]
    a = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": N, "temperature": 0, "logprobs": True, **fields, **more},
                    seconds=2 * PATIENCE)
    assert a.status == 200, a
    o, w = a.json, wanted[i]
    c = o["choices"][0]
    assert o["usage"]["prompt_tokens"] == w["prompt_tokens"], f"prompts differ: {o['usage']} and {w['prompt_tokens']}"
    assert c["message"]["content"] == w["text"], f"case {i}: {c['message']['content']!r} and {w['text']!r}"
    assert o["usage"]["completion_tokens"] == w["generated_tokens"], (o["usage"], w["generated_tokens"])
    assert c["finish_reason"] == w["stop_reason"], (c["finish_reason"], w["stop_reason"])


def check_run():
    for prompt, flags, _ in CASES:
        wanted.append(ask_run(prompt, flags))
    assert len({w["text"] for w in wanted}) == len(CASES), "cases that all say the same prove nothing"


def under_load(server, rounds=1):
    """All cases at once, beside clients that ask other things and leave."""
    stop = threading.Event()

    def noise(k):
        n = 0
        while not stop.is_set():
            n += 1
            server.post("/v1/completions", {"prompt": words(20 + 9 * k, 100 * k + n), "max_tokens": 8, "temperature": 1, "seed": n}, seconds=2 * PATIENCE)
    others = [threading.Thread(target=noise, args=(k,)) for k in range(3)]
    for t in others:
        t.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(same, server, i) for i in [*range(len(CASES))] * rounds]:
                done.result()
    finally:
        stop.set()
        for t in others:
            t.join()


def check_with_cache():
    with Server("-c", "2048") as server:
        for i in range(len(CASES)):
            same(server, i)
        for i in range(len(CASES)):  # now from the prefix cache
            same(server, i)
        server.expect("the prefix cache is used", lambda m: m["kinema_prefix_hit_tokens_total{tier=memory}"] > 0)
        under_load(server, 2)
        server.wait_idle()


def check_without_cache():
    with Server("-c", "2048", "--no-prefix-cache", "--prefill-chunk", "64") as server:
        same(server, 1)
        under_load(server)
        server.wait_idle()
        assert server.metrics()["kinema_prefix_hit_tokens_total{tier=memory}"] == 0, "the prefix cache is off"


def check_small_pool():
    """A pool that holds about two of these requests: others wait, or lose their blocks and are computed again."""
    with Server("-c", "1024", "--pool-size", "30M") as server:
        under_load(server)
        server.wait_idle()


def check_shared_store():
    """A prefix that `kinema run` published is fetched by the server, and the other way round."""
    store = f"lmdb:{os.environ['KN_WORK']}/shared"
    prompt = words(300, 8)
    ask_run(prompt, ["--store", store, "--preset", "exact"])
    with Server("-c", "2048", "--store", store, "--preset", "exact") as server:
        a = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], "max_tokens": N, "temperature": 0}, seconds=2 * PATIENCE)
        assert a.json["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256, a
        assert a.json["choices"][0]["message"]["content"] == ask_run(prompt, [])["text"], a
        server.expect("the store's tier is counted", lambda m: m["kinema_prefix_hit_tokens_total{tier=store}"] >= 256)
        other = words(320, 9)
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": other}], "max_tokens": 1}, seconds=2 * PATIENCE)
        server.wait_idle()
    assert ask_run(other, ["--store", store, "--preset", "exact"])["fetched_tokens"] >= 256


run(globals())

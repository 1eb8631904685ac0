# SPDX-License-Identifier: Apache-2.0
"""A store that is down, dies, hangs or returns garbage: the server serves on with the same answers, says so, and recovers by itself.
Arguments: MODEL (the tiny one). The store misbehaves on command: doc/store-faults.md."""
import os
import sys
import time

from serve_bed import BLOCK, PATIENCE, WORK, Server, run, wait_for, words

FAST = ("--drain-timeout", "3s", "--fetch-deadline", "1500ms", "--chunk-tokens", "64", "--preset", "exact")
plain = {}
fresh = iter(range(100, 100000))


class Bed(Server):
    def __init__(self, name, *orders):
        self.control = os.path.join(WORK, name + ".orders")
        self.order(*orders)
        super().__init__("--store", f"fault:{self.control}:lmdb:{WORK}/{name}", *FAST)

    def order(self, *orders):
        with open(self.control + ".new", "w") as f:
            f.write("".join(o + "\n" for o in orders))
        os.rename(self.control + ".new", self.control)

    def same(self, seed):
        """The answer that a server without a store gives; returns the tokens that came from a cache."""
        text, cached, _ = self.complete(words(100, seed), 12)
        assert text == plain[seed], f"another answer with seed {seed}: {text!r} and {plain[seed]!r}"
        return cached

    def serve_until(self, what, condition):
        """Asks new things until the condition holds: recovery may need traffic to be noticed."""
        def step():
            self.complete(words(100, next(fresh)), 1)
            return condition()
        return wait_for(what, step, pause=0.2)

    def healthy(self):
        self.serve_until("the store is used again", lambda: self.health() == "ok")


def check_plain():
    with Server() as server:
        for seed in range(1, 9):
            plain[seed] = server.complete(words(100, seed), 12)[0]
    assert len(set(plain.values())) > 4, "answers that are all the same prove nothing"


def check_down_at_start():
    with Bed("down", "refuse-open") as s:
        assert s.same(1) < BLOCK
        assert s.health() == "degraded" and s.get("/health").status == 200, s.get("/health")
        s.expect("the store is not open", lambda m: m["kinema_store_open"] == 0 and m["kinema_store_configured"] == 1)
        s.order()
        s.healthy()
        s.expect("the store is open", lambda m: m["kinema_store_open"] == 1)
        s.serve_until("chunks are published", lambda: s.metrics()["kinema_published_chunks_total"] > 0)
        s.wait_idle()


def publish(name, seeds):
    with Bed(name) as s:
        for seed in seeds:
            s.same(seed)
        s.wait_idle()
        s.expect("chunks are published", lambda m: m["kinema_published_chunks_total"] >= len(seeds))


def check_fetch():
    publish("fetch", [1, 2])
    with Bed("fetch") as s:
        assert s.same(1) >= 64 and s.same(2) >= 64, "nothing was fetched"
        s.expect("fetches are counted", lambda m: m["kinema_fetches_total"] >= 2 and m["kinema_fetch_bytes_total"] > 0 and m["kinema_fetch_seconds_total"] > 0)


def check_quality():
    """A lossy prefix in memory serves only who takes it, and usage says what was used. Nothing depends on who asked first."""
    lossy = ("--store", f"lmdb:{WORK}/quality", "--drain-timeout", "3s", "--chunk-tokens", "64", "--preset", "tiles", "--levels", "8")

    def ask(server, **fields):
        body = server.post("/v1/completions", {"prompt": words(100, 1), "max_tokens": 12, "temperature": 0, **fields}).json
        return body["choices"][0]["text"], body["usage"]["prompt_tokens_details"]["cached_tokens"], body["kinema"]
    with Server(*lossy) as s:
        ask(s)
        s.wait_idle()
        s.expect("chunks are published", lambda m: m["kinema_published_chunks_total"] >= 1)
    for first, second in (({}, {"kv_fetch": False}), ({"kv_quality": "any"}, {"kv_quality": "exact"}), ({"kv_quality": "exact"}, {}), ({"kv_fetch": False, "kv_quality": "any"}, {})):
        with Server(*lossy) as s:
            for fields in (first, second):
                text, cached, kinema = ask(s, **fields)
                if "kv_fetch" in fields or fields.get("kv_quality") == "exact":
                    assert text == plain[1] and kinema["quality"] == "exact" and "any" not in kinema["cached_by_quality"], (fields, text, kinema)
                    assert fields is first or cached == 0, (fields, cached)
                elif fields is first:
                    assert kinema["fetched_by_quality"] == {"any": kinema["fetched_tokens"]} and kinema["fetched_tokens"] >= 64, (fields, kinema)
                    assert kinema["quality"] == "any", (fields, kinema)
                else: # the exact one has been there: everybody gets its blocks
                    assert text == plain[1] and kinema["cached_by_quality"] == {"exact": kinema["cached_tokens"]} and cached > 64, (fields, kinema)
            s.expect("hits are counted by quality", lambda m: sum(v for k, v in m.items() if k.startswith("kinema_prefix_hit_quality_tokens_total")) ==
                     m["kinema_prefix_hit_tokens_total{tier=memory}"] + m["kinema_prefix_hit_tokens_total{tier=store}"])
            for bad in ("best", "", 1, True):
                r = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "kv_quality": bad})
                assert r.status == 400 and r.json["error"]["param"] == "kv_quality", (bad, r)


def check_dies():
    publish("dies", [1, 2, 3])
    with Bed("dies") as s:
        assert s.same(1) >= 64
        s.order("fail")
        s.serve_until("degraded", lambda: s.health() == "degraded")
        assert s.same(2) < BLOCK
        s.expect("errors are counted", lambda m: m["kinema_store_errors_total{direction=read}"] > 0 and
                 0 in (m["kinema_store_up{direction=read}"], m["kinema_store_up{direction=write}"]))
        s.order()
        s.healthy()
        assert s.same(3) >= 64, "nothing is fetched after the recovery"
        s.wait_idle()


def check_hangs():
    publish("hangs", [1, 2, 3])
    with Bed("hangs") as s:
        s.order("hang")
        assert s.same(1) < BLOCK
        for _ in range(4):
            s.complete(words(100, next(fresh)), 1)
        begin = time.monotonic()
        assert s.same(2) < BLOCK
        assert time.monotonic() - begin < PATIENCE / 2, "requests still wait for a store that hangs"
        s.serve_until("degraded", lambda: s.health() == "degraded")
        s.order()
        s.healthy()
        assert s.same(3) >= 64, "nothing is fetched after the recovery"
        s.wait_idle()


def check_hangs_at_the_end():
    """A server whose store hangs can still be ended; what was being published is given up after the drain's time."""
    with Bed("end") as s:
        s.order("hang")
        s.same(1)


def check_garbage():
    publish("garbage", [1, 2])
    for order in ("garbage", "short", "garbage-entry", "phantom"):
        with Bed("garbage", order) as s:
            cached = s.same(1)
            if order in ("garbage", "short"):  # the others' containers are whole: they may be believed
                assert cached < BLOCK, f"{order}: something was taken from a damaged chunk"
                s.expect("the damage is counted", lambda m: m["kinema_fetch_missed_chunks_total"] + m["kinema_store_errors_total{direction=read}"] > 0)
            s.order()
            s.healthy()
            s.wait_idle()
    with Bed("garbage") as s:
        assert s.same(2) >= 64, "the good chunk is not fetched any more"


def check_slow():
    """A slow fetch is cut at its deadline; others are not kept waiting by it."""
    publish("slow", [1, 2])
    with Bed("slow", "delay-get-ms 6000") as s:
        assert s.same(1) < BLOCK
        s.expect("the cut fetch is counted", lambda m: m["kinema_fetches_cut_total"] >= 1)
        s.order()
        s.healthy()


def check_bad_url():
    """What can never work is refused at the start."""
    for url in ("nosuch:thing", "lmdb:"):
        try:
            server = Server("--store", url)
        except AssertionError as e:
            assert "store" in str(e), e
            continue
        server.kill()
        raise AssertionError(f"{url} was taken")


run(globals())

# SPDX-License-Identifier: Apache-2.0
"""A server whose model file changes on disk: it refuses, says why, publishes nothing more, and ends well. Files that were only touched,
or moved away by a new one, change nothing."""
import json
import os
import shutil
import sys
import time

from serve_bed import PATIENCE, WORK, Server, run, wait_for, words

TINY = sys.argv[1]
PROMPT = words(150)


def copy(name):
    path = os.path.join(WORK, name)
    shutil.copyfile(TINY, path)
    time.sleep(0.05)  # times of files move with the kernel's clock tick
    return path


def overwrite(path):
    """In place, same size, as rsync --inplace does it: one byte in the middle is enough."""
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 0x10]))


def refused(server, path):
    for route, body in (("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}),
                        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "stream": True}),
                        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}),
                        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4})):
        a = server.post(route, body)
        assert a.status == 503, (route, a)
        error = a.json["error"]
        assert error["code"] == "model_changed" and path in error["message"], a
    health = server.get("/health")
    assert health.status == 503 and health.json["status"] == "failed", health
    assert any(path in reason for reason in health.json["reasons"]), health
    assert server.metrics()["kinema_up"] == 0
    assert server.get("/stats").json["status"] == "failed"
    said = [line for line in server.stderr().splitlines() if path in line and "changed" in line]
    assert len(said) == 1, server.stderr()
    assert server.post("/tokenize", {"content": "abc"}).status == 200  # what was read at open is right


def check_overwritten():
    path, store = copy("overwritten.gguf"), os.path.join(WORK, "store")
    with Server("--store", "lmdb:" + store, "--chunk-tokens", "64", model=path) as server:
        text, _, _ = server.complete(PROMPT)
        m = server.expect("published", lambda m: m["kinema_published_chunks_total"] >= 1 and not m["kinema_publishing"])
        overwrite(path)
        refused(server, path)
        overwrite(path)  # right again, but what was computed with in between is not known
        refused(server, path)
        assert server.metrics()["kinema_published_chunks_total"] == m["kinema_published_chunks_total"]
    with Server("--store", "lmdb:" + store, "--chunk-tokens", "64", model=path) as server:  # what was stored is right
        again, cached, _ = server.complete(PROMPT)
        assert again == text and cached >= 64, (text, again, cached)
    overwrite(path)
    with Server("--store", "lmdb:" + store, "--chunk-tokens", "64", model=path) as server:  # another model, which has no cache there
        _, cached, _ = server.complete(PROMPT)
        assert cached == 0, cached


def check_health_alone():
    """An idle server finds out when somebody looks."""
    path = copy("idle.gguf")
    with Server(model=path) as server:
        assert server.health() == "ok"
        overwrite(path)
        assert server.get("/health").status == 503


def check_under_way():
    """A request under way ends as an error, and its stream says so."""
    path = copy("way.gguf")
    with Server("-c", "4096", model=path) as server:
        connection_body = {"prompt": "abc", "max_tokens": 3900, "stream": True, "ignore_eos": True}
        import threading
        got = []
        thread = threading.Thread(target=lambda: got.append(server.post("/v1/completions", connection_body)))
        thread.start()
        wait_for("it runs", lambda: server.metrics()["kinema_generated_tokens_total"] > 4)
        overwrite(path)
        thread.join(PATIENCE)
        assert got, "it goes on"
        events = [line[6:] for line in got[0].body.decode().splitlines() if line.startswith("data: ")]
        assert json.loads(events[-1])["error"]["code"] == "model_changed", events[-2:]
        refused(server, path)


def check_cut():
    """A cut file is found before it is read: no signal."""
    path = copy("cut.gguf")
    with Server(model=path) as server:
        server.complete(PROMPT)
        os.truncate(path, os.path.getsize(path) // 3)
        refused(server, path)


def check_touched_and_replaced():
    path = copy("touched.gguf")
    with Server(model=path) as server:
        text, _, _ = server.complete(PROMPT)
        os.utime(path)
        assert server.complete(PROMPT)[0] == text and server.health() == "ok"
        os.link(path, path + ".link")
        assert server.complete(PROMPT)[0] == text and server.health() == "ok"
        other = copy("other.gguf")
        overwrite(other)
        os.rename(other, path)  # the old one stays mapped, and as it is
        assert server.complete(PROMPT)[0] == text and server.health() == "ok"
        os.unlink(path)
        assert server.complete(PROMPT)[0] == text and server.health() == "ok"
        assert server.stderr().count("changed") == 0, server.stderr()


run(globals())

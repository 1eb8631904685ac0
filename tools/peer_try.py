#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries freshly built rivals on a few tokens, for tools/build-peers: a build for this machine's processor may die at its first product
of matrices (builds with AMX do on some machines), which no --version shows.

    peer_try.py --python PYTHON --server LLAMA_SERVER --model GGUF

Exit status 0: both answered. 1: one sentence on standard output says which did not, by what signal it was ended, and its last words."""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PATIENCE = 300  # seconds; a machine may be busy
ORDERS = "context 64 2\nprefill 24\ndecode 24 4\nclose\n"


class Dead(Exception):
    pass


def ending(status, words):
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    lines = [line for line in words.splitlines() if line.strip()]
    return how + (f", its last words: {lines[-1].strip()[:200]}" if lines else " and said nothing")


def try_library(python, script, model):
    with tempfile.NamedTemporaryFile("w", suffix=".tokens") as tokens:
        tokens.write(" ".join(str(i + 1) for i in range(128)))
        tokens.flush()
        command = [python, script, "--model", model, "--threads", "2", "--flash", "on", "--tokens", tokens.name]
        try:
            p = subprocess.run(command, input=ORDERS, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            raise Dead(f"the library did not answer within {PATIENCE} s") from None
    answers = p.stdout.splitlines()
    if p.returncode or len(answers) != 5 or not json.loads(answers[3]).get("seconds"):
        raise Dead("the library " + ending(p.returncode, p.stderr))


def ask(url):
    body = json.dumps({"prompt": "one two three", "n_predict": 4}).encode()
    request = urllib.request.Request(url + "/completion", body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE) as answer:
        return "content" in json.load(answer)


def try_server(server, model):
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        p = subprocess.Popen([server, "-m", model, "-c", "256", "-t", "2", "--host", "127.0.0.1", "--port", "0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def words():
            log.seek(0)
            return log.read()

        try:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:
                found = re.search(r"listening on (http://127\.0\.0\.1:\d+)\D", words())
                try:
                    if found and ask(found.group(1)):
                        return
                except (OSError, ValueError):  # it loads, or has died
                    pass
                if p.poll() is not None:
                    raise Dead("the server " + ending(p.returncode, words()))
                time.sleep(0.2)
            raise Dead(f"the server did not answer within {PATIENCE} s")
        finally:
            p.kill()
            p.wait()


def main():
    parser = argparse.ArgumentParser()
    for name in ("python", "server", "model"):
        parser.add_argument("--" + name, required=True)
    a = parser.parse_args()
    try:
        try_library(a.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_llamacpp.py"), a.model)
        try_server(a.server, a.model)
    except Dead as dead:
        print(dead)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Many clients at once that do what clients do: ask, stream, leave in every phase, read slowly, send garbage.
Arguments: MODEL CLIENTS SECONDS [--no-rss] [-- options of kinema serve, with a small --pool-size]. With one seed (KN_SEED) each client makes the same choices again.

At the end every request must have ended, the server must be idle with nothing of its pool held, its memory must not have grown after the
warm-up, and it must end with status 0, which it does only when the pool verified empty. A greedy prompt must have had the same answer
each time, whatever went on beside it.
"""
import asyncio
import collections
import json
import os
import random
import socket
import statistics
import struct
import sys
import time

from serve_bed import PATIENCE, Server, words

arguments = sys.argv[1:]
extra = arguments[arguments.index("--") + 1:] if "--" in arguments else []
check_rss = "--no-rss" not in arguments
n_clients, n_seconds = int(sys.argv[2]), float(sys.argv[3])
seed = int(os.environ.get("KN_SEED", "1"))
counts = collections.Counter()
failures = []
answers = {}
deadline = 0.0
KEYS = ["stress-key-a", "stress-key-b", "stress-key-c"]


def request(method, path, body=None, key=None, close=True, length=None):
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {key or KEYS[0]}"]
    if close:
        head.append("Connection: close")
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + (body or b"")


def ask(rng, **fields):
    """A body, and what its answer must always be the same for (None: it is drawn)."""
    shared = rng.randrange(4)
    prompt = words(40 + 30 * shared, shared) + (" " + words(6, 50 + rng.randrange(12)) if rng.random() < 0.8 else "")
    o = {"prompt": prompt, "max_tokens": rng.choice((1, 4, 12, 24)), "temperature": 0, "ignore_eos": True}
    if rng.random() < 0.3:
        o["cache_salt"] = rng.choice("xyz")
    if rng.random() < 0.2:
        o["logprobs"] = rng.randrange(4)
    if rng.random() < 0.3:
        o.update(temperature=1.1, seed=rng.randrange(100), n=rng.choice((1, 1, 2, 3)))
    if rng.random() < 0.15:
        o["stop"] = [rng.choice("aeiou") + rng.choice("nrst"), "zzzz"]
    o.update(fields)
    name = json.dumps({k: o[k] for k in ("prompt", "max_tokens", "temperature", "seed", "n", "stop") if k in o}, sort_keys=True)
    return json.dumps(o).encode(), name


class Line:
    """One connection of the asking side; always closed, by RST or by FIN."""

    def __init__(self, server, rng, small=False):
        self.server, self.rng, self.small = server, rng, small

    async def __aenter__(self):
        s = socket.socket()
        s.setblocking(False)
        if self.small:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        try:
            await asyncio.get_running_loop().sock_connect(s, ("127.0.0.1", self.server.port))
            self.reader, self.writer = await asyncio.open_connection(sock=s, limit=2048 if self.small else 1 << 20)
        except BaseException:
            s.close()
            raise
        self.socket = s
        return self

    async def __aexit__(self, *_):
        if self.rng.random() < 0.5:
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        self.writer.close()

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self):
        """(status, body) of one whole answer that ends with the connection."""
        data = await self.reader.read(-1)
        head, _, body = data.partition(b"\r\n\r\n")
        if not head:
            return 0, b""
        status = int(head.split(b" ", 2)[1])
        if b"transfer-encoding: chunked" in head.lower():
            out, at = b"", 0
            while True:
                end = body.index(b"\r\n", at)
                n = int(body[at:end], 16)
                if n == 0:
                    return status, out
                out += body[end + 2:end + 2 + n]
                at = end + 4 + n
        return status, body


def keep(name, text):
    if answers.setdefault(name, text) != text:
        failures.append(f"two answers to {name}: {answers[name]!r} and {text!r}")


async def whole(line, rng):
    body, name = ask(rng)
    await line.send(request("POST", "/v1/completions", body, rng.choice(KEYS)))
    status, data = await line.answer()
    counts[f"whole {status}"] += 1
    if status == 200:
        keep(name, json.dumps([c["text"] for c in json.loads(data)["choices"]]))
    elif status != 503:
        failures.append(f"status {status}: {data[:200]!r}")


async def stream(line, rng):
    body, name = ask(rng, stream=True)
    await line.send(request("POST", "/v1/completions", body, rng.choice(KEYS)))
    status, data = await line.answer()
    counts[f"stream {status}"] += 1
    if status == 200:
        events = [e for e in data.split(b"\n\n") if e.startswith(b"data: ")]
        if not events or events[-1] != b"data: [DONE]":
            failures.append(f"a stream ended with {events[-1:]}")
            return
        text = collections.defaultdict(str)
        for e in events[:-1]:
            for c in json.loads(e[6:]).get("choices", []):
                text[c["index"]] += c["text"]
        keep(name, json.dumps([text[i] for i in range(max(text, default=-1) + 1)] or [""]))
    elif status != 503:
        failures.append(f"status {status}: {data[:200]!r}")


async def leave_in_stream(line, rng):
    body, _ = ask(rng, stream=True, max_tokens=400)
    await line.send(request("POST", "/v1/completions", body, rng.choice(KEYS)))
    for _ in range(rng.randrange(1, 5)):
        if not await line.reader.read(rng.choice((1, 100, 3000))):
            break
    counts["left a stream"] += 1


async def leave_before(line, rng):
    """Leaves in the head, in the body, or with the whole request sent."""
    body, _ = ask(rng, max_tokens=400)
    data = request("POST", "/v1/completions", body)
    await line.send(data[:rng.choice((0, 5, 60, len(data) - len(body), len(data) - 7, len(data)))])
    await asyncio.sleep(rng.choice((0, 0, 0.01, 0.2)))
    counts["left early"] += 1


async def slow_reader(line, rng):
    body, _ = ask(rng, stream=True, max_tokens=rng.choice((100, 400)), n=2, temperature=1, seed=rng.randrange(9))
    await line.send(request("POST", "/v1/completions", body, rng.choice(KEYS)))
    end = time.monotonic() + rng.choice((0.5, 2, 4))
    while time.monotonic() < end and await line.reader.read(200):
        await asyncio.sleep(rng.choice((0.01, 0.1, 0.5)))
    counts["read slowly"] += 1


async def half_closed(line, rng):
    """Sends everything, closes its own side, and still reads. To a server this looks like leaving, so both ends are fine."""
    body, _ = ask(rng)
    await line.send(request("POST", "/v1/completions", body))
    line.writer.write_eof()
    counts[f"half closed {(await line.answer())[0]}"] += 1


async def garbage(line, rng):
    good, _ = ask(rng)
    broken = bytearray(good)
    for _ in range(rng.randrange(1, 6)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    data = rng.choice((
        rng.randbytes(rng.randrange(1, 300)), request("POST", "/v1/completions", bytes(broken)), request("POST", "/v1/chat/completions", b"[" * 5000),
        request("POST", "/v1/completions", good, length=10**12), request("POST", "/v1/completions", good, length=5), request("POST", "/v1/completions", b"\0\1"),
        request("GET", "/" + "x" * rng.choice((10, 9000, 60000))), request("DELETE", "/v1/models"), b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        request("POST", "/v1/completions", json.dumps({"prompt": words(9000, 1), "max_tokens": 1}).encode()), request("POST", "/v1/completions", good, "no-such-key"),
        request("POST", "/v1/completions", json.dumps({"prompt": "a", "temperature": "hot"}).encode())))
    await line.send(data)
    try:
        status = (await asyncio.wait_for(line.answer(), 2))[0]  # half a request: it is left waiting
    except (asyncio.TimeoutError, ValueError, IndexError):
        status = "none"
    counts[f"garbage {status}"] += 1
    if status == 500:
        failures.append(f"status 500 for {data[:200]!r}")


async def pages(line, rng):
    path = rng.choice(("/health", "/metrics", "/stats", "/", "/v1/models"))
    await line.send(request("GET", path, close=False) + request("GET", path))  # pipelined
    data = await line.reader.read(-1)
    counts["pages"] += 1
    if data.count(b"HTTP/1.1 200") != 2 and data.count(b"HTTP/1.1 503") == 0:
        failures.append(f"{path} twice: {data[:200]!r}")


ACTS = [(whole, 6), (stream, 6), (leave_in_stream, 4), (leave_before, 4), (slow_reader, 2), (half_closed, 1), (garbage, 3), (pages, 2)]


async def client(server, number):
    rng = random.Random(seed * 1000 + number)
    while time.monotonic() < deadline and len(failures) < 10:
        act = rng.choices([a for a, _ in ACTS], [w for _, w in ACTS])[0]
        counts["begun"] += 1
        try:
            async with Line(server, rng, act is slow_reader) as line:
                await asyncio.wait_for(act(line, rng), 2 * PATIENCE)
        except asyncio.TimeoutError:
            failures.append(f"{act.__name__} did not end within {2 * PATIENCE:.0f} s")
        except (ConnectionError, asyncio.IncompleteReadError):
            counts["connection cut"] += 1  # the queue of the port, the limit on connections, a slow client
        except ValueError as e:
            failures.append(f"{act.__name__}: the answer makes no sense: {e!r}")
        counts["ended"] += 1


async def watch(server, samples):
    while time.monotonic() < deadline:
        samples.append(server.rss())
        await asyncio.sleep(0.25)


def warm_up(server):
    """Touches all of the pool, whose memory would otherwise seem to grow."""
    for i in range(200):
        m = server.metrics()
        if m["kinema_pool_blocks{state=free}"] < 0.05 * m["kinema_pool_blocks{state=cached}"]:
            return
        server.complete(words(150, 10000 + i), 1)
    raise AssertionError("the pool is never full: give a smaller --pool-size")


async def main(server, samples):
    await asyncio.gather(watch(server, samples), *(client(server, i) for i in range(n_clients)))


keys = [part for k in KEYS for part in ("--api-key", k)]
server = Server("--max-connections", str(n_clients + 8), "--send-timeout", "3s", "--header-timeout", "3s", "--body-timeout", "3s", *keys, *extra, key=KEYS[0])
try:
    samples = []
    warm_up(server)
    deadline = time.monotonic() + n_seconds
    asyncio.run(main(server, samples))
    server.wait_idle()
    after = server.rss()
    m = server.metrics()
    late = samples[len(samples) // 3:]
    middle, end = statistics.median(late[:len(late) // 2]), statistics.median(late[len(late) // 2:])
    print(f"  {n_clients} clients, {n_seconds:.0f} s: " + ", ".join(f"{k} {v}" for k, v in sorted(counts.items())))
    print(f"  {len(answers)} different prompts; memory {middle / 1e6:.0f} MB, later {end / 1e6:.0f} MB, idle {after / 1e6:.0f} MB; "
          f"preemptions {m['kinema_preemptions_total']:.0f}, slow clients {m['kinema_slow_clients_total']:.0f}, left {m['kinema_disconnects_total']:.0f}")
    if counts["begun"] != counts["ended"]:
        failures.append(f"{counts['begun']} begun, {counts['ended']} ended")
    if not counts["whole 200"] or not counts["stream 200"]:
        failures.append("no request was answered")
    if check_rss and end > middle * 1.1 + (8 << 20):
        failures.append(f"memory grew from {middle / 1e6:.0f} to {end / 1e6:.0f} MB after the warm-up")
    server.stop()
    if "Sanitizer" in server.stderr():
        failures.append(server.stderr()[-3000:])
except AssertionError as e:
    failures.append(str(e))
finally:
    server.kill()
if failures:
    print("\n".join("FAIL " + f for f in failures[:10]))
    print(server.stderr()[-3000:])
sys.exit(1 if failures else 0)

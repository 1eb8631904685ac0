# SPDX-License-Identifier: Apache-2.0
"""What the server's black-box tests share: a server as a child process, its metrics, checks that run one after the other.

    with Server("-c", "512") as s:
        s.post("/v1/completions", {...})
    run(globals())          # calls every check_* in the order of the file; exit status 1 when one failed

Every wait has an end, and every server is ended by its process id. Times are generous: the machine may be busy.
"""
import http.client
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from prometheus_client.parser import text_string_to_metric_families

BIN = os.environ["KN_BIN"]
WORK = os.environ["KN_WORK"]
BLOCK = 16  # tokens: fewer may be shared by the chance of one character
PATIENCE = 60.0 * float(os.environ.get("KN_PATIENCE", "1"))  # seconds that a loaded machine under a sanitizer may take


def wait_for(what, condition, seconds=PATIENCE, pause=0.05):
    """Waits until the condition holds and returns what it returned."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(pause)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:400]!r}"


class Server:
    def __init__(self, *args, model=None, key=None):
        self.model = model or sys.argv[1]
        self.key = key
        self.errors = tempfile.NamedTemporaryFile("w+", dir=WORK, prefix="serve-", suffix=".err", delete=False)
        self.child = subprocess.Popen([BIN, "serve", "-m", self.model, "--port", "0", "--json", *args], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=self.errors)
        try:
            line = self._line(2 * PATIENCE)
            self.listening = json.loads(line)
            assert self.listening["event"] == "listening", line
        except BaseException:
            self.kill()
            raise AssertionError(f"the server did not start: {self.stderr()[-800:]}")
        self.port = self.listening["port"]
        self.url = self.listening["url"]
        self.pid = self.child.pid

    def _line(self, seconds):
        ready, _, _ = select.select([self.child.stdout], [], [], seconds)
        return self.child.stdout.readline() if ready else b""

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind:
            self.kill()
            print(f"  the server said: {self.stderr()[-1500:]}")
        else:
            self.stop()

    def stderr(self):
        with open(self.errors.name, errors="replace") as f:
            return f.read()

    def kill(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        self.child.stdout.close()

    def wait(self, seconds=2 * PATIENCE):
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not end within {seconds:.0f} s: {self.stderr()[-800:]}")

    def stop(self, wanted=0):
        """Drains; the exit status says whether the pool verified empty."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        status = self.wait()
        said = self.child.stdout.read()
        self.child.stdout.close()
        assert status == wanted, f"exit status {status}, wanted {wanted}: {self.stderr()[-1500:]}"
        if wanted == 0:
            assert json.loads(said.splitlines()[-1]) == {"event": "stopped", "error": None}, said

    def headers(self, more=None):
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        headers.update(more or {})
        return headers

    def ask(self, method, path, body=None, headers=None, seconds=PATIENCE):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, self.headers(headers))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body, **more):
        return self.ask("POST", path, body, **more)

    def complete(self, prompt, max_tokens=8, **fields):
        """A greedy completion: (text, tokens of the prompt that came from a cache, the whole answer)."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields}
        headers = body.pop("headers", None)
        a = self.post("/v1/completions", body, headers=headers)
        assert a.status == 200, a
        o = a.json
        return o["choices"][0]["text"], o["usage"]["prompt_tokens_details"]["cached_tokens"], o

    def metrics(self):
        """{"kinema_x{label=value}": number}; the text is parsed by Prometheus' own client."""
        a = self.get("/metrics")
        assert a.status == 200, a
        out = {}
        for family in text_string_to_metric_families(a.body.decode()):
            for s in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(s.labels.items()))
                out[f"{s.name}{{{labels}}}" if labels else s.name] = s.value
        return out

    def expect(self, what, condition):
        """Waits until the condition holds of the metrics, which are a snapshot that may be a moment old; returns them."""
        last = {}

        def holds():
            last.update(self.metrics())
            return condition(last)
        try:
            wait_for(what, holds, PATIENCE / 4)
        except AssertionError as e:
            raise AssertionError(f"{e}: {json.dumps(last)}") from None
        return last

    def busy(self):
        """What is still under way, as text; empty when nothing is."""
        m = self.metrics()
        names = [f"kinema_requests{{state={s}}}" for s in ("waiting", "waiting_for_kv", "running")]
        names += ["kinema_calls", "kinema_inbox_calls", "kinema_publishing", "kinema_pool_blocks{state=held}"]
        return ", ".join(f"{n} {m[n]:.0f}" for n in names if m[n])

    def wait_idle(self, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while True:
            busy = self.busy()
            if not busy:
                return
            if time.monotonic() > end:
                raise AssertionError(f"not idle after {seconds:.0f} s: {busy}")
            time.sleep(0.1)

    def health(self):
        return self.get("/health").json["status"]

    def rss(self):
        with open(f"/proc/{self.pid}/status") as f:
            for line in f:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return 0


def words(n, seed=1):
    """n pseudo-random English words, the same for the same seed. The number in front makes prompts of different seeds differ from the first
    block on, so that they share no prefix by chance."""
    some = "river stone light paper green table winter music seven ladder copper window garden silver letter bridge".split()
    return f"{seed}: " + " ".join(random.Random(seed).choices(some, k=n))


def run(names):
    failures = 0
    only = os.environ.get("KN_ONLY", "")
    for name, check in list(names.items()):
        if not name.startswith("check_") or only not in name:
            continue
        begin = time.monotonic()
        try:
            check()
            print(f"  {name[6:]}: {time.monotonic() - begin:.1f} s", flush=True)
        except Exception:
            failures += 1
            print(f"FAIL {name[6:]}: {traceback.format_exc()}", flush=True)
    sys.exit(1 if failures else 0)

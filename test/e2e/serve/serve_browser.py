# SPDX-License-Identifier: Apache-2.0
"""A browser that a test drives: Debian's chromium without a window, over the pipe of its DevTools protocol. Standard library only.

    with Browser(path, folder) as b:
        page = b.open("http://127.0.0.1:8080/", width=360, dark=True)
        page.run("document.title")
        page.requests, page.errors           # URLs that the page has asked for; what its console and its network complained about

    messages, each ended by a NUL:   test --fd 3--> chromium,   test <--fd 4-- chromium
"""
import json
import os
import select
import signal
import subprocess
import time

PATIENCE = 60.0 * float(os.environ.get("KN_PATIENCE", "1"))


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.requests, self.errors = [], []

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def run(self, expression):
        """The value of a JavaScript expression; a promise is awaited."""
        out = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in out, f"{expression}: {out['exceptionDetails']}"
        return out["result"].get("value")

    def text(self, name):
        return self.run(f"document.getElementById({json.dumps(name)}).textContent")

    def wait(self, what, expression, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while True:
            value = self.run(expression)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds:.0f} s; the page says {self.run('document.body.innerText')[:600]!r}; errors {self.errors}")
            time.sleep(0.1)

    def event(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", str(params["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(f"console.{params['type']}: {params['args']}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['source']}: {params['entry']['text']}")

    def size(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def scheme(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)


class Browser:
    def __init__(self, path, folder):
        down, self.out = os.pipe()
        self.into, up = os.pipe()
        # the two ends become descriptors 3 and 4 of a shell that then becomes chromium; first aside, for they may be 3 and 4 themselves
        script = f'exec 18<&{down} 19>&{up}; exec 3<&18 4>&19; exec "$@"'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                   "--disable-extensions", "--mute-audio", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        self.log = open(os.path.join(os.path.dirname(folder), "chromium.err"), "w+")
        self.child = subprocess.Popen(["bash", "-c", script, "bash", path, *options], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                      pass_fds=(down, up), start_new_session=True)
        os.close(down)
        os.close(up)
        self.n, self.rest, self.pages, self.answers = 0, b"", {}, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            if self.child.poll() is None:
                self.call("Browser.close")
            self.child.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self.child.pid, signal.SIGKILL)  # its own session: chromium's helpers, should any be left
        except ProcessLookupError:
            pass
        self.child.wait()
        os.close(self.out)
        os.close(self.into)

    def call(self, method, session=None, **params):
        self.n += 1
        number, message = self.n, {"id": self.n, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while number not in self.answers:
            self.read(end, method)
        answer = self.answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def read(self, end, what):
        ready, _, _ = select.select([self.into], [], [], max(0, end - time.monotonic()))
        data = os.read(self.into, 1 << 20) if ready else b""
        assert data, f"{what}: chromium {'has ended' if ready else 'does not answer'}: {self.said()}"
        *messages, self.rest = (self.rest + data).split(b"\0")
        for m in map(json.loads, messages):
            if "id" in m:
                self.answers[m["id"]] = m
            elif m.get("sessionId") in self.pages:
                self.pages[m["sessionId"]].event(m["method"], m["params"])

    def said(self):
        self.log.seek(0)
        return self.log.read()[-600:]

    def open(self, url, width=1280, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        page.target = target
        for domain in ("Runtime", "Log", "Network", "Page"):
            page.call(domain + ".enable")
        page.size(width)
        page.scheme(dark)
        page.call("Page.navigate", url=url)
        return page

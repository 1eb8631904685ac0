# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: what is under way ends, what is new is refused; twice, or too late: it is cut. Arguments: MODEL (the tiny one)."""
import http.client
import json
import signal
import socket
import time

from serve_bed import PATIENCE, Server, run, wait_for


class Stream:
    """A streamed completion over a plain socket, read line by line."""

    def __init__(self, server, max_tokens, **fields):
        body = json.dumps({"prompt": "abc", "max_tokens": max_tokens, "stream": True, "ignore_eos": True, "temperature": 0, **fields}).encode()
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=2 * PATIENCE)
        self.connection.request("POST", "/v1/completions", body, server.headers())
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.status

    def next(self):
        """The next event's object, or None at the end."""
        while True:
            line = self.response.readline()
            if not line:
                return None
            if line.startswith(b"data: "):
                return None if line.strip() == b"data: [DONE]" else json.loads(line[6:])

    def rest(self):
        """(finish reason or None, the error or None) of what is left."""
        reason = error = None
        try:
            while (o := self.next()) is not None:
                error = o.get("error") or error
                for c in o.get("choices", []):
                    reason = c["finish_reason"] or reason
        except (http.client.HTTPException, OSError):
            error = error or "cut"
        return reason, error


def new_one(server):
    """How a new request fares: its status, or "refused" when there is nobody to connect to."""
    try:
        return server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status
    except OSError:
        return "refused"


def check_drain():
    server = Server("-c", "8192", "--drain-timeout", "10m")
    stream = Stream(server, 2000)
    stream.next()
    server.child.send_signal(signal.SIGTERM)
    wait_for("new requests are refused", lambda: new_one(server) in (503, "refused"))
    assert server.child.poll() is None, "it ended although a request was under way"
    reason, error = stream.rest()
    assert reason == "length" and error is None, (reason, error)
    server.stop()


def check_drain_says_so():
    """As long as the port answers, /health says that it drains, with status 503, so that a balancer turns away."""
    server = Server("-c", "8192", "--drain-timeout", "10m")
    stream = Stream(server, 2000)
    stream.next()
    server.child.send_signal(signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            a = server.get("/health")
        except OSError:
            break  # it does not listen any more: as good
        if a.status == 503:
            assert a.json["status"] == "draining", a
            break
        time.sleep(0.02)
    else:
        raise AssertionError("never draining")
    assert stream.rest()[0] == "length"
    server.stop()


def check_second_signal():
    server = Server("-c", "8192", "--drain-timeout", "10m")
    streams = [Stream(server, 8000) for _ in range(4)]
    for s in streams:
        s.next()
    server.child.send_signal(signal.SIGTERM)
    wait_for("new requests are refused", lambda: new_one(server) in (503, "refused"))
    server.child.send_signal(signal.SIGINT)
    for s in streams:
        assert s.rest()[0] != "length", "it was not cancelled"
    server.stop()


def check_drain_timeout():
    server = Server("-c", "8192", "--drain-timeout", "300ms")
    stream = Stream(server, 8000)
    stream.next()
    begin = time.monotonic()
    server.child.send_signal(signal.SIGTERM)
    reason, _ = stream.rest()
    assert reason != "length" or time.monotonic() - begin < 0.3, "the limit is not in force"
    server.stop()


def check_reader_that_stands_still():
    """A client that reads nothing does not keep the server from ending."""
    server = Server("-c", "8192", "--send-timeout", "1s", "--drain-timeout", "2s")
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.connect(("127.0.0.1", server.port))
    body = json.dumps({"prompt": "abc", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    wait_for("it runs", lambda: server.metrics()["kinema_generated_tokens_total"] > 10)
    server.stop()
    s.close()


def check_idle():
    with Server() as server:
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        kept.request("GET", "/health")
        kept.getresponse().read()  # and stays open
        server.child.send_signal(signal.SIGHUP)  # is ignored
        assert server.health() == "ok"
    kept.close()


run(globals())

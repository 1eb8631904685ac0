# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a real browser: it shows what /stats says, live; it asks nobody else, complains of nothing, fits a phone, can be read in
both colour schemes, survives a lost connection, and asks for the key. Arguments: MODEL (the tiny one). KN_CHROMIUM names the browser, KN_SHOTS
a folder to leave pictures in for looking at by hand."""
import base64
import os
import re
import threading
import time

from serve_bed import WORK, Server, run, wait_for, words
from serve_browser import Browser

browser = Browser(os.environ["KN_CHROMIUM"], os.path.join(WORK, "chromium"))
NAME = '<b id="evil">&amp;</b>'
server = Server("--model-name", NAME, "--store", f"lmdb:{WORK}/dashboard-store", "--chunk-tokens", "64", "--preset", "exact")
LIVE = "document.body?.dataset.state === 'live' && Number(document.body.dataset.updates) >= 2"


def shot(page, name):
    if os.environ.get("KN_SHOTS"):
        data = page.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(os.path.join(os.environ["KN_SHOTS"], name + ".png"), "wb") as f:
            f.write(base64.b64decode(data))


def load(n, first):
    for seed in range(first, first + n):
        server.complete(words(90, 1) + words(10, seed), 8)


def stats():
    return server.get("/stats").json


def quiet():
    """Whether nothing is under way, so that what the page shows and what /stats says later are the same."""
    s = stats()
    return not any(s["requests"][k] for k in ("waiting", "waiting_for_kv", "running", "calls", "inbox")) and not s["publish"]["now"]


def seconds(text):
    m = re.fullmatch(r"([\d.]+)\s(\u00b5s|ms|s)", text.replace("\u00a0", " "))
    assert m, f"no time: {text!r}"
    return float(m[1]) * {"\u00b5s": 1e-6, "ms": 1e-3, "s": 1}[m[2]]


def shown(s):
    """Elements and their texts, of what /stats says."""
    ended = s["requests"]["ended"]
    return {"model": NAME, "version": s["version"], "status": "healthy", "store-state": "open",
            "tokens-generated": f"{s['tokens']['generated']:,}", "tokens-prompt": f"{s['tokens']['prompt']:,}",
            "pool-free": f"{s['pool']['free']:,}", "pool-cached": f"{s['pool']['cached']:,}", "pool-held": f"{s['pool']['held']:,}",
            "running": "0", "waiting": "0", "waiting-kv": "0", "preemptions": "0", "http-5xx": "0", "disconnects": "0",
            "ended-stop": f"{ended['stop']:,}", "ended-length": f"{ended['length']:,}", "ended-cancelled": "0", "ended-error": "0"}


def check_browser_tells():
    """What this test relies on: errors, and requests to others, would be seen."""
    page = browser.open("data:text/html,<script>console.error('seen');fetch('http://127.0.0.1:9/elsewhere').catch(() => 0);nothing.at.all</script>")
    page.wait("three complaints", "true")
    wait_for("the console's error", lambda: page.run("1") and any("seen" in e for e in page.errors) and any("nothing" in e for e in page.errors))
    assert any("elsewhere" in r for r in page.requests), page.requests
    page.close()


def check_numbers():
    load(6, 1)
    wait_for("requests and publishes have ended", quiet)
    page = browser.open(server.url + "/")
    page.wait("the first numbers", LIVE)
    differ = []

    def agree():  # a poll may lie between a change and /stats
        differ[:] = [f"{name} shows {page.text(name)!r}, /stats says {text!r}" for name, text in shown(stats()).items() if page.text(name) != text]
        return not differ
    try:
        wait_for("the page agrees with /stats", agree, 20)
    except AssertionError as e:
        raise AssertionError(f"{e}: {differ}") from None
    s = stats()
    assert s["tokens"]["generated"] >= 6 and s["tokens"]["memory"] > 0, s["tokens"]
    share = 100 * s["tokens"]["memory"] / s["tokens"]["prompt"]
    m = re.fullmatch(r"([\d,]+) \(([\d.]+)%\)", page.text("tier-memory"))
    assert m and int(m[1].replace(",", "")) == s["tokens"]["memory"] and abs(float(m[2]) - share) < 0.06, (page.text("tier-memory"), share)
    ratio = s["publish"]["raw_bytes"] / s["publish"]["bytes"]
    assert page.text("ratio").startswith(f"{ratio:.2f} times smaller"), (page.text("ratio"), ratio)
    for hist in ("ttft", "tpot"):
        m = re.fullmatch(r"p50 (.*), p90 (.*), p99 (.*)", page.text(hist + "-since"))
        assert m, page.text(hist + "-since")
        for i, p in enumerate(("p50", "p90", "p99")):
            want = s["latency"][hist][p]
            assert abs(seconds(m[i + 1]) - want) <= 0.011 * want, f"{hist} {p}: shown {m[i + 1]}, /stats {want}"
    assert page.run("document.getElementById('evil')") is None, "a name became an element"
    # the pool map has colours of more than one state
    colours = page.run("(() => { const c = document.getElementById('pool'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, s = new Set();"
                       " for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) s.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return s.size; })()")
    assert colours >= 2, f"{colours} colours in the pool map"
    shot(page, "numbers")
    page.close()


def check_live():
    """Numbers move by themselves, and the windows show what came while the page was open."""
    page = browser.open(server.url + "/")
    page.wait("the first numbers", LIVE)
    before = int(page.text("tokens-generated").replace(",", ""))
    load(4, 40)
    after = stats()["tokens"]["generated"]
    assert after > before
    page.wait("the new tokens", f"document.getElementById('tokens-generated').textContent === '{after:,}'")
    for name in ("ttft-p50", "ttft-p90", "ttft-p99", "tpot-p50", "tpot-p90", "tpot-p99", "queue-p90"):
        seconds(page.text(name))
    page.wait("a rate", "Number(document.getElementById('rate-generated').textContent) > 0 || document.querySelector('#rate-spark path').getAttribute('d').includes('L')")
    page.run("document.getElementById('window').value = '0'")
    page.wait("all since start", f"document.getElementById('ttft-n').textContent === '{stats()['latency']['ttft']['count']} requests'")
    # nobody else was asked, and nothing was complained of
    others = [r for r in page.requests if not r.startswith((server.url + "/", "data:"))]
    assert not others, f"requests to others: {others}"
    assert sum(r == server.url + "/stats" for r in page.requests) >= 3, page.requests
    assert not page.errors, page.errors
    shot(page, "live")
    page.close()


CONTRAST = r"""(() => {
  const parse = c => (c.match(/[\d.]+/g) || []).map(Number);
  const light = c => { const f = c.slice(0, 3).map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const back = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  let n = 0;
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    if (!e.offsetParent || ![...e.childNodes].some(c => c.nodeType === 3 && c.textContent.trim())) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(back(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    n++;
    if (ratio < 4.5) bad.push(`${e.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return { n, bad };
})()"""


def check_layout():
    page = browser.open(server.url + "/")
    page.wait("the first numbers", LIVE)
    for dark in (False, True):
        page.scheme(dark)
        found = page.run(CONTRAST)
        assert found["n"] > 60 and not found["bad"], f"{'dark' if dark else 'light'}: too little contrast: {found}"
        for width in (320, 360, 414, 768, 1024, 1280, 1920):
            page.size(width)
            wide = page.run("document.documentElement.scrollWidth")
            assert wide <= width, f"at {width} pixels the page is {wide} wide"
            if width in (360, 1280):
                shot(page, f"{'dark' if dark else 'light'}-{width}")
    unnamed = page.run("[...document.querySelectorAll('input, select, button, canvas, svg')].filter(e => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim()).length")
    assert unnamed == 0, f"{unnamed} controls or pictures have no name for a screen reader"
    assert not page.errors, page.errors
    page.close()


def check_lost_and_back():
    page = browser.open(server.url + "/")
    page.wait("the first numbers", LIVE)
    page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    page.wait("the loss is noticed", "document.body.dataset.state === 'lost' && !document.getElementById('lost').hidden")
    assert "Connection lost" in page.text("lost") and page.text("status") == "connection lost"
    updates = page.run("Number(document.body.dataset.updates)")
    page.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    page.wait("it recovers", f"document.body.dataset.state === 'live' && document.getElementById('lost').hidden && Number(document.body.dataset.updates) > {updates}")
    assert page.text("status") == "healthy", page.text("status")
    page.close()


def check_key():
    with Server("--api-key", "sesame-123", key="sesame-123") as locked:
        page = browser.open(locked.url + "/")
        page.wait("it asks for the key", "document.body?.dataset.state === 'locked' && !document.getElementById('lock').hidden")
        asked = len(page.requests)
        time.sleep(1.5)
        page.run("1")
        assert len(page.requests) == asked, "it goes on asking without a key"
        give = "document.getElementById('key').value = '{}'; document.getElementById('lock').requestSubmit()"
        page.run(give.format("wrong"))
        page.wait("the wrong key is refused", "document.getElementById('lock-text').textContent.includes('refused')")
        page.run(give.format("sesame-123"))
        page.wait("the right key opens", LIVE + " && document.getElementById('lock').hidden")
        page.call("Page.reload")
        page.wait("the key is kept for the session", LIVE)
        assert not any("sesame" in r for r in page.requests), "the key is in an address"
        page.close()


def check_degraded():
    control = os.path.join(WORK, "dashboard.orders")
    with open(control, "w") as f:
        f.write("refuse-open\n")
    with Server("--store", f"fault:{control}:lmdb:{WORK}/dashboard-down") as down:
        page = browser.open(down.url + "/")
        page.wait("the first numbers", LIVE)
        assert page.text("status") == "degraded" and page.text("store-state") == "cannot be opened", (page.text("status"), page.text("store-state"))
        assert not page.run("document.getElementById('reasons').hidden") and "could not be opened" in page.text("reasons")
        shot(page, "degraded")
        os.unlink(control)
        wait_for("the store is open", lambda: down.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status == 200 and down.health() == "ok")
        page.wait("the page says so", "document.getElementById('status').textContent === 'healthy' && document.getElementById('reasons').hidden")
        page.close()


def check_fetches():
    """A fetch that takes its time is listed, and later counted."""
    wait_for("requests and publishes have ended", quiet)
    control = os.path.join(WORK, "dashboard-slow.orders")
    with open(control, "w") as f:
        f.write("delay-get-ms 1500\n")
    with Server("--store", f"fault:{control}:lmdb:{WORK}/dashboard-store", "--chunk-tokens", "64", "--preset", "exact") as slow:
        page = browser.open(slow.url + "/")
        page.wait("the first numbers", LIVE)
        assert page.run("document.getElementById('fetch-scroll').hidden && !document.getElementById('no-fetch').hidden")
        asking = threading.Thread(target=slow.complete, args=(words(90, 1) + words(10, 1), 2))
        asking.start()
        row = page.wait("the fetch is listed", "[...document.querySelectorAll('#fetches tr')].map(r => r.innerText).join()")
        assert re.search(r"#\d+\s+\S* ?[\d,]+ of [\d,]+\s", row), row
        assert int(re.search(r"of ([\d,]+)", row)[1].replace(",", "")) >= 64 and page.text("waiting-kv") == "1", row
        shot(page, "fetch")
        asking.join()
        page.wait("it has ended", "!document.querySelector('#fetches tr') && document.getElementById('fetch-total').textContent.startsWith('1 fetch, ')")
        page.close()


def check_end():
    wait_for("requests and publishes have ended", quiet)
    server.stop()


try:
    with browser:
        run(globals())
finally:
    server.kill()

# SPDX-License-Identifier: Apache-2.0
"""Keys and salts: who may ask, and who shares a prefix with whom. Arguments: MODEL (the tiny one)."""
import json
import os

import openai

from serve_bed import BLOCK, PATIENCE, WORK, Server, run, words

config = os.path.join(WORK, "tenants.json")
with open(config, "w") as f:
    json.dump({"api_keys": [{"key": "key-anna-123", "name": "anna"}, {"key": "key-bert-456", "name": "bert"},
                            {"key": "key-one-789", "name": "one", "salt": "team"}, {"key": "key-two-012", "name": "two", "salt": "team"}]}, f)
server = Server("--config", config, key="key-anna-123")
PROMPT = words(60, 4)
fresh = iter(range(10, 1000))


def cached(prompt, key, **fields):
    return server.complete(prompt, 2, headers={"Authorization": "Bearer " + key}, **fields)[1]


def check_keys():
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer "}, {"Authorization": "Bearer key-anna-12"}, {"Authorization": "Bearer key-anna-1234"},
                    {"Authorization": "Basic key-anna-123"}, {"Authorization": "Bearer wrong"}):
        a = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=headers)
        assert a.status == 401 and a.json["error"]["type"] == "authentication_error" and "Bearer" in a.headers["WWW-Authenticate"], (headers, a)
        assert "key-anna-123" not in a.body.decode(), a
    assert server.get("/v1/models", headers={"Authorization": "Bearer nobody"}).status == 401
    assert server.get("/health", headers={"Authorization": ""}).status == 200, "/health is for balancers, which have no key"
    assert server.get("/", headers={"Authorization": ""}).status == 200, "the page itself says nothing; its data need the key"
    assert server.get("/stats", headers={"Authorization": ""}).status == 401
    for key in ("key-anna-123", "key-two-012"):
        with openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=PATIENCE) as c:
            assert c.completions.create(model=c.models.list().data[0].id, prompt="x", max_tokens=1).choices
    with openai.OpenAI(base_url=server.url + "/v1", api_key="sk-wrong", max_retries=0, timeout=PATIENCE) as c:
        try:
            c.models.list()
            raise AssertionError("a wrong key was taken")
        except openai.AuthenticationError as e:
            assert e.status_code == 401, e


def check_x_api_key():
    """X-Api-Key is the other way to send a key. Of both the bearer's counts, right or wrong."""
    nobody = {"Authorization": ""}
    for headers, status in (({"X-Api-Key": "key-anna-123", **nobody}, 200), ({"x-api-key": "key-bert-456", **nobody}, 200),
                            ({"X-Api-Key": "key-wrong", **nobody}, 401), ({"X-Api-Key": "", **nobody}, 401),
                            ({"X-Api-Key": "key-bert-456", "Authorization": "Basic abc"}, 200),
                            ({"X-Api-Key": "key-bert-456", "Authorization": "Bearer wrong"}, 401),
                            ({"X-Api-Key": "wrong", "Authorization": "Bearer key-anna-123"}, 200),
                            ({"X-Api-Key": "Bearer key-anna-123", **nobody}, 401)):
        a = server.get("/v1/models", headers=headers)
        assert a.status == status, (headers, a)
        assert status == 200 or "X-Api-Key" in a.json["error"]["message"] or "API key" in a.json["error"]["message"], a
    prompt = words(60, 5)
    ask = {"prompt": prompt, "max_tokens": 1, "temperature": 0}

    def found(**headers):
        a = server.post("/v1/completions", ask, headers={**nobody, **headers})
        assert a.status == 200, a
        return a.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    found(**{"X-Api-Key": "key-anna-123"})
    assert found(**{"Authorization": "Bearer key-anna-123", "X-Api-Key": "key-bert-456"}) > 32, "the bearer's tenant counts"
    assert found(**{"X-Api-Key": "key-bert-456"}) < BLOCK


def check_within_and_across():
    assert cached(PROMPT, "key-anna-123") < BLOCK
    assert cached(PROMPT, "key-anna-123") > 32, "a tenant shares with itself"
    assert cached(PROMPT, "key-bert-456") < BLOCK, "bert was given anna's prefix"
    assert cached(PROMPT, "key-one-789") < BLOCK, "team was given anna's prefix"
    assert cached(PROMPT, "key-two-012") > 32, "keys with the same salt share"
    assert cached(PROMPT, "key-bert-456") > 32


def check_salt_of_a_request():
    prompt = words(60, next(fresh))
    assert cached(prompt, "key-anna-123", cache_salt="a") < BLOCK
    assert cached(prompt, "key-anna-123", cache_salt="a") > 32
    assert cached(prompt, "key-anna-123", cache_salt="b") < BLOCK, "salts share"
    assert cached(prompt, "key-anna-123") < BLOCK, "salted and plain share"
    assert cached(prompt, "key-bert-456", cache_salt="a") < BLOCK, "the same salt of two tenants shares"


def check_salts_that_look_alike():
    """However salts are put together, no two pairs of tenant and salt may meet."""
    prompt = words(60, next(fresh))
    for salt in ("", "team", "anna", "4:team", "4:anna|", "|", "a|b", "4:anna|a"):
        if salt:
            assert cached(prompt, "key-bert-456", cache_salt=salt) < BLOCK, salt
            assert cached(prompt, "key-bert-456", cache_salt=salt) > 32, salt
    for key in ("key-anna-123", "key-one-789"):
        assert cached(prompt, key) < BLOCK, key


def check_store():
    """Through the store too: published under one key, not fetched under another."""
    prompt = words(120, next(fresh))
    args = ("--config", config, "--store", f"lmdb:{WORK}/tenants", "--chunk-tokens", "64", "--preset", "exact")
    with Server(*args, key="key-anna-123") as s:
        s.complete(prompt, 2)
        s.wait_idle()
        s.expect("chunks are published", lambda m: m["kinema_published_chunks_total"] > 0)
    with Server(*args, key="key-bert-456") as s:
        assert s.complete(prompt, 2)[1] < BLOCK, "fetched another tenant's chunks"
        s.wait_idle()
    with Server(*args, key="key-anna-123") as s:
        assert s.complete(prompt, 2)[1] >= 64, "its own were not fetched"


def check_end():
    server.wait_idle()
    said = server.stderr()
    assert "key-anna-123" not in said and "key-bert-456" not in said, "a key was logged"
    server.stop()


try:
    run(globals())
finally:
    server.kill()

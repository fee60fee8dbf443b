"""Several credentials in one request: the same ones are one, different ones are refused."""

import pytest

from . import hostile, wire


@pytest.mark.parametrize("name", ["x-api-key", "X-Api-Key"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/models"])
def test_two_keys_that_differ_are_refused(running, name, path):
    gateway = running.process
    method = "GET" if path.endswith("models") else "POST"
    body = b"" if method == "GET" else wire.question()
    for keys in ((gateway.key, "sk-br-other"), ("sk-br-other", gateway.key), (gateway.key, "")):
        lines = [f"{name}: {key}" for key in keys] + [f"content-length: {len(body)}"]

        answer = wire.say(gateway.port, hostile.head(path, *lines, method=method) + body)

        assert answer.statuses == [400], keys
        assert b"different keys" in answer.raw


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["x-api-key: {key}", "x-api-key: {key} "], 200),
        (["authorization: Bearer {key}", "authorization: Bearer {key}"], 200),
        (["authorization: Bearer {key}", "x-api-key: {key}"], 200),
        (["authorization: Bearer {key}", "authorization: Bearer sk-br-other"], 400),
        (["authorization: Bearer sk-br-other", "authorization: Bearer {key}"], 400),
        (["authorization: Basic eDp5", "authorization: Bearer {key}"], 400),
        (["authorization: Bearer sk-br-other", "x-api-key: {key}"], 400),
    ],
)
def test_the_same_key_twice_is_one_key(running, lines, status):
    gateway = running.process
    lines = [line.format(key=gateway.key) for line in lines]

    answer = wire.say(gateway.port, hostile.head("/v1/models", *lines, method="GET"))

    assert answer.statuses == [status]

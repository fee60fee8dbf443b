"""Several credentials in one request: equal ones count once, different ones are rejected."""

import pytest

from tests.slow.threats import hostile_clients, raw_http

CLOSE = "connection: close"


def send(gateway, raw):
    """Send a request that asks the server to close the connection, and read to its end."""
    return raw_http.send_raw(gateway.port, raw, silence_s=60)


@pytest.mark.parametrize("name", ["x-api-key", "X-Api-Key"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/models"])
def test_different_keys_are_rejected(running, name, path):
    gateway = running.process
    method = "GET" if path.endswith("models") else "POST"
    body = b"" if method == "GET" else raw_http.messages_body()
    for keys in ((gateway.key, "sk-br-other"), ("sk-br-other", gateway.key), (gateway.key, "")):
        lines = [f"{name}: {key}" for key in keys] + [f"content-length: {len(body)}"]

        answer = send(gateway, hostile_clients.head(path, *lines, CLOSE, method=method) + body)

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
def test_repeated_key_counts_once(running, lines, status):
    gateway = running.process
    lines = [line.format(key=gateway.key) for line in lines]

    answer = send(gateway, hostile_clients.head("/v1/models", *lines, CLOSE, method="GET"))

    assert answer.statuses == [status]

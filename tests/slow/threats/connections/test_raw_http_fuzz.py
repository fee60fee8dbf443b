"""Generated and mutated requests cause no 5xx, no hang and no end of the process.

The seed of a request reproduces it. ``BRIDGE_FUZZ=100000`` runs the long version.
"""

import random

import pytest

from tests.lanes import repeat
from tests.slow.threats import raw_http

REQUESTS = repeat(fast=200, slow=2_000, variable="BRIDGE_FUZZ")
BATCH = 200
AT_ONCE = 50  # most of a request is waiting: four times as many requests per second as with 12
ALLOWED_5XX = {503, 529}
"""Valid statuses of 500 and above; none is expected here."""

METHODS = (
    "GET",
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "BREW",
    "post",
    "",
    "G" * 300,
)
TARGETS = (
    "/", "/healthz", "/readyz", "/metrics", "/v1/messages", "/v1/messages?beta=true", "/v1/messages/count_tokens",
    "/v1/models", "/v1/models/chat-x", "/v1/models/%2e%2e/admin", "/v1/messages/", "/v1", "/v1/", "/V1/messages",
    "/v1/organizations/me", "/v1/organizations/usage_report/messages", "/api/v1/summary/", "/api/v1/requests/?cursor=%00",
    "/api/v1/requests/req_0/", "/admin/", "/admin/login/?next=//evil", "/admin/proxy/exchange/?q=%25%25%25", "/static/..%2f..%2fetc/passwd",
    "/../../etc/passwd", "//", "/%", "/%00", "/\xff", "*", "http://x/v1/messages", "/" + "a" * 7_000, "/v1/messages#x", "?", "",
)  # fmt: skip
VERSIONS = ("HTTP/1.1",) * 6 + ("HTTP/1.0", "HTTP/1.2", "HTTP/2", "http/1.1", "")
VALUES = (
    "", "a", "application/json", "text/event-stream", "chunked", "0", "5", "-1", "100-continue", "close", "keep-alive", "gzip",
    "identity", "\x00", "\x7f", "\xe9", "a" * 5_000, "2023-06-01", "1999-01-01", "Bearer x", "Basic eDp5", "a,b,,c", "*/*", "bytes=0-",
    'W/"x"', '{"a":1}', "'; --", "%s%n", "../..", "metadata, blocks", "true", "Mon, 01 Jan 0001 00:00:00 GMT",
)  # fmt: skip
NAMES = (
    "content-type", "content-length", "transfer-encoding", "content-encoding", "connection", "expect", "authorization", "x-api-key",
    "anthropic-version", "anthropic-beta", "user-agent", "cookie", "x-bridge-events", "x-bridge-strict", "x-gateway-tags", "accept",
    "accept-encoding", "range", "if-none-match", "upgrade", "te", "trailer", "origin", "x-forwarded-for", "host", "idempotency-key", "x", "",
)  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{" * 200, b'{"model":', b'{"a":NaN}', b'{"model":"chat-x","model":"y"}', b"a=b&c=d",
    b"\x1f\x8b\x08\x00broken", b"0\r\n\r\n", b"x" * 3_000,
)  # fmt: skip
FIELDS = ("model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "temperature", "stop_sequences",
          "thinking", "metadata", "top_k", "service_tier", "container", "mcp_servers", "output_config", "unknown")  # fmt: skip
LEAVES = (None, True, False, 0, -1, 1e308, 10**30, "", "a", "\u0000", "chat-x", "user", "text", [], {}, [[]], [None], {"": None},
          {"type": "text"}, {"type": "image", "source": {}}, {"type": "tool_use"}, {"role": "user", "content": []})  # fmt: skip


def value(rng, depth=0):
    if depth > 3 or rng.random() < 0.5:
        return rng.choice(LEAVES)
    if rng.random() < 0.5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    names = (
        "type",
        "text",
        "role",
        "content",
        "source",
        "name",
        "input",
        "id",
        "data",
        "input_schema",
    )
    return {rng.choice(names): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def body(rng):
    if rng.random() < 0.3:
        return rng.choice(BODIES)
    return raw_http.messages_body(
        **{rng.choice(FIELDS): value(rng) for _ in range(rng.randrange(4))}
    )


def request(seed, key):
    """Build one request from its seed: valid, then with up to three mutations."""
    rng = random.Random(seed)  # noqa: S311 - seeded for repeatable tests
    body_bytes = body(rng)
    valid = rng.random() < 0.6
    method, target = (
        ("POST", "/v1/messages") if valid else (rng.choice(METHODS), rng.choice(TARGETS))
    )
    lines = [("host", "localhost"), ("x-api-key", key), ("content-length", str(len(body_bytes)))]
    lines += [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.randrange(4))]
    if rng.random() < 0.2:
        lines.pop(rng.randrange(len(lines)))
    if rng.random() < 0.05:
        lines += [("x", "y")] * 300
    rng.shuffle(lines)
    head = f"{method} {target} {rng.choice(VERSIONS)}\r\n" + "".join(
        f"{n}: {v}\r\n" for n, v in lines
    )
    raw = bytearray(head.encode("latin-1", "replace") + b"\r\n" + body_bytes)
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        place = rng.randrange(len(raw))
        mutation = rng.randrange(3)
        if mutation == 0:
            raw[place] = rng.randrange(256)
        elif mutation == 1:
            del raw[place : place + rng.randrange(1, 20)]
        else:
            raw[place:place] = bytes([rng.randrange(256)]) * rng.randrange(1, 5)
    return bytes(raw)


@pytest.mark.repeated
@pytest.mark.timeout(120 + REQUESTS // 10)
def test_no_fuzzed_request_causes_a_5xx_a_hang_or_an_exit(running):
    failures = {}
    for first in range(0, REQUESTS, BATCH):
        seeds = range(first, min(first + BATCH, REQUESTS))
        requests = [request(seed, running.process.key) for seed in seeds]
        answers = raw_http.send_all(running.process.port, requests, at_once=AT_ONCE)
        for seed, response in zip(seeds, answers, strict=True):
            if any(status >= 500 and status not in ALLOWED_5XX for status in response.statuses):
                failures[seed] = response.raw[:300]
            if response.took_s > 60:
                failures[seed] = f"{response.took_s} s"
        running.assert_healthy()

    assert failures == {}
    assert "Traceback" not in running.process.log

"""Faults that a script cannot express, each as a function, and functions that read a response."""

import contextlib
import gzip
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from tests.fakes.servers.gateway import Reply
from tests.fakes.upstreams.grammar import read_frames

from .catalogue import Case
from .environment.client import RawClient, usual_request
from .environment.invariants import World
from .environment.sockets import Sockets

Scenario = Callable[[World, Case, RawClient, str], None]


def json_of(reply: Reply) -> Any:
    return json.loads(reply.body)


def events(reply: Reply) -> list[dict[str, Any]]:
    frames, faults = read_frames(reply.body)
    assert not faults, faults
    return [frame.body for frame in frames]


def kinds(reply: Reply) -> list[str]:
    return [event["type"] for event in events(reply)]


def text(reply: Reply) -> str:
    deltas = (event["delta"] for event in events(reply) if event["type"] == "content_block_delta")
    return "".join(delta.get("text", "") for delta in deltas)


def stop_reason(reply: Reply) -> str:
    (reason,) = (e["delta"]["stop_reason"] for e in events(reply) if e["type"] == "message_delta")
    return str(reason)


MAX_BUFFERED = 24 * 2**20
"""Maximum bytes between upstream and client; most of them are in the kernel's buffers.

Linux may enlarge one receive buffer to 32 MiB; 17 MiB in all were seen on a slow machine. The memory
of the gateway itself is limited by ``rss_mb`` of the fault.
"""


def slow_reader(world: World, case: Case, client: RawClient, model: str) -> None:
    """Read slowly; the upstream must not be read much faster than the client reads."""
    upstream = world.upstream_of(case.variant.route)
    with client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.post()
        read = 0
        for _ in range(30):
            read += client.read_some(65_536)
            time.sleep(0.05)
            (request,) = upstream.requests_for(model)
            assert request.sent - read < MAX_BUFFERED, f"{request.sent} bytes sent, {read} read"
        assert request.ending is None, (
            "the upstream has sent everything, so the test proves nothing"
        )
        client.read_response()
    assert client.reply is not None
    body = client.reply.body  # too long to parse event by event
    assert body.count(b'"text":"w"') == case.variant.letters
    assert body.rstrip().endswith(b'{"type":"message_stop"}')


def two_in_sequence(world: World, case: Case, client: RawClient, model: str) -> None:
    """The first request succeeds; the second one uses the connection that the first one left."""
    with client:
        client.post()
        client.read_response()
        assert client.reply is not None
        first = client.reply
        world.ledger.row(first.headers["request-id"])  # the connection is now in the pool or closed
    with client:
        client.post()
        client.read_response()
    assert client.reply is not None
    assert (first.status, text(first)) == (200, "Hello there.")


def disconnect_when_upstream_is_called(
    world: World, case: Case, client: RawClient, model: str
) -> None:
    upstream = world.upstream_of(case.variant.route)
    with client:
        client.post()
        world.until(lambda: upstream.requests_for(model), "the upstream receives no request")


def disconnect_at_end(world: World, case: Case, client: RawClient, model: str) -> None:
    """Disconnect after the upstream has sent everything and the client has read only a part."""
    upstream = world.upstream_of(case.variant.route)
    with client:
        client.run_script(["small buffer", "post", {"until": "wwww"}])
        world.until(
            lambda: [one.ending for one in upstream.requests_for(model)] == ["answered"],
            "the upstream does not finish its script",
        )
        world.until(
            lambda: not any(one.unread for one in Sockets.of(world.pid).to(upstream.port)),
            "the gateway does not read to the end",
        )
        for _ in range(3):  # later requests are served after the bytes read from the socket
            world.ready()
        client.reset()


def nested_body(world: World, case: Case, client: RawClient, model: str) -> None:
    depth = int(case.id.rpartition("-")[2])
    client.body = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    send_request(client)


def long_number(world: World, case: Case, client: RawClient, model: str) -> None:
    client.body = b'{"max_tokens": ' + b"9" * 5_000 + b"}"
    send_request(client)


UNUSUAL_TEXT = "NUL \x00, separator \u2028, emoji \U0001f642, astral \U00010348, last"


def unusual_characters(world: World, case: Case, client: RawClient, model: str) -> None:
    """The characters reach the upstream unchanged, and the transcript shows them."""
    messages = [{"role": "user", "content": UNUSUAL_TEXT}]
    client.body = usual_request(model, case.mode, {"messages": messages})
    send_request(client)
    (request,) = world.upstream_of(case.variant.route).requests_for(model)
    assert UNUSUAL_TEXT in strings_of(request.json)
    assert client.reply is not None
    name = client.reply.headers["request-id"]
    world.ledger.row(name)
    shown = world.gateway.request("GET", f"/api/v1/requests/{name}/transcript/")
    assert shown.status == 200, shown
    assert UNUSUAL_TEXT in strings_of(json_of(shown))


def strings_of(value: Any) -> set[str]:
    match value:
        case dict():
            return {text for each in value.values() for text in strings_of(each)}
        case list():
            return {text for each in value for text in strings_of(each)}
    return {value} if isinstance(value, str) else set()


def compressed_body(world: World, case: Case, client: RawClient, model: str) -> None:
    bomb = case.variant.request.get("bomb")
    plain = b" " * (100 * 2**20) if bomb else client.body
    client.body = gzip.compress(plain)
    client.headers = {"content-encoding": "gzip"}
    send_request(client)


def send_request(client: RawClient) -> None:
    with client:
        client.post()
        client.read_response()


HEAD = "POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {key}\r\n"
HIDDEN_REQUEST = "GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n"
AMBIGUOUS_REQUESTS = {
    "both lengths": HEAD
    + "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN_REQUEST,
    "two lengths": HEAD + "content-length: 0\r\ncontent-length: 40\r\n\r\n" + HIDDEN_REQUEST,
    "a list of lengths": HEAD + "content-length: 0, 40\r\n\r\n" + HIDDEN_REQUEST,
    "a length with a sign": HEAD + "content-length: +0\r\n\r\n" + HIDDEN_REQUEST,
    "no chunk size": HEAD + "transfer-encoding: chunked\r\n\r\nxyz\r\n" + HIDDEN_REQUEST,
    "a chunk longer than its size": HEAD
    + "transfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n"
    + HIDDEN_REQUEST,
    "a folded header": HEAD + "x-a: b\r\n transfer-encoding: chunked\r\n\r\n" + HIDDEN_REQUEST,
    "a space before the colon": HEAD + "content-length : 0\r\n\r\n" + HIDDEN_REQUEST,
    "another coding": HEAD
    + "transfer-encoding: xchunked\r\ncontent-length: 0\r\n\r\n"
    + HIDDEN_REQUEST,
    "chunked twice": HEAD + "transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + HIDDEN_REQUEST,
}


def ambiguous_framing(world: World, case: Case, client: RawClient, model: str) -> None:
    """Expect at most one response, a 4xx, and the end of the connection."""
    for name, raw in AMBIGUOUS_REQUESTS.items():
        with client:
            client.send(raw.format(key="sk-br-wrong").encode())
            client.read_to_end()
            error_result, client.rest = client.rest, b""
        assert error_result.count(b"HTTP/1.1 ") <= 1, (name, error_result)
        assert b'"status":"ok"' not in error_result, (name, error_result)
        assert not error_result or error_result.startswith(b"HTTP/1.1 4"), (name, error_result)


def pipelined(world: World, case: Case, client: RawClient, model: str) -> None:
    with client:
        client.post()
        client.post()
        client.read_response()
        first = client.reply
        client.read_response()
    assert first is not None
    assert client.reply is not None
    ids = [reply.headers["request-id"] for reply in (first, client.reply)]
    assert (first.status, ids == sorted({*ids})) == (200, True)


def invalid_headers(world: World, case: Case, client: RawClient, model: str) -> None:
    """Each request is rejected before the key check."""
    for name, headers in {
        "64 KiB": {"x-long": "x" * 65_536},
        "64 KiB in many headers": {f"x-{n}": "x" * 1_000 for n in range(66)},
        "101 headers": {f"x-{n}": "x" for n in range(101)},
        "a bell": {"x-bell": "ding\x07dong"},
        "a NUL": {"x-nul": "a\x00b"},
    }.items():
        assert _status_of(client, headers) in {400, 431}, name
    without_valid_key = {"x-api-key": "", "x_api_key": client.key}
    assert _status_of(client, without_valid_key) == 401


def _status_of(client: RawClient, headers: dict[str, str]) -> int:
    with client:
        with contextlib.suppress(ConnectionError):
            client.head(**headers)
            client.send(client.body)
        client.read_response()
    reply, client.reply = client.reply, None
    return reply.status if reply else 0


def idle_connections(world: World, case: Case, client: RawClient, model: str) -> None:
    """The gateway closes idle connections at the header deadline and still serves others."""
    address = ("127.0.0.1", world.gateway.port)
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(1_000)
        ]
        send_request(client)
        for each in idle:
            while each.recv(4_096):
                pass
        world.until(
            lambda: not Sockets.of(world.pid).busy(world.gateway.port), "idle connections stay open"
        )


def large_requests(world: World, case: Case, client: RawClient, model: str) -> None:
    what = case.variant.request["large"]
    client.body = usual_request(model, case.mode, LARGE_REQUESTS[what]())
    send_request(client)


LARGE_REQUESTS: dict[str, Callable[[], dict[str, Any]]] = {
    "messages": lambda: {
        "messages": [
            {"role": ("user", "assistant")[n % 2], "content": f"message {n}"} for n in range(9_999)
        ]
    },
    "tools": lambda: {
        "tools": [
            {"name": f"tool_{n}", "description": "x" * 50, "input_schema": {"type": "object"}}
            for n in range(5_000)
        ]
    },
    "images": lambda: {
        "messages": [{"role": "user", "content": [IMAGE] * 300 + [{"type": "text", "text": "?"}]}]
    },
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


SCENARIOS: dict[str, Scenario] = {
    "a slow reader": slow_reader,
    "two in sequence": two_in_sequence,
    "disconnects when the upstream is called": disconnect_when_upstream_is_called,
    "disconnects at the end": disconnect_at_end,
    "nested body": nested_body,
    "long number": long_number,
    "unusual characters": unusual_characters,
    "compressed body": compressed_body,
    "ambiguous framing": ambiguous_framing,
    "pipelined": pipelined,
    "invalid headers": invalid_headers,
    "idle connections": idle_connections,
    "large requests": large_requests,
}

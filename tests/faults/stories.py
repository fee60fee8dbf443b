"""Faults that no script can say, each a function; and small readings of an answer."""

import contextlib
import gzip
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.fakes.gateway import Reply
from tests.fakes.grammar import read_frames

from .catalogue import Case
from .client import LyingClient, usual_request
from .ledger import SqliteBooks
from .sockets import Sockets
from .world import World

Story = Callable[[World, Case, LyingClient, str], None]


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


FLIGHT = 16 * 2**20
"""What may be on its way between upstream and client: mostly the kernel's own buffers."""


def slow_reader(world: World, case: Case, client: LyingClient, model: str) -> None:
    """It reads a little now and then; meanwhile the upstream must not have said much more."""
    upstream = world.upstream_of(case.play.route)
    with client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.post()
        read = 0
        for _ in range(30):
            read += client.sip(65_536)
            time.sleep(0.05)
            (asked,) = upstream.asked_for(model)
            assert asked.sent - read < FLIGHT, f"{asked.sent} bytes said, {read} read"
        assert asked.ending is None, "all was said before it was read: this proves nothing"
        client.hear()
    assert client.reply is not None
    body = client.reply.body  # too long to be judged event by event
    assert body.count(b'"text":"w"') == case.play.letters
    assert body.rstrip().endswith(b'{"type":"message_stop"}')


def one_after_the_other(world: World, case: Case, client: LyingClient, model: str) -> None:
    """The first one is answered well; the second finds what became of its connection."""
    with client:
        client.post()
        client.hear()
        assert client.reply is not None
        first = client.reply
        world.ledger.row(first.headers["request-id"])  # by now the connection is back, or closed
    with client:
        client.post()
        client.hear()
    assert client.reply is not None
    assert (first.status, text(first)) == (200, "Hello there.")


def leaves_when_dialled(world: World, case: Case, client: LyingClient, model: str) -> None:
    upstream = world.upstream_of(case.play.route)
    with client:
        client.post()
        world.until(lambda: upstream.asked_for(model), "the upstream is never asked")


def leaves_at_the_last_moment(world: World, case: Case, client: LyingClient, model: str) -> None:
    """The upstream has said all, and what it said last waits behind what nobody reads."""
    upstream = world.upstream_of(case.play.route)
    with client:
        client.play(["narrow", "post", {"until": "wwww"}])
        world.until(
            lambda: [one.ending for one in upstream.asked_for(model)] == ["answered"],
            "the upstream does not come to its end",
        )
        world.until(
            lambda: not any(one.unread for one in Sockets.of(world.pid).to(upstream.port)),
            "the gateway does not read to the end",
        )
        for _ in range(3):  # whoever is answered now comes after what was taken from the socket
            world.ready()
        client.reset()


def nested_body(world: World, case: Case, client: LyingClient, model: str) -> None:
    depth = int(case.id.rpartition("-")[2])
    client.body = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    ask(client)


def endless_number(world: World, case: Case, client: LyingClient, model: str) -> None:
    client.body = b'{"max_tokens": ' + b"9" * 5_000 + b"}"
    ask(client)


ODD = "NUL \x00, separator \u2028, emoji \U0001f642, astral \U00010348, last"


def odd_characters(world: World, case: Case, client: LyingClient, model: str) -> None:
    """They reach the upstream as they are, and the transcript shows them again."""
    said = [{"role": "user", "content": ODD}]
    client.body = usual_request(model, case.ask, {"messages": said})
    ask(client)
    (asked,) = world.upstream_of(case.play.route).asked_for(model)
    assert ODD in strings_of(asked.json)
    assert client.reply is not None
    name = client.reply.headers["request-id"]
    world.ledger.row(name)
    shown = world.gateway.ask("GET", f"/api/v1/requests/{name}/transcript/")
    assert shown.status == 200, shown
    assert ODD in strings_of(json_of(shown))


def strings_of(value: Any) -> set[str]:
    match value:
        case dict():
            return {text for each in value.values() for text in strings_of(each)}
        case list():
            return {text for each in value for text in strings_of(each)}
    return {value} if isinstance(value, str) else set()


def packed_body(world: World, case: Case, client: LyingClient, model: str) -> None:
    bomb = case.play.request.get("bomb")
    plain = b" " * (100 * 2**20) if bomb else client.body
    client.body = gzip.compress(plain)
    client.headers = {"content-encoding": "gzip"}
    ask(client)


def ask(client: LyingClient) -> None:
    with client:
        client.post()
        client.hear()


def told_twice(world: World, case: Case, client: LyingClient, model: str) -> None:
    """At once, with another body, and later."""
    upstream = world.upstream_of(case.play.route)
    client.headers = {"idempotency-key": f"key of {case.id}"}
    again, other = replace(client), replace(client, body=client.body.replace(b"hello", b"adieu"))
    with client:
        client.post()
        world.until(lambda: upstream.asked_for(model), "the upstream is never asked")
        ask(again)
        ask(other)
        client.hear()
    first = client.reply
    assert first is not None
    for reply, status in ((again.reply, 409), (other.reply, 400)):
        assert reply is not None
        told = (reply.status, json_of(reply)["error"]["type"])
        assert told == (status, "invalid_request_error"), reply
    kept = SqliteBooks(world.gateway.folder / "data" / "replies.sqlite3")
    query = "SELECT 1 FROM replies WHERE name = ? AND done = 1"
    world.until(
        lambda: kept.select(query, client.headers["idempotency-key"]), "the answer is not kept"
    )
    ask(again)
    assert again.reply is not None
    assert again.reply.body == first.body
    assert again.reply.headers["idempotent-replayed"] == "true"


HEAD = "POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {key}\r\n"
SMUGGLED = "GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n"
DESYNC = {
    "both lengths": HEAD
    + "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "two lengths": HEAD + "content-length: 0\r\ncontent-length: 40\r\n\r\n" + SMUGGLED,
    "a list of lengths": HEAD + "content-length: 0, 40\r\n\r\n" + SMUGGLED,
    "a length with a sign": HEAD + "content-length: +0\r\n\r\n" + SMUGGLED,
    "no chunk size": HEAD + "transfer-encoding: chunked\r\n\r\nxyz\r\n" + SMUGGLED,
    "a chunk longer than told": HEAD
    + "transfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n"
    + SMUGGLED,
    "a folded header": HEAD + "x-a: b\r\n transfer-encoding: chunked\r\n\r\n" + SMUGGLED,
    "a space before the colon": HEAD + "content-length : 0\r\n\r\n" + SMUGGLED,
    "another coding": HEAD + "transfer-encoding: xchunked\r\ncontent-length: 0\r\n\r\n" + SMUGGLED,
    "chunked twice": HEAD + "transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
}


def desync(world: World, case: Case, client: LyingClient, model: str) -> None:
    """At most one answer, which is no success, and the connection ends: nothing after it is heard."""
    for name, raw in DESYNC.items():
        with client:
            client.say(raw.format(key="sk-br-wrong").encode())
            client.hear_the_end()
            told, client.rest = client.rest, b""
        assert told.count(b"HTTP/1.1 ") <= 1, (name, told)
        assert b'"status":"ok"' not in told, (name, told)
        assert not told or told.startswith(b"HTTP/1.1 4"), (name, told)


def pipelined(world: World, case: Case, client: LyingClient, model: str) -> None:
    with client:
        client.post()
        client.post()
        client.hear()
        first = client.reply
        client.hear()
    assert first is not None
    assert client.reply is not None
    ids = [reply.headers["request-id"] for reply in (first, client.reply)]
    assert (first.status, ids == sorted({*ids})) == (200, True)


def odd_heads(world: World, case: Case, client: LyingClient, model: str) -> None:
    """Each is refused before anybody looks whose key it is."""
    for name, headers in {
        "64 KiB": {"x-long": "x" * 65_536},
        "64 KiB in many": {f"x-{n}": "x" * 1_000 for n in range(66)},
        "101 headers": {f"x-{n}": "x" for n in range(101)},
        "a bell": {"x-bell": "ding\x07dong"},
        "a NUL": {"x-nul": "a\x00b"},
    }.items():
        assert _status_of(client, headers) in {400, 431}, name
    unheard = {"x-api-key": "", "x_api_key": client.key}
    assert _status_of(client, unheard) == 401


def _status_of(client: LyingClient, headers: dict[str, str]) -> int:
    with client:
        with contextlib.suppress(ConnectionError):
            client.head(**headers)
            client.say(client.body)
        client.hear()
    reply, client.reply = client.reply, None
    return reply.status if reply else 0


def idle_crowd(world: World, case: Case, client: LyingClient, model: str) -> None:
    """They are let go at the deadline of a head, and nobody else minds."""
    address = ("127.0.0.1", world.gateway.port)
    with contextlib.ExitStack() as crowd:
        for _ in range(1_000):
            crowd.enter_context(socket.create_connection(address, timeout=30))
        ask(client)
        world.until(lambda: not Sockets.of(world.pid).busy(world.gateway.port), "they stay")


def much(world: World, case: Case, client: LyingClient, model: str) -> None:
    what = case.play.request["much"]
    client.body = usual_request(model, case.ask, MUCH[what]())
    ask(client)


MUCH: dict[str, Callable[[], dict[str, Any]]] = {
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


STORIES: dict[str, Story] = {
    "a slow reader": slow_reader,
    "one after the other": one_after_the_other,
    "leaves when dialled": leaves_when_dialled,
    "leaves at the last moment": leaves_at_the_last_moment,
    "nested body": nested_body,
    "a number without end": endless_number,
    "odd characters": odd_characters,
    "packed body": packed_body,
    "told twice": told_twice,
    "desync": desync,
    "pipelined": pipelined,
    "odd heads": odd_heads,
    "idle crowd": idle_crowd,
    "much of it": much,
}

"""Requests and answers on our connections: what is taken, what is refused, what never leaves."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.config.connections import GuardedConnection
from proxy.config.heads import MOST_HEAD_BYTES, MOST_HEADERS
from proxy.config.websockets import LiveFeedConnection

from .served import DEADLINE_S, hear, post, served

START = {"type": "http.response.start", "status": 200, "headers": []}
OURS = ((b"content-type", b"text/plain"), (b"cache-control", b"no-cache"))


class Echo:
    """Tells what it was asked; ``/crash``, ``/late`` and others break the rules of ASGI or HTTP."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.may_answer = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope)
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": scope["path"]})
            await send({"type": "websocket.close"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await getattr(self, scope["path"].strip("/") or "echo")(send, body)

    async def answer(self, send: Any, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        await send(START | {"headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def echo(self, send: Any, body: bytes) -> None:
        await self.answer(send, body, (b"content-length", b"%d" % len(body)))

    async def chunks(self, send: Any, body: bytes) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": body})

    async def held(self, send: Any, body: bytes) -> None:
        await asyncio.to_thread(self.may_answer.wait, DEADLINE_S)
        await self.echo(send, body)

    async def crash(self, send: Any, body: bytes) -> None:
        raise ValueError("as it was told")

    async def late(self, send: Any, body: bytes) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise ValueError("as it was told")

    async def nothing(self, send: Any, body: bytes) -> None: ...

    async def split(self, send: Any, body: bytes) -> None:
        await self.answer(send, b"", (b"x-told", b"a\r\nset-cookie: stolen=1"))

    async def bare(self, send: Any, body: bytes) -> None:
        await self.answer(send, b"", (b"x-told", b"a\nset-cookie: stolen=1"))

    async def misnamed(self, send: Any, body: bytes) -> None:
        await self.answer(send, b"", (b"x told", b"stolen"))

    async def longer(self, send: Any, body: bytes) -> None:
        await self.answer(send, b"four", (b"content-length", b"3"))

    async def shorter(self, send: Any, body: bytes) -> None:
        await self.answer(send, b"four", (b"content-length", b"5"))

    async def backwards(self, send: Any, body: bytes) -> None:
        await send({"type": "http.response.body", "body": b"stolen"})

    async def twice(self, send: Any, body: bytes) -> None:
        await self.answer(send, b"once", (b"content-length", b"4"))
        await send({"type": "http.response.body", "body": b"stolen"})

    async def closing(self, send: Any, body: bytes) -> None:
        await self.answer(send, b"", (b"connection", b"Close"), (b"content-length", b"0"))

    @property
    def bridge(self) -> Any:
        """What our connection offers beside ASGI, for the newest request."""
        return self.asked[-1]["extensions"]["bridge"]

    async def whole(self, send: Any, body: bytes) -> None:
        self.bridge.begin_well(OURS, b"req_1", len(body))
        assert self.bridge.put(body, more=False)

    async def whole_asgi(self, send: Any, body: bytes) -> None:
        name = ((b"request-id", b"req_1"), (b"x-bridge-request-id", b"req_1"))
        await self.answer(send, body, *OURS, (b"content-length", b"%d" % len(body)), *name)

    async def pieces(self, send: Any, body: bytes) -> None:
        self.bridge.begin_well(OURS, b"req_1", None)
        for piece in (b"one", b""):
            assert self.bridge.put(piece, more=True)
        assert self.bridge.put(body, more=False)

    async def pieces_asgi(self, send: Any, body: bytes) -> None:
        name = ((b"request-id", b"req_1"), (b"x-bridge-request-id", b"req_1"))
        await send(START | {"headers": (*OURS, *name)})
        for piece in (b"one", b""):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": body})

    async def overdone(self, send: Any, body: bytes) -> None:
        await self.whole(send, body)
        self.bridge.put(b"stolen", more=False)

    async def flood(self, send: Any, body: bytes) -> None:
        self.bridge.begin_well(OURS, b"req_1", None)
        taken = True
        while taken:
            await asyncio.sleep(0)
            taken = self.bridge.put(body, more=True)
        self.may_answer.set()
        await send({"type": "http.response.body", "body": b"the end"})

    async def left(self, send: Any, body: bytes) -> None:
        left = asyncio.Event()
        self.bridge.when_left(left.set)
        await left.wait()
        if self.bridge.put(b"to nobody", more=False):
            self.may_answer.set()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def port(echo: Echo) -> Iterator[int]:
    with served(echo) as (number, _):
        yield number


def say(port: int, raw: bytes) -> bytes:
    """All that is answered until the server closes."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        heard = b""
        try:
            client.sendall(raw)
            while piece := client.recv(65_536):
                heard += piece
        except ConnectionError:  # it did not want to hear all of it
            pass
        return heard


def head(*lines: str, path: str = "/", version: str = "1.1") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/{version}", "host: t", *lines, "", ""]).encode()


def test_an_answer_of_unknown_length_goes_out_in_chunks(port):
    with post(port, "/chunks", b"two") as client:
        heard = hear(client, b"0\r\n\r\n")

    assert heard.endswith(b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


def test_who_knows_no_chunks_hears_it_until_the_end(port):
    heard = say(port, head("content-length: 3", path="/chunks", version="1.0") + b"two")

    assert b"\r\nconnection: close\r\n" in heard
    assert heard.endswith(b"\r\n\r\nonetwo")


def test_who_asks_for_the_head_alone_gets_it_with_its_length(port):
    with post(port, "/", b"four", method="HEAD") as client:
        heard = hear(client, b"\r\n\r\n")

    assert heard.endswith(b"content-length: 4\r\n\r\n")


@pytest.mark.parametrize(
    "pieces", [[b"2\r\n{}\r\n0\r\n\r\n"], [b"1\r\n{\r\n", b"1\r\n}\r\n0\r\n\r\n"]]
)
def test_who_waits_for_it_is_told_to_continue(port, pieces):
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.sendall(head("expect: 100-Continue", "transfer-encoding: chunked"))
        assert hear(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for piece in pieces:
            client.sendall(piece)
        assert hear(client, b"{}").startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("path", ["crash", "nothing", "split", "bare", "misnamed", "backwards"])
def test_what_cannot_be_sent_becomes_a_500(port, caplog, path):
    with caplog.at_level(logging.ERROR, "uvicorn.error"):
        heard = say(port, head("content-length: 0", path=f"/{path}"))

    assert heard.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert heard.endswith(b"\r\nconnection: close\r\n\r\nInternal Server Error")
    assert b"stolen" not in heard
    assert len(caplog.records) == 1


@pytest.mark.parametrize("path", ["late", "longer", "shorter"])
def test_what_fails_in_the_middle_closes_its_connection(port, path):
    heard = say(port, head("content-length: 0", path=f"/{path}"))

    assert b"four" not in heard
    assert b"0\r\n\r\n" not in heard
    assert heard.endswith(b"begun\r\n") == (path == "late")


def test_nothing_follows_an_answer(port):
    assert say(port, head("content-length: 0", path="/twice")).endswith(b"\r\n\r\nonce")


@pytest.mark.parametrize("path", ["whole", "pieces"])
@pytest.mark.parametrize("method", [b"POST", b"HEAD"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_answer_without_an_await_is_the_same_byte_by_byte(port, path, method, version):
    def heard(path: str) -> list[bytes]:
        asked = head("content-length: 4", "connection: close", path=path, version=version)
        lines = say(port, asked.replace(b"POST", method, 1) + b"four").split(b"\r\n")
        return [line for line in lines if not line.startswith(b"date: ")]

    ours = heard(f"/{path}")

    assert ours == heard(f"/{path}_asgi")
    assert ours[0] == b"HTTP/1.1 200 OK"
    assert b"content-type: text/plain" in ours
    assert (b"four" in b" ".join(ours)) == (method == b"POST")


def test_nothing_follows_an_answer_without_an_await(port):
    heard = say(port, head("content-length: 4", path="/overdone") + b"four")

    assert heard.endswith(b"\r\n\r\nfour")


def test_who_reads_too_slowly_is_waited_for(port, echo):
    with post(port, "/flood", b"x" * 65_536) as client:
        assert echo.may_answer.wait(DEADLINE_S)
        heard = hear(client, b"\r\n0\r\n\r\n")

    assert heard.endswith(b"7\r\nthe end\r\n0\r\n\r\n")


def test_what_is_put_for_a_client_that_has_left_is_lost(port, echo):
    post(port, "/left", b"").close()

    assert echo.may_answer.wait(DEADLINE_S)


def test_an_answer_that_ends_its_connection_says_so_once(port):
    heard = say(port, head("content-length: 0", path="/closing"))

    assert heard.lower().count(b"connection: close\r\n") == 1


def test_a_trailer_is_no_header(port, echo):
    trailers = b"1\r\nx\r\n0\r\nx-api-key: other\r\nx-told: more\r\n\r\n"
    asked = head("transfer-encoding: chunked", "x-api-key: mine", "connection: close") + trailers

    assert say(port, asked).startswith(b"HTTP/1.1 200 OK\r\n")

    told = dict(echo.asked[0]["headers"])
    assert told[b"x-api-key"] == b"mine"
    assert b"x-told" not in told


@pytest.mark.parametrize(
    "trailers",
    [b"x-t: y\r\n" * (MOST_HEADERS + 1) + b"\r\n", b"x-t: " + b"y" * 2**20],
    ids=["many", "one without end"],
)
def test_trailers_without_end_are_refused(port, trailers):
    heard = say(port, head("transfer-encoding: chunked") + b"1\r\nx\r\n0\r\n" + trailers)

    assert heard.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert heard.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("byte", [*(n for n in range(32) if n != 9), 127])
def test_a_control_byte_in_a_value_is_refused(port, echo, byte):
    with_it = head("content-length: 0", "x-told: a%b").replace(b"%", bytes([byte]))

    assert say(port, with_it).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert echo.asked == []


def test_a_name_with_an_underscore_is_left_out(port, echo):
    say(port, head("content-length: 0", "x_api_key: other", "connection: close"))

    assert [name for name, _ in echo.asked[0]["headers"]] == [
        b"host", b"content-length", b"connection",
    ]  # fmt: skip


LARGE = MOST_HEAD_BYTES - 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([f"x-{n}: y" for n in range(MOST_HEADERS - 3)], 200),
        ([f"x-{n}: y" for n in range(MOST_HEADERS - 2)], 431),
        ([f"x: {'y' * LARGE}"], 200),
        ([f"x: {'y' * (LARGE + 400)}"], 431),
    ],
    ids=["100 headers", "101 headers", "64 KiB", "more"],
)
@pytest.mark.parametrize("pieces", [1, 40], ids=["at once", "in pieces"])
def test_a_head_has_its_limits(port, lines, status, pieces):
    asked = head("content-length: 0", "connection: close", *lines)
    step = -(-len(asked) // pieces)
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(asked), step):
            client.sendall(asked[start : start + step])
        heard = client.recv(65_536)

    assert heard.startswith(b"HTTP/1.1 %d " % status)


UPGRADE = (
    "upgrade: {}", "sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
)  # fmt: skip


@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, upgrade"])
def test_a_websocket_becomes_uvicorns(echo, connection):
    upgrade = [line.format("WebSocket") for line in UPGRADE]
    asked = head(f"connection: {connection}", *upgrade, path="/told").replace(b"POST", b"GET", 1)
    with served(echo, ws=LiveFeedConnection) as (port, _):
        heard = say(port, asked)

    assert heard.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert heard.partition(b"\r\n\r\n")[2].startswith(b"\x81\x05/told")


@pytest.mark.parametrize(
    ("connection", "upgrade"), [("upgrade", "h2c"), ("keep-alive", "websocket")]
)
def test_another_upgrade_is_not_taken(port, connection, upgrade):
    lines = [line.format(upgrade) for line in UPGRADE]
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.sendall(head(f"connection: {connection}", "content-length: 0", *lines))
        assert hear(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")


def test_who_asks_twice_and_says_no_more_hears_both_answers(port, echo, monkeypatch):
    ended = threading.Event()
    hear_of_it = GuardedConnection.eof_received

    def heard_of_it(self: GuardedConnection) -> Any:
        stays = hear_of_it(self)
        ended.set()
        return stays

    monkeypatch.setattr(GuardedConnection, "eof_received", heard_of_it)
    one, two = (head("content-length: 3", path="/held") + body for body in (b"one", b"two"))
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.sendall(one + two)
        client.shutdown(socket.SHUT_WR)
        assert ended.wait(DEADLINE_S)
        echo.may_answer.set()
        heard = b""
        while piece := client.recv(65_536):
            heard += piece

    assert heard.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert heard.endswith(b"two")


def test_a_connection_that_nobody_uses_is_closed_and_a_used_one_is_not(echo):
    with (
        served(echo, timeout_keep_alive=1) as (port, _),
        post(port, "/", b"ok") as client,
    ):
        assert hear(client, b"ok")
        client.sendall(head("content-length: 2") + b"on")  # within the second
        assert hear(client, b"on").startswith(b"HTTP/1.1 200 OK\r\n")
        assert client.recv(1) == b""

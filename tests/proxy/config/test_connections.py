"""What our connections do for the application, over real sockets."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from proxy.config import connections as ours
from proxy.config import websockets
from proxy.config.connections import GuardedConnection
from proxy.config.serving import _Server

from .served import DEADLINE_S, hear, post, served

LARGE = b"x" * 400_000  # more than uvicorn reads ahead: it stops reading in the middle


class Application:
    """Reads a body, then answers or waits until the client has left."""

    def __init__(self) -> None:
        self.heard = threading.Event()
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        gone = asyncio.Event()
        scope["extensions"]["bridge"].when_left(gone.set)
        self.heard.set()
        if scope["path"] == "/wait":
            await gone.wait()
            self.left.set()
        length = (b"content-length", b"2")
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def port(application: Application) -> Iterator[int]:
    with served(application) as (number, _):
        yield number


@pytest.mark.parametrize("body", [b"{}", LARGE], ids=["small", "large"])
def test_a_client_that_leaves_is_missed_however_large_its_body_was(port, application, body):
    client = post(port, "/wait", body)
    assert application.heard.wait(DEADLINE_S)
    assert not application.left.is_set()

    client.close()

    assert application.left.wait(DEADLINE_S)


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_an_answer_is_whole_though_its_head_waits(port, method):
    with post(port, "/", b"{}", method=method) as client:
        heard = hear(client, b"\r\n\r\n" if method == "HEAD" else b"ok")

    assert heard.startswith(b"HTTP/1.1 200 OK\r\n")
    assert heard.partition(b"\r\n\r\n")[2] == (b"" if method == "HEAD" else b"ok")


def test_two_requests_in_one_write_have_their_answers_in_order(port):
    one = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{}"
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.sendall(one + one)
        heard = b""
        while heard.count(b"\r\n\r\nok") < 2:
            heard += client.recv(65_536)

    assert heard.count(b"HTTP/1.1 200 OK\r\n") == 2


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE_S).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # it was in the queue of the listener
    return False


@pytest.mark.parametrize("begun", [0, 9], ids=["connected", "within its head"])
def test_who_connected_before_the_end_is_still_served(application, monkeypatch, begun):
    monkeypatch.setattr(ours, "LAST_CALL_S", 600.0)
    asked = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{}"
    with (
        served(application) as (port, server),
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client,
    ):
        client.sendall(asked[:begun])
        until(lambda: server.server_state.connections)
        server.should_exit = True
        until(lambda: refuses(port))
        client.sendall(asked[begun:])
        heard = b""
        while piece := client.recv(65_536):
            heard += piece

    assert heard.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in heard
    assert heard.endswith(b"ok")


def test_who_waits_to_be_accepted_when_the_end_comes_is_still_served(application, monkeypatch):
    """The last client connects when the server has just decided to end."""
    clients = []
    tick = _Server.on_tick

    async def ticked(self: _Server, counter: int) -> bool:
        ends = await tick(self, counter)
        if ends:
            clients.append(post(port, "/", b"{}"))
        return ends

    monkeypatch.setattr(_Server, "on_tick", ticked)
    with served(application) as (port, server):
        until(lambda: server.started)
        server.should_exit = True
        until(lambda: clients)
        with clients[0] as client:
            heard = hear(client, b"ok")

    assert heard.startswith(b"HTTP/1.1 200 OK\r\n")


def test_who_connected_and_says_nothing_holds_nobody_up(application, monkeypatch):
    monkeypatch.setattr(ours, "LAST_CALL_S", 0.05)
    with (
        served(application) as (port, server),
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client,
    ):
        until(lambda: server.server_state.connections)
        server.should_exit = True

        assert client.recv(1) == b""


def test_a_connection_that_has_ended_does_not_wait_for_the_collector(port):
    others = {id(each): each for each in connections()}  # of whoever was here before, and kept

    def left() -> int:
        return sum(id(each) not in others for each in connections())

    gc.disable()
    try:
        with post(port, "/", b"{}") as client:
            hear(client, b"ok")
        deadline = time.monotonic() + DEADLINE_S
        while left() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "line", ["", "connection: close\r\n"], ids=["at rest", "after the last answer"]
)
@pytest.mark.parametrize("shuts", [False, True], ids=["open", "half-closed"])
def test_a_small_answer_that_is_never_read_does_not_keep_its_connection(monkeypatch, line, shuts):
    """What is left of it is too little for a pause of the writing, and a close waits for it."""
    monkeypatch.setattr(ours, "conf", replace(ours.conf, write_timeout_s=0.5))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 48_000})

    with (
        served(application, send_buffer=2_048, timeout_keep_alive=1) as (port, server),
        socket.socket() as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        client.connect(("127.0.0.1", port))
        client.sendall(f"GET / HTTP/1.1\r\nhost: t\r\n{line}\r\n".encode())
        until(lambda: server.server_state.total_requests)
        if shuts:
            client.shutdown(socket.SHUT_WR)
        until(lambda: not server.server_state.connections)


class LiveFeed:
    """A WebSocket that sends so many bytes once it is open; none: it is never accepted."""

    def __init__(self, size: int | None) -> None:
        self.size = size

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if self.size is not None:
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "bytes": b"x" * self.size})
        while (await receive())["type"] != "websocket.disconnect":
            pass


HANDSHAKE = (
    b"GET /ws/live/ HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize("drip", [b"", b"\x8a\x80abcd"], ids=["silent", "pongs"])
@pytest.mark.parametrize("size", [None, 1, 48_000], ids=["not accepted", "open", "does not read"])
def test_a_websocket_ends_whatever_its_client_does(monkeypatch, size, drip):
    """Pongs that answer no ping are no answer."""
    shorter = replace(websockets.conf, head_timeout_s=0.5, write_timeout_s=0.5)
    monkeypatch.setattr(websockets, "conf", shorter)
    pings = {"ws_ping_interval": 0.2, "ws_ping_timeout": 0.2, "ws": websockets.LiveFeedConnection}
    with (
        served(LiveFeed(size), send_buffer=2_048, **pings) as (port, server),
        socket.socket() as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        client.connect(("127.0.0.1", port))
        client.sendall(HANDSHAKE)
        until(lambda: server.server_state.tasks)

        def is_gone() -> bool:
            with contextlib.suppress(ConnectionError):
                client.sendall(drip)
            return not server.server_state.connections

        until(is_gone)


def connections() -> Iterator[GuardedConnection]:
    return (each for each in gc.get_objects() if type(each) is GuardedConnection)

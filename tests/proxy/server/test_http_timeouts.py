"""Client connections over real sockets: disconnects, timeouts, pipelining and shutdown."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.supervisors import multiprocess

from proxy.server import websocket_protocol
from proxy.server.graceful_server import GracefulServer
from proxy.server.http_protocol import HttpProtocol
from tests.proxy.config.server_fixtures import DEADLINE_S, post, receive_until, served
from tests.waiting import until

REQUEST = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{}"
LARGE = b"x" * 400_000  # more than is buffered, so reading pauses in the middle


class Application:
    """Reads a body, then responds or waits for the disconnect."""

    def __init__(self) -> None:
        self.received = threading.Event()
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        self.received.set()
        if scope["path"] == "/wait":
            while (await receive())["type"] != "http.disconnect":
                pass
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
def test_a_disconnect_is_detected_after_a_body_of_any_size(port, application, body):
    client = post(port, "/wait", body)
    assert application.received.wait(DEADLINE_S)
    assert not application.left.is_set()

    client.close()

    assert application.left.wait(DEADLINE_S)


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_the_response_head_is_sent_with_the_body(port, method):
    with post(port, "/", b"{}", method=method) as client:
        received = receive_until(client, b"\r\n\r\n" if method == "HEAD" else b"ok")

    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.partition(b"\r\n\r\n")[2] == (b"" if method == "HEAD" else b"ok")


def test_two_pipelined_requests_get_their_responses_in_order(port):
    one = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{}"
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.sendall(one + one)
        received = b""
        while received.count(b"\r\n\r\nok") < 2:
            received += client.recv(65_536)

    assert received.count(b"HTTP/1.1 200 OK\r\n") == 2


def rejects_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE_S).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # the connection was in the accept queue
    return False


def read_to_end(client: socket.socket) -> bytes:
    received = b""
    while piece := client.recv(65_536):
        received += piece
    return received


class PatientProtocol(HttpProtocol):
    __slots__ = ()
    last_request_s = 600.0  # the machine may be slow


class ImpatientProtocol(HttpProtocol):
    __slots__ = ()
    last_request_s = 0.05


@pytest.mark.parametrize("sent_bytes", [0, 9], ids=["connected", "within its head"])
def test_a_client_that_connected_before_the_shutdown_is_served(application, sent_bytes):
    with (
        served(application, http=PatientProtocol) as (port, server),
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client,
    ):
        client.sendall(REQUEST[:sent_bytes])
        until(lambda: server.server_state.connections)
        server.should_exit = True
        until(lambda: rejects_connections(port))
        client.sendall(REQUEST[sent_bytes:])
        received = read_to_end(client)

    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in received
    assert received.endswith(b"ok")


def test_clients_in_the_accept_queue_at_shutdown_are_served(application):
    """The last clients connect when the server has just decided to shut down."""
    clients = []
    is_prepared = threading.Event()

    async def end() -> None:
        """Run within the step of the server that reads ``should_exit``, just before it does."""
        is_prepared.wait(DEADLINE_S)
        server.should_exit = True
        clients.extend(post(port, "/", b"{}") for _ in range(20))

    with served(application, callback_notify=end) as (port, server):
        is_prepared.set()
        until(lambda: len(clients) == 20)
        responses = []
        for client in clients:
            with client:
                responses.append(read_to_end(client))

    assert all(each.startswith(b"HTTP/1.1 200 OK\r\n") for each in responses)
    assert all(b"\r\nconnection: close\r\n" in each for each in responses)


def test_a_worker_of_several_has_the_same_server(application):
    worker = multiprocess.Process(uvicorn.Config(application), [])

    assert isinstance(worker.server, GracefulServer)


def test_an_idle_connection_gets_one_more_response_during_the_shutdown(application):
    """Its client may send a request before it learns of the shutdown (RFC 9112, 9.5)."""
    with (
        served(application, http=PatientProtocol) as (port, server),
        post(port, "/", b"{}") as client,
    ):
        receive_until(client, b"ok")
        server.should_exit = True
        until(lambda: rejects_connections(port))
        client.sendall(REQUEST)
        received = read_to_end(client)

    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in received
    assert received.endswith(b"ok")


def test_a_connection_gets_one_more_response_after_one_that_promised_keep_alive():
    """A stream whose head was sent before the shutdown could not say ``connection: close``."""
    is_released = threading.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"begin ", "more_body": True})
        await asyncio.to_thread(is_released.wait, DEADLINE_S)
        await send({"type": "http.response.body", "body": b"end"})

    with (
        served(stream, http=PatientProtocol) as (port, server),
        post(port, "/", b"{}") as client,
    ):
        receive_until(client, b"begin \r\n")
        server.should_exit = True
        until(lambda: rejects_connections(port))
        is_released.set()
        first = receive_until(client, b"0\r\n\r\n")
        client.sendall(REQUEST)
        second = read_to_end(client)

    assert b"end" in first
    assert b"\r\nconnection: close\r\n" in second
    assert second.endswith(b"0\r\n\r\n")


def test_an_idle_client_does_not_delay_the_shutdown(application):
    with (
        served(application, http=ImpatientProtocol) as (port, server),
        post(port, "/", b"{}") as client,
    ):
        receive_until(client, b"ok")
        server.should_exit = True

        assert client.recv(1) == b""


def test_a_silent_client_does_not_delay_the_shutdown(application):
    with (
        served(application, http=ImpatientProtocol) as (port, server),
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client,
    ):
        until(lambda: server.server_state.connections)
        server.should_exit = True

        assert client.recv(1) == b""


def test_a_closed_connection_is_freed_without_the_garbage_collector(port):
    others = {id(each): each for each in connections()}  # connections of earlier tests

    def left() -> int:
        return sum(id(each) not in others for each in connections())

    gc.disable()
    try:
        with post(port, "/", b"{}") as client:
            receive_until(client, b"ok")
        deadline = time.monotonic() + DEADLINE_S
        while left() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("line", "half_closes"),
    [
        pytest.param("", False, id="at rest"),
        pytest.param("connection: close\r\n", True, id="after the last answer, half-closed"),
        pytest.param("", True, id="at rest, half-closed", marks=pytest.mark.slow),
        pytest.param("connection: close\r\n", False, id="after it", marks=pytest.mark.slow),
    ],
)
def test_a_small_response_that_is_never_read_does_not_block_the_close(settings, line, half_closes):
    """The unsent rest is too small to pause writing, and a close waits until it is sent."""
    settings.WRITE_TIMEOUT_S = 0.5

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
        if half_closes:
            client.shutdown(socket.SHUT_WR)
        until(lambda: not server.server_state.connections)


class LiveFeed:
    """A WebSocket that sends ``size`` bytes once it is open. None: it is never accepted."""

    def __init__(self, size: int | None) -> None:
        self.size = size

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if self.size is not None:
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "bytes": b"x" * self.size})
        while (await receive())["type"] != "websocket.disconnect":
            pass


PONG = b"\x8a\x80abcd"
HANDSHAKE = (
    b"GET /ws/live/ HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize(
    ("size", "extra_bytes"),
    [
        pytest.param(None, b"", id="not accepted"),
        pytest.param(1, PONG, id="open, pongs"),
        pytest.param(48_000, b"", id="does not read"),
        pytest.param(None, PONG, id="not accepted, pongs", marks=pytest.mark.slow),
        pytest.param(1, b"", id="open", marks=pytest.mark.slow),
        pytest.param(48_000, PONG, id="does not read, pongs", marks=pytest.mark.slow),
    ],
)
def test_a_websocket_ends_for_every_client_behavior(settings, size, extra_bytes):
    """An unsolicited pong does not count as a response to a ping."""
    settings.HEAD_TIMEOUT_S = 1.5  # a busy machine sends its handshake within this time
    settings.WRITE_TIMEOUT_S = 0.5
    pings = {
        "ws_ping_interval": 0.2,
        "ws_ping_timeout": 0.2,
        "ws": websocket_protocol.LiveFeedConnection,
    }
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
                client.sendall(extra_bytes)
            return not server.server_state.connections

        until(is_gone)


def connections() -> Iterator[HttpProtocol]:
    return (each for each in gc.get_objects() if type(each) is HttpProtocol)

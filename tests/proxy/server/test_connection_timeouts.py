"""The deadline of each state of a client connection, over real sockets."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.server.http_protocol import HttpProtocol
from tests.proxy.config.server_fixtures import DEADLINE_S, receive_until, served
from tests.waiting import until

from .echo import CurrentEcho, Echo, head, receive_all

SHORT_S = 0.3
LARGE = b"x" * 65_536


class ShortTimeouts(HttpProtocol):
    __slots__ = ()
    discard_s = SHORT_S  # else each test waits 5 seconds
    body_grace_s = 0.0  # else each test waits 5 seconds


@pytest.fixture(scope="module")
def echo_server(current_echo: CurrentEcho) -> Iterator[tuple[int, Any]]:
    with served(current_echo, http=ShortTimeouts, send_buffer=2_048) as running:
        yield running


@pytest.fixture(autouse=True)
def _short_timeouts(settings: Any) -> None:
    settings.HEAD_TIMEOUT_S = DEADLINE_S  # longer than a busy machine takes to send a head
    settings.BODY_TIMEOUT_S = settings.WRITE_TIMEOUT_S = SHORT_S
    settings.MAX_BODY_BYTES = 2**16


@pytest.fixture
def server(echo_server: tuple[int, Any], echo: Echo) -> tuple[int, Any]:
    return echo_server


def connect(server: tuple[int, Any], first: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server[0]), DEADLINE_S)
    client.sendall(first)
    return client


def send_until_closed(client: socket.socket, byte: bytes) -> bytes:
    """Send one byte at a time until the server sends something or closes."""
    client.settimeout(SHORT_S / 6)
    while True:
        with contextlib.suppress(TimeoutError):
            return client.recv(65_536)
        with contextlib.suppress(ConnectionError):
            client.sendall(byte)


def test_a_client_that_sends_nothing_gets_408(server, settings):
    settings.HEAD_TIMEOUT_S = SHORT_S
    with connect(server) as client:
        received = receive_all(client)

    assert received.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b'{"type":"error","error":{"type":"timeout_error"' in received


def test_a_head_that_arrives_byte_by_byte_gets_408(server, echo, settings):
    settings.HEAD_TIMEOUT_S = SHORT_S
    with connect(server, b"POST / HTTP/1.1\r\nx-slow: ") as client:
        assert send_until_closed(client, b"y").startswith(b"HTTP/1.1 408 ")

    assert echo.requests == []


def test_a_head_after_a_response_has_the_same_deadline(server, settings):
    with connect(server, head("content-length: 2") + b"ok") as client:
        receive_until(client, b"ok")
        settings.HEAD_TIMEOUT_S = SHORT_S
        assert send_until_closed(client, b"G").startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 400 "))


@pytest.mark.parametrize("byte", [b"", b" "], ids=["silent", "byte by byte"])
def test_a_body_that_does_not_arrive_in_time_gets_408(server, echo, byte):
    with connect(server, head("content-length: 60000") + b"{") as client:
        assert send_until_closed(client, byte).startswith(b"HTTP/1.1 408 ")

    assert echo.left_clients.acquire(timeout=DEADLINE_S)


def test_a_connection_with_an_unread_body_is_closed_after_the_response(server):
    """The rest of the body is awaited for a short time: the connection could then be used again."""
    with connect(server, head("content-length: 1000", path="/early")) as client:
        received = receive_all(client)

    assert received.endswith(b"\r\n\r\nearly")
    until(lambda: not server[1].server_state.connections)


def test_a_response_is_not_lost_when_the_body_follows_its_end(server):
    """A close with unread input would send a reset, which deletes what the client has not read."""
    request = head("content-length: 60000", path="/early_close")
    with connect(server, request) as client:
        received = receive_until(client, b"early")
        with contextlib.suppress(ConnectionError):
            client.sendall(b"x" * 30_000)
        assert received.endswith(b"early")
        assert client.recv(1) == b""
        until(lambda: not server[1].server_state.connections)


def test_an_endless_body_after_the_response_is_cut(server):
    with connect(server, head("transfer-encoding: chunked", path="/early")) as client:
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 2**28:
                client.sendall(b"10000\r\n" + LARGE + b"\r\n")
                sent += len(LARGE)

    assert sent < 2**26  # the buffers of both kernels and one body


def test_a_client_that_does_not_read_is_disconnected(server, echo):
    with socket.socket() as client:
        # Else the kernel takes megabytes for the client.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        client.connect(("127.0.0.1", server[0]))
        client.sendall(head(f"content-length: {len(LARGE)}", path="/flood") + LARGE)
        assert echo.may_answer.wait(DEADLINE_S)
        until(lambda: not server[1].server_state.connections)

"""Clients that shut down their sending side and still read, and clients that disconnect.

Both look the same to the server until it sends something.
"""

import http.client
import socket

import pytest

from tests.proxy.config.server_fixtures import DEADLINE_S, receive_until
from tests.waiting import until

from .echo import head, receive_all


def half_close(port: int, raw: bytes, until: bytes = b"") -> socket.socket:
    """Send a request, read up to ``until`` and shut down the sending side."""
    client = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    client.sendall(raw)
    if until:
        receive_until(client, until)
    client.shutdown(socket.SHUT_WR)
    return client


def test_a_response_that_has_not_begun_is_sent_to_a_half_closed_client(port, echo):
    with half_close(port, head("content-length: 2", path="/waiting") + b"ok") as client:
        assert receive_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        echo.may_answer.set()
        received = receive_all(client)

    assert received.endswith(b"ok")
    assert received.count(b"HTTP/1.1 200 OK\r\n") == 1


def test_a_stream_that_has_begun_is_completed_for_a_half_closed_client(port, echo):
    """The server's probes lead the size of the next chunk, so the client decodes nothing extra."""
    request = head("content-length: 3", path="/paused") + b"end"
    client = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    with client, http.client.HTTPResponse(client) as response:
        client.sendall(request)
        response.begin()
        assert response.read(5) == b"begun"
        client.shutdown(socket.SHUT_WR)
        first = client.recv(1, socket.MSG_PEEK)  # the first probe
        echo.may_answer.set()
        body = response.read()

    assert first == b"0"
    assert body == b"end"


def test_the_probes_of_a_stream_are_leading_zeros_of_a_chunk_size(port, echo):
    request = head("content-length: 3", path="/paused") + b"end"
    with half_close(port, request, b"begun\r\n") as client:
        assert client.recv(1) == b"0"
        echo.may_answer.set()
        received = receive_all(client)

    assert received.lstrip(b"0") == b"3\r\nend\r\n0\r\n\r\n"


@pytest.mark.parametrize(("path", "begun"), [("/left", b""), ("/stream_left", b"begun\r\n")])
def test_a_disconnect_is_reported_before_and_within_a_response(port, echo, path, begun):
    client = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    client.sendall(head("content-length: 0", path=path))
    if begun:
        receive_until(client, begun)
    else:
        until(lambda: echo.requests)
    client.close()

    assert echo.left_clients.acquire(timeout=DEADLINE_S)


def test_a_half_close_within_a_response_of_known_length_is_a_disconnect(port, echo):
    """No bytes are harmless there, so the server cannot find out whether the client reads."""
    with half_close(port, head("content-length: 0", path="/file_left"), b"begun") as client:
        assert receive_all(client) == b""

    assert echo.left_clients.acquire(timeout=DEADLINE_S)


def test_a_half_close_within_a_stream_of_http_1_0_is_a_disconnect(port, echo):
    """Without chunks every byte belongs to the content, so none is harmless."""
    request = head("content-length: 0", path="/stream_left", version="1.0")
    with half_close(port, request, b"begun") as client:
        assert receive_all(client) == b""

    assert echo.left_clients.acquire(timeout=DEADLINE_S)


def test_a_half_close_within_a_body_is_a_disconnect(port, echo):
    with half_close(port, head("content-length: 9") + b"{") as client:
        assert receive_all(client) == b""

    assert echo.left_clients.acquire(timeout=DEADLINE_S)


@pytest.mark.parametrize("raw", [b"", b"POST / HT"], ids=["connected", "within the head"])
def test_a_half_close_before_a_request_closes_the_connection(port, echo, raw):
    with half_close(port, raw) as client:
        assert receive_all(client) == b""

    assert echo.requests == []


def test_a_disconnect_ends_the_running_and_the_waiting_request(port, echo):
    """Only the first of the pipelined requests has started."""
    client = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    client.sendall(head("content-length: 0", path="/stream_left") * 2)
    receive_until(client, b"begun\r\n")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()

    assert echo.left_clients.acquire(timeout=DEADLINE_S)
    assert len(echo.requests) == 1

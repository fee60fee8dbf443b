"""Several requests on one connection: keep-alive, pipelining, request bodies and rejections."""

import socket

import pytest

from proxy.server import connection_limits
from proxy.server.http_protocol import MAX_PIPELINED
from tests.proxy.config.server_fixtures import DEADLINE_S, receive_until
from tests.waiting import until

from .echo import head, receive_all, send_raw

LAST = ("connection: close", "content-length: 4")


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), DEADLINE_S)


def test_a_connection_serves_one_request_after_the_other(port, echo):
    with connect(port) as client:
        for body in (b"first", b"second", b"third"):
            client.sendall(head(f"content-length: {len(body)}") + body)
            assert receive_until(client, body).startswith(b"HTTP/1.1 200 OK\r\n")

    assert len({request["client"] for request in echo.requests}) == 1


@pytest.mark.parametrize(
    ("version", "lines"), [("1.0", ()), ("1.0", ("connection: keep-alive",)), ("1.1", LAST[:1])]
)
def test_the_connection_closes_after_the_last_response(port, version, lines):
    received = send_raw(port, head("content-length: 4", *lines, version=version) + b"last")

    assert b"\r\nconnection: close\r\n" in received
    assert received.endswith(b"\r\n\r\nlast")


@pytest.mark.parametrize("path", ["/early", "/"])
def test_a_connection_is_used_again_after_a_body(port, path):
    """Also if the response was sent before the body arrived."""
    with connect(port) as client:
        client.sendall(head("transfer-encoding: chunked", path=path))
        if path == "/early":
            receive_until(client, b"early")
        client.sendall(b"3\r\none\r\n0\r\n\r\n" + head(*LAST) + b"last")
        received = receive_all(client)

    assert received.endswith(b"\r\n\r\nlast")
    assert received.count(b"HTTP/1.1 200 OK\r\n") == (1 if path == "/early" else 2)


@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_a_chunked_body_in_pieces_arrives_whole(port, size):
    body = b"".join(b"%x\r\n%b\r\n" % (n, b"x" * n) for n in range(1, 40)) + b"0\r\n\r\n"
    request = head("transfer-encoding: chunked", "connection: close") + body
    with connect(port) as client:
        for start in range(0, len(request), size):
            client.sendall(request[start : start + size])
        received = receive_all(client)

    assert received.partition(b"\r\n\r\n")[2] == b"x" * sum(range(1, 40))


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (("transfer-encoding: chunked",), b"no\r\n"),
        (("transfer-encoding: chunked",), b"5\r\nhello--"),
        (("transfer-encoding: chunked", "content-length: 2"), b"{}"),
        (("content-length: 2", "content-length: 3"), b"{}"),
        (("content-length: -1",), b""),
        ((" folded: x",), b""),
    ],
    ids=["no size", "no line end", "two kinds of length", "two lengths", "negative", "folded"],
)
def test_invalid_framing_gets_400_and_closes(port, lines, body):
    received = send_raw(port, head(*lines) + body)

    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b'"type":"invalid_request_error"' in received
    assert received.count(b"HTTP/1.1 ") == 1


def test_a_rejection_before_100_continue_closes_the_connection(port):
    received = send_raw(port, head("expect: 100-continue", "content-length: 2", path="/early"))

    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in received


def test_too_many_pipelined_requests_are_dropped(port, echo):
    request = head("content-length: 0", path="/waiting")
    with connect(port) as client:
        client.sendall(request * (MAX_PIPELINED + 5))
        until(lambda: echo.requests)
        echo.may_answer.set()
        received = receive_all(client)

    assert received.count(b"HTTP/1.1 200 OK\r\n") == MAX_PIPELINED + 1
    assert received.count(b"HTTP/1.1 ") == MAX_PIPELINED + 1


def test_invalid_bytes_behind_a_request_do_not_change_its_response(port, echo):
    with connect(port) as client:
        client.sendall(head("content-length: 4", path="/waiting") + b"body\x00junk")
        until(lambda: echo.requests)
        echo.may_answer.set()
        received = receive_all(client)

    assert received.endswith(b"\r\n\r\nbody")
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.fixture
def two_connections(echo_server, settings):
    """Allow each address two connections; none of another test may still be counted."""
    _, server = echo_server
    until(lambda: not server.server_state.connections)
    settings.MAX_CONNECTIONS_PER_ADDRESS = 2
    connection_limits.connection_limits.cache_clear()
    yield
    until(lambda: not server.server_state.connections)
    connection_limits.connection_limits.cache_clear()


def test_connections_above_the_limit_get_503(two_connections, port):
    with connect(port) as one, connect(port):
        one.sendall(head("content-length: 2") + b"ok")
        receive_until(one, b"ok")
        with connect(port) as third:
            received = receive_all(third)
        assert received.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b'"type":"overloaded_error"' in received
        one.sendall(head("content-length: 4") + b"more")
        assert receive_until(one, b"more").startswith(b"HTTP/1.1 200 OK\r\n")

"""Requests and responses of the HTTP protocol: what is accepted, rejected and sent."""

import logging
import socket

import pytest

from proxy.server.http_protocol import MAX_HEAD_BYTES, MAX_HEADERS
from proxy.server.websocket_protocol import LiveFeedConnection
from tests.proxy.config.server_fixtures import DEADLINE_S, post, receive_until, served

from .echo import head, send_raw


def test_a_response_of_unknown_length_is_chunked(port):
    with post(port, "/chunks", b"two") as client:
        received = receive_until(client, b"0\r\n\r\n")

    assert received.endswith(b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


def test_a_response_of_unknown_length_closes_an_http_1_0_connection(port):
    received = send_raw(port, head("content-length: 3", path="/chunks", version="1.0") + b"two")

    assert b"\r\nconnection: close\r\n" in received
    assert received.endswith(b"\r\n\r\nonetwo")


def test_a_head_request_gets_the_headers_with_the_length(port):
    with post(port, "/", b"four", method="HEAD") as client:
        received = receive_until(client, b"\r\n\r\n")

    assert received.endswith(b"content-length: 4\r\n\r\n")


@pytest.mark.parametrize(
    "pieces", [[b"2\r\n{}\r\n0\r\n\r\n"], [b"1\r\n{\r\n", b"1\r\n}\r\n0\r\n\r\n"]]
)
def test_a_client_that_expects_100_continue_gets_it(port, pieces):
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.sendall(head("expect: 100-Continue", "transfer-encoding: chunked"))
        assert receive_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for piece in pieces:
            client.sendall(piece)
        assert receive_until(client, b"{}").startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("path", ["crash", "nothing", "split", "bare", "misnamed", "backwards"])
def test_an_invalid_response_becomes_a_500(port, caplog, path):
    with caplog.at_level(logging.ERROR, "uvicorn.error"):
        received = send_raw(port, head("content-length: 0", path=f"/{path}"))

    assert received.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert received.endswith(b"\r\nconnection: close\r\n\r\nInternal Server Error")
    assert b"stolen" not in received
    assert len(caplog.records) == 1


@pytest.mark.parametrize("path", ["late", "longer", "shorter"])
def test_a_response_that_fails_in_the_middle_closes_its_connection(port, path):
    received = send_raw(port, head("content-length: 0", path=f"/{path}"))

    assert b"four" not in received
    assert b"0\r\n\r\n" not in received
    assert received.endswith(b"begun\r\n") == (path == "late")


def test_nothing_is_sent_after_a_complete_response(port):
    assert send_raw(port, head("content-length: 0", path="/twice")).endswith(b"\r\n\r\nonce")


def test_a_slow_reader_gets_the_whole_response(port, echo):
    with post(port, "/flood", b"x" * 65_536) as client:
        assert echo.may_answer.wait(DEADLINE_S)
        received = receive_until(client, b"\r\n0\r\n\r\n")

    assert received.endswith(b"7\r\nthe end\r\n0\r\n\r\n")


def test_a_write_after_the_client_disconnected_is_dropped(port, echo):
    post(port, "/left", b"").close()

    assert echo.may_answer.wait(DEADLINE_S)


def test_a_response_that_closes_its_connection_has_one_connection_header(port):
    received = send_raw(port, head("content-length: 0", path="/closing"))

    assert received.lower().count(b"connection: close\r\n") == 1


def test_a_trailer_does_not_become_a_header(port, echo):
    trailers = b"1\r\nx\r\n0\r\nx-api-key: other\r\nx-extra: more\r\n\r\n"
    request = head("transfer-encoding: chunked", "x-api-key: mine", "connection: close") + trailers

    assert send_raw(port, request).startswith(b"HTTP/1.1 200 OK\r\n")

    headers = dict(echo.requests[0]["headers"])
    assert headers[b"x-api-key"] == b"mine"
    assert b"x-extra" not in headers


@pytest.mark.parametrize(
    "trailers",
    [b"x-t: y\r\n" * (MAX_HEADERS + 1) + b"\r\n", b"x-t: " + b"y" * 2**20],
    ids=["many", "one without end"],
)
def test_trailers_above_the_limit_are_rejected(port, trailers):
    received = send_raw(port, head("transfer-encoding: chunked") + b"1\r\nx\r\n0\r\n" + trailers)

    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("byte", [*(n for n in range(32) if n != 9), 127])
def test_a_control_byte_in_a_header_value_is_rejected(port, echo, byte):
    request = head("content-length: 0", "x-extra: a%b").replace(b"%", bytes([byte]))

    assert send_raw(port, request).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert echo.requests == []


def test_a_header_name_with_an_underscore_is_dropped(port, echo):
    send_raw(port, head("content-length: 0", "x_api_key: other", "connection: close"))

    assert [name for name, _ in echo.requests[0]["headers"]] == [
        b"host", b"content-length", b"connection",
    ]  # fmt: skip


LARGE = MAX_HEAD_BYTES - 200


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([f"x-{n}: y" for n in range(MAX_HEADERS - 3)], 200),
        ([f"x-{n}: y" for n in range(MAX_HEADERS - 2)], 431),
        ([f"x: {'y' * LARGE}"], 200),
        ([f"x: {'y' * (LARGE + 400)}"], 431),
    ],
    ids=["100 headers", "101 headers", "64 KiB", "more"],
)
@pytest.mark.parametrize("pieces", [1, 40], ids=["at once", "in pieces"])
def test_a_request_head_above_the_limits_is_rejected(port, lines, status, pieces):
    request = head("content-length: 0", "connection: close", *lines)
    step = -(-len(request) // pieces)
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(request), step):
            client.sendall(request[start : start + step])
        received = client.recv(65_536)

    assert received.startswith(b"HTTP/1.1 %d " % status)


UPGRADE = (
    "upgrade: {}", "sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
)  # fmt: skip


@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, upgrade"])
def test_a_websocket_is_handed_to_uvicorn(echo, connection):
    upgrade = [line.format("WebSocket") for line in UPGRADE]
    request = head(f"connection: {connection}", *upgrade, path="/live").replace(b"POST", b"GET", 1)
    with (
        served(echo, ws=LiveFeedConnection) as (port, _),
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client,
    ):
        client.sendall(request)
        received = receive_until(client, b"\x88\x02\x03\xe8")  # a frame that closes the connection

    assert received.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert received.partition(b"\r\n\r\n")[2].startswith(b"\x81\x05/live")


@pytest.mark.parametrize(
    ("connection", "upgrade"), [("upgrade", "h2c"), ("keep-alive", "websocket")]
)
def test_an_upgrade_to_another_protocol_is_ignored(port, connection, upgrade):
    lines = [line.format(upgrade) for line in UPGRADE]
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.sendall(head(f"connection: {connection}", "content-length: 0", *lines))
        assert receive_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_half_closed_connection_gets_both_pipelined_responses(port, echo):
    one, two = (head("content-length: 3", path="/waiting") + body for body in (b"one", b"two"))
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.sendall(one + two)
        client.shutdown(socket.SHUT_WR)
        # The event loop reads what arrived first, so it has read the end when this is answered.
        with post(port, "/", b"later") as other:
            assert receive_until(other, b"later")
        echo.may_answer.set()
        received = b""
        while piece := client.recv(65_536):
            received += piece

    assert received.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert received.endswith(b"two")


def test_an_idle_connection_is_closed_and_a_used_one_is_not(echo):
    with (
        served(echo, timeout_keep_alive=2) as (port, _),
        post(port, "/", b"ok") as client,
    ):
        assert receive_until(client, b"ok")
        client.sendall(head("content-length: 2") + b"on")  # before the keep-alive timeout
        assert receive_until(client, b"on").startswith(b"HTTP/1.1 200 OK\r\n")
        assert client.recv(1) == b""

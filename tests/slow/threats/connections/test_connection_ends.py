"""The ends of requests and connections with upgrades, invalid chunks and unread bodies."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import WaitForGate
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.slow.threats import hostile_clients, raw_http
from tests.slow.threats.conftest import ROUTES, RunningGateway

HIDDEN_REQUEST = b"GET /admin/login/ HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST_REQUEST = hostile_clients.head("/healthz", "connection: close", method="GET")
"""After its response the gateway closes the connection."""
MAX_BODY = 2**20
ENVIRONMENT = {"BRIDGE_HEAD_TIMEOUT_S": "2", "BRIDGE_MAX_BODY_BYTES": str(MAX_BODY)}


@pytest.fixture(scope="module")
def short_timeouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with a header timeout of two seconds and a body limit of 1 MiB."""
    with ScriptedUpstream() as upstream:
        upstream.on("chat-x", upstream_scripts.chat())
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        with Gateway(tmp_path_factory.mktemp("brief"), config, ENVIRONMENT) as process:
            yield RunningGateway(process, upstream)


@pytest.fixture
def waiting_upstream(short_timeouts: RunningGateway) -> Iterator[threading.Event]:
    """The upstream of ``chat-waiting`` waits for this gate."""
    gate = threading.Event()
    short_timeouts.upstream.on("chat-waiting", [WaitForGate(gate), *upstream_scripts.chat()])
    yield gate
    gate.set()


def connect(gateway: Gateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=60)


def send_to_end(gateway: Gateway, raw: bytes) -> raw_http.RawResponse:
    """Send bytes and read until the gateway closes the connection."""
    return raw_http.send_raw(gateway.port, raw, silence_s=60)


def rest_of(client: socket.socket) -> bytes:
    """Read until the gateway closes the connection."""
    return b"".join(iter(lambda: client.recv(65_536), b""))


# Upgrades to unsupported protocols (RFC 9110, 7.8)


def with_h2c(key: str, body: bytes) -> bytes:
    return raw_http.post(
        key, body, f"content-length: {len(body)}", "connection: upgrade, http2-settings",
        "upgrade: h2c", "http2-settings: AAMAAABk",
    )  # fmt: skip


def test_upgrade_to_h2c_is_ignored(short_timeouts):
    gateway = short_timeouts.process
    request = with_h2c(gateway.key, raw_http.messages_body())

    answer = send_to_end(gateway, request + request + LAST_REQUEST)

    assert answer.statuses == [200, 200, 200]
    assert answer.raw.count(b'"type":"message"') == 2


def test_body_of_an_upgrade_is_not_a_second_request(short_timeouts):
    gateway = short_timeouts.process

    answer = send_to_end(gateway, with_h2c(gateway.key, HIDDEN_REQUEST) + LAST_REQUEST)

    assert answer.statuses == [400, 200]
    assert b"csrf" not in answer.raw


@pytest.mark.parametrize("line", ["content-length: 2", "transfer-encoding: chunked"])
def test_websocket_upgrade_with_a_body_is_a_normal_request(short_timeouts, line):
    body = b"2\r\n{}\r\n0\r\n\r\n" if "chunked" in line else b"{}"

    answer = send_to_end(
        short_timeouts.process, hostile_clients.upgrade("/ws/live/", line) + body + LAST_REQUEST
    )

    assert answer.statuses == [404, 200]


def test_invalid_websocket_handshake_gets_400(short_timeouts):
    too_long = hostile_clients.upgrade("/ws/live/", f"x-long: {'y' * 9_000}")

    answer = send_to_end(short_timeouts.process, too_long)

    assert answer.statuses == [400]
    assert answer.closed


def test_pipelined_websocket_upgrade_does_not_interrupt_the_response(short_timeouts):
    gateway = short_timeouts.process
    request = raw_http.post(
        gateway.key, raw_http.messages_body(), f"content-length: {len(raw_http.messages_body())}"
    )

    answer = send_to_end(gateway, request + hostile_clients.upgrade("/ws/live/"))

    assert answer.statuses == [200]
    assert answer.raw.endswith(b"}")
    assert answer.closed


# Invalid or unread bodies


@pytest.mark.parametrize(
    "chunks", [b"no\r\n", b"5\r\nhello--", b"1\r\n{\r\n-1\r\n", b"fffffffffffffffff\r\n"]
)
@pytest.mark.parametrize("target", ["/v1/messages", "/admin/login/"])
def test_invalid_chunk_gets_400(short_timeouts, target, chunks):
    gateway = short_timeouts.process
    request = raw_http.post(gateway.key, b"", "transfer-encoding: chunked", target=target)
    with connect(gateway) as client:
        client.sendall(request)
        client.sendall(chunks + HIDDEN_REQUEST)
        answer = raw_http.RawResponse(rest_of(client), True, 0.0)

    assert answer.statuses == [400]
    assert b"connection: close\r\n" in answer.raw


def test_rejection_before_100_continue_closes_the_connection(short_timeouts):
    request = raw_http.post("sk-br-wrong", b"", "content-length: 2", "expect: 100-continue")
    with connect(short_timeouts.process) as client:
        client.sendall(request)
        answer = raw_http.RawResponse(rest_of(client), True, 0.0)

    assert answer.statuses == [401]
    assert b"connection: close\r\n" in answer.raw


def test_rejected_request_with_a_complete_body_leaves_the_connection_open(short_timeouts):
    gateway = short_timeouts.process
    body = b"x" * (MAX_BODY // 2)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port)) as connection:
        connection.request("POST", "/v1/messages", body, {"x-api-key": "sk-br-wrong"})
        with connection.getresponse() as answer:
            assert answer.status == 401
            answer.read()
        sock = connection.sock
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        assert connection.sock is sock


def test_client_with_a_too_large_body_receives_413(short_timeouts):
    gateway = short_timeouts.process
    body = b"x" * (MAX_BODY + MAX_BODY // 2)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port)) as connection:
        connection.request("POST", "/v1/messages", body, {"x-api-key": gateway.key})
        with connection.getresponse() as answer:
            assert answer.status == 413


@pytest.mark.parametrize("key", ["sk-br-wrong", None], ids=["401", "413"])
def test_endless_body_of_a_rejected_request_is_cut(short_timeouts, key):
    gateway = short_timeouts.process
    request = raw_http.post(key or gateway.key, b"", "transfer-encoding: chunked")
    chunk = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
    sent = 0
    with connect(gateway) as client:
        client.sendall(request)
        with contextlib.suppress(ConnectionError):
            while sent < 512 * MAX_BODY:
                client.sendall(chunk)
                sent += len(chunk)

    assert sent < 64 * MAX_BODY  # the buffers of both kernels and one body


# Bytes that arrive during a response


def test_invalid_bytes_during_a_response_do_not_change_it(short_timeouts, waiting_upstream):
    gateway, body = short_timeouts.process, raw_http.messages_body(model="chat-waiting")
    with connect(gateway) as client:
        client.sendall(
            raw_http.post(gateway.key, body, f"content-length: {len(body)}") + b"\x00junk"
        )
        waiting_upstream.set()
        answer = raw_http.RawResponse(rest_of(client), True, 0.0)

    assert answer.statuses == [200]
    assert answer.raw.endswith(b"}")


def test_header_timeout_of_the_next_request_starts_after_the_response(
    short_timeouts, waiting_upstream
):
    gateway, body = short_timeouts.process, raw_http.messages_body(model="chat-waiting")
    with connect(gateway) as client, connect(gateway) as clock:
        client.sendall(raw_http.post(gateway.key, body, f"content-length: {len(body)}") + b"GET /h")
        clock.sendall(b"G")  # its header timeout starts after the other connection's would
        assert rest_of(clock).startswith(b"HTTP/1.1 408 ")
        waiting_upstream.set()
        answer = raw_http.RawResponse(rest_of(client), True, 0.0)

    assert answer.statuses == [200, 408]

"""Where a request ends and a connection ends, when the client makes it hard to see."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.steps import Hold
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts

from . import hostile, wire
from .conftest import ROUTES, Running

HIDDEN = b"GET /admin/login/ HTTP/1.1\r\nhost: localhost\r\n\r\n"
MOST = 2**20
ENVIRONMENT = {"BRIDGE_HEAD_TIMEOUT_S": "1", "BRIDGE_MAX_BODY_BYTES": str(MOST)}


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway that waits one second for a head and takes bodies of 1 MiB."""
    with ScriptedUpstream() as upstream:
        upstream.on("chat-x", scripts.chat())
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        with Gateway(tmp_path_factory.mktemp("brief"), config, ENVIRONMENT) as process:
            yield Running(process, upstream)


@pytest.fixture
def held_upstream(brief: Running) -> Iterator[threading.Event]:
    """The upstream of ``chat-held`` waits for this gate."""
    gate = threading.Event()
    brief.upstream.on("chat-held", [Hold(gate), *scripts.chat()])
    yield gate
    gate.set()


def connect(gateway: Gateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=60)


def rest_of(client: socket.socket) -> bytes:
    """All that comes until the gateway closes."""
    return b"".join(iter(lambda: client.recv(65_536), b""))


# Upgrades to what the gateway does not speak (RFC 9110, 7.8)


def with_h2c(key: str, body: bytes) -> bytes:
    return wire.post(
        key, body, f"content-length: {len(body)}", "connection: upgrade, http2-settings",
        "upgrade: h2c", "http2-settings: AAMAAABk",
    )  # fmt: skip


def test_an_upgrade_to_h2c_is_ignored_and_the_request_is_answered(brief):
    gateway = brief.process
    asked = with_h2c(gateway.key, wire.question())

    answer = wire.say(gateway.port, asked + asked + hostile.PAGE)

    assert answer.statuses == [200, 200, 200]
    assert answer.raw.count(b'"type":"message"') == 2


def test_the_body_of_an_upgrade_is_no_second_request(brief):
    gateway = brief.process

    answer = wire.say(gateway.port, with_h2c(gateway.key, HIDDEN))

    assert answer.statuses == [400]
    assert b"csrf" not in answer.raw


@pytest.mark.parametrize("line", ["content-length: 2", "transfer-encoding: chunked"])
def test_a_websocket_with_a_body_is_a_request_like_others(brief, line):
    body = b"2\r\n{}\r\n0\r\n\r\n" if "chunked" in line else b"{}"

    answer = wire.say(brief.process.port, hostile.upgrade("/ws/live/", line) + body + hostile.PAGE)

    assert answer.statuses == [404, 200]


def test_a_wrong_handshake_is_answered(brief):
    long = hostile.upgrade("/ws/live/", f"x-long: {'y' * 9_000}")

    answer = wire.say(brief.process.port, long)

    assert answer.statuses == [400]
    assert answer.closed


def test_a_websocket_behind_a_request_is_not_opened_within_its_answer(brief):
    gateway = brief.process
    asked = wire.post(gateway.key, wire.question(), f"content-length: {len(wire.question())}")

    answer = wire.say(gateway.port, asked + hostile.upgrade("/ws/live/"))

    assert answer.statuses == [200]
    assert answer.raw.endswith(b"}")
    assert answer.closed


# Bodies that are wrong, or that nothing reads


@pytest.mark.parametrize(
    "chunks", [b"no\r\n", b"5\r\nhello--", b"1\r\n{\r\n-1\r\n", b"fffffffffffffffff\r\n"]
)
@pytest.mark.parametrize("target", ["/v1/messages", "/admin/login/"])
def test_a_bad_chunk_is_answered_400(brief, target, chunks):
    gateway = brief.process
    asked = wire.post(gateway.key, b"", "transfer-encoding: chunked", target=target)
    with connect(gateway) as client:
        client.sendall(asked)
        client.sendall(chunks + HIDDEN)
        answer = wire.Heard(rest_of(client), True, 0.0)

    assert answer.statuses == [400]
    assert b"connection: close\r\n" in answer.raw


def test_an_answer_before_the_body_that_was_to_be_continued_ends_the_connection(brief):
    asked = wire.post("sk-br-wrong", b"", "content-length: 2", "expect: 100-continue")
    with connect(brief.process) as client:
        client.sendall(asked)
        answer = wire.Heard(rest_of(client), True, 0.0)

    assert answer.statuses == [401]
    assert b"connection: close\r\n" in answer.raw


def test_a_refused_request_whose_body_comes_leaves_the_connection_open(brief):
    gateway = brief.process
    body = b"x" * (MOST // 2)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port)) as ours:
        ours.request("POST", "/v1/messages", body, {"x-api-key": "sk-br-wrong"})
        with ours.getresponse() as answer:
            assert answer.status == 401
            answer.read()
        sock = ours.sock
        ours.request("GET", "/healthz")
        assert ours.getresponse().read() == b'{"status":"ok"}'
        assert ours.sock is sock


def test_a_client_that_sends_too_much_still_reads_the_413(brief):
    gateway = brief.process
    body = b"x" * (MOST + MOST // 2)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port)) as ours:
        ours.request("POST", "/v1/messages", body, {"x-api-key": gateway.key})
        with ours.getresponse() as answer:
            assert answer.status == 413


@pytest.mark.parametrize("key", ["sk-br-wrong", None], ids=["401", "413"])
def test_a_refused_body_without_end_is_cut(brief, key):
    gateway = brief.process
    asked = wire.post(key or gateway.key, b"", "transfer-encoding: chunked")
    piece = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
    sent = 0
    with connect(gateway) as client:
        client.sendall(asked)
        with contextlib.suppress(ConnectionError):
            while sent < 512 * MOST:
                client.sendall(piece)
                sent += len(piece)

    assert sent < 64 * MOST  # what both kernels keep, and a body


# What comes while an answer is on its way


def test_junk_within_an_answer_does_not_cut_or_join_it(brief, held_upstream):
    gateway, body = brief.process, wire.question(model="chat-held")
    with connect(gateway) as client:
        client.sendall(wire.post(gateway.key, body, f"content-length: {len(body)}") + b"\x00junk")
        held_upstream.set()
        answer = wire.Heard(rest_of(client), True, 0.0)

    assert answer.statuses == [200]
    assert answer.raw.endswith(b"}")


def test_the_next_head_has_its_time_when_the_answer_is_complete(brief, held_upstream):
    gateway, body = brief.process, wire.question(model="chat-held")
    with connect(gateway) as client, connect(gateway) as clock:
        client.sendall(wire.post(gateway.key, body, f"content-length: {len(body)}") + b"GET /h")
        clock.sendall(b"G")  # its own second for a head begins after the other's would
        assert rest_of(clock).startswith(b"HTTP/1.1 408 ")
        held_upstream.set()
        answer = wire.Heard(rest_of(client), True, 0.0)

    assert answer.statuses == [200, 408]

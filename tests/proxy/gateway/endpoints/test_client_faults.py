"""Invalid requests of clients, and the error responses."""

import gzip
import json
import re
import socket
import threading
import time
import zlib
from datetime import UTC, datetime, timedelta

import pytest

from proxy.gateway.endpoints.http_consumer import MIB
from proxy.gateway.http.body_memory import body_memory
from proxy.json_value_limit import MAX_VALUES
from proxy.models import ApiKey, Exchange, Team
from tests.fakes.upstreams.script_steps import WaitForGate
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, newest_row, row
from tests.proxy.gateway.http_client import GatewayClient, Reply, read_until
from tests.waiting import until


def assert_refused(reply: Reply, status: int, error_type: str, *parts: str) -> None:
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-bridge-request-id"] == reply.id
    assert reply.json["type"] == "error"
    assert reply.json["request_id"] == reply.id
    assert reply.json["error"]["type"] == error_type
    for part in parts:
        assert part in reply.json["error"]["message"]


@for_each(
    ("raw", "part"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"nonsense", "JSON"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b'{"model": "\xff"}', "UTF-8"),
        (b'{"model": "a", "model": "b"}', "'model'"),
        (b'{"model": "a", "x": {"k": 1, "k": 2}}', "'k'"),
        (b'{"a": "\\u0022", "b": 1, "b": 2}', "'b'"),
        (b'{"max_tokens": NaN}', "JSON"),
        (b'{"max_tokens": Infinity}', "JSON"),
        (b'{"max_tokens": 1e999}', "JSON"),
        (b'{"max_tokens": ' + b"9" * 5_000 + b"}", "JSON"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "100 levels"),
        (b'{"a": ' + b"[" * 250_000 + b"]" * 250_000 + b"}", "100 levels"),
        (b'{"a": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "100 levels"),
    ],
)
def test_a_body_that_is_not_valid_json_is_refused(gateway: GatewayClient, raw: bytes, part: str):
    reply = gateway.post(raw)

    assert_refused(reply, 400, "invalid_request_error", part)
    row(reply.id, outcome="refused", status=400)


@for_each(
    ("path", "value"),
    [
        *(("/v1/messages", value) for value in (b"{}", b"[]", b"0", b'{"a":{}}', b'"\\",{["')),
        ("/v1/messages/count_tokens", b"{}"),
    ],
)
def test_a_body_with_too_many_values_is_refused_before_it_is_decoded(
    gateway: GatewayClient, path: str, value: bytes
):
    many = b",".join([value] * (MAX_VALUES + 2))

    assert_refused(
        gateway.post(b'{"model": "chat-x", "x": [' + many + b"]}", path),
        413, "request_too_large", str(MAX_VALUES),
    )  # fmt: skip


def test_brackets_in_strings_do_not_count_as_values(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-quoted-json", upstream_scripts.chat())
    quoted = json.dumps([{"a": [1, 2, '\\"']}] * 100_000)
    messages = [{"role": "user", "content": quoted}]

    assert gateway.post(message("chat-quoted-json", messages=messages)).status == 200


def test_bodies_beyond_the_total_memory_limit_are_refused_as_overload(
    gateway: GatewayClient, scripted: ScriptedUpstream, settings
):
    until(lambda: body_memory.reserved == 0)  # the requests of earlier tests have ended
    settings.MAX_BODIES_BYTES = 300_000
    gate = threading.Event()
    scripted.on("chat-one-large-body", [WaitForGate(gate), *upstream_scripts.chat()])
    messages = [{"role": "user", "content": "x" * 200_000}]

    with gateway.open(message("chat-one-large-body", messages=messages)) as first:
        until(lambda: scripted.requests_for("chat-one-large-body"))
        assert_refused(
            gateway.post(message("chat-another", messages=messages)),
            529,
            "overloaded_error",
            "more",
        )
        gate.set()
        assert read_until(first, b"}").startswith(b"HTTP/1.1 200")

    until(lambda: body_memory.reserved == 0)
    scripted.on("chat-after-large-bodies", upstream_scripts.chat())
    assert gateway.post(message("chat-after-large-bodies", messages=messages)).status == 200


def test_a_nesting_depth_below_the_limit_is_accepted(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-deep", upstream_scripts.chat())
    schema: dict = {}
    for _ in range(90):
        schema = {"properties": schema}
    tool = {"name": "t", "input_schema": {"type": "object", **schema}}

    assert gateway.post(message("chat-deep", tools=[tool])).status == 200


def test_a_missing_field_is_named(gateway: GatewayClient):
    reply = gateway.post({"model": "chat-x", "messages": [{"role": "user", "content": "hi"}]})

    assert_refused(reply, 400, "invalid_request_error", "max_tokens")


def test_a_body_beyond_the_size_limit_is_refused_by_its_length(gateway: GatewayClient, settings):
    settings.MAX_BODY_BYTES = 10_000

    reply = gateway.post(b"x" * 10_001)

    assert_refused(reply, 413, "request_too_large")
    row(reply.id, outcome="refused", status=413)


def test_an_endless_chunked_body_is_refused_at_the_size_limit(gateway: GatewayClient, settings):
    settings.MAX_BODY_BYTES = 10_000
    head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {gateway.key}\r\n"

    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        for _ in range(11):
            connection.sendall(b"3e8\r\n" + b"x" * 1_000 + b"\r\n")
        response = read_until(connection, b"request_too_large")

    assert response.startswith(b"HTTP/1.1 413")


def test_a_stalled_body_is_refused_at_the_timeout(gateway: GatewayClient, settings):
    settings.BODY_TIMEOUT_S = 0.2
    head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {gateway.key}\r\n"

    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())
        response = read_until(connection, b"in time")

    assert response.startswith(b"HTTP/1.1 408")
    assert b"invalid_request_error" in response


def test_a_gzip_body_has_the_same_size_limit(gateway: GatewayClient, settings):
    settings.MAX_BODY_BYTES = 100_000

    reply = gateway.post(b"0" * 200_000, packed=True)

    assert_refused(reply, 413, "request_too_large")


@for_each(
    "raw",
    [
        b"no gzip",
        gzip.compress(b"{}", mtime=0)[:-9],
        gzip.compress(b"{}") + b"\0",
        gzip.compress(b"{}") + b"x" * 2_000_000,
        gzip.compress(b"{}") * 2,
        gzip.compress(b"{}") + gzip.compress(b" " * 10_000_000),
    ],
    ids=[
        "none",
        "cut",
        "a byte after the end",
        "junk after the end",
        "two members",
        "a bomb after the end",
    ],
)
def test_an_invalid_gzip_body_is_refused(gateway: GatewayClient, raw: bytes):
    assert_refused(gateway.post(raw, content_encoding="gzip"), 400, "invalid_request_error", "gzip")


def test_a_gzip_body_beyond_the_inflation_limit_is_refused(gateway: GatewayClient):
    reply = gateway.post(b" " * (MIB + 1), packed=True)

    assert_refused(reply, 413, "request_too_large", "more than 100 times")


def test_a_gzip_body_within_the_inflation_limit_is_accepted(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-packed-well", upstream_scripts.chat())
    text = "\n".join(f"{n}: {n * n % 9973} lines of a long log, much alike" for n in range(40_000))

    request = message("chat-packed-well", messages=[{"role": "user", "content": text}])

    assert gateway.post(request, packed=True).status == 200


def test_an_unknown_content_encoding_is_refused(gateway: GatewayClient):
    reply = gateway.post(zlib.compress(b"{}"), content_encoding="deflate")

    assert_refused(reply, 415, "invalid_request_error", "'deflate'")


@for_each("kind", ["application/x-www-form-urlencoded", "multipart/form-data; b=1"])
def test_a_form_content_type_is_refused(gateway: GatewayClient, kind: str):
    assert_refused(gateway.post(b"a=b", content_type=kind), 415, "invalid_request_error")


def test_a_missing_content_type_is_accepted(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-untyped-body", upstream_scripts.chat())

    assert gateway.post(message("chat-untyped-body"), content_type="").status == 200


@for_each("key", ["", "sk-br-wrong", "x" * 600, "' OR 1=1 --", "s\u00e9cret"])
def test_a_bad_key_is_refused_without_a_row(gateway: GatewayClient, key: str):
    reply = gateway.post(message("chat-x"), x_api_key=key)

    assert_refused(reply, 401, "authentication_error")
    row(gateway.post(b"{").id)  # the row of a later request is written
    assert not Exchange.objects.filter(pk=reply.id).exists()


def test_a_bad_key_is_refused_before_the_body_is_sent(gateway: GatewayClient):
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: wrong\r\n"
            b"content-length: 100000\r\nexpect: 100-continue\r\n\r\n"
        )
        response = read_until(connection, b"authentication_error")

    assert response.startswith(b"HTTP/1.1 401")


def test_either_header_may_carry_the_key(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-bearer", upstream_scripts.chat())
    bearer = f"Bearer {gateway.key}"

    assert gateway.post(message("chat-bearer"), x_api_key="", authorization=bearer).status == 200
    assert gateway.post(message("chat-bearer"), authorization=bearer).status == 200
    both = gateway.post(message("chat-bearer"), authorization="Bearer sk-br-other")
    assert_refused(both, 400, "invalid_request_error", "different keys")


@pytest.fixture
def changing_key(gateway: GatewayClient, reload):
    """A function that changes a key and returns its secret."""
    team = Team.objects.get(name="platform")
    key, secret = ApiKey.issue(team, f"changing-{time.monotonic_ns()}", scopes=["messages"])
    reload()

    def change(**fields) -> str:
        for name, value in fields.items():
            setattr(key, name, value)
        key.save(update_fields=[*fields])
        reload()
        return secret

    return change


def test_a_revoked_key_is_refused_at_once(
    gateway: GatewayClient, scripted: ScriptedUpstream, changing_key
):
    scripted.on("chat-m", upstream_scripts.chat())
    assert gateway.post(message("chat-m"), x_api_key=changing_key()).status == 200

    secret = changing_key(revoked=datetime.now(UTC))

    assert_refused(gateway.post(message("chat-m"), x_api_key=secret), 401, "authentication_error")


def test_a_new_key_is_accepted_without_a_restart(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-m", upstream_scripts.chat())
    key, secret = ApiKey.issue(Team.objects.get(name="platform"), "late", scopes=["messages"])

    deadline = time.monotonic() + 60
    while gateway.post(message("chat-m"), x_api_key=secret).status != 200:
        assert time.monotonic() < deadline

    key.delete()


def test_the_restrictions_of_a_key_are_enforced(gateway: GatewayClient, changing_key):
    expired = changing_key(expires=datetime.now(UTC) - timedelta(seconds=1))
    assert_refused(gateway.post(message("chat-m"), x_api_key=expired), 401, "authentication_error")

    foreign = changing_key(expires=None, ip_allow=["10.0.0.0/8"])
    assert_refused(gateway.post(message("chat-m"), x_api_key=foreign), 403, "permission_error")

    scopeless = changing_key(ip_allow=[], scopes=["reports"])
    assert_refused(gateway.post(message("chat-m"), x_api_key=scopeless), 403, "permission_error")

    narrow = changing_key(scopes=["messages"], models_allowed=["claude-*"])
    reply = gateway.post(message("chat-m"), x_api_key=narrow)
    assert_refused(reply, 403, "permission_error", "'chat-m'")
    row(reply.id, outcome="refused", status=403)


def test_the_error_for_an_unknown_model_lists_known_models(gateway: GatewayClient):
    reply = gateway.post(message("gpt-9"))

    assert_refused(reply, 404, "not_found_error", "'gpt-9'", "known here: '")
    known = reply.json["error"]["message"].partition("known here: ")[2]
    assert sorted(re.findall("'([^']+)'", known)) == ["anthropic-*", "chat-*", "responses-*"]
    row(reply.id, outcome="refused", status=404, model_requested="gpt-9")


@for_each(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages", 405),
        ("OPTIONS", "/v1/messages", 405),
        ("POST", "/v1/messages/", 404),
        ("POST", "/v1/v1/messages", 404),
        ("GET", "/v1", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/nowhere", 404),
    ],
)
def test_nothing_under_v1_is_html(gateway: GatewayClient, method: str, path: str, status: int):
    reply = gateway.request(method, path)

    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert_refused(reply, status, kind)
    assert "access-control-allow-origin" not in reply.headers


def test_a_session_cookie_does_not_authenticate(gateway: GatewayClient):
    reply = gateway.post(message("chat-x"), x_api_key="", cookie="sessionid=abc")

    assert_refused(reply, 401, "authentication_error")


def test_a_client_that_does_not_read_is_disconnected(
    gateway: GatewayClient, scripted: ScriptedUpstream, settings
):
    settings.WRITE_TIMEOUT_S = 0.5
    events = upstream_scripts.chat_events(["w" * 10_000] * 3_000)
    scripted.on("chat-flood", upstream_scripts.pieces(events))

    with gateway.open(message("chat-flood", stream=True)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        scripted.wait_until(
            lambda _: (
                [each.ending for each in scripted.requests_for("chat-flood")] == ["client_gone"]
            )
        )

    exchange = newest_row(model_requested="chat-flood")
    assert (exchange.outcome, exchange.status) == ("client_gone", 499)


def test_an_unexpected_exception_reveals_only_the_request_id(gateway: GatewayClient, monkeypatch):
    def crash(*_: object) -> None:
        raise RuntimeError("secret detail at /srv/app/file.py")

    # A bug of the gateway is planted: no request can cause one.
    monkeypatch.setattr("proxy.gateway.endpoints.messages.choose_route", crash)

    reply = gateway.post(message("chat-x"))

    assert_refused(reply, 500, "api_error", "internal error")
    assert b"secret detail" not in reply.body
    assert json.loads(reply.body)["error"]["message"] == "internal error"
    row(reply.id, outcome="gateway_error", status=500)

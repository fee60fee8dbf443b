"""The way to an upstream: forward proxy, private CA, client certificate, headers, and their faults.

The upstream speaks TLS with a certificate of a private CA, and asks for a client certificate.
"""

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.fakes.servers.gateway import TEAM, Gateway
from tests.fakes.servers.tinyproxy import (
    ADDRESS,
    CREDENTIALS,
    Tinyproxy,
    TlsFront,
    running_tinyproxy,
)
from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.script_steps import Close, Script, Send, Sleep
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream

HEADER_SECRET = "secret-of-the-header-4711"
ANSWER = {
    "id": "chatcmpl-1",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": f"The header is {HEADER_SECRET}."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16},
}
LIES = {
    "garbage-for-tls": [
        Send(b"HTTP/1.1 200 OK\r\n\r\n"),
        Sleep(0.2),  # so that the gateway has started TLS
        Send(b"\x16\x03\x01garbage" * 9),
        Close(),
    ],
    "too-early": [Send(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")],
    "no-http": script_steps.not_http(),
    "endless-head": [Send(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000)],  # more than any limit
}
"""What a proxy answers to CONNECT, by the port that its request names."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write the PEM files; return their paths by name."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = trustme.CA(), trustme.CA()
    files = {
        "ca": authority.cert_pem,
        "other-ca": stranger.cert_pem,
        "server": authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem,
    }
    files["stranger"] = stranger.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    client = authority.issue_cert("gateway@example.com")
    files |= {"client": client.cert_chain_pems[0], "client-key": client.private_key_pem}
    for name, blob in files.items():
        blob.write_to_path(str(folder / name))
    return {name: str(folder / name) for name in files}


@pytest.fixture(scope="module")
def secure_upstream(certificates: dict[str, str]) -> Iterator[ScriptedUpstream]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates["ca"])
    context.load_cert_chain(certificates["server"])
    context.verify_mode = ssl.CERT_REQUIRED
    with ScriptedUpstream(tls=context) as running:
        running.choose(lambda _: script_steps.json_response(ANSWER))
        yield running


@pytest.fixture(scope="module")
def plain_upstream() -> Iterator[ScriptedUpstream]:
    """An upstream without TLS that can be reached only through the proxy."""
    with ScriptedUpstream(only_from=ADDRESS) as running:
        running.choose(lambda _: script_steps.json_response(ANSWER))
        yield running


@pytest.fixture(scope="module")
def tls_proxy(certificates: dict[str, str], tinyproxy: Tinyproxy) -> Iterator[TlsFront]:
    """tinyproxy behind TLS, with a certificate of the private CA."""
    with tls_front(certificates["server"], tinyproxy) as running:
        yield running


@pytest.fixture(scope="module")
def untrusted_proxy(certificates: dict[str, str], tinyproxy: Tinyproxy) -> Iterator[TlsFront]:
    with tls_front(certificates["stranger"], tinyproxy) as running:
        yield running


def tls_front(certificate: str, tinyproxy: Tinyproxy) -> TlsFront:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return TlsFront(context, tinyproxy.port)


@pytest.fixture(scope="module")
def lying_proxy() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        for lie, script in LIES.items():
            running.on(f"{lie}.test:443", script)
        running.choose(_echo_password)
        running.on("http://refused/v1/chat/completions", script_steps.html_response(407))
        yield running


def _echo_password(request: ReceivedRequest) -> Script | None:
    """Answer a request for the host ``echo`` with the proxy's own password."""
    if not request.path.startswith("http://echo/"):
        return None
    password = request.headers["proxy-authorization"]
    message = {"role": "assistant", "content": f"It is {password}."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return script_steps.json_response({**ANSWER, "choices": [choice]})


@pytest.fixture(scope="module")
def tinyproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tinyproxy]:
    with running_tinyproxy(tmp_path_factory.mktemp("tinyproxy")) as running:
        yield running


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def upstream_toml(name: str, base_url: str, **connection: str) -> str:
    """Return the tables of an upstream, and of a route to it with the same name."""
    settings = ", ".join(f"{field} = {value}" for field, value in connection.items())
    return f"""
[[upstreams]]
name = "{name}"
dialect = "chat"
base_url = "{base_url}"
connection = {{ {settings} }}
timeouts = {{ connect_s = 3 }}

[[routes]]
model = "{name}"
targets = [{{ upstream = "{name}", model = "m" }}]
"""


@pytest.fixture(scope="module")
def gateway(
    *,
    certificates: dict[str, str],
    secure_upstream: ScriptedUpstream,
    lying_proxy: ScriptedUpstream,
    tinyproxy: Tinyproxy,
    plain_upstream: ScriptedUpstream,
    tls_proxy: TlsFront,
    untrusted_proxy: TlsFront,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    secure = f"https://127.0.0.1:{secure_upstream.port}/v1"
    proxy = f'"{tinyproxy.url}"'
    trusted = {
        "ca_file": f'"{certificates["ca"]}"',
        "client_certificate": f'{{ cert = "{certificates["client"]}", '
        f'key = "{certificates["client-key"]}" }}',
    }
    way_out = {**trusted, "proxy": proxy, "proxy_auth": '{ env = "E2E_PROXY_AUTH" }'}
    headers = '{ x-team = "platform", x-secret = { env = "E2E_HEADER_SECRET" } }'
    upstreams: dict[str, tuple[str, dict[str, str]]] = {
        "all": (
            secure,
            {**way_out, "headers": headers, "forward_headers": '["x-project", "x-corp-*"]'},
        ),
        "direct": (secure, trusted),
        "wrong-ca": (secure, {**way_out, "ca_file": f'"{certificates["other-ca"]}"'}),
        "public-ca": (secure, {name: way_out[name] for name in ("proxy", "proxy_auth")}),
        "no-certificate": (secure, {**way_out, "client_certificate": ""}),
        "no-password": (secure, {**trusted, "proxy": proxy}),
        "proxy-down": (secure, {**trusted, "proxy": f'"http://127.0.0.1:{closed_port()}"'}),
        "upstream-down": (f"https://127.0.0.1:{closed_port()}", way_out),
    }
    auth = {"proxy_auth": way_out["proxy_auth"]}
    plain = f"http://127.0.0.1:{plain_upstream.port}/v1"
    over_tls = {**way_out, "proxy": f'"{tls_proxy.url}"'}
    upstreams |= {
        "plain": (plain, {"proxy": proxy, **auth}),
        "plain-direct": (plain, {}),
        "plain-no-password": (plain, {"proxy": proxy}),
        "plain-refused": ("http://refused/v1", {"proxy": f'"{lying_proxy.url}"', **auth}),
        "echo": ("http://echo/v1", {"proxy": f'"{lying_proxy.url}"', **auth}),
        "tls-proxy": (secure, over_tls),
        "plain-tls-proxy": (plain, {**over_tls, "client_certificate": ""}),
        "untrusted-proxy": (secure, {**way_out, "proxy": f'"{untrusted_proxy.url}"'}),
    }
    del upstreams["plain-tls-proxy"][1]["client_certificate"]
    del upstreams["no-certificate"][1]["client_certificate"]
    liar = {**trusted, "proxy": f'"{lying_proxy.url}"'}
    upstreams |= {lie: (f"https://{lie}.test/v1", liar) for lie in LIES}
    tables = [upstream_toml(name, url, **fields) for name, (url, fields) in upstreams.items()]
    environment = {"E2E_PROXY_AUTH": CREDENTIALS, "E2E_HEADER_SECRET": HEADER_SECRET}
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(folder, config="\n".join(tables) + TEAM, environment=environment) as running:
        yield running


def ask(gateway: Gateway, model: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    body = {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
    fields = {"content-type": "application/json", **headers}
    reply = gateway.request("POST", "/v1/messages", json.dumps(body).encode(), fields)
    return reply.status, reply.headers, json.loads(reply.body)


def test_a_request_goes_through_the_proxy_with_certificate_and_headers(
    gateway, secure_upstream, tinyproxy
):
    client_headers = {"x-project": "apollo", "x-corp-cost": "7", "x-other": "no"}
    for _ in range(2):
        status, _, body = ask(gateway, "all", **client_headers)

        assert (status, body["content"][0]["type"]) == (200, "text"), body
    received = secure_upstream.requests[-1].headers
    sent = {name: received.get(name) for name in ("x-team", "x-secret", *client_headers)}
    assert sent == {
        "x-team": "platform",
        "x-secret": HEADER_SECRET,
        "x-project": "apollo",
        "x-corp-cost": "7",
        "x-other": None,
    }
    assert received["user-agent"].startswith("messages-bridge/")
    assert not {"proxy-authorization", "x-api-key", "authorization"} & set(received)
    first, second = secure_upstream.requests[-2:]
    assert first.connection == second.connection, "the tunnel was not reused"
    assert f"CONNECT 127.0.0.1:{secure_upstream.port}" in tinyproxy.log


def test_an_http_request_is_forwarded_by_the_proxy(gateway, plain_upstream, tinyproxy):
    """Common proxies open tunnels only to port 443."""
    for _ in range(2):
        status, _, body = ask(gateway, "plain")

        assert (status, body["content"][0]["type"]) == (200, "text"), body
    received = plain_upstream.requests[-1]
    assert (received.path, received.model) == ("/v1/chat/completions", "m")
    assert received.headers["host"] == f"127.0.0.1:{plain_upstream.port}"
    assert not {"proxy-authorization", "authorization"} & set(received.headers)
    assert f"POST http://127.0.0.1:{plain_upstream.port}/v1/chat/completions" in tinyproxy.log
    assert f"CONNECT 127.0.0.1:{plain_upstream.port}" not in tinyproxy.log


def test_a_proxy_s_password_is_redacted_from_a_forwarded_response(gateway):
    _, _, body = ask(gateway, "echo")

    assert body["content"][0]["text"] == "It is Basic ***."


def test_the_proxy_is_the_only_way_to_the_upstream(gateway, plain_upstream):
    count = len(plain_upstream.requests)

    status, _, body = ask(gateway, "plain-direct")

    assert (status, body["error"]["message"]) == (502, LOST)
    assert len(plain_upstream.requests) == count


@pytest.mark.parametrize("model", ["tls-proxy", "plain-tls-proxy"])
def test_a_proxy_that_speaks_tls(gateway, secure_upstream, plain_upstream, model):
    upstream = plain_upstream if model == "plain-tls-proxy" else secure_upstream
    for _ in range(2):
        status, _, body = ask(gateway, model)

        assert (status, body["content"][0]["type"]) == (200, "text"), body
    first, second = upstream.requests[-2:]
    assert first.headers["user-agent"].startswith("messages-bridge/")
    assert upstream is plain_upstream or first.connection == second.connection


def test_a_header_s_secret_is_redacted_from_the_response(gateway):
    _, _, body = ask(gateway, "all")

    assert HEADER_SECRET not in json.dumps(body)
    assert "The header is ***" in body["content"][0]["text"]


def test_upstreams_with_the_same_address_share_no_connection(gateway, secure_upstream):
    ask(gateway, "all")
    ask(gateway, "direct")

    through_proxy, direct = secure_upstream.requests[-2:]
    assert through_proxy.connection != direct.connection
    assert "x-team" not in direct.headers


NO_TLS = "no trusted TLS connection to the upstream"
UNREACHABLE = "cannot reach the upstream"
UNTRUSTED = "no trusted TLS connection to the proxy before the upstream"
NO_PROXY = "cannot reach the proxy before the upstream"
REFUSED = "the proxy before the upstream refused the connection"
LOST = "the upstream closed the connection"


FAULTS = {
    "wrong-ca": (NO_TLS, "false"),
    "public-ca": (NO_TLS, "false"),
    "no-password": (REFUSED, "false"),
    "upstream-down": (UNREACHABLE, "true"),
    "proxy-down": (NO_PROXY, "true"),
    "no-http": (NO_PROXY, "true"),
    "too-early": (NO_PROXY, "true"),
    "endless-head": (NO_PROXY, "true"),
    "garbage-for-tls": (NO_TLS, "false"),
    "untrusted-proxy": (UNTRUSTED, "false"),
    "plain-no-password": (REFUSED, "false"),
    "plain-refused": (REFUSED, "false"),
}
"""The error message of each faulty way and whether clients may retry."""


@pytest.fixture(scope="module")
def faulty(gateway: Gateway, secure_upstream: ScriptedUpstream) -> dict[str, Any]:
    """Send a request on each faulty way; return responses, rows and what reached the upstream."""
    count = len(secure_upstream.requests)
    replies = {model: ask(gateway, model) for model in FAULTS}
    ids = {model: headers["request-id"] for model, (_, headers, _) in replies.items()}
    rows = gateway.closed_rows(*ids.values())
    return {
        "replies": replies,
        "rows": {model: rows[id_] for model, id_ in ids.items()},
        "received": len(secure_upstream.requests) - count,
    }


@pytest.mark.parametrize("model", FAULTS)
def test_a_fault_on_the_way_is_named_and_nothing_is_sent(faulty, model):
    message, retry = FAULTS[model]
    status, headers, body = faulty["replies"][model]

    assert (status, body["error"]["type"], body["error"]["message"]) == (502, "api_error", message)
    assert headers["x-should-retry"] == retry
    assert faulty["received"] == 0
    row = faulty["rows"][model]
    attempts = 1 if message == NO_TLS else 2  # what was not delivered is sent once more
    assert (row["outcome"], row["status"], row["attempts"]) == ("upstream_error", 502, attempts)
    assert row["usage_source"] == "none"
    assert {name: row["error"][name] for name in ("type", "message", "source")} == {
        "type": "api_error",
        "message": message,
        "source": "upstream",
    }


def test_an_upstream_that_asks_for_a_certificate_gets_no_request_without_one(
    gateway, secure_upstream
):
    """With TLS 1.3 the refusal arrives after the handshake, as the answer to the request."""
    count = len(secure_upstream.requests)

    status, _, body = ask(gateway, "no-certificate")

    assert (status, body["error"]["type"]) == (502, "api_error")
    assert body["error"]["message"] in (NO_TLS, LOST)
    assert len(secure_upstream.requests) == count


def test_doctor_takes_the_same_way(gateway, secure_upstream, tinyproxy, certificates):
    findings = json.loads(gateway.run_command("doctor", "--json").stdout)

    by_upstream: dict[str, list[str]] = {}
    for finding in findings:
        subject = finding["subject"].removeprefix("upstream ")
        by_upstream.setdefault(subject, []).append(f"{finding['says']} {finding['hint']}")
    way = f"through the proxy 127.0.0.1:{tinyproxy.port} with credentials"
    assert way in by_upstream["all"][0]
    assert certificates["ca"] in by_upstream["all"][0]
    assert "reachable, status 200" in by_upstream["all"][1]
    assert "connection.ca_file" in by_upstream["wrong-ca"][1]
    assert "connection.proxy_auth" in by_upstream["no-password"][1]
    assert "connection.proxy_auth" in by_upstream["plain-no-password"][1]
    assert "reachable, status 200" in by_upstream["plain"][1]
    assert "reachable, status 200" in by_upstream["tls-proxy"][1]
    assert "connection.ca_file" in by_upstream["untrusted-proxy"][1]
    assert "the HTTP proxy" in by_upstream["proxy-down"][1]
    assert HEADER_SECRET not in json.dumps(findings)
    assert "pass-of-the-proxy" not in json.dumps(findings)


def test_no_secret_of_the_way_is_in_the_log(gateway):
    assert "pass-of-the-proxy" not in gateway.log
    assert HEADER_SECRET not in gateway.log


def test_a_renewed_certificate_is_used_without_a_restart(gateway, certificates, secure_upstream):
    authority_file = Path(certificates["ca"])
    authority = authority_file.read_bytes()
    authority_file.write_bytes(Path(certificates["other-ca"]).read_bytes())
    try:
        secure_upstream.choose(lambda _: [*script_steps.json_response(ANSWER), Close()])
        ask(gateway, "direct")  # closes the connection of an earlier request
        ask(gateway, "direct")
        status, _, body = ask(gateway, "direct")
    finally:
        secure_upstream.choose(lambda _: script_steps.json_response(ANSWER))
        authority_file.write_bytes(authority)

    assert (status, body["error"]["message"]) == (502, NO_TLS)
    assert ask(gateway, "direct")[0] == 200

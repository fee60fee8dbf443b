"""A gateway with upstreams behind forward proxies, private CAs and client certificates."""

import socket
import ssl
from collections.abc import Iterator

import pytest
import trustme

from tests.fakes.servers.forward_proxies import (
    ADDRESS,
    CREDENTIALS,
    Tinyproxy,
    TlsFront,
    running_tinyproxy,
)
from tests.fakes.servers.gateway import TEAM, Gateway
from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.script_steps import Close, Script, Send, Sleep
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream

from .connection_requests import ANSWER, HEADER_SECRET

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

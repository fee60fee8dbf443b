"""The examples of deploy/reverse_proxy, each run with its real program in front of a gateway."""

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from tests.fakes.forked_python import REPOSITORY
from tests.fakes.optional_tools import skip_or_fail
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import LAST_CHUNK, WaitForGate, chunk, stream_head
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

pytestmark = pytest.mark.slow

HOST = "bridge.example.com"
CLIENT = "127.0.0.5"
"""The address that the client connects from; the reverse proxy connects from 127.0.0.1."""

ROUTES = '[[routes]]\nmodel = "*"\ntargets = [{ upstream = "chat" }]\n'


class Files(NamedTuple):
    """The paths of a certificate in the forms that the programs read."""

    certificate: Path
    key: Path
    both: Path


def nginx(example: str, files: Files, folder: Path) -> tuple[Path, list[str]]:
    """Put the example into a complete configuration that needs no root."""
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{name}_temp_path {folder}/{name};\n" for name in temporary)
    logs = f"access_log off;\nerror_log {folder}/error.log;\n"
    text = f"pid {folder}/pid;\ndaemon off;\nerror_log {folder}/error.log;\nevents {{}}\n"
    text += f"http {{\n{logs}{paths}{example}\n}}\n"
    path = _written(folder / "nginx.conf", text, files)
    return path, ["nginx", "-c", str(path), "-p", str(folder), "-e", f"{folder}/error.log"]


def caddy(example: str, files: Files, folder: Path) -> tuple[Path, list[str]]:
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    path = _written(folder / "Caddyfile", options + example, files)
    return path, ["caddy", "run", "--config", str(path), "--adapter", "caddyfile"]


def haproxy(example: str, files: Files, folder: Path) -> tuple[Path, list[str]]:
    path = _written(folder / "haproxy.cfg", example, files)
    return path, ["haproxy", "-f", str(path), "-db"]


def _written(path: Path, text: str, files: Files) -> Path:
    for example, own in {
        "/etc/ssl/bridge/cert.pem": files.certificate,
        "/etc/ssl/bridge/key.pem": files.key,
        "/etc/ssl/bridge/bridge.pem": files.both,
    }.items():
        text = text.replace(example, str(own))
    path.write_text(text, encoding="utf-8")
    return path


Program = Callable[[str, Files, Path], tuple[Path, list[str]]]
PROGRAMS: dict[str, tuple[Program, str, str]] = {
    "nginx.conf": (nginx, "listen 443 ssl", "listen 127.0.0.1:{port} ssl"),
    "Caddyfile": (caddy, f"{HOST} {{", f"{HOST}:{{port}} {{{{\n\tbind 127.0.0.1"),
    "haproxy.cfg": (haproxy, "bind :443", "bind 127.0.0.1:{port}"),
}
"""By example: the program, and the line with its port, which is another one in a test."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(upstream: ScriptedUpstream, tmp_path_factory) -> Iterator[Gateway]:
    config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
    environment = {
        "BRIDGE_HTTPS": "1",
        "BRIDGE_ALLOWED_HOSTS": HOST,
        "BRIDGE_TRUSTED_PROXIES": "127.0.0.1",
    }
    folder = tmp_path_factory.mktemp("behind")
    with Gateway(folder, config=config, environment=environment) as running:
        yield running


class Proxy(NamedTuple):
    port: int
    context: ssl.SSLContext

    def connect(self) -> ssl.SSLSocket:
        source = (CLIENT, 0)
        plain = socket.create_connection(("127.0.0.1", self.port), 60, source_address=source)
        return self.context.wrap_socket(plain, server_hostname=HOST)

    @contextlib.contextmanager
    def send(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request over a new connection; yield its response, which may be incomplete."""
        lines = {"Host": HOST, "Content-Length": str(len(body)), "Connection": "close"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with self.connect() as connection:
            connection.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            with http.client.HTTPResponse(connection, method=method) as response:
                response.begin()
                yield response


@pytest.fixture(scope="module", params=PROGRAMS)
def proxy(request, gateway: Gateway, tmp_path_factory) -> Iterator[Proxy]:
    """The program with its example, in front of the gateway."""
    program, line, port_line = PROGRAMS[request.param]
    if shutil.which(program.__name__) is None:
        skip_or_fail(f"{program.__name__} is not installed")
    folder = tmp_path_factory.mktemp(program.__name__)
    authority = trustme.CA()
    leaf = authority.issue_cert(HOST)
    files = Files(folder / "cert.pem", folder / "key.pem", folder / "bridge.pem")
    leaf.cert_chain_pems[0].write_to_path(files.certificate)
    leaf.private_key_pem.write_to_path(files.key)
    leaf.private_key_and_cert_chain_pem.write_to_path(files.both)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    example = (REPOSITORY / "deploy/reverse_proxy" / request.param).read_text(encoding="utf-8")
    assert line in example
    assert "127.0.0.1:8000" in example
    example = example.replace(line, port_line.format(port=port)).replace(
        "127.0.0.1:8000", f"127.0.0.1:{gateway.port}"
    )
    _, command = program(example, files, folder)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    log = folder / "log"
    with log.open("wb") as output:
        environment = {"PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(folder)}
        running = subprocess.Popen(command, stdout=output, stderr=output, env=environment)  # noqa: S603 - the table above
    started = Proxy(port, context)
    try:
        until(lambda: running.poll() is not None or _is_ready(started), log.read_text)
        assert running.poll() is None, log.read_text()
        yield started
    finally:
        running.terminate()
        running.wait(30)


def _is_ready(proxy: Proxy) -> bool:
    """Return whether the gateway answers through the proxy.

    HAProxy refuses requests for some seconds if its first check of the gateway takes too long.
    """
    try:
        with proxy.send("GET", "/readyz") as response:
            return response.status == 200
    except (OSError, http.client.HTTPException):
        return False


def message(model: str, text: str = "Hi", *, stream: bool = False) -> bytes:
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "max_tokens": 100, "messages": messages, "stream": stream}
    return json.dumps(body).encode()


def test_an_event_arrives_before_the_upstream_sends_the_next_one(
    proxy: Proxy, gateway: Gateway, upstream: ScriptedUpstream
):
    gate = threading.Event()
    events = upstream_scripts.chat_events(["Hello", " there"])
    first, rest = [chunk(event) for event in events[:2]], [chunk(event) for event in events[2:]]
    upstream.on("waits", [stream_head(), *first, WaitForGate(gate), *rest, LAST_CHUNK])

    with proxy.send(
        "POST", "/v1/messages", message("waits", stream=True),
        x_api_key=gateway.key, content_type="application/json", x_forwarded_for="6.6.6.6",
    ) as response:  # fmt: skip
        assert response.status == 200
        early = response.readline()
        while b"Hello" not in early:
            line = response.readline()
            assert line, early
            early += line
        gate.set()
        whole = early + response.read()

    assert b" there" in whole
    assert b"message_stop" in whole
    request_id = response.headers["request-id"]
    assert gateway.closed_rows(request_id)[request_id]["ip"] == CLIENT


def test_a_large_body_arrives(proxy: Proxy, gateway: Gateway, upstream: ScriptedUpstream):
    upstream.on("large", upstream_scripts.chat("Read."))

    with proxy.send(
        "POST", "/v1/messages", message("large", "word " * 1_000_000),
        x_api_key=gateway.key, content_type="application/json",
    ) as response:  # fmt: skip
        answer = json.load(response)

    assert (response.status, answer["content"][0]["text"]) == (200, "Read.")


def test_a_sign_in_page_is_served_over_https(proxy: Proxy):
    with proxy.send("GET", "/admin/login/") as response:
        page = response.read()

    assert response.status == 200
    assert b"csrfmiddlewaretoken" in page
    assert "Secure" in response.headers["set-cookie"]


def test_the_live_view_s_websocket_reaches_the_gateway(proxy: Proxy):
    """Without a session the gateway itself refuses the handshake."""
    with proxy.send(
        "GET", "/ws/live/", Upgrade="websocket", Connection="Upgrade", Origin=f"https://{HOST}",
        Sec_WebSocket_Version="13", Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
    ) as response:  # fmt: skip
        assert response.status == 403

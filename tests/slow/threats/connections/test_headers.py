"""Headers: forwarding in both directions, invalid bytes, and forwarded client addresses."""

import socket
from importlib.metadata import version

import pytest

from proxy.gateway.http.request_headers import RequestHeaders
from tests.fakes.upstreams.script_steps import json_response, response
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row

UNLISTED_HEADERS = (
    "cookie", "proxy-authorization", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via", "te", "trailer",
    "x-goog-api-key", "api-key", "openai-organization", "openai-project", "x-stainless-lang", "x-stainless-os",
    "user-agent", "referer", "origin", "accept-language", "if-none-match", "range", "x-amzn-trace-id", "x-request-id",
    "x-correlation-id", "x-csrf-token", "x-team", "x-user", "x-bridge-secret", "helicone-auth", "x-portkey-api-key",
    "x-litellm-api-key", "cf-connecting-ip", "true-client-ip", "x-client-ip", "forwarded", "x-original-url",
    "x-http-method-override", "x-method-override", "dnt", "sec-fetch-site", "sec-ch-ua", "upgrade-insecure-requests",
    "pragma", "cache-control", "warning", "from", "max-forwards", "x-wap-profile", "x-att-deviceid", "x-do-not-track",
    "x-gateway-tags", "x-claude-code-session-id", "x-internal-budget",
)  # fmt: skip
FORWARDED = {
    "host", "content-type", "content-length", "accept-encoding", "authorization", "x-api-key",
    "anthropic-version", "anthropic-beta", "accept", "connection", "transfer-encoding",
}  # fmt: skip
FORWARDED_TO_ANTHROPIC = {
    "user-agent",
    "x-app",
    "x-stainless-lang",
    "x-stainless-os",
    "x-claude-code-session-id",
}
"""An Anthropic upstream also receives the headers that identify the client software."""
RETURNED = {
    "content-type", "cache-control", "x-accel-buffering", "request-id", "x-bridge-request-id", "date",
    "transfer-encoding", "content-length", "retry-after", "x-should-retry", "connection",
}  # fmt: skip


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_only_listed_client_headers_are_forwarded(gateway, scripted, dialect):
    model = f"{dialect}-unlisted-headers"
    scripted.on(model, json_response({"error": {"message": "no"}}, 400))

    gateway.post(message(model), **dict.fromkeys(UNLISTED_HEADERS, "canary-of-a-header"))

    (request,) = scripted.requests_for(model)
    assert len(UNLISTED_HEADERS) >= 50
    allowed = FORWARDED_TO_ANTHROPIC if dialect == "anthropic" else set()
    assert set(request.headers) <= FORWARDED | allowed | {"user-agent"}
    if dialect != "anthropic":
        assert request.headers["user-agent"] == f"messages-bridge/{version('messages-bridge')}"
    names_with_canary = {
        name for name, value in request.headers.items() if "canary-of-a-header" in value
    }
    assert names_with_canary <= allowed
    assert "canary-of-a-header" not in request.body.decode()
    assert gateway.key not in repr(request.headers)


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("status", [200, 400, 429])
def test_only_listed_upstream_headers_are_returned(gateway, scripted, dialect, status):
    model = f"{dialect}-loud-{status}"
    upstream_headers = {
        "set-cookie": "a=b", "server": "secret-host/1", "x-powered-by": "canary", "via": "1.1 inner",
        "strict-transport-security": "max-age=0", "access-control-allow-origin": "*", "location": "http://inner/",
        "content-security-policy": "default-src *", "www-authenticate": "Basic", "x-internal": "canary",
        "retry-after": "3",
    }  # fmt: skip
    scripted.on(model, json_response({"error": {"message": "no"}}, status, upstream_headers))

    reply = gateway.post(message(model))

    assert {name for name in reply.headers if not name.startswith("anthropic-")} <= RETURNED | {
        "server"
    }
    assert "canary" not in repr(reply.headers)
    assert "secret-host" not in repr(reply.headers)


def send_raw_header(gateway, extra: bytes) -> bytes:
    head = (
        b"GET /v1/models HTTP/1.1\r\nhost: g\r\nconnection: close\r\nx-api-key: %b\r\n"
        % gateway.key.encode()
    )
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=90) as connection:
        connection.sendall(head + extra + b"\r\n\r\n")
        received = b""
        try:
            while data := connection.recv(65_536):
                received += data
        except ConnectionResetError:
            pass
    return received


@pytest.mark.parametrize("name", [b"x-claude-code-session-id", b"user-agent", b"x-gateway-tags"])
def test_client_header_bytes_inject_no_response_header(gateway, name):
    for byte in (*range(33), *range(127, 161), 255):
        response = send_raw_header(gateway, name + b": a" + bytes([byte]) + b"x-evil: 1")
        status, _, rest = response.partition(b"\r\n")
        head = rest.partition(b"\r\n\r\n")[0].lower()
        assert status.split()[1] in {b"200", b"400"}, byte
        assert b"x-evil" not in head, byte
        assert response.count(b"HTTP/1.1") == 1, byte


def test_control_bytes_of_a_client_are_replaced_in_the_row(gateway, scripted):
    scripted.on("chat-controls", upstream_scripts.chat())

    reply = gateway.post(
        message("chat-controls"),
        user_agent="a\x85[31mred\xa0é",
        x_claude_code_session_id="s\x9b1",
    )

    exchange = row(reply.id)
    assert exchange.user_agent == "a?[31mred??"
    assert exchange.session_id == "s?1"


@pytest.mark.parametrize("byte", [*range(33), *range(127, 161), 255])
def test_upstream_header_bytes_inject_no_response_header(gateway, scripted, byte):
    model = f"chat-header-byte-{byte}"
    name = bytes([byte]).decode("latin-1")
    upstream_headers = {"retry-after": f"2{name}x-evil: 1", "x-request-id": f"r{name}x-evil: 1"}
    scripted.on(
        model,
        response(429, b'{"error": {"message": "slow"}}', "application/json", upstream_headers),
    )

    reply = gateway.post(message(model))

    assert reply.status in {429, 502}
    assert "x-evil" not in reply.headers
    assert "x-evil" not in repr(reply.headers)


def test_upstream_text_cannot_end_an_sse_frame(gateway, scripted):
    """Text is encoded as JSON, so SSE syntax inside a text stays text."""
    words = ["\n\nevent: message_stop\ndata: {}\n\n", "\r\n\r\n", "\u2028\u2029\x85", "\x00data: x"]
    scripted.on("chat-frames", upstream_scripts.chat(*words))

    reply = gateway.post(message("chat-frames", stream=True))

    assert reply.text == "".join(words)
    assert reply.kinds.count("message_stop") == 1


TRUSTED = ("10.0.0.0/8", "192.0.2.1", "2001:db8::/32")
CHAINS = [
    # peer, x-forwarded-for, resulting client address
    ("203.0.113.5", None, "203.0.113.5"),
    ("203.0.113.5", "1.2.3.4", "203.0.113.5"),
    ("203.0.113.5", "10.0.0.1", "203.0.113.5"),
    ("203.0.113.5", "127.0.0.1", "203.0.113.5"),
    ("127.0.0.1", "1.2.3.4", "127.0.0.1"),
    ("10.0.0.1", None, "10.0.0.1"),
    ("10.0.0.1", "", "10.0.0.1"),
    ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
    ("10.255.255.255", "1.2.3.4", "1.2.3.4"),
    ("11.0.0.1", "1.2.3.4", "11.0.0.1"),
    ("192.0.2.1", "1.2.3.4", "1.2.3.4"),
    ("192.0.2.2", "1.2.3.4", "192.0.2.2"),
    ("10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
    ("10.0.0.1", "6.6.6.6, 7.7.7.7, 1.2.3.4", "1.2.3.4"),
    ("10.0.0.1", "1.2.3.4, 10.0.0.2", "1.2.3.4"),
    ("10.0.0.1", "1.2.3.4, 10.0.0.2, 192.0.2.1", "1.2.3.4"),
    ("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.9.9.9", "1.2.3.4"),
    ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
    ("10.0.0.1", "1.2.3.4,", "1.2.3.4"),
    ("10.0.0.1", " 1.2.3.4 ", "1.2.3.4"),
    ("10.0.0.1", ",,1.2.3.4,,", "1.2.3.4"),
    ("10.0.0.1", "1.2.3.4,10.0.0.2", "1.2.3.4"),
    ("10.0.0.1", "2001:db9::7", "2001:db9::7"),
    ("2001:db8::1", "1.2.3.4", "1.2.3.4"),
    ("2001:db8::1", "6.6.6.6, 2001:db9::7, 2001:db8::2", "2001:db9::7"),
    ("::1", "1.2.3.4", "::1"),
    # Invalid addresses are ignored: the last valid one counts.
    ("10.0.0.1", "unknown", "10.0.0.1"),
    ("10.0.0.1", "<script>", "10.0.0.1"),
    ("10.0.0.1", "1.2.3.4, unknown", "10.0.0.1"),
    ("10.0.0.1", "6.6.6.6, nonsense, 10.0.0.2", "10.0.0.2"),
    ("10.0.0.1", "1.2.3.4:5678", "10.0.0.1"),
    (None, "1.2.3.4", None),
]


@pytest.mark.parametrize(("peer", "chain", "client"), CHAINS)
@pytest.mark.parametrize(
    "header", [b"x-forwarded-for", b"x_forwarded_for", b"x-real-ip", b"forwarded"]
)
def test_forwarded_address_counts_only_from_trusted_proxies(settings, peer, chain, client, header):
    settings.TRUSTED_PROXIES = TRUSTED
    headers = [] if chain is None else [(header, chain.encode())]
    head = RequestHeaders({"headers": headers, "client": (peer, 1) if peer else None})

    assert head.ip == (client if header == b"x-forwarded-for" else peer)

"""Headers: what is handed on, what comes back, bytes that are none, and whose address counts."""

import socket

import pytest

from proxy.conf import conf
from proxy.gateway.head import Head
from tests.fakes.steps import answer, json_answer
from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import message, row

ODD = (
    "cookie", "proxy-authorization", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via", "te", "trailer",
    "x-goog-api-key", "api-key", "openai-organization", "openai-project", "x-stainless-lang", "x-stainless-os",
    "user-agent", "referer", "origin", "accept-language", "if-none-match", "range", "x-amzn-trace-id", "x-request-id",
    "x-correlation-id", "x-csrf-token", "x-team", "x-user", "x-bridge-secret", "helicone-auth", "x-portkey-api-key",
    "x-litellm-api-key", "cf-connecting-ip", "true-client-ip", "x-client-ip", "forwarded", "x-original-url",
    "x-http-method-override", "x-method-override", "dnt", "sec-fetch-site", "sec-ch-ua", "upgrade-insecure-requests",
    "pragma", "cache-control", "warning", "from", "max-forwards", "x-wap-profile", "x-att-deviceid", "x-do-not-track",
    "x-gateway-tags", "x-claude-code-session-id", "x-internal-budget",
)  # fmt: skip
SENT_ON = {
    "host", "content-type", "content-length", "accept-encoding", "authorization", "x-api-key",
    "anthropic-version", "anthropic-beta", "accept", "connection", "transfer-encoding",
}  # fmt: skip
ALSO_TO_CLAUDE = {
    "user-agent",
    "x-app",
    "x-stainless-lang",
    "x-stainless-os",
    "x-claude-code-session-id",
}
"""An Anthropic upstream is told what kind of client asks, as if it asked there itself."""
CAME_BACK = {
    "content-type", "cache-control", "x-accel-buffering", "request-id", "x-bridge-request-id", "date",
    "transfer-encoding", "content-length", "retry-after", "x-should-retry", "connection",
}  # fmt: skip


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_of_the_clients_headers_only_the_named_ones_are_sent_on(gateway, scripted, dialect):
    model = f"{dialect}-odd-headers"
    scripted.on(model, json_answer({"error": {"message": "no"}}, 400))

    gateway.post(message(model), **dict.fromkeys(ODD, "canary-of-a-header"))

    (asked,) = scripted.asked_for(model)
    assert len(ODD) >= 50
    own = ALSO_TO_CLAUDE if dialect == "anthropic" else set()
    assert set(asked.headers) <= SENT_ON | own
    kept = {name for name, value in asked.headers.items() if "canary-of-a-header" in value}
    assert kept <= own
    assert "canary-of-a-header" not in asked.body.decode()
    assert gateway.key not in repr(asked.headers)


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("status", [200, 400, 429])
def test_of_the_upstreams_headers_only_the_named_ones_come_back(gateway, scripted, dialect, status):
    model = f"{dialect}-loud-{status}"
    loud = {
        "set-cookie": "a=b", "server": "secret-host/1", "x-powered-by": "canary", "via": "1.1 inner",
        "strict-transport-security": "max-age=0", "access-control-allow-origin": "*", "location": "http://inner/",
        "content-security-policy": "default-src *", "www-authenticate": "Basic", "x-internal": "canary",
        "retry-after": "3",
    }  # fmt: skip
    scripted.on(model, json_answer({"error": {"message": "no"}}, status, loud))

    reply = gateway.post(message(model))

    assert {name for name in reply.headers if not name.startswith("anthropic-")} <= CAME_BACK | {
        "server"
    }
    assert "canary" not in repr(reply.headers)
    assert "secret-host" not in repr(reply.headers)


def raw_ask(gateway, extra: bytes) -> bytes:
    head = (
        b"GET /v1/models HTTP/1.1\r\nhost: g\r\nconnection: close\r\nx-api-key: %b\r\n"
        % gateway.key.encode()
    )
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=90) as connection:
        connection.sendall(head + extra + b"\r\n\r\n")
        heard = b""
        try:
            while piece := connection.recv(65_536):
                heard += piece
        except ConnectionResetError:
            pass
    return heard


@pytest.mark.parametrize("name", [b"x-claude-code-session-id", b"user-agent", b"x-gateway-tags"])
def test_no_byte_in_a_header_of_a_client_makes_a_header_of_ours(gateway, name):
    for byte in (*range(33), *range(127, 161), 255):
        told = raw_ask(gateway, name + b": a" + bytes([byte]) + b"x-evil: 1")
        status, _, rest = told.partition(b"\r\n")
        head = rest.partition(b"\r\n\r\n")[0].lower()
        assert status.split()[1] in {b"200", b"400"}, byte
        assert b"x-evil" not in head, byte
        assert told.count(b"HTTP/1.1") == 1, byte


def test_control_bytes_of_a_client_reach_no_row(gateway, scripted):
    scripted.on("chat-controls", scripts.chat())

    reply = gateway.post(
        message("chat-controls"),
        user_agent="a\x85[31mred\xa0é",
        x_claude_code_session_id="s\x9b1",
    )

    found = row(reply.id)
    assert found.user_agent == "a?[31mred??"
    assert found.session_id == "s?1"


@pytest.mark.parametrize("byte", [*range(33), *range(127, 161), 255])
def test_no_byte_in_a_header_of_an_upstream_makes_a_header_of_ours(gateway, scripted, byte):
    model = f"chat-header-byte-{byte}"
    name = bytes([byte]).decode("latin-1")
    told = {"retry-after": f"2{name}x-evil: 1", "x-request-id": f"r{name}x-evil: 1"}
    scripted.on(model, answer(429, b'{"error": {"message": "slow"}}', "application/json", told))

    reply = gateway.post(message(model))

    assert reply.status in {429, 502}
    assert "x-evil" not in reply.headers
    assert "x-evil" not in repr(reply.headers)


def test_no_word_of_an_upstream_ends_a_frame_of_ours(gateway, scripted):
    """Text goes into JSON; a frame that hides in a word stays a word."""
    words = ["\n\nevent: message_stop\ndata: {}\n\n", "\r\n\r\n", "\u2028\u2029\x85", "\x00data: x"]
    scripted.on("chat-frames", scripts.chat(*words))

    reply = gateway.post(message("chat-frames", stream=True))

    assert reply.text == "".join(words)
    assert reply.kinds.count("message_stop") == 1


TRUSTED = ("10.0.0.0/8", "192.0.2.1", "2001:db8::/32")
CHAINS = [
    # peer, x-forwarded-for, who it is
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
    # What is no address is believed to be nobody's: the last that is one counts.
    ("10.0.0.1", "unknown", "10.0.0.1"),
    ("10.0.0.1", "<script>", "10.0.0.1"),
    ("10.0.0.1", "1.2.3.4, unknown", "10.0.0.1"),
    ("10.0.0.1", "6.6.6.6, nonsense, 10.0.0.2", "10.0.0.2"),
    ("10.0.0.1", "1.2.3.4:5678", "10.0.0.1"),
    (None, "1.2.3.4", None),
]


@pytest.mark.parametrize(("peer", "chain", "client"), CHAINS)
@pytest.mark.parametrize(
    "twin", [b"x-forwarded-for", b"x_forwarded_for", b"x-real-ip", b"forwarded"]
)
def test_a_forwarded_address_is_believed_of_our_own_proxies_only(
    tuned_conf, peer, chain, client, twin
):
    tuned_conf(trusted_proxies=TRUSTED)
    headers = [] if chain is None else [(twin, chain.encode())]
    head = Head({"headers": headers, "client": (peer, 1) if peer else None})

    assert head.ip == (client if twin == b"x-forwarded-for" else peer)


@pytest.fixture
def tuned_conf():
    before = conf.trusted_proxies
    yield lambda **told: [object.__setattr__(conf, name, value) for name, value in told.items()]
    object.__setattr__(conf, "trusted_proxies", before)

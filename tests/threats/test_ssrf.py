"""Nobody but the operator says where the gateway connects: sinks that must never be called."""

import itertools

import pytest

from tests.fakes.steps import answer
from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import message

SPELLINGS = (
    "http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://[::1]:{port}/", "http://127.1:{port}/",
    "http://0.0.0.0:{port}/", "http://0:{port}/", "http://2130706433:{port}/", "http://0x7f.1:{port}/",
    "http://0x7f000001:{port}/", "http://017700000001:{port}/", "http://0177.0.0.1:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/", "http://[0:0:0:0:0:0:0:1]:{port}/", "http://[64:ff9b::7f00:1]:{port}/",
    "http://127.0.0.1.nip.io:{port}/", "http://localtest.me:{port}/", "http://user@127.0.0.1:{port}/",
    "http://api.openai.com@127.0.0.1:{port}/", "http://127.0.0.1:{port}#@api.openai.com/",
    "http://127.0.0.1:{port}?https://api.openai.com/", "//127.0.0.1:{port}/", "///127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/", "HTTP://127.0.0.1:{port}/", "http://LOCALHOST:{port}/", "http://localhost.:{port}/",
    "http://①②⑦.⓪.⓪.①:{port}/", "http://127。0。0。1:{port}/", "http://127.0.0.1:{port}\\@api.openai.com/",
    "http://127.0.0.1%00.openai.com:{port}/", "http://127.0.0.1%2f:{port}/", "http://127.0.0.1:{port}/%2e%2e/",
    "https://127.0.0.1:{port}/", "ws://127.0.0.1:{port}/", "gopher://127.0.0.1:{port}/_x", "dict://127.0.0.1:{port}/x",
    "ftp://127.0.0.1:{port}/", "ldap://127.0.0.1:{port}/", "tftp://127.0.0.1:{port}/", "jar:http://127.0.0.1:{port}/!/",
    "file:///etc/passwd", "file://127.0.0.1:{port}/etc/passwd", "data:text/plain,http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/latest/meta-data/", "http://[::]:{port}/", "http://[::%25lo]:{port}/",
    "http://127.127.127.127:{port}/", "http://127.0.0.1:{port};/", "http://127.0.0.1:0{port}/",
    "http://127.0.0.1:{port}\r\nhost: x/", "http://127.0.0.1:{port}\t/", " http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/.well-known/", "http://spoofed.burpcollaborator.net:{port}/", "unix:///run/docker.sock",
    "http+unix://%2Frun%2Fdocker.sock/", "netdoc:///etc/passwd", "php://filter/resource=http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/redirect?to=http://127.0.0.1:{port}/", "http://0300.0250.0.1:{port}/",
)  # fmt: skip
FIELDS = (
    "api_base", "base_url", "api_url", "url", "endpoint", "host", "proxy", "proxies", "upstream", "target",
    "custom_llm_provider", "azure_endpoint", "callback_url", "webhook", "extra_body", "custom_host",
)  # fmt: skip
HEADERS = (
    "x-portkey-custom-host", "x-portkey-base-url", "x-forwarded-host", "x-original-host", "x-host", "forwarded",
    "x-bridge-upstream", "x-base-url", "x-api-base", "api-base", "openai-base-url", "x-upstream", "proxy",
    "x-rewrite-url", "x-original-url", "referer", "origin", "x-real-ip", "x-envoy-original-dst-host",
)  # fmt: skip
DIALECTS = ("chat", "responses", "anthropic")


def blocks(url):
    """Every place of a Messages request that may name an address."""
    image = {"type": "image", "source": {"type": "url", "url": url}}
    document = {"type": "document", "source": {"type": "url", "url": url}}
    yield {
        "messages": [{"role": "user", "content": [image, document]}],
        "mcp_servers": [{"type": "url", "url": url, "name": "m"}],
    }
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}
    call = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {"url": url}}
    yield {
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    }


def play(scripted, name):
    said = {
        "chat": scripts.chat(),
        "responses": scripts.responses(),
        "anthropic": scripts.stream(b"".join(scripts.claude_events())),
    }
    scripted.on(f"{name}-ssrf", said[name])
    return f"{name}-ssrf"


def test_there_are_enough_of_them():
    assert len(SPELLINGS) >= 60
    assert len(FIELDS) * 8 + len(HEADERS) * 4 >= 200


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_address_in_the_conversation_is_never_fetched(gateway, scripted, sink, dialect):
    model = play(scripted, dialect)
    for spelling in SPELLINGS:
        for told in blocks(spelling.format(port=sink.port)):
            assert gateway.post(message(model) | told).status in {200, 400, 413}

    assert sink.heard == []


def test_a_field_of_the_body_chooses_no_server(gateway, scripted, sink):
    model = play(scripted, "chat")
    before = len(scripted.asked)
    asked = 0
    for field, spelling in itertools.product(FIELDS, SPELLINGS[:8]):
        url = spelling.format(port=sink.port)
        told = {field: url, "metadata": {field: url}, f"{field}s": {"base_url": url}}
        reply = gateway.post(message(model, **told))
        assert reply.status in {200, 400}
        asked += reply.status == 200

    assert sink.heard == []
    assert len(scripted.asked) - before == asked
    assert not any(b"127.0" in each.body for each in scripted.asked[before:])


def test_a_header_chooses_no_server(gateway, scripted, sink):
    model = play(scripted, "chat")
    before = len(scripted.asked)
    for header, spelling in itertools.product(HEADERS, SPELLINGS[:4]):
        reply = gateway.post(message(model), **{header: spelling.format(port=sink.port)})
        assert reply.status == 200

    assert sink.heard == []
    assert len(scripted.asked) - before == len(HEADERS) * 4


def test_a_model_name_chooses_no_server_and_no_path(gateway, scripted, sink):
    before = len(scripted.asked)
    scripted.on("/v1/chat/completions", scripts.chat())
    for spelling in SPELLINGS:
        url = spelling.format(port=sink.port)
        for name in (url, f"chat-{url}", f"chat-../../{url}", f"chat-?{url}"):
            assert gateway.post(message(name)).status in {200, 400, 404}

    assert sink.heard == []
    assert {each.path for each in scripted.asked[before:]} == {"/v1/chat/completions"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_redirect_is_followed(gateway, scripted, sink, dialect, status):
    where = {"location": f"http://127.0.0.1:{sink.port}/v1/chat/completions"}
    model = f"{dialect}-redirect-{status}"
    scripted.on(model, answer(status, b"", "text/plain", where))

    reply = gateway.post(message(model, stream=True))

    assert reply.status == 502
    assert reply.json["error"]["type"] == "api_error"
    assert str(sink.port) not in reply.body.decode()
    assert sink.heard == []

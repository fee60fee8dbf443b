"""Only the configuration decides where the gateway connects; the sinks must get no connection."""

import itertools

import pytest

from tests.fakes.upstreams.script_steps import response
from tests.lanes import repeat
from tests.proxy.gateway import upstream_scripts
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
STEP = repeat(fast=len(DIALECTS), slow=1)
"""A spelling is sent in one dialect, the next one in another; in the slow lane in all dialects."""


def blocks(url):
    """Yield every place of a Messages request that may contain a URL."""
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


def script_for(scripted, name):
    scripts = {
        "chat": upstream_scripts.chat(),
        "responses": upstream_scripts.responses(),
        "anthropic": upstream_scripts.stream(b"".join(upstream_scripts.claude_events())),
    }
    scripted.on(f"{name}-ssrf", scripts[name])
    return f"{name}-ssrf"


def test_lists_have_the_promised_size():
    assert len(SPELLINGS) >= 60
    assert len(FIELDS) * 8 + len(HEADERS) * 4 >= 200


@pytest.mark.repeated
@pytest.mark.parametrize("dialect", DIALECTS)
def test_url_in_a_conversation_is_never_fetched(gateway, scripted, sink, dialect):
    model = script_for(scripted, dialect)
    for spelling in SPELLINGS[DIALECTS.index(dialect) % STEP :: STEP]:
        for fields in blocks(spelling.format(port=sink.port)):
            assert gateway.post(message(model) | fields).status in {200, 400, 413}

    assert sink.received == []


def test_body_field_does_not_choose_the_server(gateway, scripted, sink):
    model = script_for(scripted, "chat")
    before = len(scripted.requests)
    expected = 0
    for field, spelling in itertools.product(FIELDS, SPELLINGS[:8]):
        url = spelling.format(port=sink.port)
        fields = {field: url, "metadata": {field: url}, f"{field}s": {"base_url": url}}
        reply = gateway.post(message(model, **fields))
        assert reply.status in {200, 400}
        expected += reply.status == 200

    assert sink.received == []
    assert len(scripted.requests) - before == expected
    assert not any(b"127.0" in each.body for each in scripted.requests[before:])


def test_header_does_not_choose_the_server(gateway, scripted, sink):
    model = script_for(scripted, "chat")
    before = len(scripted.requests)
    for header, spelling in itertools.product(HEADERS, SPELLINGS[:4]):
        reply = gateway.post(message(model), **{header: spelling.format(port=sink.port)})
        assert reply.status == 200

    assert sink.received == []
    assert len(scripted.requests) - before == len(HEADERS) * 4


def test_model_name_chooses_neither_server_nor_path(gateway, scripted, sink):
    before = len(scripted.requests)
    scripted.on("/v1/chat/completions", upstream_scripts.chat())
    for spelling in SPELLINGS:
        url = spelling.format(port=sink.port)
        for name in (url, f"chat-{url}", f"chat-../../{url}", f"chat-?{url}"):
            assert gateway.post(message(name)).status in {200, 400, 404}

    assert sink.received == []
    assert {each.path for each in scripted.requests[before:]} == {"/v1/chat/completions"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_redirect_is_not_followed(gateway, scripted, sink, dialect, status):
    redirect = {"location": f"http://127.0.0.1:{sink.port}/v1/chat/completions"}
    model = f"{dialect}-redirect-{status}"
    scripted.on(model, response(status, b"", "text/plain", redirect))

    reply = gateway.post(message(model, stream=True))

    assert reply.status == 502
    assert reply.json["error"]["type"] == "api_error"
    assert str(sink.port) not in reply.body.decode()
    assert sink.received == []

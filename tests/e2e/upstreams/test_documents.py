"""The text of PDFs through the running gateway, for upstreams that accept no files."""

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes import pdfs
from tests.fakes.anthropic_requests import assistant, call, make_request, result, user
from tests.fakes.servers.gateway import Gateway, Reply, toml_for
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Script,
    WaitForGate,
    chunk,
    json_response,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream

ROUTES = """
[[routes]]
model = "chat-*"
targets = [{ upstream = "chat" }]

[[routes]]
model = "responses-*"
targets = [{ upstream = "responses" }]

[[routes]]
model = "files-*"
targets = [{ upstream = "files" }]
"""
OK = json_response(
    {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}],
    }
)
OK_RESPONSE = json_response(
    {
        "id": "resp_1",
        "model": "m",
        "status": "completed",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Yes."}],
            }
        ],
    }
)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.choose(lambda request: OK_RESPONSE if request.path.endswith("responses") else None)
        yield running


@pytest.fixture(scope="module")
def gateway(upstream, tmp_path_factory) -> Iterator[Gateway]:
    upstreams = {
        "chat": {"dialect": "chat", "base_url": upstream.base_url, "profile": "vllm"},
        "responses": {"dialect": "responses", "base_url": upstream.base_url, "profile": "vllm"},
        "files": {"dialect": "chat", "base_url": upstream.base_url, "profile": "openai"},
    }
    folder = tmp_path_factory.mktemp("documents-gateway")
    with Gateway(folder, config=toml_for(upstreams, ROUTES)) as running:
        yield running


def pdf_block(raw: bytes, **fields: Any) -> dict[str, Any]:
    data = base64.b64encode(raw).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    return {"type": "document", "source": source, **fields}


def in_a_message(block: dict[str, Any]) -> list[dict[str, Any]]:
    return [user(block, {"type": "text", "text": "What does it say?"})]


def in_a_tool_result(block: dict[str, Any]) -> list[dict[str, Any]]:
    return [user("Read it."), assistant(call()), user(result(block)), user("What does it say?")]


def ask(gateway: Gateway, model: str, messages: list[dict[str, Any]], **headers: str) -> Reply:
    body = make_request(*messages) | {"model": model}
    headers = {"content-type": "application/json", **headers}
    return gateway.request("POST", "/v1/messages", json.dumps(body).encode(), headers)


def sent_body(upstream: ScriptedUpstream, model: str) -> str:
    return upstream.requests_for(model)[-1].body.decode()


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("place", [in_a_message, in_a_tool_result])
def test_the_text_of_a_pdf_takes_its_place(gateway, upstream, dialect, place):
    model = f"{dialect}-{place.__name__}"
    upstream.on(model, OK)
    messages = place(pdf_block(pdfs.pages("marigold", "lily"), title="flowers.pdf"))

    reply = ask(gateway, model, messages)

    assert reply.status == 200, reply.body
    body = sent_body(upstream, model)
    assert "marigold" in body
    assert "[page 2 of 2]" in body
    assert "flowers.pdf" in body
    assert "JVBERi0" not in body
    notes = gateway.closed_rows(reply.headers["request-id"])[reply.headers["request-id"]]["notes"]
    reasons = " ".join(note["reason"] for note in notes)
    assert "the text of the PDF is sent, without its pictures and its layout" in reasons


def test_an_upstream_that_takes_files_gets_the_pdf(gateway, upstream):
    upstream.on("files-1", OK)

    assert ask(gateway, "files-1", in_a_message(pdf_block(pdfs.pages("marigold")))).status == 200

    assert "JVBERi0" in sent_body(upstream, "files-1")
    assert "marigold" not in sent_body(upstream, "files-1")


UNREADABLE = {
    "no text": (lambda: pdfs.pages(""), "it has no text"),
    "encrypted": (pdfs.encrypted, "it is encrypted"),
    "damaged": (lambda: b"%PDF-1.7\nnothing", "it is damaged"),
    "not a pdf": (lambda: b"PK\3\4", "it is damaged"),
    "a page tree with loops": (pdfs.page_tree_loop, "it is damaged"),
    "a decompression bomb": (pdfs.decompression_bomb, "it is damaged"),
    "a bomb in a bomb": (pdfs.nested_bomb, "it is damaged"),
    "deep nesting": (pdfs.deep_nesting, "it is damaged"),
    "millions of operators": (pdfs.slow_text, "it takes too long to read"),
    "a million objects": (pdfs.many_objects, "it takes too long to read"),
}
SLOW = {"millions of operators", "a million objects"}
EACH = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in UNREADABLE]


@pytest.mark.parametrize("name", EACH)
def test_a_pdf_that_cannot_be_read_does_not_end_the_session(gateway, upstream, name):
    build, reason = UNREADABLE[name]
    model = f"chat-{name}"
    upstream.on(model, OK)

    reply = ask(gateway, model, in_a_tool_result(pdf_block(build())))

    assert reply.status == 200, reply.body
    assert "JVBERi0" not in sent_body(upstream, model)
    notes = gateway.closed_rows(reply.headers["request-id"])[reply.headers["request-id"]]["notes"]
    assert any(note["reason"].endswith(reason) for note in notes), notes


@pytest.mark.slow
def test_streams_of_others_go_on_while_a_hostile_pdf_is_read(gateway, upstream):
    """The stream ends first, although it waits until the PDF is being read."""
    gate = threading.Event()
    upstream.on("chat-streamed", streamed(gate))
    upstream.on("chat-hostile", OK)
    body = make_request() | {"model": "chat-streamed", "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=90)
    headers = {"x-api-key": gateway.key, "content-type": "application/json"}
    connection.request("POST", "/v1/messages", json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    while b"first" not in answer.readline():
        pass

    with ThreadPoolExecutor(1) as pool:
        messages = in_a_message(pdf_block(pdfs.slow_text() + b"%another"))
        hostile = pool.submit(ask, gateway, "chat-hostile", messages)
        gateway_answers = [gateway.request("GET", "/readyz").status for _ in range(20)]
        gate.set()
        rest = answer.read()
        was_reading = not hostile.done()
        reply = hostile.result()

    connection.close()
    assert set(gateway_answers) == {200}
    assert b"second" in rest
    assert b"message_stop" in rest
    assert was_reading
    assert reply.status == 200, reply.body


def streamed(gate: threading.Event) -> Script:
    def part(text: str | None, finish: str | None = None) -> bytes:
        delta = {"content": text} if text else {}
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return b"data: %b\n\n" % json.dumps({"id": "c", "model": "m", "choices": choices}).encode()

    end = [chunk(part("second")), chunk(part(None, "stop")), chunk(b"data: [DONE]\n\n")]
    return [stream_head(), chunk(part("first")), WaitForGate(gate), *end, LAST_CHUNK]


def test_a_refused_pdf_is_sent_as_its_text_at_once_and_later(gateway, upstream):
    refusal = json_response({"error": {"message": "file uploads are not supported"}}, 400)
    upstream.on("files-refused", refusal, OK, OK)
    messages = in_a_message(pdf_block(pdfs.pages("marigold")))

    replies = [ask(gateway, "files-refused", messages) for _ in range(2)]

    assert [reply.status for reply in replies] == [200, 200]
    sent = [each.body.decode() for each in upstream.requests_for("files-refused")]
    assert [("JVBERi0" in each, "marigold" in each) for each in sent] == [
        (True, False), (False, True), (False, True),
    ]  # fmt: skip


def test_the_tokens_of_a_text_are_counted_and_not_those_of_its_pages(gateway, upstream):
    upstream.on("chat-counted", OK)
    words = "marigold " * 4_000
    body = make_request(*in_a_message(pdf_block(pdfs.pages(words)))) | {"model": "chat-counted"}
    raw, headers = json.dumps(body).encode(), {"content-type": "application/json"}

    counted = gateway.request("POST", "/v1/messages/count_tokens", raw, headers)
    answered = gateway.request("POST", "/v1/messages", raw, headers)  # without usage

    tokens = len(words) / 4
    usage = json.loads(answered.body)["usage"]
    for found in (json.loads(counted.body)["input_tokens"], usage["input_tokens"]):
        assert tokens < found < 2 * tokens

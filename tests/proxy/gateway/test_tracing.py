"""Spans by OpenTelemetry's conventions, and the trace that goes on at the upstream."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from proxy.checks import check_settings
from proxy.gateway import tracing as tracing_module
from proxy.gateway.tracing import tracing
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import UPSTREAM_SECRET, add_route, add_upstream, message, row

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(gateway: Browser) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.start(exporter)
    yield exporter
    tracing.stop()


def named(spans: InMemorySpanExporter, row_id: str) -> dict[str, ReadableSpan]:
    row(row_id)  # written, so the request is over
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        tracing.flush()
        found = {span.name: span for span in spans.get_finished_spans()}
        if any(name.startswith("POST") for name in found):
            return found
    raise AssertionError(f"no span of the request: {spans.get_finished_spans()}")


def test_a_request_is_a_span_and_its_upstream_call_one_below(
    gateway: Browser, scripted: ScriptedUpstream, spans: InMemorySpanExporter
):
    scripted.on("chat-traced", scripts.chat())

    reply = gateway.post(message("chat-traced", stream=True), traceparent=PARENT)

    found = named(spans, reply.id)
    server, client = found["POST /v1/messages"], found["chat chat-traced"]
    assert format(server.context.trace_id, "032x") == PARENT.split("-")[1]
    assert format(server.parent.span_id, "016x") == PARENT.split("-")[2]
    assert client.parent.span_id == server.context.span_id
    assert server.attributes["bridge.request_id"] == reply.id
    assert server.attributes["bridge.outcome"] == "completed"
    assert server.attributes["http.response.status_code"] == 200
    told = dict(client.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "generic"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "chat-traced"
    assert told["gen_ai.usage.input_tokens"] == 12
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["gen_ai.response.finish_reasons"] == ("end_turn",)
    assert told["gen_ai.response.time_to_first_chunk"] > 0
    [asked] = scripted.asked_for("chat-traced")
    version, trace, span, _ = asked.headers["traceparent"].split("-")
    assert (version, trace) == ("00", PARENT.split("-")[1])
    assert span == format(client.context.span_id, "016x")


def test_spans_hold_neither_words_nor_secrets(
    gateway: Browser, scripted: ScriptedUpstream, spans: InMemorySpanExporter
):
    scripted.on("chat-quiet", scripts.chat())
    reply = gateway.post(message("chat-quiet"))

    told = json.dumps([span.to_json() for span in named(spans, reply.id).values()])

    for secret in (UPSTREAM_SECRET, gateway.key, "Hello there", "sk-br-"):
        assert secret not in told


def test_every_target_that_was_tried_is_a_span(
    gateway: Browser, scripted: ScriptedUpstream, spans: InMemorySpanExporter
):
    upstreams = [add_upstream(f"span-{n}", "chat", scripted.base_url) for n in range(2)]
    add_route("tried", *upstreams)
    scripted.on("tried", json_answer({"error": {"message": "no"}}, 500), scripts.chat())
    from proxy.gateway.directory import directory

    directory.look()

    reply = gateway.post(message("tried"))

    named(spans, reply.id)
    calls = [span for span in spans.get_finished_spans() if span.name == "chat tried"]
    assert [span.attributes["bridge.upstream"] for span in calls] == ["span-0", "span-1"]
    assert [span.status.is_ok for span in calls] == [False, True]


def test_without_tracing_the_upstream_gets_no_header(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-untraced", scripts.chat())

    gateway.post(message("chat-untraced"), traceparent=PARENT)

    [asked] = scripted.asked_for("chat-untraced")
    assert "traceparent" not in asked.headers


def test_asking_for_traces_without_the_packages_is_told(settings, monkeypatch):
    settings.OTEL = True
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    assert "proxy.E004" in {found.id for found in check_settings()}


def test_the_names_are_those_of_the_conventions():
    """Of the newest conventions that are installed; a name that they dropped is not one of them."""
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    used = set(re.findall(r'"(gen_ai\.[a-z_.]+)"', Path(tracing_module.__file__).read_text()))

    assert len(used) > 10
    assert used <= known

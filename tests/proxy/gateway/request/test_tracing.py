"""Spans by OpenTelemetry's conventions, and the trace headers sent to the upstream."""

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
from proxy.gateway.request import tracing as tracing_module
from proxy.gateway.request.tracing import tracing
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import UPSTREAM_SECRET, add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(gateway: GatewayClient) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.start(exporter)
    yield exporter
    tracing.stop()


def spans_by_name(spans: InMemorySpanExporter, row_id: str) -> dict[str, ReadableSpan]:
    row(row_id)  # the row is written, so the request has ended
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        tracing.flush()
        by_name = {span.name: span for span in spans.get_finished_spans()}
        if any(name.startswith("POST") for name in by_name):
            return by_name
    raise AssertionError(f"no span of the request: {spans.get_finished_spans()}")


def test_a_request_has_a_server_span_and_a_child_span_for_its_attempt(
    gateway: GatewayClient, scripted: ScriptedUpstream, spans: InMemorySpanExporter
):
    scripted.on("chat-traced", upstream_scripts.chat())

    reply = gateway.post(message("chat-traced", stream=True), traceparent=PARENT)

    by_name = spans_by_name(spans, reply.id)
    server, client = by_name["POST /v1/messages"], by_name["chat chat-traced"]
    assert format(server.context.trace_id, "032x") == PARENT.split("-")[1]
    assert format(server.parent.span_id, "016x") == PARENT.split("-")[2]
    assert client.parent.span_id == server.context.span_id
    assert server.attributes["bridge.request_id"] == reply.id
    assert server.attributes["bridge.outcome"] == "completed"
    assert server.attributes["http.response.status_code"] == 200
    attributes = dict(client.attributes)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "generic"
    assert (
        attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "chat-traced"
    )
    assert attributes["gen_ai.usage.input_tokens"] == 12
    assert attributes["gen_ai.usage.output_tokens"] == 5
    assert attributes["gen_ai.response.finish_reasons"] == ("end_turn",)
    assert attributes["gen_ai.response.time_to_first_chunk"] > 0
    [request] = scripted.requests_for("chat-traced")
    version, trace, span, _ = request.headers["traceparent"].split("-")
    assert (version, trace) == ("00", PARENT.split("-")[1])
    assert span == format(client.context.span_id, "016x")


def test_spans_contain_no_content_and_no_secrets(
    gateway: GatewayClient, scripted: ScriptedUpstream, spans: InMemorySpanExporter
):
    scripted.on("chat-quiet", upstream_scripts.chat())
    reply = gateway.post(message("chat-quiet"))

    exported = json.dumps([span.to_json() for span in spans_by_name(spans, reply.id).values()])

    for secret in (UPSTREAM_SECRET, gateway.key, "Hello there", "sk-br-"):
        assert secret not in exported


def test_every_attempt_has_a_span(
    gateway: GatewayClient, scripted: ScriptedUpstream, spans: InMemorySpanExporter
):
    upstreams = [add_upstream(f"span-{n}", "chat", scripted.base_url) for n in range(2)]
    add_route("tried", *upstreams)
    scripted.on("tried", json_response({"error": {"message": "no"}}, 500), upstream_scripts.chat())
    from proxy.gateway.snapshot.config_snapshot import directory

    directory.poll()

    reply = gateway.post(message("tried"))

    spans_by_name(spans, reply.id)
    calls = [span for span in spans.get_finished_spans() if span.name == "chat tried"]
    assert [span.attributes["bridge.upstream"] for span in calls] == ["span-0", "span-1"]
    assert [span.status.is_ok for span in calls] == [False, True]


def test_without_tracing_the_upstream_gets_no_header(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-untraced", upstream_scripts.chat())

    gateway.post(message("chat-untraced"), traceparent=PARENT)

    [request] = scripted.requests_for("chat-untraced")
    assert "traceparent" not in request.headers


def test_tracing_without_its_packages_is_a_system_check_error(settings, monkeypatch):
    settings.OTEL = True
    # The tests have the optional packages.
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    assert "proxy.E004" in {message.id for message in check_settings()}


def test_the_attribute_names_are_those_of_the_conventions():
    """The installed conventions contain every name; a removed name fails."""
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    used = set(re.findall(r'"(gen_ai\.[a-z_.]+)"', Path(tracing_module.__file__).read_text()))

    assert len(used) > 10
    assert used <= known

"""Trace context goes from the client's header to the upstream's, and spans are exported by OTLP."""

import json
from pathlib import Path

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.otlp_collector import Collector, attributes_as_dict
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT = "the secret of the pyramids"


def test_spans_are_exported_and_trace_context_reaches_the_upstream(tmp_path: Path):
    route = '[[routes]]\nmodel = "traced"\ntargets = [{ upstream = "chat" }]\n'
    with ScriptedUpstream() as upstream, Collector() as collector:
        upstream.on("traced", upstream_scripts.chat())
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, route)
        environment = {"BRIDGE_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with Gateway(tmp_path / "gateway", config, environment) as gateway:
            body = {
                "model": "traced", "max_tokens": 10, "stream": True,
                "messages": [{"role": "user", "content": PROMPT}],
            }  # fmt: skip
            headers_to_send = {
                "content-type": "application/json",
                "traceparent": f"00-{TRACE}-{PARENT}-01",
            }
            reply = gateway.request(
                "POST", "/v1/messages", json.dumps(body).encode(), headers_to_send
            )
        # The gateway exports the remaining spans when it stops.

        [request] = upstream.requests_for("traced")
    assert reply.status == 200
    server, client = sorted(
        (span for span in collector.spans if span.trace_id.hex() == TRACE), key=lambda s: s.kind
    )
    assert collector.services == {"messages-bridge"}
    assert (server.name, client.name) == ("POST /v1/messages", "chat traced")
    assert server.parent_span_id.hex() == PARENT
    assert client.parent_span_id == server.span_id
    assert request.headers["traceparent"] == f"00-{TRACE}-{client.span_id.hex()}-01"
    assert attributes_as_dict(server.attributes)["bridge.request_id"] == reply.headers["request-id"]
    attributes = attributes_as_dict(client.attributes)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.usage.output_tokens"] == 5
    for secret in (PROMPT, "Hello there", gateway.key, "sk-upstream-of-the-tests"):
        assert secret.encode() not in collector.raw

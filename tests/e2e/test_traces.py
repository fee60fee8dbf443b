"""A trace goes through the gateway: from the client's header to the upstream's, told by OTLP."""

import json
from pathlib import Path

from tests.fakes.collector import Collector, named
from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT = "the secret of the pyramids"


def test_spans_arrive_at_a_collector_and_the_trace_goes_on_upstream(tmp_path: Path):
    route = '[[routes]]\nmodel = "traced"\ntargets = [{ upstream = "chat" }]\n'
    with ScriptedUpstream() as player, Collector() as collector:
        player.on("traced", scripts.chat())
        config = toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, route)
        environment = {"BRIDGE_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with Gateway(tmp_path / "gateway", config, environment) as gateway:
            body = {
                "model": "traced", "max_tokens": 10, "stream": True,
                "messages": [{"role": "user", "content": PROMPT}],
            }  # fmt: skip
            told = {"content-type": "application/json", "traceparent": f"00-{TRACE}-{PARENT}-01"}
            reply = gateway.ask("POST", "/v1/messages", json.dumps(body).encode(), told)
        # Stopping has sent what waited.

        [asked] = player.asked_for("traced")
    assert reply.status == 200
    server, client = sorted(
        (span for span in collector.spans if span.trace_id.hex() == TRACE), key=lambda s: s.kind
    )
    assert collector.services == {"messages-bridge"}
    assert (server.name, client.name) == ("POST /v1/messages", "chat traced")
    assert server.parent_span_id.hex() == PARENT
    assert client.parent_span_id == server.span_id
    assert asked.headers["traceparent"] == f"00-{TRACE}-{client.span_id.hex()}-01"
    assert named(server.attributes)["bridge.request_id"] == reply.headers["request-id"]
    attributes = named(client.attributes)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.usage.output_tokens"] == 5
    for secret in (PROMPT, "Hello there", gateway.key, "sk-upstream-of-the-tests"):
        assert secret.encode() not in collector.raw

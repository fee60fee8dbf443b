"""POST /v1/messages/count_tokens with upstreams of each dialect."""

import json

from proxy.models import Upstream
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway.conftest import UPSTREAM_SECRET, add_route, add_upstream, message
from tests.proxy.gateway.http_client import GatewayClient

COUNT = "/v1/messages/count_tokens"
FOREIGN = {"type": "thinking", "thinking": "Hm.", "signature": "brg1.k.e30.AAAAAAAAAAAAAAAAAAAAAA"}


def test_an_anthropic_upstream_receives_and_returns_a_count_unchanged(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    answer = b'{ "input_tokens": 7, "context_management": {"original_input_tokens": 9}, "new": 1}'
    headers = {
        "request-id": "req_up",
        "anthropic-ratelimit-requests-limit": "9",
        "set-cookie": "a=b",
    }
    scripted.on("anthropic-counted", json_response(answer, headers=headers))
    raw = (
        b'{ "messages": [{"role": "user", "content": "caf\\u00e9"}],\n "new_field": 1.50,'
        b' "context_management": {"edits": []}, "model": "anthropic-counted"}'
    )

    reply = gateway.post(
        raw,
        f"{COUNT}?beta=true",
        anthropic_beta="context-management-2025-06-27",
        user_agent="claude-cli/2.1.329",
        cookie="a=b",
    )

    assert (reply.status, reply.body) == (200, answer)
    assert reply.headers["x-upstream-request-id"] == "req_up"
    assert reply.headers["anthropic-ratelimit-requests-limit"] == "9"
    assert reply.headers.keys().isdisjoint({"set-cookie", "x-bridge-estimate"})
    (request,) = scripted.requests_for("anthropic-counted")
    assert (request.path, request.body) == (f"{COUNT}?beta=true", raw)
    assert request.headers["anthropic-beta"] == "context-management-2025-06-27"
    assert request.headers["user-agent"] == "claude-cli/2.1.329"
    assert request.headers["x-api-key"] == UPSTREAM_SECRET
    assert "cookie" not in request.headers


def test_a_count_drops_reasoning_of_other_upstreams(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("anthropic-count-carrier", json_response({"input_tokens": 7}))
    assistant = {"role": "assistant", "content": [FOREIGN, {"type": "text", "text": "Yes."}]}
    user = {"role": "user", "content": "Sure?"}

    reply = gateway.post(
        message("anthropic-count-carrier", messages=[user, assistant, user]), COUNT
    )

    assert reply.json == {"input_tokens": 7}
    (request,) = scripted.requests_for("anthropic-count-carrier")
    assert b"brg1" not in request.body


def test_fields_without_influence_on_the_count_are_removed(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("/v1/responses/input_tokens", json_response({"input_tokens": 42}))

    reply = gateway.post(
        message("responses-compacted", compaction={"type": "summarize"}, inference_geo="us"), COUNT
    )

    assert reply.json == {"input_tokens": 42}
    assert "x-bridge-estimate" not in reply.headers


@for_each("model", ["responses-edited", "chat-edited"])
def test_a_count_with_context_management_has_the_count_before_edits(
    gateway: GatewayClient, scripted: ScriptedUpstream, model: str
):
    scripted.on("/v1/responses/input_tokens", json_response({"input_tokens": 42}))
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}

    answer = gateway.post(message(model, context_management=edits), COUNT).json

    assert answer["context_management"] == {"original_input_tokens": answer["input_tokens"]}


def test_a_chat_server_with_anthropic_s_count_endpoint_is_used(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    server = add_upstream(
        "counts", "chat", scripted.base_url, "vllm", capabilities={"count_tokens": True}
    )
    route = add_route("counted-*", server)
    reload()
    scripted.on("counted-here", json_response({"input_tokens": 21}))

    reply = gateway.post(message("counted-here", system="Be brief."), COUNT)

    assert reply.json == {"input_tokens": 21}
    (request,) = scripted.requests_for("counted-here")
    assert request.path == COUNT
    assert request.json["system"] == "Be brief."
    assert request.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    route.delete()
    Upstream.objects.filter(name="counts").delete()
    reload()


@for_each(
    "answer", [b"{", b"[]", b'{"input_tokens": "7"}', b'{"input_tokens": -1}'], ids=bytes.decode
)
def test_an_invalid_count_response_leads_to_an_estimate(
    gateway: GatewayClient, scripted: ScriptedUpstream, answer: bytes
):
    scripted.on("anthropic-countless", json_response(answer))

    reply = gateway.post(message("anthropic-countless"), COUNT)

    assert reply.status == 200
    assert reply.headers["x-bridge-estimate"] == "true"
    assert json.loads(reply.body)["input_tokens"] > 0

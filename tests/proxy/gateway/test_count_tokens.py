"""POST /v1/messages/count_tokens, by what the upstream behind it can."""

import json

import pytest

from proxy.gateway import count
from proxy.models import Upstream
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream

from .browser import Browser
from .conftest import UPSTREAM_SECRET, add_route, add_upstream, message

COUNT = "/v1/messages/count_tokens"
FOREIGN = {"type": "thinking", "thinking": "Hm.", "signature": "brg1.k.e30.AAAAAAAAAAAAAAAAAAAAAA"}


def test_a_count_goes_through_an_anthropic_upstream_as_it_came(
    gateway: Browser, scripted: ScriptedUpstream
):
    answer = b'{ "input_tokens": 7, "context_management": {"original_input_tokens": 9}, "new": 1}'
    told = {"request-id": "req_up", "anthropic-ratelimit-requests-limit": "9", "set-cookie": "a=b"}
    scripted.on("anthropic-counted", json_answer(answer, headers=told))
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
    (asked,) = scripted.asked_for("anthropic-counted")
    assert (asked.path, asked.body) == (f"{COUNT}?beta=true", raw)
    assert asked.headers["anthropic-beta"] == "context-management-2025-06-27"
    assert asked.headers["user-agent"] == "claude-cli/2.1.329"
    assert asked.headers["x-api-key"] == UPSTREAM_SECRET
    assert "cookie" not in asked.headers


def test_a_count_has_no_reasoning_that_anthropic_cannot_read(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("anthropic-count-carrier", json_answer({"input_tokens": 7}))
    said = {"role": "assistant", "content": [FOREIGN, {"type": "text", "text": "Yes."}]}
    asked = {"role": "user", "content": "Sure?"}

    reply = gateway.post(message("anthropic-count-carrier", messages=[asked, said, asked]), COUNT)

    assert reply.json == {"input_tokens": 7}
    (heard,) = scripted.asked_for("anthropic-count-carrier")
    assert b"brg1" not in heard.body


def test_what_no_count_depends_on_does_not_keep_it_from_being_exact(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("/v1/responses/input_tokens", json_answer({"input_tokens": 42}))

    reply = gateway.post(
        message("responses-compacted", compaction={"type": "summarize"}, inference_geo="us"), COUNT
    )

    assert reply.json == {"input_tokens": 42}
    assert "x-bridge-estimate" not in reply.headers


@pytest.mark.parametrize("model", ["responses-edited", "chat-edited"])
def test_who_edits_the_context_hears_the_count_before_it(
    gateway: Browser, scripted: ScriptedUpstream, model: str
):
    scripted.on("/v1/responses/input_tokens", json_answer({"input_tokens": 42}))
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}

    told = gateway.post(message(model, context_management=edits), COUNT).json

    assert told["context_management"] == {"original_input_tokens": told["input_tokens"]}


def test_a_chat_server_with_anthropic_s_endpoint_is_asked_there(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    server = add_upstream(
        "counts", "chat", scripted.base_url, "vllm", capabilities={"count_tokens": True}
    )
    route = add_route("counted-*", server)
    reload()
    scripted.on("counted-here", json_answer({"input_tokens": 21}))

    reply = gateway.post(message("counted-here", system="Be brief."), COUNT)

    assert reply.json == {"input_tokens": 21}
    (asked,) = scripted.asked_for("counted-here")
    assert asked.path == COUNT
    assert asked.json["system"] == "Be brief."
    assert asked.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    route.delete()
    Upstream.objects.filter(name="counts").delete()
    reload()


@pytest.mark.parametrize(
    "answer", [b"{", b"[]", b'{"input_tokens": "7"}', b'{"input_tokens": -1}'], ids=bytes.decode
)
def test_an_answer_that_tells_no_count_is_no_answer(
    gateway: Browser, scripted: ScriptedUpstream, monkeypatch, answer: bytes
):
    monkeypatch.setattr(count, "_without_endpoint", set())
    scripted.on("anthropic-countless", json_answer(answer))

    reply = gateway.post(message("anthropic-countless"), COUNT)

    assert reply.status == 200
    assert reply.headers["x-bridge-estimate"] == "true"
    assert json.loads(reply.body)["input_tokens"] > 0

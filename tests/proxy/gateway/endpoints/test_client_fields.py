"""Servers of Anthropic's API other than its own, to which Claude Code sends what they do not know."""

import pytest

from proxy.gateway.upstream.model_memory import memory
from tests.fakes.upstreams.script_steps import json_response, stream
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient

ANSWER = stream(b"".join(upstream_scripts.claude_events()))
BETAS = "context-management-2025-06-27,interleaved-thinking-2025-05-14"


def refusal(text: str):
    error = {"type": "invalid_request_error", "message": text}
    return json_response({"type": "error", "error": error}, 400)


@pytest.fixture
def other_server(gateway: GatewayClient, scripted: ScriptedUpstream, reload):
    """A route ``other-*`` to a server of Anthropic's API that is not Anthropic's."""
    upstream = add_upstream("other", "anthropic", scripted.url)
    route = add_route("other-*", upstream)
    reload()
    yield
    route.delete()
    upstream.delete()
    memory.by_model.clear()


@for_each("streaming", [True, False])
def test_a_field_of_claude_code_that_a_server_does_not_know_is_left_out(
    gateway: GatewayClient, scripted: ScriptedUpstream, other_server, streaming
):
    model = f"other-fields-{streaming}".lower()
    scripted.on(
        model,
        refusal("context_management: Extra inputs are not permitted"),
        refusal("output_config: Extra inputs are not permitted"),
        ANSWER,
    )
    fields = {"context_management": {"edits": []}, "output_config": {"effort": "high"}}

    replies = [
        gateway.post(message(model, stream=streaming, metadata={"user_id": "u"}, **fields))
        for _ in range(2)
    ]

    assert [reply.status for reply in replies] == [200, 200]
    *_, third, fourth = scripted.requests_for(model)
    for request in (third, fourth):  # remembered: the second request is sent once
        assert not {*fields} & request.json.keys()
        assert request.json["metadata"] == {"user_id": "u"}
    assert len(scripted.requests_for(model)) == 4
    notes = row(replies[1].id, outcome="completed").notes
    assert {*fields} == {note["path"] for note in notes if note["fate"] == "dropped"}


def test_anthropic_s_own_refusal_goes_to_the_client(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    text = "context_management: Extra inputs are not permitted"
    scripted.on("anthropic-fields", refusal(text))

    reply = gateway.post(message("anthropic-fields", context_management={"edits": []}))

    assert (reply.status, reply.json["error"]["message"]) == (400, text)
    assert len(scripted.requests_for("anthropic-fields")) == 1


@for_each(
    ("text", "left"),
    [
        (
            "Unexpected value(s) `context-management-2025-06-27` for the `anthropic-beta` header",
            "interleaved-thinking-2025-05-14",
        ),
        ("invalid beta flag", None),
    ],
)
def test_betas_that_a_server_refuses_are_dropped(
    gateway: GatewayClient, scripted: ScriptedUpstream, other_server, text, left
):
    model = f"other-betas-{len(text)}"
    scripted.on(model, refusal(text), ANSWER)

    reply = gateway.post(message(model, stream=True), anthropic_beta=BETAS)

    assert reply.status == 200
    first, second = scripted.requests_for(model)
    assert first.headers["anthropic-beta"] == BETAS
    assert second.headers.get("anthropic-beta") == left
    assert "anthropic-beta" in {note["path"] for note in row(reply.id, outcome="completed").notes}


def test_anthropic_s_own_refusal_of_a_beta_goes_to_the_client(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("anthropic-betas", refusal("Unexpected value(s) for the `anthropic-beta` header"))

    reply = gateway.post(message("anthropic-betas", stream=True), anthropic_beta=BETAS)

    assert reply.status == 400
    assert len(scripted.requests_for("anthropic-betas")) == 1

"""Rules for beta names and body fields, over real sockets."""

from collections.abc import Iterator

import pytest

from proxy.gateway.snapshot.config_snapshot import directory
from proxy.gateway.snapshot.upstream_policies import NO_POLICIES, build_policies
from proxy.models import Upstream, UpstreamPolicy
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.http_client import GatewayClient

MESSAGE = {
    "id": "msg_upstream", "type": "message", "role": "assistant", "model": "claude-x",
    "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 5},
}  # fmt: skip


@pytest.fixture
def rules(gateway: GatewayClient) -> Iterator:
    """Return a function that adds a rule; all rules are deleted after the test."""

    def rule(kind: str, name: str, action: str, upstream: str | None = "anthropic") -> None:
        owner = Upstream.objects.get(name=upstream) if upstream else None
        UpstreamPolicy.objects.create(kind=kind, name=name, action=action, upstream=owner)
        directory.poll()

    yield rule
    UpstreamPolicy.objects.all().delete()
    directory.poll()


def request_to(scripted: ScriptedUpstream, model: str):
    [request] = scripted.requests_for(model)
    return request


def test_a_beta_name_is_dropped_for_one_upstream_with_a_note(gateway, scripted, rules):
    rules("beta", "advisor-*", "drop")
    scripted.on("anthropic-beta", json_response(MESSAGE))

    reply = gateway.post(
        message("anthropic-beta"), anthropic_beta="context-1m-2025-08-07,advisor-2026-01-01"
    )

    assert reply.status == 200
    assert (
        request_to(scripted, "anthropic-beta").headers["anthropic-beta"] == "context-1m-2025-08-07"
    )
    notes = row(reply.id).notes
    assert [note["reason"] for note in notes if note["path"] == "anthropic-beta"] == [
        "advisor-2026-01-01: this upstream's policy"
    ]


def test_a_header_without_names_is_not_sent(gateway, scripted, rules):
    rules("beta", "*", "drop", upstream=None)
    scripted.on("anthropic-none", json_response(MESSAGE))

    gateway.post(message("anthropic-none"), anthropic_beta="a,b")

    assert "anthropic-beta" not in request_to(scripted, "anthropic-none").headers


def test_a_field_is_dropped_from_a_relayed_body(gateway, scripted, rules):
    rules("field", "context_management", "drop")
    scripted.on("anthropic-field", json_response(MESSAGE))

    reply = gateway.post(message("anthropic-field", context_management={"edits": []}))

    assert reply.status == 200
    sent = request_to(scripted, "anthropic-field").json
    assert "context_management" not in sent
    assert sent["messages"] == message("anthropic-field")["messages"]
    assert any(note["path"] == "context_management" for note in row(reply.id).notes)


@pytest.mark.parametrize("dialect", ["anthropic", "chat"])
def test_a_refused_field_is_named_to_the_client(gateway, scripted, rules, dialect):
    rules("field", "top_k", "refuse", upstream=dialect)
    model = f"{dialect}-refused"
    scripted.on(model, upstream_scripts.chat())

    reply = gateway.post(message(model, top_k=3))

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("top_k")
    assert scripted.requests_for(model) == []


def test_a_refused_beta_is_named_to_the_client(gateway, scripted, rules):
    rules("beta", "advisor-*", "refuse")

    reply = gateway.post(message("anthropic-no"), anthropic_beta="advisor-2026-01-01")

    assert reply.status == 400
    assert "advisor-2026-01-01" in reply.json["error"]["message"]


def test_a_rule_does_not_apply_to_another_upstream(gateway, scripted, rules):
    rules("field", "temperature", "drop", upstream="anthropic")
    scripted.on("chat-other", upstream_scripts.chat())

    gateway.post(message("chat-other", temperature=0.5))

    assert request_to(scripted, "chat-other").json["temperature"] == 0.5


def test_the_first_matching_rule_applies():
    policies = build_policies(
        [
            {"kind": "beta", "name": "context-1m-*", "action": "pass"},
            {"kind": "beta", "name": "*", "action": "drop"},
        ]
    )

    assert policies.action_for("beta", "context-1m-2025-08-07") == "pass"
    assert policies.action_for("beta", "advisor") == "drop"
    assert policies.action_for("field", "advisor") == "pass"
    assert build_policies([]) is NO_POLICIES

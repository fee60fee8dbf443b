"""What an upstream may be told of beta names and body fields, over real sockets."""

from collections.abc import Iterator

import pytest

from proxy.gateway.directory import directory
from proxy.gateway.policies import NONE, policies_of
from proxy.models import Upstream, UpstreamPolicy
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import message, row

WHOLE = {
    "id": "msg_upstream", "type": "message", "role": "assistant", "model": "claude-x",
    "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 5},
}  # fmt: skip


@pytest.fixture
def rules(gateway: Browser) -> Iterator:
    """Set rules; they are gone afterwards."""

    def rule(kind: str, name: str, action: str, upstream: str | None = "anthropic") -> None:
        named = Upstream.objects.get(name=upstream) if upstream else None
        UpstreamPolicy.objects.create(kind=kind, name=name, action=action, upstream=named)
        directory.look()

    yield rule
    UpstreamPolicy.objects.all().delete()
    directory.look()


def asked(scripted: ScriptedUpstream, model: str):
    [found] = scripted.asked_for(model)
    return found


def test_a_beta_name_is_left_out_for_one_upstream_and_noted(gateway, scripted, rules):
    rules("beta", "advisor-*", "drop")
    scripted.on("anthropic-beta", json_answer(WHOLE))

    reply = gateway.post(
        message("anthropic-beta"), anthropic_beta="context-1m-2025-08-07,advisor-2026-01-01"
    )

    assert reply.status == 200
    assert asked(scripted, "anthropic-beta").headers["anthropic-beta"] == "context-1m-2025-08-07"
    notes = row(reply.id).notes
    assert [note["reason"] for note in notes if note["path"] == "anthropic-beta"] == [
        "advisor-2026-01-01: this upstream's policy"
    ]


def test_a_header_without_names_is_not_sent(gateway, scripted, rules):
    rules("beta", "*", "drop", upstream=None)
    scripted.on("anthropic-none", json_answer(WHOLE))

    gateway.post(message("anthropic-none"), anthropic_beta="a,b")

    assert "anthropic-beta" not in asked(scripted, "anthropic-none").headers


def test_a_field_is_left_out_of_the_clients_own_bytes(gateway, scripted, rules):
    rules("field", "context_management", "drop")
    scripted.on("anthropic-field", json_answer(WHOLE))

    reply = gateway.post(message("anthropic-field", context_management={"edits": []}))

    assert reply.status == 200
    sent = asked(scripted, "anthropic-field").json
    assert "context_management" not in sent
    assert sent["messages"] == message("anthropic-field")["messages"]
    assert any(note["path"] == "context_management" for note in row(reply.id).notes)


@pytest.mark.parametrize("dialect", ["anthropic", "chat"])
def test_a_refused_field_is_named_to_the_client(gateway, scripted, rules, dialect):
    rules("field", "top_k", "refuse", upstream=dialect)
    model = f"{dialect}-refused"
    scripted.on(model, scripts.chat())

    reply = gateway.post(message(model, top_k=3))

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("top_k")
    assert scripted.asked_for(model) == []


def test_a_refused_beta_is_named_to_the_client(gateway, scripted, rules):
    rules("beta", "advisor-*", "refuse")

    reply = gateway.post(message("anthropic-no"), anthropic_beta="advisor-2026-01-01")

    assert reply.status == 400
    assert "advisor-2026-01-01" in reply.json["error"]["message"]


def test_another_upstream_is_not_concerned(gateway, scripted, rules):
    rules("field", "temperature", "drop", upstream="anthropic")
    scripted.on("chat-other", scripts.chat())

    gateway.post(message("chat-other", temperature=0.5))

    assert asked(scripted, "chat-other").json["temperature"] == 0.5


def test_the_first_rule_that_fits_counts():
    policies = policies_of(
        [
            {"kind": "beta", "name": "context-1m-*", "action": "pass"},
            {"kind": "beta", "name": "*", "action": "drop"},
        ]
    )

    assert policies.of("beta", "context-1m-2025-08-07") == "pass"
    assert policies.of("beta", "advisor") == "drop"
    assert policies.of("field", "advisor") == "pass"
    assert policies_of([]) is NONE

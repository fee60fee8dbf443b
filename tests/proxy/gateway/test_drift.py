"""Block types, roles and client versions that are new: counted when first seen, and then ruled."""

import time
from collections.abc import Iterator

import pytest

from proxy.models import Drift, UpstreamPolicy
from proxy.record import transcripts
from tests.fakes.steps import LAST_CHUNK
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import add_route, add_upstream, message, row
from .test_policies import rules

__all__ = ["rules"]

HOLOGRAM = {"type": "hologram", "beam": 7}
ANTHROPIC = scripts.pieces(scripts.claude_events(), LAST_CHUNK)
WORDS = {"type": "text", "text": "Look at this"}

PLAYS = {"chat": scripts.chat(), "responses": scripts.responses(), "anthropic": ANTHROPIC}


def said(*blocks: dict, role: str = "user") -> dict:
    return {"role": role, "content": list(blocks)}


def told(model: str, *messages: dict, **fields) -> dict:
    return {**message(model, **fields), "messages": list(messages)}


def sent(scripted: ScriptedUpstream, model: str) -> list[dict]:
    [asked] = scripted.asked_for(model)
    return asked.json["messages"]


def sighting(kind: str, name: str) -> Drift:
    """As soon as the drainer has written it."""
    deadline = time.monotonic() + 60
    while True:
        found = Drift.objects.filter(kind=kind, name=name).first()
        if found is not None:
            return found
        assert time.monotonic() < deadline, f"no {kind} {name}"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def forgotten(gateway: Browser) -> Iterator[None]:
    yield
    Drift.objects.all().delete()


@pytest.mark.parametrize(
    ("kind", "name", "body"),
    [
        ("block", "hologram-1", {"messages": [said(WORDS, {"type": "hologram-1"})]}),
        ("block", "hologram-2", {"messages": [said({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "hologram-2"}]})]}),
        ("role", "developer-1", {"messages": [said(WORDS, role="developer-1")]}),
    ],
)  # fmt: skip
def test_what_nobody_knows_is_refused_by_its_place_and_counted(gateway, kind, name, body):
    reply = gateway.post({**message("chat-new"), **body})

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("messages.0")
    seen = sighting(kind, name)
    assert (seen.known, seen.requests, seen.first_request) == (False, 1, reply.id)


def test_a_field_that_strict_mode_refuses_is_counted(gateway):
    reply = gateway.post(message("chat-new", brand_new_1=1), x_bridge_strict="true")

    assert reply.status == 400
    assert sighting("field", "brand_new_1").first_request == reply.id


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_a_rule_lets_a_request_in_without_its_new_block(gateway, scripted, rules, dialect):
    rules("block", "holo*", "drop", upstream=None)
    model = f"{dialect}-without"
    scripted.on(model, PLAYS[dialect])
    inside = {"type": "tool_result", "tool_use_id": "t1", "content": [HOLOGRAM, WORDS]}
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}

    reply = gateway.post(
        told(model, said(WORDS, HOLOGRAM), said(call, role="assistant"), said(inside), stream=True)
    )

    assert reply.status == 200, reply.body
    [asked] = scripted.asked_for(model)
    assert b"hologram" not in asked.body
    assert asked.body.count(b"Look at this") == 2
    [note] = [n for n in row(reply.id).notes if "hologram" in n["reason"]]
    assert note["path"] == "messages.0.content.1"
    assert note["reason"] == "block hologram, 2 times: this upstream's policy"


def test_an_anthropic_upstream_may_be_told_what_we_do_not_know(gateway, scripted, rules):
    rules("block", "hologram", "pass")
    rules("role", "developer", "pass")
    scripted.on("anthropic-knows", ANTHROPIC)
    messages = [said(WORDS, HOLOGRAM), said(WORDS, role="developer")]

    reply = gateway.post(told("anthropic-knows", *messages, stream=True))

    assert reply.status == 200, reply.body
    assert sent(scripted, "anthropic-knows") == messages
    row(reply.id)
    assert transcripts.read(reply.id).request["messages"] == messages


def test_a_dialect_that_has_no_such_thing_refuses_it_by_name(gateway, scripted, rules):
    rules("block", "hologram", "pass", upstream=None)

    reply = gateway.post(told("chat-lost", said(WORDS, HOLOGRAM)))

    assert reply.status == 400
    assert "messages.0.content.1.type" in reply.json["error"]["message"]
    assert scripted.asked_for("chat-lost") == []


def test_a_rule_for_one_upstream_does_not_open_another(gateway, scripted, rules):
    rules("block", "hologram", "drop", upstream="anthropic")

    assert gateway.post(told("chat-lost", said(WORDS, HOLOGRAM))).status == 400
    assert scripted.asked_for("chat-lost") == []


def test_a_known_block_can_be_left_out_and_its_turn_stays(gateway, scripted, rules):
    rules("block", "image", "drop")
    scripted.on("anthropic-blind", ANTHROPIC)
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}

    gateway.post(told("anthropic-blind", said(picture), said(WORDS, role="assistant"), said(WORDS)))

    first, *rest = sent(scripted, "anthropic-blind")
    assert first == said({"type": "text", "text": "[image left out]"})
    assert rest == [said(WORDS, role="assistant"), said(WORDS)]


def test_a_role_can_be_left_out(gateway, scripted, rules):
    rules("role", "dev*", "drop", upstream=None)
    scripted.on("chat-roles", scripts.chat())

    reply = gateway.post(told("chat-roles", said(WORDS, role="developer"), said(WORDS)))

    assert reply.status == 200
    assert [each["role"] for each in sent(scripted, "chat-roles")] == ["user"]
    assert any("role developer" in note["reason"] for note in row(reply.id).notes)


def test_a_glob_never_takes_what_a_conversation_is_made_of(gateway, scripted, rules):
    for kind in ("field", "block", "role"):
        rules(kind, "*", "drop")
    scripted.on("anthropic-all", ANTHROPIC)

    reply = gateway.post(message("anthropic-all", stream=True, temperature=0.5))

    assert reply.status == 200
    [asked] = scripted.asked_for("anthropic-all")
    assert "temperature" not in asked.json
    assert asked.json["messages"] == message("anthropic-all")["messages"]


def test_a_broken_known_block_beside_a_new_one_is_refused_at_its_own_place(gateway, rules):
    rules("block", "hologram", "drop", upstream=None)

    reply = gateway.post(told("chat-broken", said(HOLOGRAM, {"type": "text", "text": 3})))

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("messages.0.content.1.text")


def test_a_client_version_is_refused_where_a_rule_says_so(gateway, scripted, rules):
    rules("client", "old-cli 1.*", "refuse", upstream="chat")
    scripted.on("chat-client", scripts.chat())

    refused = gateway.post(message("chat-client"), user_agent="old-cli/1.9.0 (external)")
    served = gateway.post(message("chat-client"), user_agent="old-cli/2.0.0 (external)")

    assert (refused.status, served.status) == (400, 200)
    assert "old-cli 1.9.0" in refused.json["error"]["message"]
    assert sighting("client", "old-cli 2.0.0").known is None


def test_the_next_target_may_take_what_this_one_refuses(gateway, scripted, rules):
    upstream = add_upstream("picky", "anthropic", scripted.url, "anthropic")
    add_route("either", upstream)
    rules("block", "hologram", "drop", upstream="picky")
    scripted.on("either", ANTHROPIC)

    assert gateway.post(told("either", said(WORDS, HOLOGRAM), stream=True)).status == 200


def test_a_new_block_is_counted_for_tokens_too(gateway, rules):
    rules("block", "hologram", "drop", upstream=None)

    reply = gateway.post(
        {"model": "chat-count", "messages": [said(WORDS, HOLOGRAM)]},
        path="/v1/messages/count_tokens",
    )

    assert reply.status == 200, reply.body
    assert UpstreamPolicy.objects.count() == 1

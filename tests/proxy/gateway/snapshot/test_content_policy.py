"""Unknown block types, roles and client versions are counted, and rules apply to them."""

import time
from collections.abc import Iterator

import pytest

from proxy.ledger.transcripts import storage
from proxy.models import Drift, UpstreamPolicy
from tests.fakes.upstreams.script_steps import LAST_CHUNK
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient

from .test_upstream_policies import rules

__all__ = ["rules"]

HOLOGRAM = {"type": "hologram", "beam": 7}
ANTHROPIC = upstream_scripts.pieces(upstream_scripts.claude_events(), LAST_CHUNK)
WORDS = {"type": "text", "text": "Look at this"}

SCRIPTS = {
    "chat": upstream_scripts.chat(),
    "responses": upstream_scripts.responses(),
    "anthropic": ANTHROPIC,
}


def turn(*blocks: dict, role: str = "user") -> dict:
    return {"role": role, "content": list(blocks)}


def request(model: str, *messages: dict, **fields) -> dict:
    return {**message(model, **fields), "messages": list(messages)}


def sent_messages(scripted: ScriptedUpstream, model: str) -> list[dict]:
    [upstream_request] = scripted.requests_for(model)
    return upstream_request.json["messages"]


def wait_for_drift(kind: str, name: str) -> Drift:
    """Wait until the drift row is written and return it."""
    deadline = time.monotonic() + 60
    while True:
        found = Drift.objects.filter(kind=kind, name=name).first()
        if found is not None:
            return found
        assert time.monotonic() < deadline, f"no {kind} {name}"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def delete_drift(gateway: GatewayClient) -> Iterator[None]:
    yield
    Drift.objects.all().delete()


@pytest.mark.parametrize(
    ("kind", "name", "body"),
    [
        ("block", "hologram-1", {"messages": [turn(WORDS, {"type": "hologram-1"})]}),
        ("block", "hologram-2", {"messages": [turn({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "hologram-2"}]})]}),
        ("role", "developer-1", {"messages": [turn(WORDS, role="developer-1")]}),
    ],
)  # fmt: skip
def test_an_unknown_block_or_role_is_refused_with_its_path_and_counted(gateway, kind, name, body):
    reply = gateway.post({**message("chat-new"), **body})

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("messages.0")
    seen = wait_for_drift(kind, name)
    assert (seen.known, seen.requests, seen.first_request) == (False, 1, reply.id)


def test_an_unknown_field_in_strict_mode_is_counted(gateway):
    reply = gateway.post(message("chat-new", brand_new_1=1), x_bridge_strict="true")

    assert reply.status == 400
    assert wait_for_drift("field", "brand_new_1").first_request == reply.id


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_a_drop_rule_removes_an_unknown_block(gateway, scripted, rules, dialect):
    rules("block", "holo*", "drop", upstream=None)
    model = f"{dialect}-without"
    scripted.on(model, SCRIPTS[dialect])
    inside = {"type": "tool_result", "tool_use_id": "t1", "content": [HOLOGRAM, WORDS]}
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}

    reply = gateway.post(
        request(
            model, turn(WORDS, HOLOGRAM), turn(call, role="assistant"), turn(inside), stream=True
        )
    )

    assert reply.status == 200, reply.body
    [upstream_request] = scripted.requests_for(model)
    assert b"hologram" not in upstream_request.body
    assert upstream_request.body.count(b"Look at this") == 2
    [note] = [n for n in row(reply.id).notes if "hologram" in n["reason"]]
    assert note["path"] == "messages.0.content.1"
    assert note["reason"] == "block hologram, 2 times: this upstream's policy"


def test_a_pass_rule_sends_unknown_blocks_to_an_anthropic_upstream(gateway, scripted, rules):
    rules("block", "hologram", "pass")
    rules("role", "developer", "pass")
    scripted.on("anthropic-knows", ANTHROPIC)
    messages = [turn(WORDS, HOLOGRAM), turn(WORDS, role="developer")]

    reply = gateway.post(request("anthropic-knows", *messages, stream=True))

    assert reply.status == 200, reply.body
    assert sent_messages(scripted, "anthropic-knows") == messages
    row(reply.id)
    assert storage.read(reply.id).request["messages"] == messages


def test_another_dialect_refuses_an_unknown_block_with_its_path(gateway, scripted, rules):
    rules("block", "hologram", "pass", upstream=None)

    reply = gateway.post(request("chat-lost", turn(WORDS, HOLOGRAM)))

    assert reply.status == 400
    assert "messages.0.content.1.type" in reply.json["error"]["message"]
    assert scripted.requests_for("chat-lost") == []


def test_a_rule_for_one_upstream_does_not_apply_to_another(gateway, scripted, rules):
    rules("block", "hologram", "drop", upstream="anthropic")

    assert gateway.post(request("chat-lost", turn(WORDS, HOLOGRAM))).status == 400
    assert scripted.requests_for("chat-lost") == []


def test_a_message_stays_when_its_only_block_is_dropped(gateway, scripted, rules):
    rules("block", "image", "drop")
    scripted.on("anthropic-blind", ANTHROPIC)
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}

    gateway.post(
        request("anthropic-blind", turn(picture), turn(WORDS, role="assistant"), turn(WORDS))
    )

    first, *rest = sent_messages(scripted, "anthropic-blind")
    assert first == turn({"type": "text", "text": "[image left out]"})
    assert rest == [turn(WORDS, role="assistant"), turn(WORDS)]


def test_a_drop_rule_removes_a_role(gateway, scripted, rules):
    rules("role", "dev*", "drop", upstream=None)
    scripted.on("chat-roles", upstream_scripts.chat())

    reply = gateway.post(request("chat-roles", turn(WORDS, role="developer"), turn(WORDS)))

    assert reply.status == 200
    assert [each["role"] for each in sent_messages(scripted, "chat-roles")] == ["user"]
    assert any("role developer" in note["reason"] for note in row(reply.id).notes)


def test_a_glob_never_drops_required_fields_blocks_and_roles(gateway, scripted, rules):
    for kind in ("field", "block", "role"):
        rules(kind, "*", "drop")
    scripted.on("anthropic-all", ANTHROPIC)

    reply = gateway.post(message("anthropic-all", stream=True, temperature=0.5))

    assert reply.status == 200
    [upstream_request] = scripted.requests_for("anthropic-all")
    assert "temperature" not in upstream_request.json
    assert upstream_request.json["messages"] == message("anthropic-all")["messages"]


def test_an_invalid_block_beside_a_dropped_one_is_refused_with_its_path(gateway, rules):
    rules("block", "hologram", "drop", upstream=None)

    reply = gateway.post(request("chat-broken", turn(HOLOGRAM, {"type": "text", "text": 3})))

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("messages.0.content.1.text")


def test_a_rule_refuses_a_client_version(gateway, scripted, rules):
    rules("client", "old-cli 1.*", "refuse", upstream="chat")
    scripted.on("chat-client", upstream_scripts.chat())

    refused = gateway.post(message("chat-client"), user_agent="old-cli/1.9.0 (external)")
    served = gateway.post(message("chat-client"), user_agent="old-cli/2.0.0 (external)")

    assert (refused.status, served.status) == (400, 200)
    assert "old-cli 1.9.0" in refused.json["error"]["message"]
    assert wait_for_drift("client", "old-cli 2.0.0").known is None


def test_a_rule_of_its_upstream_allows_a_block_on_a_route(gateway, scripted, rules):
    upstream = add_upstream("picky", "anthropic", scripted.url, "anthropic")
    add_route("either", upstream)
    rules("block", "hologram", "drop", upstream="picky")
    scripted.on("either", ANTHROPIC)

    assert gateway.post(request("either", turn(WORDS, HOLOGRAM), stream=True)).status == 200


def test_count_tokens_accepts_a_block_with_a_drop_rule(gateway, rules):
    rules("block", "hologram", "drop", upstream=None)

    reply = gateway.post(
        {"model": "chat-count", "messages": [turn(WORDS, HOLOGRAM)]},
        path="/v1/messages/count_tokens",
    )

    assert reply.status == 200, reply.body
    assert UpstreamPolicy.objects.count() == 1

"""Issue by issue what a translated conversation promises, through the running gateway."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.live.running import RUNNING
from proxy.models import ApiKey, Team
from tests.fakes.grammar import faults_of_bytes
from tests.fakes.steps import LAST_CHUNK, Hold, Script, json_answer
from tests.fakes.upstream import ScriptedUpstream
from translator.openai_chat.stream import ChatStream
from translator.openai_responses.stream import ResponsesStream

from . import scripts
from .browser import Browser
from .conftest import message, row

REFUSED = {"message": "Unsupported parameter: 'temperature' is not supported with this model.",
           "type": "invalid_request_error", "param": "temperature", "code": None}  # fmt: skip


def refusal_of(field: str) -> Script:
    told = json.dumps(REFUSED).replace("temperature", field)
    return json_answer({"error": json.loads(told)}, 400)


# One more try


def test_what_can_be_spared_is_left_out_and_told(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-spare", refusal_of("temperature"), scripts.chat())

    reply = gateway.post(message("chat-spare", temperature=0.5))

    assert (reply.status, reply.json["content"][0]["text"]) == (200, "Hello there.")
    first, second = scripted.asked_for("chat-spare")
    assert {**first.json} == {**second.json, "temperature": 0.5}
    kept = row(reply.id, outcome="completed", status=200)
    assert {"path": "temperature", "fate": "dropped"}.items() <= kept.notes[-1].items()
    assert [each["status"] for each in kept.attempts] == [400, 200]


def test_a_strict_client_hears_the_refusal(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-spare-strict", refusal_of("temperature"), scripts.chat())

    reply = gateway.post(message("chat-spare-strict", temperature=0.5), x_bridge_strict="true")

    assert reply.status == 400
    assert "temperature" in reply.json["error"]["message"]
    assert len(scripted.asked_for("chat-spare-strict")) == 1


def test_it_is_tried_once_and_no_more(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-spare-never", refusal_of("temperature"))

    reply = gateway.post(message("chat-spare-never", temperature=0.5, top_p=0.5))

    assert reply.status == 400
    assert len(scripted.asked_for("chat-spare-never")) == 2


def test_a_session_named_in_a_header_keys_the_upstream_s_cache(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("responses-session", scripts.responses())

    gateway.post(message("responses-session"), x_claude_code_session_id="22-33")
    gateway.post(message("responses-session", metadata={"user_id": "u_session_22-33"}))
    gateway.post(message("responses-session"))

    by_header, by_user, neither = (
        asked.json.get("prompt_cache_key") for asked in scripted.asked_for("responses-session")
    )
    assert by_header == by_user == hashlib.sha256(b"22-33").hexdigest()
    assert neither is None


def test_a_place_in_our_body_is_told_as_the_client_s(gateway: Browser, scripted: ScriptedUpstream):
    no = {"message": "Invalid 'input[2].content[0].text': string too long.", "param": "input[2]"}
    scripted.on("responses-place", json_answer({"error": no}, 400))
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]

    reply = gateway.post(message("responses-place", messages=history))

    assert reply.json["error"]["message"] == "Invalid 'messages.2': string too long."


# Nothing to ask


@pytest.mark.parametrize("model", ["chat-nothing", "responses-nothing"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_for_no_tokens_is_answered_here(
    gateway: Browser, scripted: ScriptedUpstream, model: str, stream: bool
):
    reply = gateway.post(message(model, stream=stream) | {"max_tokens": 0})

    if stream:
        assert [k for k in reply.kinds if k != "ping"] == [
            "message_start", "message_delta", "message_stop",
        ]  # fmt: skip
        ending = reply.events[-2]["delta"]
    else:
        ending = reply.json
        assert ending["content"] == []
    assert (reply.status, ending["stop_reason"]) == (200, "max_tokens")
    assert not scripted.asked_for(model)
    row(reply.id, outcome="completed", status=200, input_tokens=0, output_tokens=0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_of_context_management_hears_that_nothing_was_edited(
    gateway: Browser, scripted: ScriptedUpstream, stream: bool
):
    scripted.on("chat-edits", scripts.chat())
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}

    reply = gateway.post(message("chat-edits", context_management=edits, stream=stream))

    told = reply.events[-2] if stream else reply.json
    assert told["context_management"] == {"applied_edits": []}


# Strict mode and the extras

LOSSY: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"top_k": 3}, "top_k"),
    ("chat", {"speed": "fast"}, "speed"),
    ("chat", {"tool_choice": {"type": "any"}}, "tool_choice"),
    ("responses", {"top_k": 3}, "top_k"),
    ("responses", {"max_tokens": 2}, "max_tokens"),
    ("responses", {"container": "c_1"}, "container"),
    ("chat", {"no_such_field": 1}, "no_such_field"),
    ("responses", {"no_such_field": 1}, "no_such_field"),
]
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(("dialect", "fields", "path"), LOSSY)
def test_strict_mode_refuses_by_the_path_of_what_would_be_lost(
    gateway: Browser, scripted: ScriptedUpstream, dialect: str, fields: dict[str, Any], path: str
):
    model = f"{dialect}-strict-{path}"
    play = scripts.chat() if dialect == "chat" else scripts.responses()
    scripted.on(model, play)
    request = {**message(model, tools=[TOOL]), **fields}

    strict = gateway.post(request, x_bridge_strict="true")
    easy = gateway.post(request)

    assert strict.status == 400
    assert strict.json["error"]["message"].startswith(f"{path}:")
    assert easy.status == 200
    assert len(scripted.asked_for(model)) == 1
    if path != "no_such_field":
        kept = row(easy.id)
        assert path in {note["path"] for note in kept.notes}


def test_a_key_can_be_strict_and_curious_by_itself(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    options = {"strict": True, "events": ["metadata", "blocks"]}
    team = Team.objects.create(name="strict")
    _, secret = ApiKey.issue(team, "careful", scopes=["messages"], options=options)
    reload()
    scripted.on("chat-strict-key", scripts.chat())

    refused = gateway.post(message("chat-strict-key", top_k=3), x_api_key=secret)
    plain = gateway.post(message("chat-strict-key", stream=True), x_api_key=secret)

    assert refused.status == 400
    assert refused.json["error"]["message"].startswith("top_k:")
    assert plain.kinds[-2:] == ["bridge.metadata", "message_stop"]
    stops = [e for e in plain.events if e["type"] == "content_block_stop"]
    assert all("content_block" in each for each in stops)


METADATA = {
    "type", "trace_id", "route", "upstream", "model", "success", "attempts", "tokens",
    "latency_ms", "ttft_ms", "terminal_reason", "error", "notes",
}  # fmt: skip


def test_the_metadata_has_exactly_the_promised_fields(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-meta", scripts.chat())
    half = scripts.pieces(scripts.chat_events()[:2], LAST_CHUNK)
    scripted.on("chat-meta-cut", half)

    well = gateway.post(message("chat-meta", stream=True), x_bridge_events="metadata")
    badly = gateway.post(message("chat-meta-cut", stream=True), x_bridge_events="metadata")

    good, bad = well.events[-2], badly.events[-2]
    assert set(good) == set(bad) == METADATA
    assert (good["success"], good["terminal_reason"], good["error"]) == (True, "stop", None)
    assert (good["route"], good["upstream"], good["model"]) == ("chat-*", "chat", "chat-meta")
    assert (bad["success"], bad["terminal_reason"]) == (False, "error")
    assert bad["error"]["type"] == "api_error"
    assert badly.kinds[-2:] == ["bridge.metadata", "error"]


def test_a_finished_block_carries_the_parsed_input_or_the_raw_text(
    gateway: Browser, scripted: ScriptedUpstream
):
    def calls(arguments: str) -> Script:
        call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": arguments}}
        told = [scripts.chat_chunk({"tool_calls": [call]}), scripts.chat_chunk(finish="tool_calls")]
        return scripts.pieces([*told, b"data: [DONE]\n\n"], LAST_CHUNK)

    inputs = []
    for number, arguments in enumerate(('{"city": "Oslo"}', '{"city": ')):
        scripted.on(f"chat-blocks-{number}", calls(arguments))
        request = message(f"chat-blocks-{number}", stream=True, tools=[TOOL])
        reply = gateway.post(request, x_bridge_events="blocks")
        (stop,) = [e for e in reply.events if e["type"] == "content_block_stop"]
        assert {k: stop["content_block"][k] for k in ("type", "id", "name")} == {
            "type": "tool_use", "id": "c1", "name": "f",
        }  # fmt: skip
        inputs.append(stop["content_block"]["input"])

    assert inputs == [{"city": "Oslo"}, '{"city": ']


# The guard


def planted(stream_class: type, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]) -> None:
    """A bug in the translator: after its third text it says something illegal, past the writer."""

    def misheard(hear: Callable[..., list[dict[str, Any]]]) -> Callable[..., list[dict[str, Any]]]:
        def heard(self: object, *told: Any) -> list[dict[str, Any]]:
            said = hear(self, *told)
            text = [e for e in said if "third" in e.get("delta", {}).get("text", "")]
            return [*said, wrong] if text else said

        return heard

    for door in {"feed", "text"} & vars(stream_class).keys():
        monkeypatch.setattr(stream_class, door, misheard(getattr(stream_class, door)))


WRONG = {
    "foreign-index": {"type": "content_block_delta", "index": 7,
                      "delta": {"type": "text_delta", "text": "planted"}},
    "foreign-delta": {"type": "content_block_delta", "index": 0,
                      "delta": {"type": "input_json_delta", "partial_json": "planted"}},
    "second-start": {"type": "message_start", "message": {"id": "planted"}},
    "early-stop": {"type": "message_stop"},
    "no-index": {"type": "content_block_delta",
                 "delta": {"type": "text_delta", "text": "planted"}},
}  # fmt: skip


def until_begun(model: str) -> None:
    """Until the client of this request has its status, and a word or two."""
    deadline = time.monotonic() + 60
    while not any(one.model == model and one.consumer.begun for one in list(RUNNING.values())):
        assert time.monotonic() < deadline, "the answer never began"
        time.sleep(0.005)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_an_illegal_event_is_never_sent(
    gateway: Browser, scripted: ScriptedUpstream, monkeypatch, dialect: str, wrong: dict[str, Any]
):
    words = ("first ", "second ", "and ", "third", " never")
    made = scripts.chat_events(words) if dialect == "chat" else scripts.responses_events(words)
    model = f"{dialect}-planted"
    at = 3 if dialect == "chat" else 5
    begun, rest = scripts.pieces(made[:at]), scripts.pieces(made[at:])[1:]
    # The gate lets the answer begin: before that a fault is an HTTP error, as for ``whole``.
    gate = threading.Event()
    scripted.on(model, [*begun, Hold(gate), *rest, LAST_CHUNK])
    planted(ChatStream if dialect == "chat" else ResponsesStream, monkeypatch, wrong)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(gateway.post, message(model, stream=True))
        until_begun(model)
        gate.set()
        reply = asked.result(90)
    whole = gateway.post(message(model))

    assert faults_of_bytes(reply.body) == []
    assert reply.kinds[-2:] == ["content_block_stop", "error"]
    assert reply.events[-1]["error"] == {"type": "api_error", "message": "internal error"}
    assert reply.events[-1]["request_id"] == reply.id
    assert reply.text.startswith("first second and third")
    assert b"planted" not in reply.body.replace(model.encode(), b"")
    kept = row(reply.id, outcome="gateway_error", detail="illegal_move", error_type="api_error")
    assert kept.unknown_events == {"illegal_move": 1}
    assert kept.error_source == "gateway"
    assert (whole.status, whole.json["error"]["type"]) == (500, "api_error")
    row(whole.id, outcome="gateway_error", detail="illegal_move")


# Versions


@pytest.mark.parametrize(
    ("fields", "old", "new"),
    [
        ({"temperature": 0.5}, 200, 400),
        ({"top_p": 0.5}, 200, 400),
        ({"top_k": 5}, 200, 400),
        ({}, 200, 200),
    ],
)
def test_each_version_has_its_rules(
    gateway: Browser, scripted: ScriptedUpstream, fields: dict[str, Any], old: int, new: int
):
    scripted.on("chat-versions", scripts.chat())
    request = message("chat-versions", **fields)

    statuses = [
        gateway.post(request, anthropic_version=version).status
        for version in ("2023-06-01", "", "2026-10-21")
    ]

    assert statuses == [old, old, new]
    if new == 400:
        reply = gateway.post(request, anthropic_version="2026-10-21")
        (name,) = fields
        assert reply.json["error"]["message"] == f"{name}: Extra inputs are not permitted"


def test_documents_of_the_assistant_belong_to_the_old_version(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("responses-documents", scripts.responses())
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "x"},
    }
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [document]},
        {"role": "user", "content": "b"},
    ]
    request = message("responses-documents", messages=history)

    assert gateway.post(request, anthropic_version="2023-06-01").status == 200
    assert gateway.post(request, anthropic_version="2026-10-21").status == 400

"""Start, end, faults and whole responses of the Responses stream; the cases test its events."""

import dataclasses
import json

import pytest
from hypothesis import given

from tests.fakes.anthropic_requests import KEYS
from tests.fakes.upstreams import recordings
from tests.fakes.upstreams.grammar import faults_of_events
from tests.fakes.upstreams.hypothesis_strategies import RESPONSES_EVENTS
from tests.for_each import for_each
from tests.translator.openai_responses.responses import (
    added,
    blocks,
    call,
    completed,
    created,
    done,
    failed,
    incomplete,
    kinds,
    message,
    output_message,
    stream,
    stream_events,
    target,
    text,
)
from translator.anthropic.stop_reason import LIMIT_REACHED
from translator.anthropic.usage import Usage
from translator.capabilities import PROFILES
from translator.dialect import ResponseContext, UpstreamError
from translator.message_stream.events_to_message import fold

OPENAI = PROFILES["openai"]
TIMEOUT = UpstreamError(status=504, error_type="timeout_error", message="upstream is silent")


def test_the_client_receives_its_requested_model_name():
    machine = stream()

    start = machine.feed(created(id="resp_9", model="gpt-5.2-2025"))[0]["message"]

    assert (start["id"], start["model"]) == ("msg_1", "claude-bridge")
    assert (machine.upstream_id, machine.upstream_model) == ("resp_9", "gpt-5.2-2025")


def test_the_message_id_follows_from_the_upstream_id():
    first = stream(message_id="").feed(created(id="resp_9"))[0]["message"]["id"]
    again = stream(message_id="").feed(created(id="resp_9"))[0]["message"]["id"]

    assert first == again
    assert "resp" not in first


def test_the_body_of_an_http_error_in_mid_stream_ends_it():
    machine = stream()
    machine.feed(created())

    events = machine.feed({"error": {"message": "Slow down.", "code": "too_many_requests"}})

    assert events[-1]["error"] == {"type": "rate_limit_error", "message": "Slow down."}
    assert not machine.unknown


def test_the_first_usage_is_the_estimate():
    start = stream(input_estimate=42).feed(created())[0]

    assert start["message"]["usage"] == Usage(input=42, output=0).to_wire()


def test_an_external_failure_ends_the_stream_once():
    machine = stream()
    machine.feed(text("Hi"))

    events = machine.fail(TIMEOUT)

    assert kinds(events) == ["content_block_stop", "error"]
    assert events[-1]["error"] == {"type": "timeout_error", "message": "upstream is silent"}
    assert machine.error is TIMEOUT
    assert machine.fail(TIMEOUT) == []
    assert machine.feed(text("more")) == []
    assert machine.end() == []


def test_no_event_follows_a_completed_response():
    machine = stream()
    for event in (created(), text("Hi"), completed()):
        machine.feed(event)

    assert machine.finished
    assert machine.stop_reason == "end_turn"
    assert machine.error is None
    assert machine.feed(failed("server_error")) == []
    assert machine.end() == []


def test_events_fed_together_equal_events_fed_one_by_one():
    events = [
        created(),
        text("Hi"),
        {"type": "unusual"},
        completed(output_message("Hi")),
        failed("server_error"),
    ]

    together = stream()

    assert [*together.feed(*events), *together.end()] == stream_events(*events)
    assert together.unknown == {"unusual": 1}


def test_a_text_that_no_part_finished_ends_with_its_item():
    early = {"type": "url_citation", "url": "https://a.example", "start_index": 0, "end_index": 9}
    annotation = {"type": "response.output_text.annotation.added", "output_index": 0}

    (block,) = blocks(
        text("Hi"), annotation | {"annotation": early}, done(0, **output_message()), completed()
    )

    assert [citation["cited_text"] for citation in block["citations"]] == ["Hi"]


def test_a_truncated_stream_ends_with_an_error():
    machine = stream()

    assert machine.end()[-1]["error"] == {
        "type": "api_error",
        "message": "upstream stream ended early",
    }
    assert machine.error is not None
    assert machine.error.status == 502


@for_each(
    "event",
    [
        {"type": "response.completed"},
        {"type": "response.completed", "response": "x"},
        {"type": "response.output_item.added", "output_index": 0},
        {"type": "response.output_item.done", "item": []},
    ],
)
def test_a_malformed_event_is_an_upstream_error(event):
    machine = stream()

    events = machine.feed(event)

    assert events[-1]["error"]["type"] == "api_error"
    assert machine.fault is not None


@for_each("event", [None, [], "x", 3])
def test_what_is_no_event_at_all_ends_the_stream_without_details(event):
    machine = stream()

    assert machine.feed(event)[-1]["error"]["message"] == "upstream sent a bad event"
    assert isinstance(machine.fault, AttributeError)


def test_an_event_without_a_usable_type_is_only_counted():
    machine = stream()

    assert machine.feed({"type": ["response.created"]}) == []
    assert machine.feed({}) == []
    assert sum(machine.unknown.values()) == 2


def test_a_response_that_completed_with_an_error_is_an_error():
    events = stream_events(created(), completed(error={"code": "server_error", "message": "No."}))

    assert events[-1]["error"]["message"] == "No."


def test_a_tier_and_searches_are_part_of_the_usage():
    usage = {"input_tokens": 5, "output_tokens": 2}

    reply = message(completed(output_message("Hi"), usage=usage, service_tier="fast"))["usage"]

    assert reply == Usage(input=5, output=2, service_tier="priority").to_wire()


def test_output_that_is_no_list_of_items_is_no_output():
    assert message(completed(None, "x", 3))["content"] == []
    assert message({"type": "response.completed", "response": {"output": "x"}})["content"] == []


def test_an_incomplete_response_without_details_ends_the_turn():
    event = {"type": "response.incomplete", "response": {"incomplete_details": "unusual"}}

    assert message(text("Hi"), event)["stop_reason"] == "end_turn"


def test_an_unknown_reason_is_counted():
    machine = stream()
    machine.feed(incomplete("moon_phase"))

    assert machine.stop_reason == "end_turn"
    assert machine.unknown == {"incomplete.moon_phase": 1}


def test_a_refusal_delta_without_text_is_ignored():
    event = {"type": "response.refusal.delta", "output_index": 0, "delta": None}

    assert message(event, completed())["stop_reason"] == "end_turn"


def test_a_refusal_beats_a_tool_call_and_is_explained():
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}

    reply = stream_events(done(0, **call()), completed(call(), refusal))[-2]["delta"]

    assert reply["stop_reason"] == "refusal"
    assert reply["stop_details"] == {"type": "refusal", "category": None, "explanation": "No."}


@for_each(
    ("code", "category"),
    [
        ("bio_policy", "bio"),
        ("cyber_policy", "cyber"),
        ("misalignment_policy_violation", None),
        ("image_content_policy_violation", None),
    ],
)
def test_a_policy_ends_the_answer_as_a_refusal_even_in_its_middle(code, category):
    events = stream_events(created(), text("First"), failed(code, "Flagged."))

    assert events[-2]["delta"]["stop_reason"] == "refusal"
    assert events[-2]["delta"]["stop_details"]["category"] == category
    assert events[-2]["delta"]["stop_details"]["explanation"] == "Flagged."


def test_broken_arguments_are_an_error_if_the_profile_requires_it():
    strict = dataclasses.replace(OPENAI, broken_tool_json="error")
    machine = stream(target=target(strict))
    for event in (created(), added(0, **call("")), done(0, **call("{city"))):
        machine.feed(event)

    events = machine.feed(completed(call("{city")))

    assert events[-1]["error"]["message"] == "invalid tool arguments from upstream"
    assert machine.stop_reason is None


# Whole answers


@for_each(
    ("body", "text"),
    [
        ({"status": "queued", "output": []}, "a response that is 'queued'"),
        ({"status": "in_progress"}, "a response that is 'in_progress'"),
        ({}, "a response that is None"),
        ({"status": "cancelled"}, "upstream response cancelled"),
        ({"status": "failed", "error": None}, "upstream response failed"),
        ({"error": {"message": "No.", "code": "server_error"}}, "No."),
        ({"error": "overloaded"}, "overloaded"),
    ],
)
def test_a_body_without_a_finished_response_is_an_error(body, text):
    machine = stream()

    events = machine.feed_body(body)

    assert kinds(events) == ["error"]
    assert text in events[-1]["error"]["message"]


def test_a_body_without_status_but_with_output_is_an_answer():
    assert (
        fold(stream().feed_body({"output": [output_message("Hi")]}))["content"][0]["text"] == "Hi"
    )


def test_a_whole_answer_ends_the_stream():
    machine = stream()
    machine.feed_body(completed(output_message("Hi"))["response"])

    assert machine.finished
    assert machine.feed_body(completed(output_message("Hi"))["response"]) == []


# Properties


@pytest.mark.skipif(not recordings.CORPUS.exists(), reason=recordings.ABSENT)
@for_each(
    "fields",
    [
        {"thinking": "hidden"},
        {"thinking": "omitted", "target": target(OPENAI, signing_keys=KEYS)},
        {"finished_blocks": True, "single_tool_call": True, "stop_sequences": ("\n\n",)},
    ],
    ids=["hidden", "omitted", "blocks"],
)
def test_no_recording_raises_with_any_client_options(fields):
    for path in recordings.recordings("responses-stream"):
        machine = stream(**fields)
        all_events = [
            e for event in recordings.events_of(path.read_bytes()) for e in machine.feed(event)
        ]
        all_events += machine.end()
        assert machine.fault is None, path.name
        assert faults_of_events(all_events, raw_tool_input=True) == [], path.name
    for path in recordings.recordings("responses-json"):
        all_events = stream(**fields).feed_body(json.loads(path.read_bytes()))
        assert faults_of_events(all_events, raw_tool_input=True) == [], path.name


@given(event=RESPONSES_EVENTS)
def test_any_single_event_gives_a_legal_stream_for_all_options(event):
    for context in (
        ResponseContext(target=target(OPENAI, signing_keys=KEYS), stop_sequences=("a",)),
        ResponseContext(thinking="omitted", finished_blocks=True, target=target(OPENAI)),
    ):
        events = stream_events(
            event, **{f.name: getattr(context, f.name) for f in dataclasses.fields(context)}
        )

        assert faults_of_events(events, raw_tool_input=True) == []


# Responses that the output limit ended, reported as complete


CUT_CALL = call('{"city": "Os')


@for_each(
    ("output", "used", "limit", "reason"),
    [
        (output_message("1 2 3"), 40, 40, "max_tokens"),
        (output_message("1 2 3"), 39, 40, "end_turn"),
        (output_message("1 2 3"), 40, None, "end_turn"),
        (output_message("1 2 3"), None, 40, "end_turn"),
        (CUT_CALL, 40, 40, "max_tokens"),
        (CUT_CALL, None, 40, "max_tokens"),
        (CUT_CALL, 20, 40, "tool_use"),  # the model wrote broken JSON
        (call('{"city": "Oslo"}'), 40, 40, "tool_use"),
        (call("{city"), None, 40, "tool_use"),
    ],
)
def test_a_response_that_ends_at_the_limit_is_truncated_whatever_its_status(
    output, used, limit, reason
):
    usage = {"input_tokens": 9, "output_tokens": used}
    machine = stream(max_tokens=limit)

    machine.feed(created(), completed(output, usage=usage))

    assert machine.stop_reason == reason
    assert (LIMIT_REACHED in machine.notes) == (reason == "max_tokens")


@for_each(("profile", "reason"), [("openai", "end_turn"), ("llamacpp", "max_tokens")])
def test_the_limit_is_the_one_that_was_sent_upstream(profile, reason):
    machine = stream(max_tokens=5, target=target(PROFILES[profile]))

    machine.feed(completed(output_message("Yes."), usage={"input_tokens": 9, "output_tokens": 5}))

    assert machine.stop_reason == reason


def test_the_limit_in_the_response_wins():
    machine = stream(max_tokens=5)
    usage = {"input_tokens": 9, "output_tokens": 5}

    machine.feed(completed(output_message("Yes."), usage=usage, max_output_tokens=16))

    assert machine.stop_reason == "end_turn"


def test_zero_tokens_beside_text_are_estimated_with_a_note():
    machine = stream(input_estimate=50)

    machine.feed(
        completed(output_message("Hello, you."), usage={"input_tokens": 0, "output_tokens": 0})
    )

    assert (machine.usage.source, machine.usage.input, machine.usage.output) == ("estimated", 50, 4)
    assert any(note.reason.startswith("bad_usage") for note in machine.notes)

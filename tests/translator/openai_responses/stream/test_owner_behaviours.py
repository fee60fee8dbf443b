"""The owner's seven behaviours of a Responses stream, one test each, named after them."""

import json

from tests.for_each import for_each
from tests.translator.openai_responses.responses import (
    added,
    arguments,
    arguments_done,
    call,
    completed,
    created,
    done,
    failed,
    incomplete,
    kinds,
    output_message,
    stream,
    stream_events,
    summary,
    text,
)

USAGE = {"input_tokens": 10, "output_tokens": 4}
TEXT = [
    created(),
    added(0, **output_message()),
    text("Hel"),
    text("lo."),
    done(0, **output_message("Hello.")),
]
CALL = [added(1, **call("")), arguments('{"city":', 1), arguments('"Oslo"}', 1)]


def test_behaviour_1_message_start_comes_on_the_first_created_or_the_first_event():
    on_created = stream(message_id="", model="").feed(created())
    on_text = stream(message_id="", model="").feed(text("Hi"))

    start = on_created[0]["message"]
    assert kinds(on_created) == ["message_start"]
    assert start["id"].startswith("msg_")
    assert start["model"] == "m"
    assert start["content"] == []
    assert (start["stop_reason"], start["stop_sequence"]) == (None, None)
    assert on_text[0]["type"] == "message_start"
    assert on_text[0]["message"]["id"].startswith("msg_")


def test_behaviour_2_text_starts_lazily_flows_by_delta_and_stops_before_a_tool():
    machine = stream()

    each = [machine.feed(event) for event in [*TEXT, *CALL]]

    assert [kinds(events) for events in each] == [
        ["message_start"],
        [],
        ["content_block_start", "content_block_delta"],
        ["content_block_delta"],
        ["content_block_stop"],
        ["content_block_start", "content_block_delta"],
        ["content_block_delta"],
        ["content_block_delta"],
    ]
    assert each[2][1]["delta"] == {"type": "text_delta", "text": "Hel"}


def test_behaviour_2_open_text_closes_before_a_tool_starts():
    events_so_far = stream_events(created(), text("Hi"), added(1, **call("")), end=False)

    assert kinds(events_so_far)[2:5] == [
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
    ]


@for_each("closing", [arguments_done('{"city":"Oslo"}', 1), done(1, **call('{"city":"Oslo"}'))])
def test_behaviour_3_a_tool_starts_flows_and_stops_once_with_its_parsed_input(closing):
    machine = stream(finished_blocks=True)
    events = [e for event in [created(), *CALL, closing] for e in machine.feed(event)]
    rest = machine.feed(done(1, **call('{"city":"Oslo"}')))

    start, *deltas, stop = events[1:]
    tool: dict[str, object] = {"type": "tool_use", "id": "call_1", "name": "get_weather"}
    tool["caller"] = {"type": "direct"}
    assert start["content_block"] == tool | {"input": {}}
    pieces = [delta["delta"]["partial_json"] for delta in deltas]
    assert pieces == ["", '{"city":', '"Oslo"}']
    assert stop["type"] == "content_block_stop"
    assert stop["content_block"] == tool | {"input": {"city": "Oslo"}}
    assert rest == []


def test_behaviour_3_input_that_does_not_parse_is_the_raw_string():
    events = stream_events(
        created(), done(0, **call("{city: Oslo")), end=False, finished_blocks=True
    )

    assert events[-1]["content_block"]["input"] == "{city: Oslo"


def test_behaviour_3_the_buffer_of_one_call_does_not_reach_the_next():
    second = call("", id="fc_2", call_id="call_2")
    events = stream_events(
        created(),
        *CALL,
        done(1, **call('{"city":"Oslo"}')),
        added(2, **second),
        arguments("{}", 2),
        done(2, **second | {"arguments": "{}"}),
        end=False,
        finished_blocks=True,
    )

    inputs = [e["content_block"]["input"] for e in events if e["type"] == "content_block_stop"]
    assert inputs == [{"city": "Oslo"}, {}]


def test_behaviour_4_blocks_are_keyed_by_upstream_and_our_indices_rise_by_one():
    second = call("", id="fc_2", call_id="call_2", name="get_time")
    events = stream_events(
        created(),
        added(7, **call("")),
        added(3, **second),
        arguments('{"a":', 7),
        arguments('{"b":', 3),
        arguments("1}", 7),
        arguments("2}", 3),
        completed(usage=USAGE),
    )

    starts = [e for e in events if e["type"] == "content_block_start"]
    input_by_index = {0: "", 1: ""}
    for event in events:
        if event["type"] == "content_block_delta":
            input_by_index[event["index"]] += event["delta"]["partial_json"]
    assert [start["index"] for start in starts] == [0, 1]
    assert [start["content_block"]["id"] for start in starts] == ["call_1", "call_2"]
    assert {k: json.loads(v) for k, v in input_by_index.items()} == {0: {"a": 1}, 1: {"b": 2}}


def test_behaviour_4_without_indices_the_latest_open_block_is_meant():
    events = stream_events(
        created(),
        added(None, **call("")),
        {"type": "response.function_call_arguments.delta", "delta": '{"a":1}'},
        {"type": "response.function_call_arguments.done", "arguments": '{"a":1}'},
        end=False,
    )

    assert events[-2]["delta"]["partial_json"] == '{"a":1}'
    assert events[-1]["type"] == "content_block_stop"


def test_behaviour_5_the_end_carries_stop_reason_and_usage():
    events = stream_events(*TEXT, completed(output_message("Hello."), usage=USAGE))

    assert kinds(events)[-2:] == ["message_delta", "message_stop"]
    assert events[-2]["delta"] == {
        "container": None,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
    }
    assert events[-2]["usage"].items() >= USAGE.items()


def test_behaviour_5_pings_pass_unknown_events_pass_by_and_reasoning_is_thinking():
    machine = stream()

    assert machine.feed({"type": "ping"}) == [{"type": "ping"}]
    assert machine.feed({"type": "response.invented", "delta": "x"}) == []
    assert machine.unknown == {"response.invented": 1}
    events = machine.feed(summary("Hm."))
    assert events[1]["content_block"]["type"] == "thinking"
    assert events[2]["delta"] == {"type": "thinking_delta", "thinking": "Hm."}


def test_behaviour_5_a_failed_response_is_an_error():
    events = stream_events(*TEXT, failed("server_error"))

    assert events[-1] == {"type": "error", "error": {"type": "api_error", "message": "It broke."}}
    assert "message_stop" not in kinds(events)


@for_each(
    ("events", "reason"),
    [
        ([done(0, **call())], "tool_use"),
        (
            [done(0, **call("{", status="incomplete")), incomplete("max_output_tokens")],
            "max_tokens",
        ),
        ([text("Hi"), incomplete("content_filter")], "refusal"),
        ([text("Hi")], "end_turn"),
    ],
)
def test_behaviour_6_stop_reason(events, reason):
    all_events = stream_events(created(), *events, completed())

    assert all_events[-2]["delta"]["stop_reason"] == reason


@for_each("cut", range(len(TEXT + CALL) + 1))
def test_behaviour_7_every_block_that_was_started_is_stopped(cut):
    events = stream_events(*[*TEXT, *CALL][:cut])

    assert kinds(events).count("content_block_start") == kinds(events).count("content_block_stop")
    assert events[-1]["type"] == "error"

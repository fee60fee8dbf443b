"""A stream of four times the events takes about four times the work, whatever its pieces are.

Otherwise one frame of an upstream could hold a worker, and with it all of its streams, for a minute.
"""

import time
from typing import Any

import pytest

from translator import anthropic_upstream, openai_chat, openai_responses
from translator.capabilities import profile_with
from translator.dialect import ResponseContext, TranslationTarget
from translator.message_stream.events_to_message import fold

SMALL = 1_000
QUADRATIC = 10  # times the work for four times the size: 4 is linear, 16 is quadratic


def calls_chunk(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": list(calls)}}]}


def call(arguments: str | None, **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", "f")
    return {"function": {"name": name, "arguments": arguments}, **fields}


def chat_calls_in_a_frame(count):
    return [calls_chunk(*[call('{"a":1', id=f"c{n}", index=n) for n in range(count)])]


def chat_calls_with_one_id(count):
    return [calls_chunk(*[call("{}", id="c", index=n) for n in range(count)])]


def chat_calls_without_names(count):
    return [calls_chunk(*[call("{", name="", index=n) for n in range(count)])]


def chat_names_in_each_piece(count):
    return [calls_chunk(call('{"a":"' + "x}" * 9, id="c", index=0))] + [
        calls_chunk(call("}" + "x" * 50, id="c", index=0)) for _ in range(count)
    ]


def chat_ids_in_each_piece(count):
    first = calls_chunk(call('{"a":"', id="c", index=0))
    return [first, *[calls_chunk(call("x}" * 30, id=f"c{n}", index=0)) for n in range(count)]]


def chat_pieces_behind_the_arguments(count):
    return [calls_chunk(call("{}", id="c", index=0))] * 2 + [
        calls_chunk(call("\n}" * 30, name="", index=0)) for _ in range(count)
    ]


def chat_text_and_pieces(count):
    text = {"choices": [{"index": 0, "delta": {"content": "x"}}]}
    piece = calls_chunk(call("[{}]" * 20, name="", index=0))
    return [calls_chunk(call('{"a":', id="c", index=0)), *[text, piece] * count]


def chat_spaces_behind_a_comma(count):
    """Models that are held to a schema may repeat line breaks up to their output limit."""
    space = calls_chunk(call("\n", name="", index=0))
    return [calls_chunk(call('{"a":1,', id="c", index=0)), *[space] * (8 * count)]


def chat_messages(count):
    delta = {"choices": [{"index": 0, "delta": {"content": "x" * 99}}]}
    message = {"choices": [{"index": 0, "message": {"content": "y" * 99}}]}
    return [delta, *[message] * count]


def responses_item(number: int, **fields: Any) -> dict[str, Any]:
    item = {"type": "function_call", "id": f"f{number}", "call_id": f"c{number}", "name": "f"}
    return {"output_index": number, "item_id": f"f{number}", "item": item, **fields}


def responses_added(number: int, arguments: str = "") -> dict[str, Any]:
    event = responses_item(number, type="response.output_item.added")
    return event | {"item": event["item"] | {"arguments": arguments}}


def responses_argument_pieces(count):
    kind = "response.function_call_arguments.delta"
    pieces = [responses_item(0, type=kind, delta='{"}":{}}' * 8) for _ in range(count)]
    return [responses_added(0), *pieces]


def responses_finished_arguments(count):
    delta = responses_item(0, type="response.function_call_arguments.delta", delta="[" * 99)
    text = responses_item(0, type="response.output_text.done", content_index=0, text="x")
    return [responses_added(0), *[delta, text] * count]


def responses_finished_texts(count):
    place = {"output_index": 0, "item_id": "m", "content_index": 0}
    delta = {"type": "response.output_text.delta", "delta": "x" * 99, **place}
    return [delta, {"type": "response.output_text.done", "text": "x", **place}] * count


def responses_annotations(count):
    place = {"output_index": 0, "item_id": "m", "content_index": 0}
    kind = "response.output_text.annotation.added"
    annotation = {"type": "url_citation", "url": "u", "start_index": 0, "end_index": 1}
    return [{"type": "response.output_text.delta", "delta": "x" * 99, **place}] + [
        {"type": kind, "annotation": annotation | {"url": str(n)}, **place} for n in range(count)
    ]


def anthropic_start(index: int) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"t{index}", "name": "f", "input": {}}
    return {"type": "content_block_start", "index": index, "content_block": block}


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}


def anthropic_overlapping_blocks(count):
    start = {"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": 1}}}
    return [start, *map(anthropic_start, range(count))]


def anthropic_interleaved_pieces(count):
    delta = {"type": "input_json_delta", "partial_json": '{"a":{}}' * 8}
    start = {"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": 1}}}
    return [start, anthropic_start(0), anthropic_start(1)] + [
        {"type": "content_block_delta", "index": n % 2, "delta": delta} for n in range(count)
    ]


STREAMS = {made.__name__: made for made in (
    chat_calls_in_a_frame, chat_calls_with_one_id, chat_calls_without_names,
    chat_names_in_each_piece, chat_ids_in_each_piece, chat_pieces_behind_the_arguments,
    chat_text_and_pieces, chat_spaces_behind_a_comma, chat_messages,
    responses_argument_pieces, responses_finished_arguments, responses_finished_texts,
    responses_annotations,
    anthropic_overlapping_blocks, anthropic_interleaved_pieces,
)}  # fmt: skip
DIALECTS = {
    "chat": openai_chat.DIALECT,
    "responses": openai_responses.DIALECT,
    "anthropic": anthropic_upstream.DIALECT,
}


def cpu_of(name: str, count: int, **capabilities: Any) -> float:
    """Return the minimum CPU seconds of three runs."""
    profile = profile_with("generic", capabilities)
    target = TranslationTarget(upstream="u", model="m", profile=profile)
    events, runs = STREAMS[name](count), []
    for _ in range(3):
        stream = DIALECTS[name.partition("_")[0]].stream(ResponseContext(target=target))
        began = time.process_time()
        written = [event for each in events for event in stream.feed(each)]
        fold(written + stream.end())
        runs.append(time.process_time() - began)
    return min(runs)


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        *[pytest.param(name, {}, id=name) for name in STREAMS],
        *[
            pytest.param(name, {"cumulative_arguments": True}, id=f"{name}-cumulative")
            for name in ("chat_names_in_each_piece", "chat_text_and_pieces")
        ],
        pytest.param("chat_names_in_each_piece", {"signed_calls": True}, id="waiting"),
    ],
)
def test_four_times_the_events_are_about_four_times_the_work(name, capabilities):
    small, large = cpu_of(name, SMALL, **capabilities), cpu_of(name, 4 * SMALL, **capabilities)

    assert large < QUADRATIC * max(small, 0.002)

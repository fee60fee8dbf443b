"""Property tests: laws that every translated response must satisfy.

Each law runs on both dialects. A grammar checker that is independent of the writer checks every
emitted stream (``tests.fakes.upstreams.grammar``).
"""

import asyncio
import copy
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.upstreams import response_strategies as made
from tests.fakes.upstreams.grammar import faults_of_bytes, faults_of_events
from tests.fakes.upstreams.hypothesis_strategies import CHAT_CHUNKS, RESPONSES_EVENTS
from tests.lanes.hypothesis_profiles import law
from translator import (
    format_sse,
    map_openai_chat_to_anthropic,
    map_openai_response_to_anthropic,
    openai_chat,
    openai_responses,
    translate_openai_chat_events,
    translate_openai_events,
)
from translator.dialect import Dialect, ResponseContext
from translator.message_stream.events_to_message import fold
from translator.stream.sse import SSEDecoder

pytestmark = pytest.mark.timeout(1800)

RESPONSES = openai_responses.DIALECT
CHAT = openai_chat.DIALECT
CONTEXT = ResponseContext(message_id="msg_law", model="claude-law")


def streamed(
    dialect: Dialect, events: list[dict], context: ResponseContext = CONTEXT
) -> list[dict]:
    """Return the Anthropic events for these upstream events and the end of the stream."""
    stream = dialect.stream(context)
    emitted = [each for event in copy.deepcopy(events) for each in stream.feed(event)]
    return [*emitted, *stream.end()]


def folded_whole(dialect: Dialect, body: dict) -> dict:
    return fold(dialect.stream(CONTEXT).feed_body(copy.deepcopy(body)))


def as_bytes(events: list[dict]) -> bytes:
    frames = (
        f"event: {e.get('type', 'x')}\ndata: {json.dumps(e, ensure_ascii=False)}\n\n"
        for e in events
    )
    return "".join(frames).encode()


# Law 1: any order of upstream events yields a legal stream


@law
@given(events=st.lists(RESPONSES_EVENTS, max_size=14))
def test_any_responses_events_in_any_order_yield_a_legal_stream(events):
    assert faults_of_events(streamed(RESPONSES, events), raw_tool_input=True) == []


@law
@given(chunks=st.lists(CHAT_CHUNKS, max_size=12))
def test_any_chat_chunks_in_any_order_yield_a_legal_stream(chunks):
    assert faults_of_events(streamed(CHAT, chunks), raw_tool_input=True) == []


@law
@given(answer=made.generated_responses())
def test_a_shuffled_responses_stream_yields_a_legal_stream(answer):
    chance = answer.chance()
    events = made.responses_stream(answer, chance)
    chance.shuffle(events)

    assert faults_of_events(streamed(RESPONSES, events), raw_tool_input=True) == []


@law
@given(answer=made.generated_responses())
def test_a_shuffled_chat_stream_yields_a_legal_stream(answer):
    chance = answer.chance()
    chunks = made.chat_stream(answer, chance)
    chance.shuffle(chunks)

    assert faults_of_events(streamed(CHAT, chunks), raw_tool_input=True) == []


@law
@given(body=st.one_of(RESPONSES_EVENTS, CHAT_CHUNKS))
def test_any_whole_body_yields_a_legal_stream(body):
    for dialect in (RESPONSES, CHAT):
        events = dialect.stream(CONTEXT).feed_body(copy.deepcopy(body))

        assert faults_of_events(events, raw_tool_input=True) == []


# Law 2: any prefix of a stream ends in an error, never in message_stop


@law
@given(answer=made.generated_responses())
def test_any_prefix_of_a_responses_stream_ends_in_an_error(answer):
    chance = answer.chance()
    events = made.responses_stream(answer, chance)
    prefix = events[: chance.randrange(len(events))]

    emitted = streamed(RESPONSES, prefix)

    assert emitted[-1]["type"] == "error"
    assert "message_stop" not in {event["type"] for event in emitted}
    assert faults_of_events(emitted) == []


@law
@given(answer=made.generated_responses())
def test_any_prefix_of_a_chat_stream_without_its_finish_ends_in_an_error(answer):
    chance = answer.chance()
    chunks = made.chat_stream(answer, chance)
    finish = next(
        n for n, c in enumerate(chunks) if c["choices"] and c["choices"][0]["finish_reason"]
    )
    prefix = chunks[: chance.randint(0, finish)]

    emitted = streamed(CHAT, prefix)

    assert emitted[-1]["type"] == "error"
    assert "message_stop" not in {event["type"] for event in emitted}
    assert faults_of_events(emitted) == []


# Law 3: cutting the bytes anywhere changes nothing


@law
@given(answer=made.generated_responses())
def test_cutting_the_bytes_anywhere_changes_nothing(answer):
    chance = answer.chance()
    raw = as_bytes(made.responses_stream(answer, chance))
    if chance.random() < 0.5:
        raw = raw.replace(b"\n", b"\r\n")
    cuts = sorted({chance.randint(0, len(raw)) for _ in range(chance.randint(0, 12))})
    bounds = [0, *cuts, len(raw)]
    whole, cut = SSEDecoder(), SSEDecoder()

    in_one = [*whole.feed(raw), *whole.end()]
    in_pieces = [e for a, b in pairwise(bounds) for e in cut.feed(raw[a:b])]

    assert [*in_pieces, *cut.end()] == in_one
    assert as_bytes([json.loads(event.data) for event in in_one]) == raw.replace(b"\r\n", b"\n")


# Law 4: the folded stream is the whole body's mapping; 5: not streaming is streaming


@law
@given(answer=made.generated_responses())
def test_a_folded_responses_stream_is_the_whole_mapping(answer):
    events = made.responses_stream(answer, answer.chance())

    folded = fold(streamed(RESPONSES, events))

    assert folded == folded_whole(RESPONSES, made.responses_body(answer))


@law
@given(answer=made.generated_responses())
def test_a_folded_chat_stream_is_the_whole_mapping(answer):
    chunks = made.chat_stream(answer, answer.chance())

    folded = fold(streamed(CHAT, chunks))

    assert folded == folded_whole(CHAT, made.chat_body(answer))


@law
@given(answer=made.generated_responses())
def test_the_public_functions_for_whole_answers_are_the_folded_machines(answer):
    response, completion = made.responses_body(answer), made.chat_body(answer)

    mapped = map_openai_response_to_anthropic(copy.deepcopy(response))
    mapped_chat = map_openai_chat_to_anthropic(copy.deepcopy(completion))

    assert mapped["content"] == folded_whole(RESPONSES, response)["content"]
    assert mapped["usage"] == folded_whole(RESPONSES, response)["usage"]
    assert mapped_chat["content"] == folded_whole(CHAT, completion)["content"]
    assert mapped_chat["usage"] == folded_whole(CHAT, completion)["usage"]


# Law 6: no output is lost or added, however the items are mixed


def calls_in(message: dict) -> dict[str, tuple]:
    return {
        block["id"]: (block["name"], block["input"])
        for block in message["content"]
        if block["type"] == "tool_use"
    }


def output_in(message: dict, kind: str) -> str:
    return "".join(block[kind] for block in message["content"] if block["type"] == kind)


def assert_output(message: dict, answer: made.GeneratedResponse) -> None:
    calls = {item.id: (item.name, json.loads(item.text)) for item in answer.of("call")}

    assert calls_in(message) == calls
    assert output_in(message, "text") == "".join(item.text for item in answer.of("text"))
    assert message["stop_reason"] == ("tool_use" if calls else "end_turn")
    assert message["usage"]["input_tokens"] == answer.input_tokens - answer.cached_tokens
    assert message["usage"]["output_tokens"] == answer.output_tokens


@law
@given(answer=made.generated_responses(texts=1))
def test_mixed_responses_items_lose_nothing(answer):
    events = made.responses_stream(answer, answer.chance(), made.mixed)

    emitted = streamed(RESPONSES, events)

    assert faults_of_events(emitted) == []
    assert_output(fold(emitted), answer)
    thoughts = sorted(b["thinking"] for b in fold(emitted)["content"] if b["type"] == "thinking")
    assert thoughts == sorted(item.text for item in answer.of("thinking"))


@law
@given(answer=made.generated_responses())
def test_mixed_chat_calls_lose_nothing(answer):
    chunks = made.chat_stream(answer, answer.chance(), made.mixed)

    emitted = streamed(CHAT, chunks)

    assert faults_of_events(emitted) == []
    assert_output(fold(emitted), answer)
    thought = "".join(item.text for item in answer.of("thinking"))
    assert output_in(fold(emitted), "thinking") == thought


# Law 7: the finished block on content_block_stop equals the joined deltas


@law
@given(answer=made.generated_responses())
def test_a_finished_block_equals_its_deltas(answer):
    context = ResponseContext(message_id="msg_law", model="claude-law", finished_blocks=True)
    for dialect, stream in ((RESPONSES, made.responses_stream), (CHAT, made.chat_stream)):
        emitted = streamed(dialect, stream(answer, answer.chance()), context)

        shown = [e["content_block"] for e in emitted if e["type"] == "content_block_stop"]
        assert shown == fold(emitted)["content"]


# Law 8: the public functions write the events of the stream


@law
@given(answer=made.generated_responses())
def test_the_public_functions_write_legal_bytes(answer):
    async def through(translate, events) -> str:
        async def source():
            for event in events:
                yield event

        return "".join([frame async for frame in translate(source())])

    async def both() -> list[str]:
        events = made.responses_stream(answer, answer.chance())
        chunks = made.chat_stream(answer, answer.chance())
        return [
            await through(translate_openai_events, events),
            await through(translate_openai_chat_events, chunks),
        ]

    for written in asyncio.run(both()):
        assert faults_of_bytes(written.encode()) == []


@law
@given(text=st.text())
def test_any_text_survives_the_frame(text):
    payload = {"type": "content_block_delta", "text": text}
    decoder = SSEDecoder()

    events = decoder.feed(format_sse("content_block_delta", payload).encode())

    assert [json.loads(event.data) for event in events] == [payload]

"""Stored streams become answers again: all of them for replay, what there is after a crash."""

import json
from typing import Any

import msgspec
import pytest

from proxy.record import rebuild
from proxy.record.posting import Story
from proxy.record.records import Chunk

from .making import body, exchange_id, opening

TARGET = {"upstream": "openai", "model": "gpt-5.2", "dialect": "chat", "profile": "generic"}


def chunk(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return (
        b"data: " + json.dumps({"id": "c1", "model": "m", "choices": [choice]}).encode() + b"\n\n"
    )


def story(*reads: bytes, target: dict[str, Any] | None = None) -> Story:
    said = [(float(at), read) for at, read in enumerate(reads)]
    open_record = opening(body=body("Say it.", stream=True), target=target or TARGET)
    return Story(open_record, [Chunk(id=exchange_id(1), reads=said)])


def test_a_cut_answer_is_what_was_heard_and_its_tokens_are_estimates() -> None:
    part = rebuild.partial(story(chunk(content="Half an "), chunk(content="answer"), b"data: {tor"))

    assert part.answer is not None
    assert part.answer["content"] == [{"type": "text", "text": "Half an answer"}]
    assert part.answer["stop_reason"] is None
    assert part.usage["source"] == "estimated"
    assert part.usage["input"] > 0
    assert part.usage["output"] > 0
    assert part.dialect == "chat"


def test_an_answer_that_never_began_has_no_words() -> None:
    part = rebuild.partial(story())

    assert (part.answer, part.usage, part.reads) == (None, {}, [])


@pytest.mark.parametrize(
    "target", [{"dialect": "telepathy"}, {**TARGET, "profile": "no such"}, {**TARGET, "capabilities": {"x": 1}}]
)  # fmt: skip
def test_an_unknown_target_costs_the_words_and_not_the_row(target: dict[str, Any]) -> None:
    part = rebuild.partial(story(chunk(content="x"), target=target))

    assert part.answer is None
    assert part.reads


WORST = {"input": 70, "output": 900, "source": "estimated"}


def test_a_hard_budget_is_charged_the_worst_case_of_what_never_began() -> None:
    told = story()
    told.opening = msgspec.structs.replace(told.opening, worst_case=WORST)

    usage = rebuild.partial(told).usage

    assert (usage["input"], usage["output"]) == (70, 900)
    assert (usage["source"], usage["output_source"]) == ("estimated", "estimated")


def test_a_hard_budget_is_charged_what_arrived_before_the_end() -> None:
    told = story(chunk(content="Half an answer"))
    told.opening = msgspec.structs.replace(told.opening, worst_case=WORST)

    usage = rebuild.partial(told).usage

    assert usage["source"] == "estimated"
    assert 0 < usage["output"] < 900


def test_the_last_attempt_counts() -> None:
    first, second = chunk(content="first"), chunk(content="second")
    told = story(first)
    told.chunks.append(Chunk(id=exchange_id(1), reads=[(9.0, second)], attempt=1, target=TARGET))

    part = rebuild.partial(told)

    assert part.answer is not None
    assert part.answer["content"] == [{"type": "text", "text": "second"}]


def test_an_error_s_body_is_no_part_of_an_answer() -> None:
    told = story()
    body = b'{"error": {"message": "busy"}}'
    told.chunks.append(Chunk(id=exchange_id(1), reads=[(9.0, body)], status=529))

    part = rebuild.partial(told)

    assert (part.answer, part.reads) == (None, [])


def test_replay_gives_the_stored_answer_again() -> None:
    request = json.loads(body("Say it.", stream=True))
    reads = [(1.0, chunk(content="Yes.")), (2.0, b'data: {"choices":[{"index":0,"delta":{},')]
    reads.append((3.0, b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'))

    replayed = rebuild.replay(request, TARGET, reads, message_id="msg_7")

    assert replayed.answer is not None
    assert replayed.answer["id"] == "msg_7"
    assert replayed.answer["stop_reason"] == "end_turn"
    assert replayed.events[-1]["type"] == "message_stop"
    assert replayed.body["model"] == "gpt-5.2"


def test_a_whole_json_answer_replays_too() -> None:
    request = json.loads(body("Say it."))
    message = {"role": "assistant", "content": "Yes."}
    whole = {"id": "c1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    replayed = rebuild.replay(request, TARGET, [(1.0, json.dumps(whole).encode())])

    assert replayed.answer is not None
    assert replayed.answer["content"] == [{"type": "text", "text": "Yes."}]

"""The response of an interrupted request is rebuilt from its stored chunks."""

import json
from typing import Any

import msgspec

from proxy.ledger.journal.records import Chunk
from proxy.ledger.posting.ledger_writer import ExchangeRecords
from proxy.ledger.posting.orphans import rebuild_interrupted
from tests.for_each import for_each
from tests.proxy.ledger.factories import body, exchange_id, opening

TARGET = {"upstream": "openai", "model": "gpt-5.2", "dialect": "chat", "profile": "generic"}


def chunk(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return (
        b"data: " + json.dumps({"id": "c1", "model": "m", "choices": [choice]}).encode() + b"\n\n"
    )


def stored_records(*reads: bytes, target: dict[str, Any] | None = None) -> ExchangeRecords:
    timed = [(float(at), read) for at, read in enumerate(reads)]
    open_record = opening(body=body("Answer.", stream=True), target=target or TARGET)
    return ExchangeRecords(open_record, [Chunk(id=exchange_id(1), reads=timed)])


def test_an_interrupted_response_has_its_received_text_and_estimated_tokens() -> None:
    part = rebuild_interrupted(
        stored_records(chunk(content="Half an "), chunk(content="answer"), b"data: {tor")
    )

    assert part.answer is not None
    assert part.answer["content"] == [{"type": "text", "text": "Half an answer", "citations": None}]
    assert part.answer["stop_reason"] is None
    assert part.usage["source"] == "estimated"
    assert part.usage["input"] > 0
    assert part.usage["output"] > 0
    assert part.dialect == "chat"


def test_a_response_without_chunks_is_empty() -> None:
    part = rebuild_interrupted(stored_records())

    assert (part.answer, part.usage, part.reads) == (None, {}, [])


@for_each(
    "target", [{"dialect": "telepathy"}, {**TARGET, "profile": "no such"}, {**TARGET, "capabilities": {"x": 1}}]
)  # fmt: skip
def test_a_response_of_an_unknown_target_is_not_rebuilt(target: dict[str, Any]) -> None:
    part = rebuild_interrupted(stored_records(chunk(content="x"), target=target))

    assert part.answer is None
    assert part.reads


WORST = {"input": 70, "output": 900, "source": "estimated"}


def test_a_hard_budget_counts_the_worst_case_without_a_response() -> None:
    records = stored_records()
    records.opening = msgspec.structs.replace(records.opening, worst_case=WORST)

    usage = rebuild_interrupted(records).usage

    assert (usage["input"], usage["output"]) == (70, 900)
    assert (usage["source"], usage["output_source"]) == ("estimated", "estimated")


def test_a_hard_budget_counts_the_received_part_of_a_response() -> None:
    records = stored_records(chunk(content="Half an answer"))
    records.opening = msgspec.structs.replace(records.opening, worst_case=WORST)

    usage = rebuild_interrupted(records).usage

    assert usage["source"] == "estimated"
    assert 0 < usage["output"] < 900


def test_the_last_attempt_is_rebuilt() -> None:
    first, second = chunk(content="first"), chunk(content="second")
    records = stored_records(first)
    records.chunks.append(Chunk(id=exchange_id(1), reads=[(9.0, second)], attempt=1, target=TARGET))

    part = rebuild_interrupted(records)

    assert part.answer is not None
    assert part.answer["content"] == [{"type": "text", "text": "second", "citations": None}]


def test_an_error_body_is_not_part_of_a_response() -> None:
    records = stored_records()
    body = b'{"error": {"message": "busy"}}'
    records.chunks.append(Chunk(id=exchange_id(1), reads=[(9.0, body)], status=529))

    part = rebuild_interrupted(records)

    assert (part.answer, part.reads) == (None, [])

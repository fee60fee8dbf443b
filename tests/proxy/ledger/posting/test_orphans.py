"""Requests whose process died: each is closed as interrupted, once."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal.journal import append_durably
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import KIND, Chunk, CloseRecord, Record, encode
from proxy.ledger.posting import orphans
from proxy.ledger.posting.ledger_writer import ExchangeRecords
from proxy.ledger.posting.orphans import interrupted
from tests.for_each import for_each
from tests.proxy.ledger.conftest import append_frames
from tests.proxy.ledger.factories import body, exchange_id, opening

ALL = 10**9


def test_interrupted_request_has_the_content_of_its_checkpoints():
    target = {"upstream": "up", "model": "m", "dialect": "telepathy"}
    records = ExchangeRecords(
        opening(1, id="req_1"), [Chunk(id="req_1", reads=[(1.0, b"x")], target=target)]
    )

    assert orphans.interrupted(records, 17.5) == CloseRecord(
        id="req_1", finished=17.5, outcome="interrupted", status=200, error_type="api_error",
        error_message="the gateway's process ended before the answer did", error_source="gateway",
        detail="interrupted", model_upstream="m", upstream="up", dialect="telepathy",
        target=target, delivered=False,
    )  # fmt: skip


@contextlib.contextmanager
def read(folder: Path) -> Iterator[JournalReader]:
    with contextlib.closing(JournalReader(folder)) as reader:
        reader.read(ALL)
        yield reader


def test_orphan_ended_when_its_last_record_was_written(tmp_path: Path, caplog) -> None:
    records: list[Record] = [opening(1), opening(2), Chunk(id=exchange_id(1), reads=[(1.0, b"x")])]
    append_frames(
        tmp_path,
        *((KIND[type(one)], float(at), one.id, encode(one)) for at, one in enumerate(records, 75)),
    )
    ids = ["req_lost", exchange_id(1)]
    written: list[CloseRecord] = []

    with read(tmp_path) as reader, caplog.at_level(logging.WARNING):
        numbers = list(orphans.close_orphans(reader, ids, lambda *some: written.extend(some)))

    assert (numbers, ids) == ([1], [])
    assert [(one.id, one.finished, one.upstream) for one in written] == [
        (exchange_id(1), 77.0, "openai")
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "journal: req_lost has no open record",
        "journal: 1 requests were interrupted by the end of their process",
    ]


def test_orphan_without_an_open_record_gets_no_close_record(tmp_path: Path) -> None:
    written: list[CloseRecord] = []

    with read(tmp_path) as reader:
        assert sum(orphans.close_orphans(reader, ["req_gone"], written.append)) == 0

    assert written == []


def test_orphans_share_commits_and_stay_orphans_if_a_commit_fails(tmp_path: Path) -> None:
    most, large = orphans.MAX_RECORDS, os.urandom(orphans.MAX_BYTES)
    append_durably(
        tmp_path, *(opening(n, body=large if n == most + 1 else b"x") for n in range(most + 6))
    )
    written: list[list[str]] = []

    def write(*records: Record) -> None:
        if len(written) == 2:
            raise JournalUnavailable("Input/output error")
        written.append([record.id for record in records])
        append_durably(tmp_path, *records)

    with read(tmp_path) as reader:
        ids = reader.unclosed_ids()
        with pytest.raises(JournalUnavailable, match="output"):
            list(orphans.close_orphans(reader, ids, write))
        reader.read(ALL)

        assert [len(some) for some in written] == [most, 2]  # the large one is in memory as well
        assert ids == reader.unclosed_ids() == [exchange_id(n) for n in range(most + 2, most + 6)]


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
    part = interrupted(
        stored_records(chunk(content="Half an "), chunk(content="answer"), b"data: {tor"), 9.0
    )

    assert part.answer is not None
    assert part.answer["content"] == [{"type": "text", "text": "Half an answer", "citations": None}]
    assert part.answer["stop_reason"] is None
    assert part.usage["source"] == "estimated"
    assert part.usage["input"] > 0
    assert part.usage["output"] > 0
    assert part.dialect == "chat"


def test_a_response_without_chunks_is_empty() -> None:
    part = interrupted(stored_records(), 9.0)

    assert (part.answer, part.usage, part.status) == (None, {}, 0)


@for_each(
    "target", [{"dialect": "telepathy"}, {**TARGET, "profile": "no such"}, {**TARGET, "capabilities": {"x": 1}}]
)  # fmt: skip
def test_a_response_of_an_unknown_target_is_not_rebuilt(target: dict[str, Any]) -> None:
    part = interrupted(stored_records(chunk(content="x"), target=target), 9.0)

    assert part.answer is None
    assert part.status == 200


WORST = {"input": 70, "output": 900, "source": "estimated"}


def test_a_hard_budget_counts_the_worst_case_without_a_response() -> None:
    records = stored_records()
    records.opening = msgspec.structs.replace(records.opening, worst_case=WORST)

    usage = interrupted(records, 9.0).usage

    assert (usage["input"], usage["output"]) == (70, 900)
    assert (usage["source"], usage["output_source"]) == ("estimated", "estimated")


def test_a_hard_budget_counts_the_received_part_of_a_response() -> None:
    records = stored_records(chunk(content="Half an answer"))
    records.opening = msgspec.structs.replace(records.opening, worst_case=WORST)

    usage = interrupted(records, 9.0).usage

    assert usage["source"] == "estimated"
    assert 0 < usage["output"] < 900


def test_the_last_attempt_is_rebuilt() -> None:
    first, second = chunk(content="first"), chunk(content="second")
    records = stored_records(first)
    records.chunks.append(Chunk(id=exchange_id(1), reads=[(9.0, second)], attempt=1, target=TARGET))

    part = interrupted(records, 9.0)

    assert part.answer is not None
    assert part.answer["content"] == [{"type": "text", "text": "second", "citations": None}]


def test_an_error_body_is_not_part_of_a_response() -> None:
    records = stored_records()
    body = b'{"error": {"message": "busy"}}'
    records.chunks.append(Chunk(id=exchange_id(1), reads=[(9.0, body)], status=529))

    part = interrupted(records, 9.0)

    assert (part.answer, part.status) == (None, 0)

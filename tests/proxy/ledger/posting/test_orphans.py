"""Requests whose process died: each is closed as interrupted, once."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal.journal import append_durably
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import KIND, Chunk, CloseRecord, Record, encode
from proxy.ledger.posting import orphans
from proxy.ledger.posting.orphans import InterruptedResponse
from tests.proxy.ledger.conftest import append_frames
from tests.proxy.ledger.factories import exchange_id, opening

ALL = 10**9
PART = InterruptedResponse(
    reads=[(1.0, b"x")], answer={"content": []}, usage={"input": 1}, unknown={"new": 2},
    target={"upstream": "up"}, model="m", upstream="up", dialect="chat",
)  # fmt: skip


def test_interrupted_request_has_the_content_of_its_checkpoints():
    assert orphans.interrupted("req_1", PART, 17.5) == CloseRecord(
        id="req_1", finished=17.5, outcome="interrupted", status=200, error_type="api_error",
        error_message="the gateway's process ended before the answer did", error_source="gateway",
        detail="interrupted", usage={"input": 1}, answer={"content": []},
        unknown_events={"new": 2}, model_upstream="m", upstream="up", dialect="chat",
        target={"upstream": "up"}, delivered=False,
    )  # fmt: skip


def test_interrupted_request_without_a_response_has_no_status():
    assert orphans.interrupted("req_1", InterruptedResponse(), 17.5).status == 0


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

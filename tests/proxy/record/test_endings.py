"""What is written of requests that nobody ended, and what a recorder says before it began."""

from datetime import UTC, datetime
from pathlib import Path

from proxy.record import recorder, settlement
from proxy.record.recorder import Recorder
from proxy.record.records import CloseRecord


def test_a_row_whose_process_is_gone_says_so():
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)

    assert settlement._ending("req_1", at) == CloseRecord(
        id="req_1",
        finished=at.timestamp(),
        outcome="interrupted",
        status=0,
        error_type="api_error",
        error_message="the process that served the request is gone, and its spool with it",
        error_source="gateway",
        detail="settled",
        delivered=False,
    )


def test_a_client_that_left_before_the_dial_is_told_nothing():
    ending = recorder._never_told("req_1")

    assert ending == CloseRecord(
        id="req_1",
        finished=ending.finished,
        outcome="client_gone",
        status=499,
        detail="gone_before_dial",
        delivered=False,
    )


def test_before_it_began_nothing_waits_and_nothing_is_wrong(tmp_path: Path):
    assert Recorder(tmp_path).state() == {
        "started": False, "spool": True, "database": True, "backlog": 0, "oldest_s": 0.0,
    }  # fmt: skip

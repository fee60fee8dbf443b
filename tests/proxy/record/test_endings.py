"""What is written of requests that nobody ended, and what a recorder says before it began."""

import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy.models import Exchange, Price
from proxy.record import recorder, recovery, settlement, spool_file
from proxy.record.errors import SpoolUnavailable
from proxy.record.posting import Story, post
from proxy.record.rebuild import Partial
from proxy.record.recorder import Recorder
from proxy.record.records import Chunk, CloseRecord
from proxy.record.repricing import usage_of
from proxy.record.spool_file import Backlog

from .making import NOON, closing, exchange_id, opening, rows


def test_a_row_whose_process_is_gone_says_so():
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)

    row = Exchange(pk="req_1")
    assert settlement._ending(row, at) == CloseRecord(
        id="req_1",
        finished=at.timestamp(),
        outcome="interrupted",
        status=0,
        error_type="api_error",
        error_message="the process that served the request is gone, and its spool with it",
        error_source="gateway",
        detail="settled",
        usage=usage_of(row),
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


@pytest.mark.parametrize("part", ["", "_spool", "_drainer"])  # while it starts, one comes first
def test_before_it_began_nothing_waits_and_nothing_is_wrong(tmp_path: Path, part: str):
    beginning = Recorder(tmp_path)
    if part:
        setattr(beginning, part, SimpleNamespace())

    assert beginning.state() == {
        "started": False, "spool": True, "database": True, "backlog": 0, "oldest_s": 0.0,
    }  # fmt: skip


def test_what_a_recorder_that_runs_says_of_itself(tmp_path: Path):
    """Where both ends are well, and where neither is."""
    running = Recorder(tmp_path)
    running._spool = SimpleNamespace(error="", lost_chunks=0)
    running._drainer = SimpleNamespace(error="", backlog=Backlog(0, None, 0))
    assert running.state() == {
        "started": True, "spool": True, "spool_error": "", "database": True, "database_error": "",
        "backlog": 0, "oldest_s": 0.0, "set_aside": 0, "lost_chunks": 0,
    }  # fmt: skip

    running._spool = SimpleNamespace(error="full", lost_chunks=4)
    running._drainer = SimpleNamespace(error="away", backlog=Backlog(3, time.time() - 100, 2))
    told = running.state()
    assert told == {
        "started": True, "spool": False, "spool_error": "full", "database": False,
        "database_error": "away", "backlog": 3, "oldest_s": pytest.approx(100, abs=50),
        "set_aside": 2, "lost_chunks": 4,
    }  # fmt: skip
    running._drainer.backlog = Backlog(1, time.time() + 1_000, 0)
    assert running.state()["oldest_s"] == 0.0


async def test_what_has_stopped_takes_no_ending(tmp_path: Path):
    stopped = Recorder(tmp_path)

    stopped.chunk(Chunk(id="req_1", reads=[]))
    with pytest.raises(SpoolUnavailable, match="the record has been stopped"):
        stopped.settle(closing())
    assert stopped.slot == -1
    assert stopped.directory == tmp_path


PART = Partial(
    reads=[(1.0, b"x")], answer={"content": []}, usage={"input": 1}, unknown={"odd": 2},
    target={"upstream": "up"}, model="m", upstream="up", dialect="chat",
)  # fmt: skip


def test_an_answer_that_a_crash_cut_off_keeps_all_that_was_heard():
    assert recovery.interrupted("req_1", PART, 17.5) == CloseRecord(
        id="req_1", finished=17.5, outcome="interrupted", status=200, error_type="api_error",
        error_message="the gateway's process ended before the answer did", error_source="gateway",
        detail="interrupted", usage={"input": 1}, answer={"content": []},
        unknown_events={"odd": 2}, model_upstream="m", upstream="up", dialect="chat",
        target={"upstream": "up"}, delivered=False,
    )  # fmt: skip


@pytest.mark.parametrize("seen", [0.0, -5.0])
def test_what_gave_no_sign_of_life_ended_now(seen: float):
    before = time.time()

    ended = recovery.interrupted("req_1", Partial(), seen)

    assert before <= ended.finished <= time.time()
    assert ended.status == 0


def test_orphans_end_when_they_were_last_heard_of(tmp_path: Path, caplog):
    link = spool_file.create(tmp_path / "spool-0.sqlite3")
    spool_file.append(link, rows(opening(1), opening(2)))
    link.execute("UPDATE records SET at = 77 WHERE id = ?", (exchange_id(1),))
    spool_file.append(link, rows(Chunk(id="req_lost", reads=[(1.0, b"x")])))
    ids = ["req_lost", exchange_id(1)]
    written: list[CloseRecord] = []

    with caplog.at_level(logging.WARNING):
        numbers = list(recovery.close_orphans(link, ids, lambda *some: written.extend(some)))

    assert (numbers, ids) == ([1], [])
    assert [(one.id, one.finished, one.upstream) for one in written] == [
        (exchange_id(1), 77.0, "openai")
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "spool: req_lost has no open record",
        "spool: 1 requests were interrupted by the end of their process",
    ]
    assert recovery.last_sign_of_life(link, "req_nobody") == 0.0
    link.close()


@pytest.mark.django_db
def test_open_rows_that_are_old_are_settled_in_parts(
    tmp_path: Path, monkeypatch, django_assert_num_queries
):
    monkeypatch.setattr(settlement, "MOST_TOGETHER", 2)
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input=1, output=1)
    post([Story(opening(n), []) for n in range(1, 7)])
    at = datetime.fromtimestamp(NOON + 6, UTC)
    later = at + timedelta(hours=1)
    post([Story(opening(0), [], closing(0))])

    assert settlement.settle(tmp_path, at, later) == (0, 5)

    told = Exchange.objects.order_by("pk")
    assert [row.outcome for row in told] == ["completed", *["interrupted"] * 5, ""]
    assert [row.finished for row in told][1:] == [*[later] * 5, None]
    with django_assert_num_queries(2):  # nothing is locked where nothing is open
        assert settlement.settle(tmp_path, at) == (0, 0)


@pytest.mark.django_db
def test_an_open_row_under_a_hard_budget_is_settled_for_its_worst_case(tmp_path: Path):
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input=1, output=10)
    worst = {"input": 70, "output": 900, "source": "estimated"}
    post([Story(opening(1, worst_case=worst), []), Story(opening(2), [])])
    at = datetime.fromtimestamp(NOON + 6, UTC)
    assert [row.output_source for row in Exchange.objects.order_by("pk")] == [
        "estimated",
        "missing",
    ]

    assert settlement.settle(tmp_path, at) == (0, 2)

    hard, soft = Exchange.objects.order_by("pk")
    assert (hard.input_tokens, hard.output_tokens, hard.output_source) == (70, 900, "estimated")
    assert hard.cost_nanousd == 70 * 1_000 + 900 * 10_000
    assert (soft.input_tokens, soft.output_source, soft.cost_nanousd) == (None, "missing", None)


@pytest.mark.django_db
def test_what_the_close_record_says_replaces_the_worst_case():
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input=1, output=10)
    worst = {"input": 70, "output": 900, "source": "estimated"}
    post([Story(opening(1, worst_case=worst), [])])

    post([Story(opening(1, worst_case=worst), [], closing(1, usage={}))])

    kept = Exchange.objects.get()
    assert (kept.input_tokens, kept.output_tokens, kept.output_source) == (None, None, "missing")
    assert kept.cost_nanousd is None


def test_spools_that_nobody_owns_are_drained_first(tmp_path: Path, team):
    link = spool_file.create(tmp_path / "spool-0.sqlite3")
    spool_file.append(link, rows(opening(1), closing(1)))
    link.close()

    assert settlement.settle(tmp_path, datetime.now(UTC)) == (1, 0)

    assert Exchange.objects.get().outcome == "completed"

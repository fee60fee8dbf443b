"""The drainer outlives what goes wrong: a database that is away, records that nobody can read."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from proxy.models import DrainMark, Exchange
from proxy.record import drainer, spool_file
from proxy.record.drainer import Drainer, Source
from proxy.record.spool import Spool
from proxy.record.spool_file import Backlog, Row
from proxy.record.spool_talk import CHUNK, CLOSE, OPEN

from .conftest import drain_all
from .making import closing, exchange_id, opening, rows
from .writing import read_ids

BROKEN = b"\xc1 no MessagePack begins like this"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool-0.sqlite3"


@pytest.fixture
def own(path: Path) -> Iterator[Source]:
    """A spool that only this process writes to."""
    with contextlib.closing(spool_file.create(path)) as link:
        yield Source(link, lambda job, *arguments: job(link, *arguments))


def broken(number: int, kind: int = OPEN) -> Row:
    return (None, exchange_id(number), kind, time.time(), BROKEN)


def states() -> dict[str, str]:
    return dict(Exchange.objects.values_list("pk", "state"))


def set_aside(link: Any) -> dict[str, str]:
    return dict(link.execute("SELECT id, fault FROM records WHERE fault IS NOT NULL"))


# The thread, in this one


@contextlib.contextmanager
def no_table_of_exchanges() -> Iterator[None]:
    def rename(old: str, new: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("proxy_exchange", "proxy_away")
    yield
    rename("proxy_away", "proxy_exchange")


@pytest.mark.django_db(transaction=True)
def test_while_the_database_is_away_the_spool_keeps_what_comes_and_the_cause_is_told(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    spool.append(opening(1), closing(1))
    one = Drainer(spool, [], Backlog(0, None, 0))
    one._stop_asked.set()  # a round, then the end

    with no_table_of_exchanges():
        one._work()
        one._work()
        assert "proxy_exchange" in one.error
        assert one.backlog.records == 2
    one._work()

    assert (one.error, one.backlog.records) == ("", 0)
    assert states() == {exchange_id(1): "closed"}
    told = [text for text in caplog.messages if "the spool keeps what comes" in text]
    assert len(told) == 1, "once for each outage"


@pytest.mark.django_db(transaction=True)
def test_a_bug_does_not_end_the_thread(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool.append(opening(1), closing(1))
    one = Drainer(spool, [], Backlog(0, None, 0))
    one._stop_asked.set()
    monkeypatch.setattr(drainer, "ROUND_S", None)  # nobody can compare with that

    one._work()

    assert "NoneType" in one.error
    assert "unexpected fault" in caplog.text


def test_the_pause_after_a_fault_doubles_up_to_five_seconds(spool: Spool) -> None:
    one = Drainer(spool, [], Backlog(0, None, 0))
    fault, pause = OSError("away"), 0.0

    pauses = [pause := one._failed(fault, pause) for _ in range(7)]

    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_pause_keeps_what_woke_it_meanwhile_and_a_rest_does_not(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drainer, "GATHER_S", 0.0)
    one = Drainer(spool, [], Backlog(0, None, 0))
    one.wake()
    one.wake()

    one._rest(0.01)
    assert one._wake.is_set()

    one._rest(0.0)
    assert not one._wake.is_set()


def test_nobody_to_rest_for_and_nothing_to_do(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start after a crash takes no rests; without work it sleeps until it is woken."""
    monkeypatch.setattr(drainer, "LONGEST_REST_S", 3_600.0)  # longer than a test may take
    monkeypatch.setattr(drainer, "IDLE_S", 0.0)
    one = Drainer(spool, [], Backlog(0, None, 0))
    one._took = 3_600.0

    one._more = True
    one._rest(0.0)
    one._more = False
    one._rest(0.0)


@pytest.mark.django_db
def test_what_is_due_now_and_then_is_not_done_each_round(
    spool: Spool, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IDLE_S", "MARK_S", "AHEAD_S", "TIDY_S"):
        monkeypatch.setattr(drainer, name, 3_600.0)
    one = Drainer(spool, [], Backlog(0, None, 0))
    one._stop_asked.set()

    one._round(source)
    marked = DrainMark.objects.get().seen
    one._round(source)

    assert DrainMark.objects.get().seen == marked


@pytest.mark.django_db
def test_orphans_are_not_closed_into_the_space_that_is_kept_for_those_who_run(
    spool: Spool, source: Source
) -> None:
    spool.append(opening(1))
    one = Drainer(spool, [exchange_id(1)], Backlog(0, None, 0))
    one._stop_asked.set()

    spool.hear_fault((1, 98), "database or disk is full")
    one._move(source)
    assert (one.orphans, states()) == ([exchange_id(1)], {exchange_id(1): "open"})

    spool.hear_fault((1, 99), "")
    spool.hear_fault((1, 98), "what the other line heard before")
    one._move(source)
    assert (one.orphans, states()) == ([], {exchange_id(1): "closed"})


def test_a_spool_file_beyond_reach_is_waited_for(path: Path) -> None:
    class Late:
        """Its file is there at the second look."""

        looks = 0

        @property
        def path(self) -> Path:
            self.looks += 1
            if self.looks == 2:
                spool_file.create(path).close()
            return path

    with contextlib.closing(drainer._reader(late := Late())) as link:  # type: ignore[arg-type]
        assert spool_file.backlog(link).records == 0

    assert late.looks == 2


# Records that nobody can read


@pytest.mark.django_db
def test_what_cannot_be_read_is_set_aside_and_the_others_are_posted(own: Source) -> None:
    spool_file.append(own.link, [broken(1), *rows(closing(2), opening(3), closing(3))])

    drain_all(own)

    assert states() == {exchange_id(3): "closed"}
    faults = set_aside(own.link)
    assert faults.keys() == {exchange_id(1), exchange_id(2)}
    assert "MessagePack" in faults[exchange_id(1)]
    assert faults[exchange_id(2)] == "there is no open record"
    assert spool_file.waiting_ids(own.link, 10) == []


@pytest.mark.django_db
def test_nothing_but_broken_records_posts_nothing(own: Source) -> None:
    spool_file.append(own.link, [broken(1)])

    assert drain_all(own) == 0

    assert set_aside(own.link).keys() == {exchange_id(1)}


@pytest.mark.django_db
def test_large_exchanges_are_posted_one_by_one(
    own: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drainer, "MOST_BYTES", 1_000)
    for number in range(3):
        spool_file.append(own.link, rows(opening(number, body=bytes(1_000)), closing(number)))

    assert list(drainer.drain(own)) == [1, 1, 1]


# Spools of dead workers


@pytest.fixture
def left(path: Path, own: Source) -> Path:
    """What a dead worker left: one exchange that ended, one that did not."""
    spool_file.append(own.link, rows(opening(1), closing(1), opening(2)))
    return path


@pytest.mark.django_db
def test_a_dead_workers_spool_is_moved_and_kept_as_long_as_a_backup_may_need_it(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drainer.mark(left, Backlog(3, 1.0, 0))
    left.with_suffix(".reserve").touch()

    assert drainer.adopt(left.parent) == 1

    outcomes = dict(Exchange.objects.values_list("pk", "outcome"))
    assert outcomes == {exchange_id(1): "completed", exchange_id(2): "interrupted"}
    assert not DrainMark.objects.exists()
    assert len(read_ids(left)) == 4

    monkeypatch.setattr(drainer, "KEEP_MOVED_S", -60.0)  # a day later
    assert drainer.adopt(left.parent) == 1
    assert [each.name for each in left.parent.iterdir()] == ["spool-0.lock"]
    assert drainer.adopt(left.parent) == 0


@pytest.mark.django_db
@pytest.mark.parametrize("kind", [OPEN, CHUNK, CLOSE])
def test_a_broken_record_of_a_dead_worker_holds_nobody_up_and_is_kept_for_a_human(
    left: Path, own: Source, kind: int
) -> None:
    """Wherever it stands, whatever of its exchange can be read beside it."""
    if kind != OPEN:
        spool_file.append(own.link, rows(opening(3)))
    spool_file.append(own.link, [broken(3, kind), *rows(opening(4))])

    assert drainer.adopt(left.parent) == 0

    closed = {name for name, state in states().items() if state == "closed"}
    assert closed == {exchange_id(number) for number in (1, 2, 4)}
    assert set_aside(own.link).keys() == {exchange_id(3)}


# What was moved is forgotten


def moved(own: Source, count: int) -> None:
    spool_file.append(own.link, rows(*(one(n) for n in range(count) for one in (opening, closing))))
    own.write(spool_file.mark_moved, range(1, 2 * count + 1))


def test_what_was_moved_today_goes_early_where_the_file_is_too_large(
    own: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(own, 10)
    spool_file.append(own.link, rows(opening(11)))
    drainer.tidy(own)
    assert len(read_ids_of(own)) == 21

    monkeypatch.setattr(drainer, "KEEP_MOVED_BYTES", 0)
    drainer.tidy(own)

    assert read_ids_of(own) == [exchange_id(11)]


def test_what_was_moved_long_ago_goes_and_a_round_of_tidying_ends(
    own: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the records that come would wait for it."""
    asked: list[str] = []

    def endless(job: Any, *arguments: object) -> int:
        asked.append(job.__name__)
        return 0 if job is spool_file.forget and len(arguments) == 1 else 2**40

    drainer.tidy(Source(own.link, endless))

    assert asked == ["forget", *["used_bytes", "forget"] * 20]
    monkeypatch.setattr(drainer, "KEEP_MOVED_S", -60.0)
    moved(own, 10)
    drainer.tidy(own)
    assert read_ids_of(own) == []


def read_ids_of(own: Source) -> list[str]:
    return [row[0] for row in own.link.execute("SELECT id FROM records ORDER BY seq")]

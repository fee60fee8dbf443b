"""Who counts for a request, and what becomes of its count where the store cannot be reached."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from proxy.counters.sqlite_store import SqliteBudgets
from proxy.counters.states import Change, SqliteStates
from proxy.counters.store import Standing
from proxy.gateway import budgets, shared_limits
from proxy.gateway.budgets import Hold
from proxy.gateway.ceilings import BudgetEntry
from proxy.gateway.directory import NO_LIMITS, Caller, Globs, Limits, TeamEntry
from proxy.gateway.keeper import keeper
from proxy.gateway.shared_limits import Common, SharedSeat
from proxy.models import Budget, Team
from proxy.record import spending
from proxy.record.recorder import recorder


def caller(limits: Limits) -> Caller:
    team = TeamEntry(name="together", store_full=True, models=Globs(), limits=NO_LIMITS)
    return Caller(
        key_id=1, key_name="ada", meter="together/ada", team=team, user="", scopes=frozenset(),
        models=Globs(), limits=limits, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip


@pytest.fixture
def states(tmp_path: Path):
    made = SqliteStates(tmp_path / "limits.sqlite3")
    yield made
    made.close()


def test_who_has_no_seat_any_more_is_forgotten_and_renews_nothing(states: SqliteStates):
    process = Common(states, "me")
    seats = [process.take(caller(Limits(concurrency=9)), 0) for _ in range(2)]
    names = ["key together/ada", "team together"]

    process.give(seats[0], 0, 1)
    process.renew()
    assert dict(process._seated) == dict.fromkeys(names, 1)
    assert [meter.elsewhere for meter in process.look(names)] == [1, 1]

    process.give(seats[1], 0, 1)
    process.renew()
    assert dict(process._seated) == {}
    assert [meter.elsewhere for meter in process.look(names)] == [0, 0]


def test_a_seat_that_cannot_be_given_back_is_free_when_its_lease_ends(
    tmp_path: Path, states: SqliteStates, caplog: pytest.LogCaptureFixture
):
    seat = Common(states, "me").take(caller(Limits(concurrency=1)), 0)
    away = Common(SqliteStates(tmp_path / "gone" / "limits.sqlite3"), "me")

    away.give(seat, 0, 1)

    assert "a seat becomes free when its lease ends" in caplog.text


class Slow(SqliteStates):
    """A store that takes its time over each change."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked, self.go_on = threading.Event(), threading.Event()

    def update(self, names: Sequence[str], change: Change) -> None:
        self.asked.set()
        assert self.go_on.wait(60)
        super().update(names, change)


async def test_who_leaves_while_a_seat_is_taken_gives_it_back_and_who_leaves_sooner_takes_none(
    tmp_path: Path,
):
    store = Slow(tmp_path / "limits.sqlite3")
    process, who = Common(store, "me"), caller(Limits(concurrency=9))
    first, second = (asyncio.create_task(process.taken(who, 0)) for _ in range(2))
    assert await asyncio.to_thread(store.asked.wait, 60)  # and the second waits for the first

    for each in (first, second):
        each.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    store.go_on.set()
    for _ in ("the seat is taken, and its return waits", "it was given back"):
        await asyncio.wrap_future(shared_limits._pool.submit(int))

    assert (first.cancelled(), second.cancelled()) == (True, True)
    names = ["key together/ada", "team together"]
    assert [meter.elsewhere for meter in process.look(names)] == [0, 0]
    assert process._seated.total() == 0
    store.close()


@pytest.fixture
def several(gateway, states: SqliteStates, monkeypatch: pytest.MonkeyPatch) -> SqliteStates:
    """As in a gateway of several workers."""
    monkeypatch.setattr(shared_limits, "limit_states", lambda: states)
    monkeypatch.setattr(shared_limits, "_common", {})
    monkeypatch.setattr(keeper, "renewals", [])
    return states


async def test_the_workers_of_a_machine_count_together(several: SqliteStates):
    who = caller(Limits(concurrency=1))

    seat = await shared_limits.take_seat(who, 0)

    assert isinstance(seat, SharedSeat)
    process = shared_limits.common()
    assert process is shared_limits.common() is seat.common
    assert keeper.renewals == [process.renew]
    assert several.read(["key together/ada"])[0].count(recorder.worker) == 1


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters of budgets cannot be reached."""
    use(SqliteBudgets(tmp_path / "gone" / "counters.sqlite3"), monkeypatch)


def use(store: SqliteBudgets, monkeypatch: pytest.MonkeyPatch) -> SqliteBudgets:
    for module in (budgets, spending):
        monkeypatch.setattr(module, "budget_store", lambda: store)
    spending.DIRTY.clear()
    return store


@pytest.fixture
def entries(gateway, reload: Callable[[], None]) -> list[BudgetEntry]:
    """Two budgets of a team, as the directory has them."""
    team = Team.objects.create(name=f"counted-{time.time_ns()}")
    made = [
        Budget.objects.create(team=team, usd=Decimal(5), period=each) for each in ("day", "month")
    ]
    return [
        BudgetEntry(
            id=each.pk, owner=each.owner, limit=5, period=each.period, zone="UTC", hard=True
        )
        for each in made
    ]


def test_only_a_counter_that_is_not_there_is_seeded(
    entries: list[BudgetEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = use(SqliteBudgets(tmp_path / "counters.sqlite3"), monkeypatch)
    now = time.time()
    day, month = (entry.counter(now) for entry in entries)
    store.publish(day, 3)  # which the ledger does not say

    verdict = budgets._reserved("req_1", 2, entries, now)

    assert verdict.granted
    assert [store.standing(name) for name in (day, month)] == [
        Standing(3, 0, 2), Standing(0, 0, 2)
    ]  # fmt: skip
    store.close()


def test_what_could_not_be_published_or_settled_is_set_right_by_the_ledger_later(
    entries: list[BudgetEntry], away: None, caplog: pytest.LogCaptureFixture
):
    now = time.time()

    budgets._seed(entries[0], now)
    assert spending.DIRTY.is_set()

    spending.DIRTY.clear()
    Hold("req_1", (entries[0].counter(now),)).end(None)
    budgets._pool.submit(int).result()
    assert spending.DIRTY.is_set()
    assert "the ledger sets it right" in caplog.text
    spending.DIRTY.clear()

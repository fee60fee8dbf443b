"""Slots and reservations while the shared store or the ledger is unavailable."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from proxy.counters.backends import FILE, shared_store
from proxy.counters.failover import PAUSE_S, FailoverStore
from proxy.counters.sqlite_store import SqliteStore
from proxy.counters.store import Standing, StoreUnavailable, Take, Taken
from proxy.gateway.admission import budgets, counter_thread, rate_limits
from proxy.gateway.admission.budget_maintenance import budget_maintenance
from proxy.gateway.admission.budgets import BudgetCheck, Reservation
from proxy.gateway.admission.rate_limits import Limiter, SharedLimiter, limits_of
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.gateway.snapshot.config_snapshot import (
    NO_LIMITS,
    Caller,
    Limits,
    ModelAllowList,
    TeamEntry,
)
from proxy.ledger.posting import budget_sync
from proxy.metrics.definitions import BUDGETS_UNCHECKED
from proxy.models import Budget, Team
from tests.fakes.clock import Clock
from tests.fakes.outages import unusable
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import row

from .test_hard_budgets import REPORTED


def caller(limits: Limits) -> Caller:
    team = TeamEntry(name="together", store_full=True, models=ModelAllowList(), limits=NO_LIMITS)
    return Caller(
        key_id=1, key_name="ada", meter="together/ada", team=team, user="", scopes=frozenset(),
        models=ModelAllowList(), limits=limits, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip


@pytest.fixture
def states(tmp_path: Path):
    made = SqliteStore(tmp_path / "counters.sqlite3")
    yield made
    made.close()


def used(process: SharedLimiter, sender: Caller) -> list[float]:
    checks = limits_of(sender, 0, "")
    return [each.used(one) for each, one in zip(checks, process.peek(checks), strict=True) if one]


def test_a_caller_without_slots_is_dropped_and_not_renewed(states: SqliteStore):
    process, sender = SharedLimiter(states, "me"), caller(Limits(concurrency=9))
    slots = [process.acquire(sender, 0) for _ in range(2)]

    for slot, left in zip(slots, (1, 0), strict=True):
        slot.release()
        process.renew()
        assert process.held.total() == left
        assert used(process, sender) == [left]


def test_a_slot_that_cannot_be_released_is_free_after_the_next_renewal(
    tmp_path: Path, states: SqliteStore, caplog: pytest.LogCaptureFixture
):
    process, sender = SharedLimiter(states, "me"), caller(Limits(concurrency=1))
    slot = process.acquire(sender, 0)
    process.store = SqliteStore(tmp_path / "gone" / "counters.sqlite3")

    slot.release()
    rate_limits.thread.submit(int).result()

    assert "the next renewal corrects the slots" in caplog.text
    process.store = states
    process.renew()
    assert used(process, sender) == [0]


class Slow(SqliteStore):
    """A store whose changes wait for ``go_on``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.called, self.go_on = threading.Event(), threading.Event()

    def take(self, request_id: str, holder: str, takes: Sequence[Take]) -> Taken:
        self.called.set()
        assert self.go_on.wait(60)
        return super().take(request_id, holder, takes)


async def test_a_cancelled_acquisition_releases_its_slot_or_takes_none(
    tmp_path: Path,
):
    store = Slow(tmp_path / "counters.sqlite3")
    process, sender = SharedLimiter(store, "me"), caller(Limits(concurrency=9))
    first, second = (asyncio.create_task(process.acquire_async(sender, 0)) for _ in range(2))
    assert await asyncio.to_thread(store.called.wait, 60)  # the second waits for the first

    for each in (first, second):
        each.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    store.go_on.set()
    for _ in ("the slot is taken, its release is queued", "it is released"):
        await asyncio.wrap_future(rate_limits.thread.submit(int))

    assert (first.cancelled(), second.cancelled()) == (True, True)
    assert used(process, sender) == [0]
    assert process.held.total() == 0
    store.close()


async def test_while_another_program_locks_the_file_each_process_counts_for_itself(
    tmp_path: Path, states: SqliteStore, settings
):
    settings.REDIS_TIMEOUT_S = 0.1  # the default
    process, sender = SharedLimiter(states, "me"), caller(Limits(concurrency=3))
    process.acquire(sender, 0)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        slots = await asyncio.gather(
            *(
                rate_limits.acquire_slot(sender, 0, Limiter(), lambda: process, model="m")
                for _ in range(3)
            )
        )

    for slot in slots:
        slot.release()
    assert used(process, sender) == [1]


def test_a_locked_file_delays_one_change_of_redis(tmp_path: Path, states: SqliteStore):
    calls: list[str] = []

    class Locked(SqliteStore):
        def take(self, request_id: str, holder: str, takes: Sequence[Take]) -> Taken:
            calls.append("take")
            raise StoreUnavailable("database is locked")

        def add(self, holder: str, takes: Sequence[Take]) -> None:
            calls.append("add")

    clock, sender = Clock(100.0), caller(Limits(concurrency=9))
    file = Locked(tmp_path / "file.sqlite3")
    process = SharedLimiter(FailoverStore(states, file, clock), "me")
    for _ in range(3):
        process.acquire(sender, 0).release()
    rate_limits.thread.submit(int).result()

    assert calls == ["take"]
    clock.at += PAUSE_S
    process.acquire(sender, 0)
    assert calls == ["take", "take"]
    process.store.close()


async def test_the_workers_of_a_machine_share_their_counts(several_workers: SharedLimiter):
    sender = caller(Limits(concurrency=1))

    slot = await rate_limits.acquire_slot(sender, 0, model="m")

    assert several_workers is rate_limits.shared_limiter()
    assert budget_maintenance.renewals == [several_workers.renew]
    assert used(SharedLimiter(shared_store(), "another process"), sender) == [1]
    slot.release()
    rate_limits.thread.submit(int).result()


@pytest.fixture
def entries(gateway, reload: Callable[[], None]) -> list[BudgetConfig]:
    """Two budgets of a team, as in the snapshot."""
    team = Team.objects.create(name=f"counted-{time.time_ns()}")
    made = [
        Budget.objects.create(team=team, usd=Decimal(5), period=each) for each in ("day", "month")
    ]
    return [
        BudgetConfig(
            id=each.pk, owner=each.owner, limit=5, period=each.period, zone="UTC", hard=True
        )
        for each in made
    ]


def test_only_a_missing_counter_is_seeded(entries: list[BudgetConfig]):
    store, now = shared_store(), time.time()
    day, month = (entry.counter(now) for entry in entries)
    budget_maintenance.start()  # publishes all counters, and those of new budgets soon after
    Budget.objects.get(pk=entries[0].id).delete()  # so its counter is published only here
    store.publish(day, 3)  # differs from the ledger's sum
    store.forget([month])

    budgets.reserve_in_store("req_1", [BudgetCheck(entry, 2, now) for entry in entries])

    assert [store.standing(name) for name in (day, month)] == [
        Standing(3, 0, 2), Standing(0, 0, 2)
    ]  # fmt: skip


def test_a_failed_publication_or_settlement_is_corrected_by_the_ledger_later(
    entries: list[BudgetConfig], no_new_counters, database: Path, caplog: pytest.LogCaptureFixture
):
    now = time.time()
    budget_sync.DIRTY.clear()

    with unusable(database / FILE, shared_store()):
        budgets.seed(entries[0], now)
        assert budget_sync.DIRTY.is_set()

        budget_sync.DIRTY.clear()
        Reservation("req_1", {entries[0].counter(now): entries[0]}).settle(None)
        budgets.thread.submit(int).result()
        assert budget_sync.DIRTY.is_set()
    assert "the next sum of the ledger corrects it" in caplog.text
    budget_sync.DIRTY.clear()


def test_a_hard_budget_refuses_while_neither_counter_nor_ledger_know_its_spending(
    no_new_counters, budget_gateway, missing_ledger, caplog
):
    name, budget = budget_gateway.model("chat"), budget_gateway.cleo.budget("1")
    budget_gateway.scripted.on(name, upstream_scripts.chat())
    counted = BUDGETS_UNCHECKED.labels("ledger")._value.get()

    with missing_ledger():
        refused = budget_gateway.send(name)
    again = budget_gateway.send(name)

    assert (refused.status, refused.json["error"]["type"]) == (503, "api_error")
    assert refused.headers["retry-after"] == "5"
    assert f"no counter has the spending of team {budget_gateway.cleo.team.name}" in caplog.text
    assert BUDGETS_UNCHECKED.labels("ledger")._value.get() == counted + 1
    assert again.status == 200
    assert len(budget_gateway.scripted.requests_for(name)) == 1
    row(refused.id, outcome="gateway_error", status=503, detail="budgets", cost_nanousd=None)
    assert budget_gateway.charged(budget) == REPORTED


def test_a_soft_budget_refuses_nothing_while_the_ledger_is_unavailable(
    no_new_counters, budget_gateway, missing_ledger
):
    name, budget = budget_gateway.model("chat"), budget_gateway.cleo.budget("1", hard=False)
    budget_gateway.scripted.on(name, upstream_scripts.chat())

    with missing_ledger():
        reply = budget_gateway.send(name)

    assert reply.status == 200
    assert budget_gateway.charged(budget) == REPORTED


def test_a_known_counter_needs_no_ledger(budget_gateway, missing_ledger):
    name, budget = budget_gateway.model("chat"), budget_gateway.cleo.budget("1")
    budget_gateway.scripted.on(name, upstream_scripts.chat())
    assert budget_gateway.send(name).status == 200

    with missing_ledger():
        reply = budget_gateway.send(name)

    assert reply.status == 200
    assert budget_gateway.charged(budget) == 2 * REPORTED


def test_requests_are_shed_while_the_counters_do_not_answer(budget_gateway, monkeypatch):
    name, budget = budget_gateway.model("chat"), budget_gateway.cleo.budget("1")
    budget_gateway.scripted.on(name, upstream_scripts.chat())
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        assert go_on.wait(60)

    budgets.thread.submit(block)
    assert blocked.wait(60)
    # The gateway waits for several seconds before it refuses a request.
    with monkeypatch.context() as patch:
        patch.setattr(counter_thread, "max_wait_s", lambda: 0.05)
        refused = budget_gateway.send(name)
    go_on.set()
    reply = budget_gateway.send(name)

    assert (refused.status, refused.json["error"]["type"]) == (529, "overloaded_error")
    assert refused.headers["retry-after"] == "1"
    row(refused.id, status=529, detail="counters", cost_nanousd=None)
    assert reply.status == 200
    assert budget_gateway.charged(budget) == REPORTED

"""Budget counters equal the ledger after kills, rollbacks, a lost store and new prices."""

import random
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import pytest
from django.db import transaction

from proxy.counters import backends
from proxy.counters.budget_periods import window
from proxy.counters.sqlite_store import SqliteStore
from proxy.counters.store import BATCH, LEASE_S, Standing, StoreUnavailable, Take
from proxy.ledger.posting import budget_sync, ledger_writer
from proxy.ledger.posting.ledger_writer import ExchangeRecords
from proxy.models import ApiKey, Budget, BudgetNotice, Exchange, Price, Team
from tests.fakes.clock import Clock
from tests.lanes import repeat
from tests.proxy.ledger.amending import set_cost
from tests.proxy.ledger.factories import NOON, closing, exchange_id, opening

from .conftest import unavailable

OPERATIONS = repeat(fast=2_000, slow=10_000, variable="BRIDGE_BUDGET_OPERATIONS")
PRICE = {"input": "1", "output": "10"}
LIMIT = 20 * OPERATIONS * 100_000  # so that the last requests are rejected


class SimulatedGateway:
    """A simulated gateway process that may die between two steps."""

    def __init__(self, store: SqliteStore, clock: Clock, budgets: list[Budget]) -> None:
        self.store = store
        self.clock = clock
        self.budgets = budgets
        self.life = 0
        self.number = 0
        self.running: dict[str, ExchangeRecords] = {}  # accepted; open records are in the journal
        self.closed: dict[str, ExchangeRecords] = {}  # close records are in the journal
        self.admitted: set[str] = set()

    @property
    def counters(self) -> list[str]:
        return [
            budget_sync.counter_name(each.pk, window(each.period, each.zone, NOON))
            for each in self.budgets
        ]

    def reserve(self, chance: random.Random) -> str | None:
        self.number += 1
        name = exchange_id(self.number)
        for _ in range(2):
            amount = chance.randrange(1, 400_000)
            takes = [Take(counter, amount, LIMIT) for counter in self.counters]
            result = self.store.take(name, f"life-{self.life}", takes)
            if result.granted:
                self.admitted.add(name)
                return name
            if result.standings:
                return None
            budget_sync.publish_all(NOON)
        raise AssertionError("not granted after publishing the sums")

    def accept(self, name: str) -> None:
        opened = opening(self.number, created=NOON, body=None)
        self.running[name] = ExchangeRecords(opened, [])

    def close(self, name: str, chance: random.Random) -> int:
        usage = {
            "input": chance.randrange(900),
            "output": chance.randrange(900),
            "source": "reported",
        }
        records = self.running.pop(name)
        records.closing = closing(
            int(name[4:]), finished=NOON + 2, usage=usage, price=PRICE, answer=None
        )
        self.closed[name] = records
        return (usage["input"] + usage["output"] * 10) * 1_000

    def post(self, *, fails: bool = False) -> None:
        batch = list(self.closed.values())
        if fails:  # rolled back after the counters were updated
            with transaction.atomic():
                ledger_writer.write_to_database(batch)
                transaction.set_rollback(True)
            return
        ledger_writer.write_to_database(batch)
        self.closed.clear()

    def kill(self) -> None:
        """Lose all memory; the next process recovers from the journal."""
        self.life += 1
        for name, records in self.running.items():
            records.closing = closing(
                int(name[4:]), finished=NOON + 1, outcome="interrupted", price=PRICE, answer=None,
                usage={"input": 300, "output": 7, "source": "estimated"},
            )  # fmt: skip
            self.closed[name] = records
        self.running.clear()


@pytest.fixture
def budgets(team: Team) -> list[Budget]:
    key = ApiKey.issue(team, "ada-laptop")[0]
    ApiKey.objects.filter(pk=key.pk).update(id=1)  # the id in the records
    return [
        Budget.objects.create(team=team, usd=Decimal(100), period="month"),
        Budget.objects.create(key_id=1, usd=Decimal(50), period="day", zone="Europe/Berlin"),
    ]


def ledger_sum() -> int:
    return sum(cost or 0 for (cost,) in Exchange.objects.values_list("cost_nanousd"))


class RandomOperations(SimulatedGateway):
    """A simulated gateway that executes random operations."""

    def __init__(self, store: SqliteStore, clock: Clock, budgets: list[Budget]) -> None:
        super().__init__(store, clock, budgets)
        self.chance = random.Random(27639)  # noqa: S311 - test data
        self.counts = Counter[str]()

    def step(self) -> None:
        (name,) = self.chance.choices(
            list(self.OPERATION_ODDS), [odds for odds, _ in self.OPERATION_ODDS.values()]
        )
        self.OPERATION_ODDS[name][1](self)
        self.counts[name] += 1

    def request(self) -> None:
        name = self.reserve(self.chance)
        if name is None:
            self.counts["refused"] += 1
        elif self.chance.random() < 0.9:
            self.accept(name)
        elif self.chance.random() < 0.5:  # otherwise killed before its open record
            self.store.release(name, self.counters)

    def finish(self) -> None:
        if not self.running:
            return
        name = self.chance.choice(list(self.running))
        cost = self.close(name, self.chance)
        if self.chance.random() < 0.9:  # otherwise killed before the counter was updated
            self.store.settle(name, self.counters, cost)

    def roll_back(self) -> None:
        self.post(fails=True)

    def flush(self) -> None:
        self.store.forget(self.counters)

    def time_goes_by(self) -> None:
        self.clock.at += LEASE_S / 3
        self.store.renew(f"life-{self.life}", dict.fromkeys(self.counters))
        self.maintain()

    def maintain(self) -> None:
        if budget_sync.DIRTY.is_set():
            budget_sync.publish_all(NOON)

    OPERATION_ODDS: ClassVar = {
        "request": (50, request),
        "finish": (47, finish),
        "post": (1.2, SimulatedGateway.post),
        "roll_back": (0.2, roll_back),
        "kill": (0.4, SimulatedGateway.kill),
        "flush": (0.1, flush),
        "time": (1, time_goes_by),
    }


@pytest.mark.repeated
def test_after_thousands_of_operations_with_kills_the_counters_equal_the_ledger(
    budgets: list[Budget], store: SqliteStore, clock: Clock
):
    simulation = RandomOperations(store, clock, budgets)
    for _ in range(OPERATIONS):
        simulation.step()
    simulation.kill()
    simulation.post()
    clock.at += LEASE_S + 1
    simulation.maintain()

    assert all(simulation.counts[name] for name in (*simulation.OPERATION_ODDS, "refused"))
    assert Exchange.objects.filter(cost_nanousd__gt=0).count() > OPERATIONS / 4
    for counter in simulation.counters:
        assert store.standing(counter) == Standing(ledger_sum(), 0, 0)


def test_counters_are_repaired_after_a_rolled_back_batch(
    budgets: list[Budget], store: SqliteStore, clock: Clock
):
    chance = random.Random(1)  # noqa: S311 - test data
    gateway = SimulatedGateway(store, clock, budgets)
    name = gateway.reserve(chance)
    assert name
    gateway.accept(name)
    cost = gateway.close(name, chance)
    gateway.post(fails=True)
    gateway.post()
    assert budget_sync.DIRTY.is_set()

    budget_sync.publish_all(NOON)

    assert not budget_sync.DIRTY.is_set()
    assert store.standing(gateway.counters[0]) == Standing(cost, 0, 0)
    assert ledger_sum() == cost


def test_an_amended_cost_changes_the_counters_at_once(
    budgets: list[Budget], store: SqliteStore, clock: Clock, at_noon: None
):
    gateway = SimulatedGateway(store, clock, budgets)
    name = gateway.reserve(random.Random(1))  # noqa: S311 - test data
    assert name
    gateway.accept(name)
    gateway.close(name, random.Random(2))  # noqa: S311 - test data
    gateway.post()

    set_cost(name, 123_456)

    for counter in gateway.counters:
        assert store.standing(counter) == Standing(123_456, 0, 0)


def test_counters_of_ended_periods_are_deleted(budgets: list[Budget], store: SqliteStore):
    day = budgets[1]
    store.publish(budget_sync.counter_name(day.pk, window(day.period, day.zone, NOON)), 5)

    budget_sync.publish_all(NOON + 3 * 86_400)
    assert (
        store.standing(budget_sync.counter_name(day.pk, window(day.period, day.zone, NOON)))
        is not None
    )
    budget_sync.publish_all(NOON + 86_400)
    late = datetime.fromtimestamp(NOON, UTC).timestamp() + 86_400
    assert store.standing(
        budget_sync.counter_name(day.pk, window(day.period, day.zone, late))
    ) == Standing(0, 0, 0)


def test_the_counters_of_the_next_period_are_known_a_day_before(
    budgets: list[Budget], store: SqliteStore
):
    """A hard budget can be checked if the database is unavailable at midnight."""
    month, day = budgets

    budget_sync.publish_all(NOON)

    tomorrow = window(day.period, day.zone, NOON + 86_400)
    following = window(month.period, month.zone, window("month", "UTC", NOON).end.timestamp())
    assert store.standing(budget_sync.counter_name(day.pk, tomorrow)) == Standing(0, 0, 0)
    assert store.standing(budget_sync.counter_name(month.pk, following)) is None

    budget_sync.publish_all(following.start.timestamp() - 3_600)
    assert store.standing(budget_sync.counter_name(month.pk, following)) == Standing(0, 0, 0)


def test_without_budgets_the_store_is_not_used(team: Team, store: SqliteStore, store_file: Path):
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input=1, output=1)

    ledger_writer.write_to_database(
        [ExchangeRecords(opening(1, body=None), [], closing(1, answer=None))]
    )

    assert Exchange.objects.get().cost_nanousd
    assert not store_file.exists()


def test_the_store_of_this_process_is_a_file_in_the_data_directory():
    assert isinstance(backends.shared_store(), SqliteStore)


def test_a_new_price_reaches_no_counter_that_is_over_or_is_not_of_this_row(
    budgets: list[Budget], store: SqliteStore, clock: Clock, at_noon: None
):
    other = Budget.objects.create(
        team=Team.objects.create(name="other", ledger_id="other"), usd=1, period="day"
    )
    day = window("day", "UTC", NOON)
    ledger_writer.write_to_database(
        [ExchangeRecords(opening(1, body=None), [], closing(1, answer=None))]
    )
    clock.at = (
        day.end.timestamp() + budget_sync.LATE_S - 4 * 3_600
    )  # the day in Berlin ends earlier

    set_cost(exchange_id(1), 5)

    berlin = window("day", "Europe/Berlin", NOON)
    assert store.standing(budget_sync.counter_name(other.pk, day)) is None
    assert store.standing(budget_sync.counter_name(budgets[1].pk, berlin)) == Standing(5, 0, 0)
    clock.at = berlin.end.timestamp() + budget_sync.LATE_S
    set_cost(exchange_id(1), 6)
    assert store.standing(budget_sync.counter_name(budgets[1].pk, berlin)) == Standing(5, 0, 0)
    assert store.standing(
        budget_sync.counter_name(budgets[0].pk, window("month", "UTC", NOON))
    ) == (Standing(6, 0, 0))


def test_counters_are_published_later_if_the_store_is_unavailable(
    budgets: list[Budget], store: SqliteStore, store_file: Path, at_noon: None, caplog
):
    budget_sync.publish_all(NOON)
    with unavailable(store_file):
        ledger_writer.write_to_database(
            [ExchangeRecords(opening(1, body=None), [], closing(1, answer=None))]
        )
        assert budget_sync.DIRTY.is_set()

        budget_sync.DIRTY.clear()
        set_cost(exchange_id(1), 5)
        assert budget_sync.DIRTY.is_set()

        budget_sync.DIRTY.clear()
        with pytest.raises(StoreUnavailable):
            budget_sync.publish_all(NOON)
        assert budget_sync.DIRTY.is_set()
    assert [record.getMessage() for record in caplog.records if "budgets" in record.msg] == [
        "budgets: unable to open database file; the counters are published again later"
    ] * 2


def test_a_row_without_reservation_and_cost_changes_no_counter(
    budgets: list[Budget], store: SqliteStore
):
    ledger_writer.write_to_database(
        [ExchangeRecords(opening(1, body=None), [], closing(1, answer=None, usage={}))]
    )
    assert not budget_sync.DIRTY.is_set()

    ledger_writer.write_to_database(
        [ExchangeRecords(opening(2, body=None), [], closing(2, answer=None, price=PRICE))]
    )
    assert budget_sync.DIRTY.is_set()


def test_a_posted_request_that_was_not_settled_creates_the_notices_of_its_budget(
    budgets: list[Budget], store: SqliteStore, clock: Clock
):
    Budget.objects.update(usd=Decimal("0.0005"))
    gateway = SimulatedGateway(store, clock, budgets)
    name = gateway.reserve(random.Random(1))  # noqa: S311 - test data
    assert name
    gateway.accept(name)
    gateway.kill()  # its row costs 370,000 nano-dollars
    gateway.post()
    assert not BudgetNotice.objects.exists()

    other = gateway.reserve(random.Random(1))  # noqa: S311 - test data
    assert other
    gateway.accept(other)
    gateway.kill()
    gateway.post()

    notices = BudgetNotice.objects.values_list("budget", "threshold", "used_nanousd")
    assert sorted(notices) == [
        (budget.pk, threshold, 740_000) for budget in budgets for threshold in (80, 100)
    ]
    assert not budget_sync.DIRTY.is_set()


def test_publishing_posts_reservations_in_batches(
    budgets: list[Budget], store: SqliteStore, store_file: Path
):
    """Reservations of posted requests remain if the store was unavailable when they were posted."""
    counter = budget_sync.counter_name(budgets[0].pk, window("month", "UTC", NOON))
    store.publish(counter, 0)
    running = range(2, BATCH + 1)
    posted = (1, BATCH + 1, BATCH + 2)  # the first one and the last two are in different batches
    for number in (*running, *posted):
        store.take(exchange_id(number), "me", [Take(counter, 1_000)])
    with unavailable(store_file):
        ledger_writer.write_to_database(
            [ExchangeRecords(opening(n, body=None), [], closing(n, answer=None)) for n in posted]
        )
    assert [len(ids) for ids in store.reserved_ids(counter)] == [BATCH, 2]

    budget_sync.publish_all(NOON)

    assert store.standing(counter) == Standing(ledger_sum(), 0, 1_000 * len(running))
    assert [*store.reserved_ids(counter)] == [[exchange_id(n) for n in running]]

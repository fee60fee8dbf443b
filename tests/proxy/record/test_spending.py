"""Counter == ledger, whatever happened in between: kills, rollbacks, a lost store, new prices."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from proxy.counters import shared
from proxy.counters.sqlite_store import SqliteBudgets
from proxy.counters.store import LEASE_S, Ceiling, Standing, StoreAway
from proxy.counters.windows import window
from proxy.models import ApiKey, Budget, Exchange, Price, Team
from proxy.record import posting, spending
from proxy.record.amendment import amend
from proxy.record.posting import Story

from .making import NOON, closing, exchange_id, opening

OPERATIONS = int(os.environ.get("BRIDGE_BUDGET_OPERATIONS", "10000"))
PRICE = {"input": "1", "output": "10"}
LIMIT = 20 * OPERATIONS * 100_000  # so that some are refused in the end


class Clock:
    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> float:
        return self.at


class Desk:
    """A gateway's part of the work, with a process that may die between any two steps."""

    def __init__(self, store: SqliteBudgets, clock: Clock, budgets: list[Budget]) -> None:
        self.store = store
        self.clock = clock
        self.budgets = budgets
        self.life = 0
        self.number = 0
        self.running: dict[str, Story] = {}  # accepted: the spool has their open records
        self.closed: dict[str, Story] = {}  # the spool has their close records, not yet posted
        self.admitted: set[str] = set()

    @property
    def counters(self) -> list[str]:
        return [
            spending.counter_of(each.pk, window(each.period, each.zone, NOON))
            for each in self.budgets
        ]

    def reserve(self, chance: random.Random) -> str | None:
        self.number += 1
        name = exchange_id(self.number)
        ceilings = [Ceiling(counter, LIMIT) for counter in self.counters]
        for _ in range(2):
            amount = chance.randrange(1, 400_000)
            verdict = self.store.reserve(name, f"life-{self.life}", amount, ceilings)
            if verdict.granted:
                self.admitted.add(name)
                return name
            if verdict.full:
                return None
            spending.publish_all(NOON)
        raise AssertionError("seeding does not help")

    def accept(self, name: str) -> None:
        opened = opening(self.number, created=NOON, body=None)
        self.running[name] = Story(opened, [])

    def close(self, name: str, chance: random.Random) -> int:
        usage = {
            "input": chance.randrange(900),
            "output": chance.randrange(900),
            "source": "reported",
        }
        story = self.running.pop(name)
        story.closing = closing(
            int(name[4:]), finished=NOON + 2, usage=usage, price=PRICE, answer=None
        )
        self.closed[name] = story
        return (usage["input"] + usage["output"] * 10) * 1_000

    def post(self, *, fails: bool = False) -> None:
        stories = list(self.closed.values())
        if fails:  # the transaction ends badly after the counters were told
            with transaction.atomic():
                posting.post(stories)
                transaction.set_rollback(True)
            return
        posting.post(stories)
        self.closed.clear()

    def kill(self) -> None:
        """Everything in memory is gone; the next life recovers from the spool."""
        self.life += 1
        for name, story in self.running.items():
            story.closing = closing(
                int(name[4:]), finished=NOON + 1, outcome="interrupted", price=PRICE, answer=None,
                usage={"input": 300, "output": 7, "source": "estimated"},
            )  # fmt: skip
            self.closed[name] = story
        self.running.clear()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock, monkeypatch) -> Iterator[SqliteBudgets]:
    made = SqliteBudgets(tmp_path / "counters.sqlite3", clock)
    monkeypatch.setattr(spending, "budget_store", lambda: made)
    spending.DIRTY.clear()
    yield made
    made.close()
    spending.DIRTY.clear()


@pytest.fixture
def budgets(team: Team) -> list[Budget]:
    key = ApiKey.issue(team, "ada-laptop")[0]
    ApiKey.objects.filter(pk=key.pk).update(id=1)  # as the records say
    return [
        Budget.objects.create(team=team, usd=Decimal(100), period="month"),
        Budget.objects.create(key_id=1, usd=Decimal(50), period="day", zone="Europe/Berlin"),
    ]


def the_sum() -> int:
    return sum(cost or 0 for (cost,) in Exchange.objects.values_list("cost_nanousd"))


class Play(Desk):
    """One random operation after another."""

    def __init__(self, store: SqliteBudgets, clock: Clock, budgets: list[Budget]) -> None:
        super().__init__(store, clock, budgets)
        self.chance = random.Random(27639)  # noqa: S311 - chance, not secrecy
        self.counts = Counter[str]()

    def step(self) -> None:
        (verb,) = self.chance.choices(list(self.VERBS), [odds for odds, _ in self.VERBS.values()])
        self.VERBS[verb][1](self)
        self.counts[verb] += 1

    def ask(self) -> None:
        name = self.reserve(self.chance)
        if name is None:
            self.counts["refused"] += 1
        elif self.chance.random() < 0.9:
            self.accept(name)
        elif self.chance.random() < 0.5:  # else: killed before its open record
            self.store.release(name, self.counters)

    def finish(self) -> None:
        if not self.running:
            return
        name = self.chance.choice(list(self.running))
        cost = self.close(name, self.chance)
        if self.chance.random() < 0.9:  # else: killed between the record and the counter
            self.store.settle(name, self.counters, cost)

    def roll_back(self) -> None:
        self.post(fails=True)

    def flush(self) -> None:
        self.store.forget(self.counters)

    def time_goes_by(self) -> None:
        self.clock.at += LEASE_S / 3
        self.store.renew(f"life-{self.life}", self.counters)
        self.keep()

    def keep(self) -> None:
        if spending.DIRTY.is_set():
            spending.publish_all(NOON)

    VERBS: ClassVar = {
        "ask": (50, ask),
        "finish": (47, finish),
        "post": (1.2, Desk.post),
        "roll_back": (0.2, roll_back),
        "kill": (0.4, Desk.kill),
        "flush": (0.1, flush),
        "time": (1, time_goes_by),
    }


def test_after_ten_thousand_operations_with_kills_the_counters_equal_the_ledger(
    budgets: list[Budget], store: SqliteBudgets, clock: Clock
):
    play = Play(store, clock, budgets)
    for _ in range(OPERATIONS):
        play.step()
    play.kill()
    play.post()
    clock.at += LEASE_S + 1
    play.keep()

    assert all(play.counts[verb] for verb in (*play.VERBS, "refused"))
    assert Exchange.objects.filter(cost_nanousd__gt=0).count() > OPERATIONS / 4
    for counter in play.counters:
        assert store.standing(counter) == Standing(the_sum(), 0, 0)


def test_a_rolled_back_posting_is_mended_when_it_is_posted_again(
    budgets: list[Budget], store: SqliteBudgets, clock: Clock
):
    chance = random.Random(1)  # noqa: S311 - chance, not secrecy
    desk = Desk(store, clock, budgets)
    name = desk.reserve(chance)
    assert name
    desk.accept(name)
    cost = desk.close(name, chance)
    desk.post(fails=True)
    desk.post()
    assert spending.DIRTY.is_set()

    spending.publish_all(NOON)

    assert not spending.DIRTY.is_set()
    assert store.standing(desk.counters[0]) == Standing(cost, 0, 0)
    assert the_sum() == cost


def test_a_new_price_for_the_past_reaches_the_counters_at_once(
    budgets: list[Budget], store: SqliteBudgets, clock: Clock, monkeypatch
):
    monkeypatch.setattr(spending.time, "time", clock)
    desk = Desk(store, clock, budgets)
    name = desk.reserve(random.Random(1))  # noqa: S311 - chance, not secrecy
    assert name
    desk.accept(name)
    desk.close(name, random.Random(2))  # noqa: S311 - chance, not secrecy
    desk.post()

    amend([name], lambda _: {"cost_nanousd": 123_456})

    for counter in desk.counters:
        assert store.standing(counter) == Standing(123_456, 0, 0)


def test_periods_that_are_over_are_forgotten(budgets: list[Budget], store: SqliteBudgets):
    day = budgets[1]
    store.publish(spending.counter_of(day.pk, window(day.period, day.zone, NOON)), 5)

    spending.publish_all(NOON + 3 * 86_400)
    assert (
        store.standing(spending.counter_of(day.pk, window(day.period, day.zone, NOON))) is not None
    )
    spending.publish_all(NOON + 86_400)
    late = datetime.fromtimestamp(NOON, UTC).timestamp() + 86_400
    assert store.standing(
        spending.counter_of(day.pk, window(day.period, day.zone, late))
    ) == Standing(0, 0, 0)


def test_without_budgets_posting_asks_no_store(team: Team, monkeypatch):
    monkeypatch.setattr(spending, "budget_store", None)
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input=1, output=1)

    posting.post([Story(opening(1, body=None), [], closing(1, answer=None))])

    assert Exchange.objects.get().cost_nanousd


def test_the_store_of_this_process_is_a_file_in_the_data_directory():
    assert isinstance(shared.budget_store(), SqliteBudgets)


def test_a_new_price_reaches_no_counter_that_is_over_or_is_not_of_this_row(
    budgets: list[Budget], store: SqliteBudgets, clock: Clock, monkeypatch
):
    monkeypatch.setattr(spending.time, "time", clock)
    other = Budget.objects.create(team=Team.objects.create(name="other"), usd=1, period="day")
    day = window("day", "UTC", NOON)
    posting.post([Story(opening(1, body=None), [], closing(1, answer=None))])
    clock.at = day.end.timestamp() + spending.LATE_S - 4 * 3_600  # Berlin's day ends sooner

    amend([exchange_id(1)], lambda _: {"cost_nanousd": 5})

    berlin = window("day", "Europe/Berlin", NOON)
    assert store.standing(spending.counter_of(other.pk, day)) is None
    assert store.standing(spending.counter_of(budgets[1].pk, berlin)) == Standing(5, 0, 0)
    clock.at = berlin.end.timestamp() + spending.LATE_S
    amend([exchange_id(1)], lambda _: {"cost_nanousd": 6})
    assert store.standing(spending.counter_of(budgets[1].pk, berlin)) == Standing(5, 0, 0)
    assert store.standing(spending.counter_of(budgets[0].pk, window("month", "UTC", NOON))) == (
        Standing(6, 0, 0)
    )


def test_a_store_that_is_away_is_told_again_later(
    budgets: list[Budget], store: SqliteBudgets, clock: Clock, monkeypatch, caplog
):
    monkeypatch.setattr(spending.time, "time", clock)

    def away(*_: object) -> set[str]:
        raise StoreAway("gone fishing")

    monkeypatch.setattr(store, "fold", away)
    posting.post([Story(opening(1, body=None), [], closing(1, answer=None))])
    assert spending.DIRTY.is_set()

    spending.DIRTY.clear()
    monkeypatch.setattr(store, "publish", away)
    amend([exchange_id(1)], lambda _: {"cost_nanousd": 5})
    assert spending.DIRTY.is_set()

    spending.DIRTY.clear()
    with pytest.raises(StoreAway):
        spending.publish_all(NOON)
    assert spending.DIRTY.is_set()
    assert [record.getMessage() for record in caplog.records if "budgets" in record.msg] == [
        "budgets: gone fishing; the counters are published again later"
    ] * 2


def test_a_row_that_nobody_held_and_that_cost_nothing_changes_no_counter(
    budgets: list[Budget], store: SqliteBudgets
):
    posting.post([Story(opening(1, body=None), [], closing(1, answer=None, usage={}))])
    assert not spending.DIRTY.is_set()

    posting.post([Story(opening(2, body=None), [], closing(2, answer=None, price=PRICE))])
    assert spending.DIRTY.is_set()


def test_whose_money_a_row_has_spent(team: Team, store: SqliteBudgets):
    """Its team's, its key's or its user's; a new secret spends with the old one."""
    new, _ = ApiKey.issue(team, "new")
    old, _ = ApiKey.issue(team, "old", successor=new)
    strange, _ = ApiKey.issue(team, "strange")
    ada = get_user_model().objects.create_user("ada")
    owners = [{"team": team}, {"key": new}, {"user": ada}, {"key": strange}]
    made = [Budget.objects.create(usd=1, period="day", **owner) for owner in owners]
    for number, (key, user, name) in enumerate(
        [(new, "ada", "platform"), (old, "ben", "platform"), (None, "ada", "other")], start=1
    ):
        opened = opening(number, body=None, key_id=key and key.pk, user=user, team=name)
        usage = {"input": 10**number, "output": 0, "source": "reported"}
        close = closing(number, answer=None, usage=usage, price=PRICE)
        posting.post([Story(opened, [], close)])
    tomorrow = opening(9, body=None, created=NOON + 86_400, key_id=new.pk)
    posting.post([Story(tomorrow, [], closing(9, answer=None, price=PRICE))])

    spending.publish_all(NOON)

    day = window("day", "UTC", NOON)
    spent = [store.standing(spending.counter_of(each.pk, day)) for each in made]
    assert [one.spent // 1_000 for one in spent if one] == [110, 110, 1_010, 0]
    for number in (1, 2, 3):
        row = Exchange.objects.get(pk=exchange_id(number))
        covering = [spending._covers(each, row) for each in spending._all_budgets()]
        assert covering == [number != 3, number != 3, number != 2, False]


def test_of_many_requests_those_are_found_that_are_posted(team: Team):
    posted = [exchange_id(n) for n in (1, 400, 401, 801)]
    posting.post([
        Story(opening(n, body=None), [], closing(n, answer=None)) for n in (1, 400, 401, 801)
    ])  # fmt: skip
    posting.post([Story(opening(2, body=None), [])])

    assert spending._posted([exchange_id(n) for n in range(1, 802)]) == set(posted)
    assert spending._posted([]) == set()

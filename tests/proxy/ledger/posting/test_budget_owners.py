"""Which rows the budgets count: those of their team, key and user, once they are posted."""

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import TextField, Value

from proxy.counters.budget_periods import window
from proxy.counters.sqlite_store import SqliteStore
from proxy.ledger.posting import budget_sync, ledger_writer
from proxy.ledger.posting.ledger_writer import ExchangeRecords
from proxy.models import ApiKey, Budget, Exchange, Team
from proxy.models.ledger_names import person_id
from tests.proxy.ledger.amending import set_cost
from tests.proxy.ledger.factories import NOON, closing, exchange_id, opening

PRICE = {"input": "1", "output": "10"}


def test_a_row_counts_for_its_team_key_and_user(team: Team, store: SqliteStore):
    """A rotated secret counts for the same key budget."""
    new, _ = ApiKey.issue(team, "new")
    old, _ = ApiKey.issue(team, "old", successor=new)
    other_key, _ = ApiKey.issue(team, "other")
    ada = get_user_model().objects.create_user("ada")
    owners = [{"team": team}, {"key": new}, {"user": ada}, {"key": other_key}]
    created = [Budget.objects.create(usd=1, period="day", **owner) for owner in owners]
    for number, (key, user, name) in enumerate(
        [
            (new, person_id(ada), "platform"),
            (old, "ben", "platform"),
            (None, person_id(ada), "other"),
        ],
        start=1,
    ):
        opened = opening(number, body=None, key_id=key and key.pk, user=user, team=name)
        usage = {"input": 10**number, "output": 0, "source": "reported"}
        close = closing(number, answer=None, usage=usage, price=PRICE)
        ledger_writer.write_to_database([ExchangeRecords(opened, [], close)])
    tomorrow = opening(9, body=None, created=NOON + 86_400, key_id=new.pk)
    ledger_writer.write_to_database(
        [ExchangeRecords(tomorrow, [], closing(9, answer=None, price=PRICE))]
    )

    budget_sync.publish_all(NOON)

    day = window("day", "UTC", NOON)
    spent = [store.standing(budget_sync.counter_name(each.pk, day)) for each in created]
    assert [one.spent // 1_000 for one in spent if one] == [110, 110, 1_010, 0]
    for number in (1, 2, 3):
        row = Exchange.objects.get(pk=exchange_id(number))
        covering = [budget_sync.covers(each, row) for each in budget_sync.all_budgets()]
        assert covering == [number != 3, number != 3, number != 2, False]


def test_a_budget_without_an_owner_has_spent_nothing(team: Team) -> None:
    """No row can be such a budget: without an owner it would count all requests."""
    ledger_writer.write_to_database([ExchangeRecords(opening(1), [], closing(1))])
    when = window("month", "UTC", NOON)

    with transaction.atomic():
        assert budget_sync.spent_nanousd(Budget(team=team), when) == 0  # no price is known
        set_cost(exchange_id(1), 5)
        assert budget_sync.spent_nanousd(Budget(team=team), when) == 5
        assert budget_sync.spent_nanousd(Budget(), when) == 0


@pytest.mark.parametrize(
    "values",
    [{"models_covered": 7}, {"models_covered": [7]}, {"zone": "Mars"}, {"period": "year"},
     {"usd": Value("a lot", output_field=TextField())}],
    ids=str,
)  # fmt: skip
def test_an_unreadable_budget_does_not_prevent_rows_from_being_written(
    team: Team, store: SqliteStore, values: dict[str, Any]
) -> None:
    """Only SQL can write such a row."""
    if "usd" in values and connection.vendor == "postgresql":
        pytest.skip("PostgreSQL stores only numbers in this column")
    damaged, other = (Budget.objects.create(usd=1, period="day", team=team) for _ in range(2))
    Budget.objects.filter(pk=damaged.pk).update(**values)

    close = closing(1, answer=None, price=PRICE)
    ledger_writer.write_to_database([ExchangeRecords(opening(1, body=None), [], close)])
    budget_sync.publish_all(NOON)

    assert Exchange.objects.filter(pk=exchange_id(1), state="closed").exists()
    assert [budget.pk for budget in budget_sync.all_budgets()] == [other.pk]
    standing = store.standing(budget_sync.counter_name(other.pk, window("day", "UTC", NOON)))
    assert standing is not None
    assert standing.spent > 0


def test_closed_requests_are_found_among_many(team: Team):
    posted = [exchange_id(n) for n in (1, 400, 401, 801)]
    ledger_writer.write_to_database([
        ExchangeRecords(opening(n, body=None), [], closing(n, answer=None)) for n in (1, 400, 401, 801)
    ])  # fmt: skip
    ledger_writer.write_to_database([ExchangeRecords(opening(2, body=None), [])])

    assert budget_sync.posted_among([exchange_id(n) for n in range(1, 802)]) == set(posted)
    assert budget_sync.posted_among([]) == set()

"""What the database, MessagePack or the chain of seals cannot take as it is, and what becomes of it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from proxy.models import Exchange
from proxy.record import audit, seals, settlement
from proxy.record.posting import Story, post
from proxy.record.pricing import PriceList
from proxy.record.records import decode, encode
from proxy.record.rows import Row, apply, blank, closed

from .making import NOON, answer, closing, exchange_id, opening

LONE = "\ud800"  # half of a character: no UTF-8
PRICE = {"input": "1", "output": "10"}


def row_of(record: Any) -> dict[str, Any]:
    row = blank(record.id)
    row.created = datetime.fromtimestamp(NOON, UTC)
    return closed(record, row, PriceList(()))


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ([2**64, 2**64 - 1, -(2**63)], [str(2**64), 2**64 - 1, -(2**63)]),
        (-(2**63) - 1, str(-(2**63) - 1)),
        (f"half {LONE}", "half \\ud800"),
        ([1, (2**64, "x")], [1, [str(2**64), "x"]]),
        ({LONE: {"n": 2**64}}, {"\\ud800": {"n": str(2**64)}}),
    ],
)
def test_a_record_is_written_whatever_a_model_says(value: Any, kept: Any) -> None:
    said = closing(1, answer={"content": [{"input": value}]}, reads=[(0.5, b"\xff")])

    back = decode(encode(said))

    assert back == closing(1, answer={"content": [{"input": kept}]}, reads=[(0.5, b"\xff")])


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"a": [f"half {LONE}", "x"]}, {"a": ["half ?", "x"]}),
        ([float("inf"), 1.5], [None, 1.5]),
        ({LONE: [float("nan"), 2]}, {"?": [None, 2]}),
        ({"nul": "\x00"}, {"nul": "\ufffd"}),
    ],
)
def test_a_column_of_json_holds_what_every_database_takes(value: Any, kept: Any) -> None:
    row = Row()

    apply(row, {"tags": value})

    assert row.tags == kept


@pytest.mark.django_db(transaction=True)
def test_the_ledger_is_held_inside_a_transaction_or_not_at_all() -> None:
    with pytest.raises(transaction.TransactionManagementError, match="inside a transaction"):
        seals.hold_ledger()

    with transaction.atomic():
        assert seals.hold_ledger().pk == 1


@pytest.mark.django_db
def test_a_sealed_row_that_was_opened_again_is_found() -> None:
    post([Story(opening(1), [], closing(1))])

    Exchange.objects.update(state="open", finished=None, outcome="")

    (checked,) = audit.verify()
    assert [(found.what, found.where) for found in checked.findings] == [("row", exchange_id(1))]


@pytest.mark.django_db
def test_a_row_that_ends_while_orphans_are_settled_keeps_its_own_ending(tmp_path: Path) -> None:
    now = datetime.fromtimestamp(NOON + 60, UTC)
    stories = [Story(opening(n), []) for n in (1, 2)]
    post(stories)
    left = [Story(opening(1), [], closing(1, answer=answer("Paris.")))]

    def meanwhile(execute: Any, sql: str, *arguments: Any) -> Any:
        if "proxy_price" in sql and left:  # the rows to settle are known by then
            post([left.pop()])
        return execute(sql, *arguments)

    with connection.execute_wrapper(meanwhile):
        spools, settled = settlement.settle(tmp_path, now, now)

    assert (spools, settled, left) == (0, 1, [])
    outcomes = dict(Exchange.objects.values_list("pk", "outcome"))
    assert outcomes == {exchange_id(1): "completed", exchange_id(2): "interrupted"}

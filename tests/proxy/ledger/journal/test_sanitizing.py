"""Values that the database or MessagePack refuse are stored in another form; closed rows stay."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from proxy.ledger.journal.records import decode, encode
from proxy.ledger.maintenance import verifier
from proxy.ledger.maintenance.amendments import close_stale_rows
from proxy.ledger.posting import hash_chain
from proxy.ledger.posting.exchange_columns import Row, blank_row, columns_from_close, set_columns
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.ledger.usage.pricing import PriceList
from proxy.models import Exchange
from tests.for_each import for_each
from tests.proxy.ledger.factories import NOON, answer, closing, exchange_id, opening

SURROGATE = "\ud800"  # unpaired: UTF-8 cannot encode it
PRICE = {"input": "1", "output": "10"}


def row_of(record: Any) -> dict[str, Any]:
    row = blank_row(record.id)
    row.created = datetime.fromtimestamp(NOON, UTC)
    return columns_from_close(record, row, PriceList(()))


@for_each(
    ("value", "stored"),
    [
        ([2**64, 2**64 - 1, -(2**63)], [str(2**64), 2**64 - 1, -(2**63)]),
        (-(2**63) - 1, str(-(2**63) - 1)),
        (f"text {SURROGATE}", "text \\ud800"),
        ([1, (2**64, "x")], [1, [str(2**64), "x"]]),
        ({SURROGATE: {"n": 2**64}}, {"\\ud800": {"n": str(2**64)}}),
    ],
)
def test_record_with_values_that_messagepack_refuses_is_written(value: Any, stored: Any) -> None:
    record = closing(1, answer={"content": [{"input": value}]}, reads=[(0.5, b"\xff")])

    decoded = decode(encode(record))

    assert decoded == closing(1, answer={"content": [{"input": stored}]}, reads=[(0.5, b"\xff")])


@for_each(
    ("value", "stored"),
    [
        ({"a": [f"text {SURROGATE}", "x"]}, {"a": ["text ?", "x"]}),
        ([float("inf"), 1.5], [None, 1.5]),
        ({SURROGATE: [float("nan"), 2]}, {"?": [None, 2]}),
        ({"nul": "\x00"}, {"nul": "\ufffd"}),
    ],
)
def test_json_column_contains_only_what_every_database_accepts(value: Any, stored: Any) -> None:
    row = Row()

    set_columns(row, {"tags": value})

    assert row.tags == stored


@pytest.mark.django_db(transaction=True)
def test_the_ledger_is_locked_only_inside_a_transaction() -> None:
    with pytest.raises(transaction.TransactionManagementError, match="inside a transaction"):
        hash_chain.lock_ledger()

    with transaction.atomic():
        assert hash_chain.lock_ledger().pk == 1


@pytest.mark.django_db
def test_verifier_finds_a_closed_row_that_was_opened_again() -> None:
    write_to_database([ExchangeRecords(opening(1), [], closing(1))])

    Exchange.objects.update(state="open", finished=None, outcome="")

    (checked,) = verifier.verify()
    assert [(found.what, found.where) for found in checked.findings] == [("row", exchange_id(1))]


@pytest.mark.django_db
def test_row_that_is_closed_while_stale_rows_are_closed_has_its_own_outcome(tmp_path: Path) -> None:
    now = datetime.fromtimestamp(NOON + 60, UTC)
    write_to_database([ExchangeRecords(opening(n), []) for n in (1, 2)])
    left = [ExchangeRecords(opening(1), [], closing(1, answer=answer("Paris.")))]

    def close_one_row(execute: Any, sql: str, *arguments: Any) -> Any:
        if "proxy_price" in sql and left:  # the stale rows are known by then
            write_to_database([left.pop()])
        return execute(sql, *arguments)

    with connection.execute_wrapper(close_one_row):
        journals, closed = close_stale_rows(tmp_path, now, now)

    assert (journals, closed, left) == (0, 1, [])
    outcomes = dict(Exchange.objects.values_list("pk", "outcome"))
    assert outcomes == {exchange_id(1): "completed", exchange_id(2): "interrupted"}

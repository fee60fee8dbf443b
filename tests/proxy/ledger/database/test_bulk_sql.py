"""Bulk statements write the same values as the ORM."""

import json
import random
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection, models
from hypothesis import given
from hypothesis import strategies as st

from proxy.ledger.database.bulk_sql import (
    EMPTY,
    MAX_KEYS,
    _column_adapter,
    _encode_json,
    has_rows,
    padded_keys,
    select,
    write,
)
from proxy.ledger.posting.exchange_columns import FIELDS, Row, blank_row, existing_rows, set_columns
from proxy.ledger.posting.hash_chain import digest_of
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import Exchange, HashChainLink, UsageQuarterHour
from tests.for_each import for_each
from tests.proxy.ledger.factories import body, closing, exchange_id, opening

NOON = datetime(2026, 11, 21, 12, 0, 0, 250_000, UTC)
COLUMNS = {
    "id": exchange_id(1), "team": "platform", "key_name": "k", "model_requested": "m",
    "created": NOON, "state": "closed", "outcome": "completed", "finished": NOON,
    "ip": "2001:db8::1", "betas": [], "tags": {"ü": 'a"b'}, "attempts": [{"ms": 1.5, "error": ""}],
    "notes": [], "price": None, "ttft_ms": 840.0, "key_id": 2**60, "stream": True, "preview": "é\n",
}  # fmt: skip


def column(name: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {name} FROM proxy_exchange ORDER BY id")  # noqa: S608 -- our own names
        return [row[0] for row in cursor.fetchall()]


@pytest.mark.django_db
def test_a_written_row_equals_one_created_by_the_orm() -> None:
    row = Row(**vars(blank_row("")) | COLUMNS)
    Exchange.objects.create(**COLUMNS | {"id": exchange_id(0)})

    write(Exchange, [vars(row)], replaced=["state"])

    written, created = Exchange.objects.get(pk=row.id), Exchange.objects.get(pk=exchange_id(0))
    for name in FIELDS.keys() - {"id"}:
        assert getattr(written, name) == getattr(created, name), name
    assert digest_of(written) == digest_of(row) == digest_of(existing_rows([row.id])[row.id])
    for name in ("notes", "unknown_events", "created", "ip", "attempts"):
        assert len(set(map(str, column(name)))) == 1, f"{name} is written in a different form"


@pytest.mark.django_db
def test_an_existing_row_changes_in_replaced_columns_only() -> None:
    row = Row(**vars(blank_row("")) | COLUMNS)
    write(Exchange, [vars(row)])

    write(Exchange, [vars(row) | {"detail": "new", "team": "other"}], replaced=["detail"])

    assert [(row.detail, row.team) for row in Exchange.objects.all()] == [("new", "platform")]


@pytest.mark.django_db
def test_numbers_are_added_and_many_keys_are_selected() -> None:
    generator = random.Random(5)  # noqa: S311 -- test data
    zero = {field.attname: field.get_default() for field in UsageQuarterHour._meta.concrete_fields}
    lines = [
        zero | {"id": number.to_bytes(16), "start": NOON + timedelta(hours=number), "requests": n}
        for number in range(1200)
        for n in [generator.randrange(9)]
    ]

    write(UsageQuarterHour, lines, added=["requests"])
    write(UsageQuarterHour, lines, added=["requests"])

    keys = [line["id"] for line in lines]
    found = {bytes(pk): n for pk, n in select(UsageQuarterHour, ("id", "requests"), "id", keys)}
    assert found == {line["id"]: 2 * line["requests"] for line in lines}
    assert list(select(UsageQuarterHour, ("id",), "id", [])) == []


@for_each("key", [lambda n: f"req_{n}", lambda n: n.to_bytes(16), int])
def test_padded_keys_need_only_ten_statements(key: Any) -> None:
    padded = {number: padded_keys([key(n) for n in range(1, number + 1)]) for number in range(513)}

    assert {len(keys) for keys in padded.values()} == {0, *(2**n for n in range(10))}
    for number, keys in padded.items():
        assert keys[:number] == [key(n) for n in range(1, number + 1)]
        assert len(set(keys)) == len(keys) <= MAX_KEYS, "Django removes duplicates"


@pytest.mark.django_db
def test_only_requested_rows_are_selected() -> None:
    for number in range(5):
        Exchange.objects.create(**COLUMNS | {"id": exchange_id(number)})

    assert existing_rows([exchange_id(number) for number in (1, 2, 9)]).keys() == {
        exchange_id(1),
        exchange_id(2),
    }
    assert existing_rows([exchange_id(9)]) == {}


@pytest.mark.django_db
def test_has_rows_is_true_for_a_table_with_rows() -> None:
    assert not has_rows(Exchange)

    Exchange.objects.create(**COLUMNS)

    assert has_rows(Exchange)


@pytest.mark.django_db
def test_batches_of_different_sizes_share_their_statements() -> None:
    """A connection caches its last 128 statements; their memory must be limited."""
    statements: list[str] = []

    def record(execute: Any, sql: str, parameters: Any, many: Any, context: Any) -> Any:
        statements.extend(re.findall(r"IN \(((?:%s(?:, )?)+)\)", sql))
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(record):
        for many in (3, 5, 11, 13):
            numbers = range(many * 100, many * 101)
            opened = [
                opening(n, key_id=n, body=body(f"Question {n}", f"More {n}")) for n in numbers
            ]
            write_to_database([ExchangeRecords(one, []) for one in opened])
            write_to_database(
                [
                    ExchangeRecords(one, [], closing(n))
                    for one, n in zip(opened, numbers, strict=True)
                ]
            )

    assert {keys.count("%s") for keys in statements} == {1, 4, 8, 16, 32}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('aé"\\/ \n\t')
        | st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab é"), inner),
    )
)  # fmt: skip
def test_json_is_written_as_django_writes_it(value: Any) -> None:
    assert _encode_json(value) == json.dumps(value)


@for_each(
    "value",
    [
        NOON,
        NOON.replace(microsecond=7),
        NOON.astimezone(timezone(timedelta(hours=5, minutes=30))),
        NOON.replace(year=999),
    ],
)
def test_datetimes_are_written_as_django_writes_them(value: datetime) -> None:
    adapt = _column_adapter(connection.ops)[models.DateTimeField]

    assert adapt(value) == connection.ops.adapt_datetimefield_value(value)


def test_empty_json_is_written_as_django_writes_it() -> None:
    assert {kind: json.dumps(kind()) for kind in EMPTY} == dict(EMPTY)


@pytest.mark.django_db
def test_an_empty_write_makes_no_query(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        write(HashChainLink, [])


@for_each(
    ("name", "value", "stored"),
    [
        ("team", "x" * 99, "x" * 64), ("team", "a\0b\ud800", "a\ufffdb?"), ("team", 7, "7"),
        ("error_message", "two\nlines", "two\nlines"), ("status", 99_999, 32_767),
        ("status", -1, 0), ("status", None, None), ("tool_calls", True, 1), ("key_id", 2**70, 2**63 - 1),
        ("ttft_ms", -0.0, 0.0), ("ttft_ms", -3.0, 0.0), ("ttft_ms", 5, 5.0),
        ("tags", {"a\0": float("inf")}, {"a\ufffd": None}), ("tags", {"n": 2**70}, {"n": 2**70}),
        ("stream", False, False),
    ],
)  # fmt: skip
def test_column_values_are_limited_and_cleaned(name: str, value: Any, stored: Any) -> None:
    row = blank_row("req_1")

    set_columns(row, {name: value})

    assert repr(getattr(row, name)) == repr(stored)

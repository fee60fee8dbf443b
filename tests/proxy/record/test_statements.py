"""One statement for many rows: what it writes is what the ORM would have written."""

import json
import random
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection, models
from hypothesis import given
from hypothesis import strategies as st

from proxy.models import Exchange, QuarterUsage, Seal
from proxy.record.posting import Story, post
from proxy.record.rows import FIELDS, Row, apply, blank, there
from proxy.record.seals import digest_of
from proxy.record.statements import (
    EMPTY,
    MOST_KEYS,
    _adapts,
    _json,
    evened,
    has_rows,
    select,
    write,
)

from .making import body, closing, exchange_id, opening

NOON = datetime(2026, 11, 21, 12, 0, 0, 250_000, UTC)
PLAIN = {
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
def test_a_row_reads_back_as_one_that_the_orm_wrote() -> None:
    row = Row(**vars(blank("")) | PLAIN)
    Exchange.objects.create(**PLAIN | {"id": exchange_id(0)})

    write(Exchange, [vars(row)], replaced=["state"])

    ours, theirs = Exchange.objects.get(pk=row.id), Exchange.objects.get(pk=exchange_id(0))
    for name in FIELDS.keys() - {"id"}:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert digest_of(ours) == digest_of(row) == digest_of(there([row.id])[row.id])
    for name in ("notes", "unknown_events", "created", "ip", "attempts"):
        assert len(set(map(str, column(name)))) == 1, f"{name} is written in another form"


@pytest.mark.django_db
def test_a_row_that_is_there_changes_in_the_named_columns_only() -> None:
    row = Row(**vars(blank("")) | PLAIN)
    write(Exchange, [vars(row)])

    write(Exchange, [vars(row) | {"detail": "new", "team": "other"}], replaced=["detail"])

    assert [(kept.detail, kept.team) for kept in Exchange.objects.all()] == [("new", "platform")]


@pytest.mark.django_db
def test_numbers_are_added_to_what_is_there_and_many_keys_are_found() -> None:
    chance = random.Random(5)  # noqa: S311 -- chance, not secrecy
    zero = {field.attname: field.get_default() for field in QuarterUsage._meta.concrete_fields}
    lines = [
        zero | {"id": number.to_bytes(16), "start": NOON + timedelta(hours=number), "requests": n}
        for number in range(1200)
        for n in [chance.randrange(9)]
    ]

    write(QuarterUsage, lines, added=["requests"])
    write(QuarterUsage, lines, added=["requests"])

    keys = [line["id"] for line in lines]
    found = {bytes(pk): n for pk, n in select(QuarterUsage, ("id", "requests"), "id", keys)}
    assert found == {line["id"]: 2 * line["requests"] for line in lines}
    assert list(select(QuarterUsage, ("id",), "id", [])) == []


@pytest.mark.parametrize("key", [lambda n: f"req_{n}", lambda n: n.to_bytes(16), int])
def test_keys_of_any_number_are_asked_for_by_ten_statements(key: Any) -> None:
    asked = {number: evened([key(n) for n in range(1, number + 1)]) for number in range(513)}

    assert {len(keys) for keys in asked.values()} == {0, *(2**n for n in range(10))}
    for number, keys in asked.items():
        assert keys[:number] == [key(n) for n in range(1, number + 1)]
        assert len(set(keys)) == len(keys) <= MOST_KEYS, "Django would take a second one out"


@pytest.mark.django_db
def test_rows_that_nobody_asked_for_are_not_found() -> None:
    for number in range(5):
        Exchange.objects.create(**PLAIN | {"id": exchange_id(number)})

    assert there([exchange_id(number) for number in (1, 2, 9)]).keys() == {
        exchange_id(1),
        exchange_id(2),
    }
    assert there([exchange_id(9)]) == {}


@pytest.mark.django_db
def test_a_table_says_whether_it_has_rows() -> None:
    assert not has_rows(Exchange)

    Exchange.objects.create(**PLAIN)

    assert has_rows(Exchange)


@pytest.mark.django_db
def test_batches_of_any_size_ask_for_keys_by_few_statements() -> None:
    """A connection keeps its last 128 statements; what they take must come to an end."""
    asked: list[str] = []

    def note(execute: Any, sql: str, parameters: Any, many: Any, context: Any) -> Any:
        asked.extend(re.findall(r"IN \(((?:%s(?:, )?)+)\)", sql))
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(note):
        for many in (3, 5, 11, 13):
            numbers = range(many * 100, many * 101)
            begun = [opening(n, key_id=n, body=body(f"Question {n}", f"More {n}")) for n in numbers]
            post([Story(one, []) for one in begun])
            post([Story(one, [], closing(n)) for one, n in zip(begun, numbers, strict=True)])

    assert {keys.count("%s") for keys in asked} == {1, 4, 8, 16, 32}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('aé"\\/ \n\t')
        | st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab é"), inner),
    )
)  # fmt: skip
def test_json_is_written_as_django_writes_it(value: Any) -> None:
    assert _json(value) == json.dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        NOON,
        NOON.replace(microsecond=7),
        NOON.astimezone(timezone(timedelta(hours=5, minutes=30))),
        NOON.replace(year=999),
    ],
)
def test_moments_are_written_as_django_writes_them(value: datetime) -> None:
    adapt = _adapts(connection.ops)[models.DateTimeField]

    assert adapt(value) == connection.ops.adapt_datetimefield_value(value)


def test_empty_json_is_written_as_django_writes_it() -> None:
    assert {kind: json.dumps(kind()) for kind in EMPTY} == dict(EMPTY)


@pytest.mark.django_db
def test_nothing_to_write_asks_nothing_of_the_database(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        write(Seal, [])


SEALED = "767475f1d804cc4a14e3bab0b692141d3665c500344587a68b001c6f3a20ac39"


def test_a_row_is_sealed_as_in_ledgers_of_earlier_versions() -> None:
    """The digest that version 0.1 made of this row; another one would break every chain."""
    row = blank("req_" + "0" * 26)
    apply(row, {"state": "closed", "outcome": "completed", "team": "platform", "ttft_ms": 840.0})
    apply(row, {"tags": {"b": 1e2, "a": [1.5, None, {}]}})
    row.created = datetime(2026, 11, 21, 12, tzinfo=UTC)
    row.finished = row.created + timedelta(seconds=2.5)

    assert digest_of(row).hex() == SEALED


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("team", "x" * 99, "x" * 64), ("team", "a\0b\ud800", "a\ufffdb?"), ("team", 7, "7"),
        ("error_message", "two\nlines", "two\nlines"), ("status", 99_999, 32_767),
        ("status", -1, 0), ("status", None, None), ("tool_calls", True, 1), ("key_id", 2**70, 2**63 - 1),
        ("ttft_ms", -0.0, 0.0), ("ttft_ms", -3.0, 0.0), ("ttft_ms", 5, 5.0),
        ("tags", {"a\0": float("inf")}, {"a\ufffd": None}), ("tags", {"n": 2**70}, {"n": 2**70}),
        ("stream", False, False),
    ],
)  # fmt: skip
def test_columns_take_what_fits_and_the_rest_is_fitted(name: str, given: Any, kept: Any) -> None:
    row = blank("req_1")

    apply(row, {name: given})

    assert repr(getattr(row, name)) == repr(kept)

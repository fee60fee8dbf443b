"""Months of requests and transcripts on PostgreSQL: made ahead, filled, dropped; on SQLite nothing happens."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from ulid import ULID

from proxy.models import Exchange, Team, Transcript
from proxy.record import partitions, posting
from proxy.record.partitions import (
    KEYS,
    TRANSCRIPTS,
    before_of,
    first_id,
    make_ahead,
    month_of,
    next_month,
    rest_of,
)
from proxy.record.retention import prune_transcripts
from proxy.record.sizes import sizes

from .making import closing, opening

DAY = timedelta(days=1)
NOW = datetime.now(UTC)
needs_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="runs in the PostgreSQL lane of test_postgresql.py"
)


def post(at: datetime) -> str:
    """An exchange with a real id of that moment."""
    name = f"req_{ULID.from_datetime(at)}"
    posting.post(
        [posting.Story(opening(1, id=name, created=at.timestamp()), [], closing(1, id=name))]
    )
    return name


def held_in(table: str, name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT tableoid::regclass::text FROM {table} WHERE {KEYS[table]} = %s",  # noqa: S608 -- our own names
            [name],
        )
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize(
    "at", [datetime(2026, 12, 1, tzinfo=UTC), datetime(2030, 2, 28, 7, 3, 1, 999_000, tzinfo=UTC)]
)
def test_a_bound_parts_the_ids_before_from_those_after(at):
    before = f"req_{ULID.from_datetime(at - timedelta(milliseconds=1))}"

    assert before < first_id(at) <= f"req_{ULID.from_datetime(at)}"
    assert len(first_id(at)) == 14


def test_months_follow_each_other():
    months = [month_of(datetime(2026, 11, 30, 23, 59, tzinfo=UTC))]
    for _ in range(3):
        months.append(next_month(months[-1]))

    assert [f"{month:%Y-%m-%d}" for month in months] == [
        "2026-11-01", "2026-12-01", "2027-01-01", "2027-02-01",
    ]  # fmt: skip


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor == "postgresql", reason="is about SQLite")
def test_one_table_stays_one_table():
    assert make_ahead(NOW) == []
    assert list(partitions.drop_past(NOW)) == []


@pytest.mark.django_db
@needs_postgresql
def test_the_coming_months_have_tables_before_they_begin():
    made = make_ahead(NOW)

    month = next_month(month_of(NOW))
    for _ in range(partitions.AHEAD):
        for table in KEYS:
            assert f"{table}_{month:%Y_%m}" in partitions.partitions(table)
        month = next_month(month)
    assert make_ahead(NOW) == []
    assert set(made) <= {name for table in KEYS for name in partitions.partitions(table)}


@pytest.mark.django_db
@needs_postgresql
@pytest.mark.parametrize("table", KEYS)
def test_each_request_is_in_its_months_table_and_read_as_from_one(team, table):
    make_ahead(NOW)
    coming = next_month(month_of(NOW)) + 3 * DAY
    names = [post(at) for at in (NOW - 40 * DAY, NOW, coming, NOW + 900 * DAY)]

    assert [held_in(table, name) for name in names] == [
        before_of(table), before_of(table), f"{table}_{coming:%Y_%m}", rest_of(table),
    ]  # fmt: skip
    assert set(Exchange.objects.values_list("pk", flat=True)) == set(names)
    assert set(Transcript.objects.values_list("pk", flat=True)) == set(names)
    assert post_again(names[2]) == 0
    assert next(s for s in sizes() if s.table == table).bytes > 0


def post_again(name: str) -> int:
    return posting.post([posting.Story(opening(1, id=name), [], closing(1, id=name))])


@pytest.mark.django_db
@needs_postgresql
def test_a_month_that_nobody_keeps_is_dropped_whole_and_its_rows_stay(team):
    make_ahead(NOW)
    coming = next_month(month_of(NOW)) + 3 * DAY
    old, young = post(NOW), post(coming)
    keeper = Team.objects.create(name="archive", retention_days=120)
    end = next_month(month_of(NOW))

    assert list(prune_transcripts(end + 119 * DAY)) == [2]  # row by row: archive keeps its own
    assert before_of(TRANSCRIPTS) in partitions.partitions(TRANSCRIPTS)
    keeper.delete()
    sizes_of_batches = list(prune_transcripts(end + 125 * DAY))

    assert before_of(TRANSCRIPTS) not in partitions.partitions(TRANSCRIPTS)
    assert 0 in sizes_of_batches
    assert set(Exchange.objects.values_list("pk", flat=True)) == {old, young}


@needs_postgresql
@pytest.mark.django_db
def test_no_index_is_written_that_nobody_reads() -> None:
    tables = ["proxy_exchange_before", "proxy_transcript_before", "proxy_seal"]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY(%s)", [tables]
        )
        found = dict(cursor.fetchall())

    assert any("(exchange_id)" in definition for definition in found.values())
    names = ("proxy_exchange_id", "proxy_transcript_exchange_id", "proxy_seal_exchange_id")
    assert [n for n in found if n.startswith(names) and n.endswith("_like")] == []

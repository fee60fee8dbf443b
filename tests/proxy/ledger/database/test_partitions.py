"""Partitions by month on PostgreSQL are created ahead, filled and dropped; SQLite has none."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from ulid import ULID

from proxy.ledger.database import partitions
from proxy.ledger.database.partitions import (
    KEYS,
    TRANSCRIPTS,
    create_ahead,
    default_partition,
    first_id,
    first_partition,
    month_of,
    next_month,
)
from proxy.ledger.maintenance.retention import prune_transcripts, sizes
from proxy.ledger.posting import ledger_writer
from proxy.models import Exchange, Team, Transcript
from tests.for_each import for_each
from tests.proxy.ledger.amending import FOR_PURGE
from tests.proxy.ledger.factories import closing, opening

DAY = timedelta(days=1)
NOW = datetime.now(UTC)
needs_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="runs on PostgreSQL, see test_on_postgresql.py"
)


def post(at: datetime) -> str:
    """Write an exchange with an id of that time."""
    name = f"req_{ULID.from_datetime(at)}"
    ledger_writer.write_to_database(
        [
            ledger_writer.ExchangeRecords(
                opening(1, id=name, created=at.timestamp()), [], closing(1, id=name)
            )
        ]
    )
    return name


def partition_of(table: str, name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT tableoid::regclass::text FROM {table} WHERE {KEYS[table]} = %s",  # noqa: S608 -- our own names
            [name],
        )
        return str(cursor.fetchone()[0])


@for_each(
    "at", [datetime(2026, 12, 1, tzinfo=UTC), datetime(2030, 2, 28, 7, 3, 1, 999_000, tzinfo=UTC)]
)
def test_first_id_separates_ids_before_and_after_a_time(at):
    before = f"req_{ULID.from_datetime(at - timedelta(milliseconds=1))}"

    assert before < first_id(at) <= f"req_{ULID.from_datetime(at)}"
    assert len(first_id(at)) == 14


def test_next_month_crosses_the_year():
    months = [month_of(datetime(2026, 11, 30, 23, 59, tzinfo=UTC))]
    for _ in range(3):
        months.append(next_month(months[-1]))

    assert [f"{month:%Y-%m-%d}" for month in months] == [
        "2026-11-01", "2026-12-01", "2027-01-01", "2027-02-01",
    ]  # fmt: skip


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor == "postgresql", reason="tests SQLite")
def test_sqlite_has_no_partitions():
    assert create_ahead(NOW) == []
    assert list(partitions.drop_months_before(NOW)) == []


@pytest.mark.django_db
@needs_postgresql
def test_partitions_are_created_ahead():
    created = create_ahead(NOW)

    month = next_month(month_of(NOW))
    for _ in range(partitions.MONTHS_AHEAD):
        for table in KEYS:
            assert f"{table}_{month:%Y_%m}" in partitions.partitions(table)
        month = next_month(month)
    assert create_ahead(NOW) == []
    assert set(created) <= {name for table in KEYS for name in partitions.partitions(table)}


@pytest.mark.django_db
@needs_postgresql
@pytest.mark.parametrize("table", KEYS)
def test_each_request_is_in_the_partition_of_its_month(team, table):
    create_ahead(NOW)
    coming = next_month(month_of(NOW)) + 3 * DAY
    names = [post(at) for at in (NOW - 40 * DAY, NOW, coming, NOW + 900 * DAY)]

    assert [partition_of(table, name) for name in names] == [
        first_partition(table), first_partition(table), f"{table}_{coming:%Y_%m}", default_partition(table),
    ]  # fmt: skip
    assert set(Exchange.objects.values_list("pk", flat=True)) == set(names)
    assert set(Transcript.objects.values_list("pk", flat=True)) == set(names)
    assert post_again(names[2]) == 0
    assert next(s for s in sizes() if s.table == table).bytes > 0


def post_again(name: str) -> int:
    return ledger_writer.write_to_database(
        [ledger_writer.ExchangeRecords(opening(1, id=name), [], closing(1, id=name))]
    )


@pytest.mark.django_db
@needs_postgresql
def test_an_expired_month_of_transcripts_is_dropped_and_its_rows_stay(team):
    create_ahead(NOW)
    coming = next_month(month_of(NOW)) + 3 * DAY
    old, young = post(NOW), post(coming)
    archive = Team.objects.create(name="archive", ledger_id="archive", retention_days=120)
    end = next_month(month_of(NOW))

    assert list(prune_transcripts(end + 119 * DAY, FOR_PURGE)) == [
        2
    ]  # row by row: those of archive stay
    assert first_partition(TRANSCRIPTS) in partitions.partitions(TRANSCRIPTS)
    archive.delete()
    sizes_of_batches = list(prune_transcripts(end + 125 * DAY, FOR_PURGE))

    assert first_partition(TRANSCRIPTS) not in partitions.partitions(TRANSCRIPTS)
    assert 0 in sizes_of_batches
    assert set(Exchange.objects.values_list("pk", flat=True)) == {old, young}


@needs_postgresql
@pytest.mark.django_db
def test_partitions_have_no_pattern_indexes() -> None:
    tables = ["proxy_exchange_before", "proxy_transcript_before", "proxy_hashchainlink"]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY(%s)", [tables]
        )
        found = dict(cursor.fetchall())

    assert any("(exchange_id)" in definition for definition in found.values())
    names = ("proxy_exchange_id", "proxy_transcript_exchange_id", "proxy_hashchainlink_exchange_id")
    assert [n for n in found if n.startswith(names) and n.endswith("_like")] == []

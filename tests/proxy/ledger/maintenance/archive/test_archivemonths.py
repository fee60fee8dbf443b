"""archivemonths moves each closed month exactly once, whatever interrupts it."""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Sum

from proxy.ledger.archive import files, outbox, parquet, reading
from proxy.ledger.maintenance import archive_run, ledger_copy, verifier
from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.management.commands import backup
from proxy.models import (
    ArchivedMonth,
    AuditEntry,
    DrainWatermark,
    Exchange,
    HashChainLink,
    StopReasonDay,
    Transcript,
    UsageByCallerDay,
)
from tests.for_each import for_each
from tests.proxy.admin import factories
from tests.proxy.ledger.amending import set_cost
from tests.proxy.ledger.maintenance.killing import killed_at
from tests.waiting import until

from .conftest import JUNE

pytestmark = pytest.mark.django_db
BEFORE = ("--before", "2026-07")
JULY = date(2026, 7, 1)
KILLS = 20


def without_progress(_step: str) -> Callable[[int], None]:
    return lambda _rows: None


def all_rows() -> list[str]:
    """Return the ids of the rows in the database and in the files, once each."""
    ids = set(Exchange.objects.values_list("pk", flat=True))
    for month in ArchivedMonth.objects.filter(state__in=reading.ONLY_ARCHIVED):
        position = month.removed_to if month.state == "removing" else month.last_id
        archived = {
            row.pk for row in parquet.read(reading.rows_path(month), ("id", "<=", position))
        }
        assert not ids & archived
        ids |= archived
    return sorted(ids)


def findings() -> list[str]:
    state = verifier.Checkpoint(sums_until=JUNE.date())
    for _ in verifier.steps(state):
        pass
    return [f"{finding.what}: {finding.where}" for finding in state.findings]


def test_a_file_has_the_rows_of_its_month(ledger, archive, tmp_path, capsys):
    june = ledger.filter(created__lt="2026-07-01T00:00Z")
    cost = june.aggregate(cost=Sum("cost_nanousd"))["cost"]

    archive(*BEFORE, "--json")

    (month,) = json.loads(capsys.readouterr().out)
    path = tmp_path / "archive" / "requests-2026-06.parquet"
    assert (month["month"], month["state"], month["rows"]) == ("2026-06", "archived", 5)
    assert (month["file"], month["sha256"]) == (str(path), files.sha256_of(path))
    assert month["chain_sequence"] == HashChainLink.objects.count()
    assert ArchivedMonth.objects.get().cost_nanousd == cost > 0
    assert path.stat().st_mode & 0o077 == 0
    assert Exchange.objects.count() == 10  # without --remove, nothing is deleted


STEPS = [
    (outbox, "_remove_batch", 2, "after"),
]
MORE_STEPS = [
    (owner, step, call, when)
    for owner, step, call in (
        (parquet, "write", 1),
        (outbox, "rows_of", 4),
        (files, "put", 1),
        (files, "stored_sha256", 2),
        (outbox, "_begin_removal", 1),
        *((outbox, "_remove_batch", call) for call in (1, 2, 3)),
    )
    for when in ("before", "after")
]


@pytest.mark.parametrize(
    "step", [*STEPS, *(pytest.param(step, marks=pytest.mark.slow) for step in MORE_STEPS)]
)
def test_a_kill_at_any_step_loses_and_doubles_nothing(ledger, archive, tmp_path, step):
    ids = all_rows()
    location = files.check_location(str(tmp_path / "archive"))
    with killed_at(*step):
        archive_run.archive_months(JULY, location, without_progress)
        archive_run.remove_months(JULY, without_progress, batch=2)
    assert sorted(all_rows()) == ids

    archive(*BEFORE, "--remove")

    assert sorted(all_rows()) == ids
    assert Exchange.objects.count() == 5
    assert findings() == []


def test_a_second_run_archives_and_removes_nothing_again(ledger, archive):
    archive(*BEFORE, "--remove")
    before = ArchivedMonth.objects.values().get()

    archive(*BEFORE, "--remove")

    assert ArchivedMonth.objects.values().get() == before


def test_a_month_with_an_open_request_is_not_archived(ledger, archive):
    factories.record(at=JUNE, closed=False, with_content=False)

    with pytest.raises(CommandError, match="is still open"):
        archive(*BEFORE)

    assert not ArchivedMonth.objects.exists()


def test_a_month_with_records_that_are_not_posted_is_not_archived(ledger, archive):
    at = JUNE + timedelta(days=1)
    DrainWatermark.objects.create(journal="gone:/data/journal-0", as_of=at, backlog=1, seen=at)

    with pytest.raises(CommandError, match="gone:/data/journal-0"):
        archive(*BEFORE)


def test_a_row_that_differs_from_the_chain_is_not_archived(ledger, archive):
    Exchange.objects.filter(pk=ledger[2].pk).update(output_tokens=1)

    with pytest.raises(CommandError, match=ledger[2].pk):
        archive(*BEFORE, "--remove")

    assert Exchange.objects.count() == 10


def test_a_transcript_that_is_not_in_the_file_keeps_the_month(ledger, archive):
    factories.record(at=JUNE)
    archive(*BEFORE)
    late = factories.record(at=JUNE + timedelta(hours=1))
    ArchivedMonth.objects.update(head_sequence=HashChainLink.objects.count())

    with pytest.raises(CommandError, match=f"{late.pk} was changed after it was archived"):
        archive(*BEFORE, "--remove")

    assert Exchange.objects.count() == 12
    archive(*BEFORE, "--remove")
    assert Exchange.objects.count() == 5
    assert not Transcript.objects.exists()


def test_the_schedule_archives_and_removes_old_months_once_a_day(
    ledger, archive, settings, tmp_path, caplog
):
    at = datetime(2026, 8, 9, 5, 0, tzinfo=UTC)  # June is the only month with a full month after it
    settings.ARCHIVE_AFTER_MONTHS = 1
    settings.ARCHIVE_TO = str(tmp_path / "archive")
    daily = archive_run.DailyArchive()
    DrainWatermark.objects.create(journal="gone:/j", as_of=JUNE, backlog=1, seen=JUNE)

    assert not daily.run_if_due(at, 6)  # before its hour
    assert not daily.run_if_due(at, 5)
    assert "gone:/j has records that are not posted" in caplog.text
    DrainWatermark.objects.all().delete()
    assert not daily.run_if_due(at, 5)  # it is repeated on the next day
    assert Exchange.objects.count() == 10
    assert daily.run_if_due(at + timedelta(days=1), 5)
    assert not daily.run_if_due(at + timedelta(days=1), 5)

    assert [str(month.month) for month in ArchivedMonth.objects.all()] == ["2026-06-01"]
    assert Exchange.objects.count() == 5
    assert len(all_rows()) == 10


@for_each(
    ("months_ago", "first"),
    [(0, date(2026, 1, 1)), (1, date(2025, 12, 1)), (13, date(2024, 12, 1))],
)
def test_months_are_counted_over_the_end_of_the_year(months_ago, first):
    assert archive_run.first_of_month(datetime(2026, 1, 31, tzinfo=UTC), months_ago) == first


def test_a_row_that_changed_after_it_was_archived_is_archived_again(ledger, archive):
    changed = ledger[0].pk
    archive(*BEFORE)
    set_cost(changed, 5)

    with pytest.raises(CommandError, match="changed after it was archived"):
        archive(*BEFORE, "--remove")
    archive(*BEFORE, "--remove")

    (row,) = _archived(changed)
    assert row.cost_nanousd == 5
    assert findings() == []


def _archived(pk: str) -> list[Exchange]:
    return list(reading.rows_by_id([pk]))


def test_wrong_sums_of_a_removed_month_are_found(ledger, archive):
    archive(*BEFORE, "--remove")
    StopReasonDay.objects.filter(start__lt="2026-07-01T00:00Z").update(requests=7)
    UsageByCallerDay.objects.filter(start__lt="2026-07-01T00:00Z").update(requests=7)

    days = ("2026-06-28", "2026-06-29", "2026-06-30")
    assert list(dict.fromkeys(findings())) == [
        f"sum: {table} {day}" for day in days for table in ("UsageByCallerDay", "StopReasonDay")
    ]


def test_a_missing_file_is_one_line_of_verifyledger(ledger, archive, tmp_path):
    archive(*BEFORE, "--remove")
    (tmp_path / "archive" / "requests-2026-06.parquet").unlink()

    with pytest.raises(CommandError, match=r"requests-2026-06\.parquet is missing") as caught:
        call_command("verifyledger", stdout=io.StringIO())

    assert caught.value.returncode == 1


def test_a_backup_names_the_archive(ledger, archive, tmp_path):
    archive(*BEFORE)

    assert ("archives", str(tmp_path / "archive")) in list(backup.also_needed())


def test_a_copy_notices_that_rows_were_archived_meanwhile(ledger, archive):
    audited = AuditEntry.objects.order_by("pk")
    states = [ledger_copy.source_state(DEFAULT_DB_ALIAS)]
    for options in (BEFORE, (*BEFORE, "--remove")):
        archive(*options)
        audited.delete()  # it changes the state too, but only after the month was removed
        states.append(ledger_copy.source_state(DEFAULT_DB_ALIAS))

    assert len(set(states)) == 3


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_kills_of_the_process_lose_and_double_nothing(tmp_path, settings):
    settings.DATA_DIR = tmp_path  # as in the process
    factories.price()
    times = [JUNE + timedelta(seconds=number) for number in range(6000)]
    for at in range(0, len(times), 500):
        write_to_database(
            [
                factories.exchange_records(at=time, with_content=False)
                for time in times[at : at + 500]
            ]
        )
    ids = all_rows()
    chance = random.Random(1)  # noqa: S311 -- times of kills
    database = connection.settings_dict["NAME"]
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "bridge_project.settings",
        "DATABASE_URL": f"sqlite:///{database}",
        "BRIDGE_DATA_DIR": str(tmp_path),
    }
    command = [sys.executable, "manage.py", "archivemonths", *BEFORE, "--remove"]

    for _ in range(KILLS):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603 -- our own command
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(1, 8))
        process.kill()
        process.wait()
        assert sorted(all_rows()) == ids

    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 -- the same
    assert sorted(all_rows()) == ids
    assert not Exchange.objects.exists()
    assert findings() == []


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_killed_restore_is_continued(tmp_path, settings, archive):
    settings.DATA_DIR = tmp_path  # as in the process
    factories.price()
    times = [JUNE + timedelta(seconds=number) for number in range(1200)]
    write_to_database([factories.exchange_records(at=at, with_content=False) for at in times])
    ids = all_rows()
    archive(*BEFORE, "--remove")
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "bridge_project.settings",
        "DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}",
        "BRIDGE_DATA_DIR": str(tmp_path),
    }
    command = [sys.executable, "manage.py", "restoremonth", "2026-06"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603 -- our own command

    until(Exchange.objects.exists)
    process.kill()
    process.wait()

    assert 0 < Exchange.objects.count() < len(ids)
    assert findings() == []
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 -- the same
    assert sorted(Exchange.objects.values_list("pk", flat=True)) == ids
    assert findings() == []

"""restoremonth brings an archived month back exactly as it was, whatever interrupts it."""

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from django.core.management import CommandError, call_command

from proxy.ledger.archive import files, outbox
from proxy.ledger.maintenance import archive_run, retention, verifier
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.ledger.transcripts import storage
from proxy.models import (
    ArchivedMonth,
    Exchange,
    HashChainLink,
    Part,
    SearchOccurrence,
    Team,
    Transcript,
    UsageByCallerDay,
)
from tests.for_each import for_each
from tests.proxy.admin import factories
from tests.proxy.ledger.amending import FOR_PURGE
from tests.proxy.ledger.maintenance.killing import killed_at

from .conftest import JUNE

pytestmark = pytest.mark.django_db
BEFORE = ("--before", "2026-07")
MONTH = JUNE.date().replace(day=1)
FILE = "transcripts-2026-06.parquet"
KEY = "first-key-" * 5


@pytest.fixture
def conversation(ledger):
    """Four requests of one conversation with transcripts: three of June and one of July."""
    Team.objects.update(retention_days=3000)
    messages = [{"role": "user", "content": "Where does the marmalade come from?"}]
    batch: list[ExchangeRecords] = []
    for number, day in enumerate((0, 0, 1, 4)):
        records = factories.exchange_records(
            at=JUNE + timedelta(days=day, minutes=number),
            body=factories.request_body(messages=messages, system="shared words"),
            reads=((1.0, b"data: {}\n\n"),),
            failed=((529, b"overloaded"),) if number == 1 else (),
            opening={"session_id": "talk"},
        )
        batch.append(records)
        messages = [
            *messages,
            {"role": "assistant", "content": "From Dundee."},
            {"role": "user", "content": f"And then? {number}"},
        ]
    write_to_database(batch)
    return [records.opening.id for records in batch]


def content():
    """Return the rows, transcripts, parts, search index, chain and sums of the ledger.

    A restored part may have another id.
    """
    digests = {pk: bytes(digest) for pk, digest in Part.objects.values_list("pk", "digest")}
    return {
        "rows": list(Exchange.objects.order_by("pk").values()),
        "transcripts": {
            row.pk: (row.created, bytes(row.prefix), storage.load(row).conversation.digest())
            for row in Transcript.objects.all()
        },
        "parts": sorted(digests.values()),
        "found": sorted(
            (digests[part], team, pk)
            for part, team, pk in SearchOccurrence.objects.values_list(
                "entry__part_id", "entry__team", "exchange_id"
            )
        ),
        "chain": list(HashChainLink.objects.exclude(kind="audit").values_list("digest", flat=True)),
        "sums": list(UsageByCallerDay.objects.order_by("pk").values()),
    }


def findings():
    state = verifier.Checkpoint(sums_until=JUNE.date())
    for _ in verifier.steps(state):
        pass
    return [f"{finding.what}: {finding.where}: {finding.why}" for finding in state.findings]


def remove(archive):
    """Archive June, delete it, and delete the parts that nothing uses any more."""
    archive(*BEFORE, "--remove")
    Part.objects.update(used=retention.FIRST)
    for _ in retention.prune_parts(datetime.now(UTC)):
        pass
    assert ArchivedMonth.objects.get().state == "removed"


def restore(*options, month="2026-06"):
    out = io.StringIO()
    call_command("restoremonth", month, "--json", *options, stdout=out)
    return json.loads(out.getvalue())


def test_rows_and_transcripts_come_back_as_they_were(conversation, archive):
    before = content()
    assert before["found"]
    remove(archive)
    assert not Exchange.objects.filter(created__lt="2026-07-01T00:00Z").exists()
    assert Transcript.objects.count() == 1
    assert len(before["parts"]) > Part.objects.count()
    assert findings() == []

    result = restore()

    assert content() == before
    assert findings() == []
    assert result == {
        "month": "2026-06", "dry_run": False,
        "rows": 8, "inserted": 8, "transcripts": 3, "inserted_transcripts": 3,
    }  # fmt: skip
    assert ArchivedMonth.objects.get().state == "restored"
    assert restore()["inserted"] == 0


def test_a_dry_run_compares_and_changes_nothing(conversation, archive):
    remove(archive)
    before = content()

    result = restore("--dry-run")

    assert (result["inserted"], result["inserted_transcripts"]) == (8, 3)
    assert content() == before
    assert ArchivedMonth.objects.get().state == "removed"


STEPS = [(outbox, "_restore_batch", 2, "after"), (storage, "store", 1, "after")]
MORE_STEPS = [
    (outbox, step, call, when)
    for step, call in (
        ("check_files", 1),
        ("_restore_batch", 1),
        ("_restore_batch", 4),
        ("verified_transcripts", 1),
    )
    for when in ("before", "after")
]


@pytest.mark.parametrize(
    "step", [*STEPS, *(pytest.param(step, marks=pytest.mark.slow) for step in MORE_STEPS)]
)
def test_a_run_after_a_kill_brings_back_the_rest(conversation, archive, step):
    before = content()
    remove(archive)
    with killed_at(*step):
        list(outbox.restore(MONTH, batch=2))
    assert findings() == []

    restore()

    assert content() == before
    assert findings() == []


def test_a_removal_that_was_interrupted_can_be_restored(conversation, archive):
    before = content()
    archive(*BEFORE)
    with killed_at(outbox, "_remove_batch", 2, "after"):
        archive_run.remove_months(MONTH + timedelta(days=31), lambda _: lambda _: None, batch=2)

    restore()

    assert content() == before
    assert findings() == []


def test_parts_that_were_stored_again_meanwhile_are_shared(conversation, archive):
    before = content()["transcripts"]
    remove(archive)
    later = factories.record(
        at=JUNE + timedelta(days=6),
        body=factories.request_body(
            messages=[{"role": "user", "content": "Where does the marmalade come from?"}],
            system="shared words",
        ),
    )
    parts = Part.objects.count()

    restore()

    after = content()["transcripts"]
    assert after.pop(later.pk)
    assert after == before
    assert Part.objects.count() > parts
    assert findings() == []


def test_a_restored_month_stays_until_a_command_removes_it_again(conversation, archive, settings):
    remove(archive)
    restore()
    settings.ARCHIVE_AFTER_MONTHS = 1

    assert archive_run.DailyArchive().run_if_due(datetime(2026, 8, 9, 5, tzinfo=UTC), 5)
    assert ArchivedMonth.objects.get().state == "restored"

    archive(*BEFORE, "--remove")
    assert ArchivedMonth.objects.get().state == "removed"
    assert Transcript.objects.count() == 1


def test_a_month_that_was_archived_without_transcripts_gets_its_file(conversation, archive):
    """Version 1.0 archived rows only, and kept the month until its transcripts were deleted."""
    before = content()
    archive(*BEFORE)
    ArchivedMonth.objects.update(transcripts_sha256="", transcripts=0)

    remove(archive)
    restore()

    assert content() == before


@for_each(
    ("name", "message"),
    [("requests-2026-06.parquet", "missing or damaged"), (FILE, "missing or damaged")],
)
def test_a_damaged_file_restores_nothing(name, message, conversation, archive, tmp_path):
    remove(archive)
    with (tmp_path / "archive" / name).open("ab") as file:
        file.write(b"x")

    with pytest.raises(CommandError, match=message) as caught:
        restore()

    assert caught.value.returncode == 1
    assert ArchivedMonth.objects.get().state == "removed"


def test_a_transcript_that_differs_from_the_chain_is_found(conversation, archive, tmp_path):
    """Whoever changes a file can change its SHA-256 in the database too, but not the chain."""
    remove(archive)
    path = tmp_path / "archive" / FILE
    new = path.with_suffix(".new")
    query = f"SELECT * REPLACE (NULL::BLOB AS stream) FROM '{path}'"  # noqa: S608 -- test data
    duckdb.sql(f"COPY ({query}) TO '{new}' (FORMAT parquet)")
    new.replace(path)
    ArchivedMonth.objects.update(transcripts_sha256=files.sha256_of(path))

    assert [found.partition(":")[0] for found in findings()] == ["body"] * 3
    with pytest.raises(CommandError, match="differs from the hash chain"):
        restore()
    assert not Transcript.objects.filter(pk__in=conversation[:3]).exists()


def test_misuse_is_named(ledger, archive, monkeypatch):
    archive(*BEFORE, "--remove")
    for month, message in (
        ("2026-05", "2026-05 is not archived; archived are 2026-06"),
        ("June", "not a month"),
    ):
        with pytest.raises(CommandError, match=message) as caught:
            restore(month=month)
        assert caught.value.returncode in {1, 2}
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(CommandError, match="pip install") as caught:
        restore()
    assert caught.value.returncode == 2


def test_transcripts_in_files_expire_with_those_of_their_team(conversation, archive, tmp_path):
    remove(archive)
    at = JUNE + timedelta(days=100, minutes=30)  # two of the three transcripts are older
    Team.objects.update(retention_days=100)

    assert archive_run.prune_archived(at, FOR_PURGE) == 2

    assert ArchivedMonth.objects.get().transcripts == 1
    assert [path.name for path in sorted((tmp_path / "archive").iterdir())] == [
        "requests-2026-06.parquet", "transcripts-2026-06-v2.parquet",
    ]  # fmt: skip
    assert findings() == []
    assert restore()["transcripts"] == 1
    assert set(content()["transcripts"]) == set(conversation[2:])
    assert findings() == []

    archive(*BEFORE, "--remove")
    call_command("pruneledger", now=at + timedelta(days=9), stdout=io.StringIO())

    assert [path.name for path in (tmp_path / "archive").iterdir()] == ["requests-2026-06.parquet"]
    assert findings() == []


def test_encrypted_transcripts_need_their_key_and_come_back_encrypted(request, settings, archive):
    settings.BODY_KEYS = [KEY]
    request.getfixturevalue("conversation")
    before = content()
    remove(archive)
    folder = Path(ArchivedMonth.objects.get().location)
    assert not [path for path in folder.iterdir() if b"marmalade" in path.read_bytes()]

    settings.BODY_KEYS = []
    with pytest.raises(CommandError, match="encrypted with key") as caught:
        restore()
    assert caught.value.returncode == 2
    settings.BODY_KEYS = [KEY]
    restore()

    assert content() == before
    assert findings() == []

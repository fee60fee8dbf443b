"""eraseuser: what it refuses, what a kill leaves, and what a second run and a restore do."""

import json
from datetime import UTC, datetime, timedelta

import duckdb
import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db.models import Sum
from django.utils.timezone import now

from proxy.audit_log import Action, record
from proxy.conf import conf
from proxy.erasure import account, archived_months, erase, erased_users, local_files, requests
from proxy.erasure import person as persons
from proxy.erasure.person import pseudonym_of
from proxy.ledger.archive import files, outbox, parquet, reading
from proxy.ledger.journal import locks, records
from proxy.ledger.journal.journal import Journal
from proxy.ledger.maintenance import archive_run, verifier
from proxy.ledger.posting import audit_links, drift
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.ledger.transcripts import storage
from proxy.models import (
    ApiKey,
    ArchivedMonth,
    AuditEntry,
    Drift,
    Exchange,
    Export,
    ExportState,
    Part,
    Person,
    SessionOutcomeDay,
    Team,
    Transcript,
    UsageByCallerDay,
)
from tests.proxy.admin import factories
from tests.proxy.ledger.maintenance.killing import killed_at

pytestmark = pytest.mark.django_db
OCTOBER = datetime(2026, 10, 30, tzinfo=UTC)
NAME, MARK = "ada.zyxquokka", "zyxquokka"


@pytest.fixture
def data_dir(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    assert conf.data_dir == tmp_path
    return tmp_path


@pytest.fixture
def ledger(data_dir):
    """Requests of Ada and of Ben: two of each in an archived month, and two with transcripts.

    Both are users of a version whose rows had names: the names are their ids.
    """
    factories.price()
    User.objects.create_superuser("root")
    batch = []
    for name, mark in ((NAME, MARK), ("ben", "vwnarwhal")):
        user = User.objects.create(
            username=name, email=f"{mark}@example.com", first_name=f"A{mark}"
        )
        Person.objects.filter(user=user).delete()
        Person.objects.create(pk=name, user=user)
        key = factories.key(f"{mark}-laptop", user=user)[0]
        for day in range(2):
            opening = {"user": name, "session_id": f"{mark}-{day}", "tags": {"app": f"{mark}-tag"}}
            opening["key_name"] = key.name
            at = OCTOBER + timedelta(days=day)
            archived = factories.exchange_records(
                at=at, key=key, with_content=False, opening=opening
            )
            body = factories.request_body(
                messages=[{"role": "user", "content": f"{mark} asks {day}"}], system="shared words"
            )
            stored = factories.exchange_records(
                at=factories.NOON + timedelta(days=day), key=key, body=body, opening=opening
            )
            batch += [archived, stored]
    write_to_database(batch)
    call_command("archivemonths", "--before", "2026-11", "--remove", verbosity=0)
    return totals()


def totals():
    counts = UsageByCallerDay.objects.values("team", "start").order_by("team", "start")
    return list(
        counts.annotate(Sum("requests"), Sum("cost_nanousd"), Sum("input_reported"), Sum("errors"))
    )


def run(*options, name=NAME):
    call_command("eraseuser", name, *options, verbosity=0)


def columns_with_the_mark():
    """Return the columns of all tables that contain the mark, also in the archive."""
    found = set()
    for model in apps.get_models(include_auto_created=True):
        for row in model._base_manager.values():
            found |= {
                f"{model.__name__}.{name}" for name, value in row.items() if MARK in str(value)
            }
    for month in archived_months.removed_months():
        rows = parquet.read(reading.rows_path(month))
        found |= {"archive" for row in rows if MARK in repr(vars(row))}
        if month.transcripts_sha256:
            path = reading.transcripts_path(month)
            ids = [one.id for one in parquet.list_transcripts(path)]
            for row, parts in parquet.read_transcripts(path, ids):
                found |= {"archive" for _ in parts if MARK in repr(storage.load(row, parts))}
    return found


def findings():
    state = verifier.Checkpoint(sums_until=OCTOBER.date())
    for _ in verifier.steps(state):
        pass
    return [f"{finding.what}: {finding.where}: {finding.why}" for finding in state.findings]


def without_progress(_step: str, _rows: int) -> None:
    """Report nothing."""


STEPS = [
    (account, "revoke_keys"),
    (requests, "_delete_transcripts"),
    (requests, "erase_rows"),
    (archived_months, "adopt"),
    (files, "put"),
    (archive_run, "remove_old_files"),
    (requests, "rename_sums"),
    (requests, "_move_outcomes"),
    (local_files, "erase_journals"),
    (account, "_replace_in_audit_log"),
    (account, "erase"),
]


@pytest.mark.parametrize(
    ("owner", "step", "when"),
    [
        (archive_run, "remove_old_files", "before"),
        *(
            pytest.param(*step, when, marks=pytest.mark.slow)
            for step in STEPS
            for when in ("before", "after")
        ),
    ],
)
def test_a_run_after_a_kill_erases_the_rest(ledger, owner, step, when):
    with killed_at(owner, step, 1, when):
        erase.erase(persons.Person.load(NAME), without_progress, batch=1)

    run("--yes")

    assert columns_with_the_mark() == set()
    assert totals() == ledger
    assert findings() == []
    assert UsageByCallerDay.objects.filter(user="ben").aggregate(n=Sum("requests"))["n"] == 4
    assert Transcript.objects.count() == 2
    assert [path.name for path in (conf.data_dir / "archive").iterdir()] == [
        "requests-2026-10-v2.parquet"
    ]


def test_the_row_stays_under_a_pseudonym_without_personal_columns(ledger, capsys):
    before = {row.pk: row for row in Exchange.objects.filter(user=NAME)}

    run("--yes", "--json")

    result = json.loads(capsys.readouterr().out)
    assert (result["requests"], result["transcripts"], result["archived_requests"]) == (2, 2, 2)
    for row in Exchange.objects.filter(user=pseudonym_of(NAME)):
        old = before.pop(row.pk)
        assert (row.cost_nanousd, row.input_tokens) == (old.cost_nanousd, old.input_tokens)
        assert (row.key_id, row.key_name) == (old.key_id, f"erased-{old.key_id}")
        assert (row.prompt, row.tags, row.ip) == ("", {}, None)
        assert row.session_id == pseudonym_of(old.session_id)
    assert before == {}
    entry = AuditEntry.objects.filter(action="erase").latest("pk")
    assert (entry.subject, entry.command) == (pseudonym_of(NAME), "eraseuser")
    assert not ApiKey.objects.exclude(revoked=None).exclude(name__startswith="erased-").exists()
    assert Part.objects.count() > 0
    assert SessionOutcomeDay.objects.exists()


def test_erased_entries_of_the_audit_log_are_linked_again_unless_they_were_forged(ledger):
    entry = record(Action.SEARCH, detail="for 'zyxquokka asks' (user ben)", subject=NAME)
    other = record(Action.SEARCH, detail="for 'zyxquokka asks'", subject="")
    kept = record(Action.SEARCH, detail="for 'other words'", subject="ben")
    forged = record(Action.READ, detail="a transcript", subject=NAME)
    audit_links.link_audit_entries()
    AuditEntry.objects.filter(pk=forged.pk).update(detail="nothing")

    run("--yes")

    assert [each.partition(": ")[2] for each in findings()] == [
        f"{audit_links.subject_of(forged)}: the entry differs from its link"
    ]
    details = AuditEntry.objects.in_bulk([entry.pk, other.pk, kept.pk])
    assert details[entry.pk].detail == "for erased words (user ben)"
    assert details[other.pk].detail == "for erased words"
    assert details[kept.pk].detail == "for 'other words'"


def test_protocol_names_of_the_person_are_erased_and_not_written_again(ledger):
    own = Exchange.objects.filter(user=NAME).values_list("pk", flat=True)[0]
    others = Exchange.objects.filter(user="ben").values_list("pk", flat=True)[0]
    recorder = drift.NewNameRecorder(write_interval_s=0)
    for request, beta in ((own, f"{MARK}-beta"), (others, "common-beta")):
        recorder._count("beta", beta, request)
    recorder.write(now())
    recorder._count("beta", f"{MARK}-beta", own)  # written after the erasure

    run("--yes")
    recorder.write(now())

    betas = Drift.objects.filter(kind="beta")
    assert list(betas.values_list("name", flat=True)) == ["common-beta"]
    recorder._count("beta", f"{MARK}-beta", others)
    recorder.write(now())
    assert betas.get(name=f"{MARK}-beta").first_request == others


def test_a_dry_run_changes_nothing(ledger, capsys):
    run("--dry-run", "--json")

    found = json.loads(capsys.readouterr().out)
    assert (found["accounts"], found["keys"], found["requests"], found["archived_requests"]) == (
        1,
        1,
        2,
        2,
    )
    assert User.objects.filter(username=NAME, is_active=True).exists()
    assert not (conf.data_dir / erased_users.FILE).exists()


def test_misuse_erases_nothing(ledger):
    for options, name, message in (
        ((), NAME, "--yes"),
        (("--yes",), "nobody", "no user and no request"),
        (("--yes",), "root", "last superuser"),
        (("--yes",), pseudonym_of(NAME), "no user and no request"),
    ):
        with pytest.raises(CommandError, match=message) as caught:
            run(*options, name=name)
        assert caught.value.returncode == 2
    assert User.objects.count() == 3


def test_running_requests_must_end_first_and_the_keys_stop_at_once(ledger):
    key = ApiKey.objects.get(name=f"{MARK}-laptop")
    row = factories.record(at=factories.NOON, key=key, closed=False, opening={"user": NAME})

    with pytest.raises(erase.StillRunning, match="not finished: 1"):
        erase.erase(persons.Person.load(NAME), without_progress, posted_within_s=0)

    key.refresh_from_db()
    assert key.revoked is not None
    assert Exchange.objects.filter(pk=row.pk, user=NAME).exists()


def test_an_export_that_is_being_written_must_end_first(ledger):
    root = User.objects.get(username="root")
    Export.objects.create(
        pk="export_1", user=root, state=ExportState.RUNNING, created=now(), seen=now()
    )

    with pytest.raises(CommandError, match="an export is being written") as caught:
        run("--yes")

    assert caught.value.returncode == 1
    assert Exchange.objects.filter(user=NAME).exists()


def test_records_of_a_journal_are_overwritten_in_place(ledger):
    """A waiting record of the person is reported; the records of other people stay."""
    key = ApiKey.objects.get(name=f"{MARK}-laptop")
    mine = factories.exchange_records(at=factories.NOON, key=key, opening={"user": NAME})
    other = factories.exchange_records(at=factories.NOON, opening={"user": "ben"})
    with locks.take(conf.data_dir) as lock:
        journal = Journal(lock, reserve_bytes=65_536)
        journal.start()
        journal.append_and_wait(mine.opening, mine.closing, other.opening, other.closing)
        person = persons.Person.load(NAME)
        assert local_files.erase_journals(conf.data_dir, person, only_count=True).waiting == 1
        journal.stop()
    sizes = [path.stat().st_size for path in conf.data_dir.glob("journal-*/*.segment")]

    run("--yes")

    segments = list(conf.data_dir.glob("journal-*/*.segment"))
    assert [path.stat().st_size for path in segments] == sizes
    content = b"".join(path.read_bytes() for path in segments)
    assert MARK.encode() not in content
    assert other.opening.body in content
    assert records.CHUNK != records.OPEN
    assert Exchange.objects.filter(pk=mine.opening.id, user=pseudonym_of(NAME)).exists()


def test_a_restored_backup_is_erased_again_but_not_a_new_user_of_that_name(ledger):
    person = persons.Person.load(NAME)
    erased_users.add(person)
    User.objects.filter(username="ben").update(date_joined=person.until + timedelta(days=1))
    erased_users.add(persons.Person.load("ben", datetime(2020, 1, 1, tzinfo=UTC)))

    assert [each.name for each in erased_users.people_with_data()] == [NAME]
    assert erase.erase_again() == 1

    assert columns_with_the_mark() == set()
    assert erase.erase_again() == 0
    assert User.objects.filter(username="ben").exists()
    assert findings() == []


def test_a_restored_database_takes_the_newer_file_of_a_month(ledger):
    before = ArchivedMonth.objects.values().get()
    run("--yes")
    after = ArchivedMonth.objects.values().get()
    ArchivedMonth.objects.update(**before)

    for _ in archived_months.adopt_newer_versions(
        {pseudonym_of(NAME)}, Cause(Action.ERASE, "erases a user")
    ):
        pass

    own = {"archived": None, "head_sequence": None, "head_digest": None}  # of this database
    assert ArchivedMonth.objects.values().get() | own == after | own


def test_a_damaged_list_of_erased_users_is_reported(data_dir):
    (data_dir / erased_users.FILE).write_text("abc\n")

    with pytest.raises(Exception, match="line 1: 'abc' is not a digest and a time"):
        erased_users.people_with_data()


def test_names_are_replaced_as_whole_words_only():
    names = {"username": "ann", "first_name": "Ann", "last_name": "Lee"}
    user = User.objects.create(email="ann@example.com", **names)
    person = persons.Person.load(user.person.pk)
    new = person.pseudonym

    for text, expected in (
        ("Ann read it", f"{new} read it"),
        ("user=ann&q=1", f"user={new}&q=1"),
        ("to=ann%40example.com", f"to={new}"),
        ("Ann Lee asked.", f"{new} asked."),
        ("the annex of joann", "the annex of joann"),
        ("ann@other.example", "ann@other.example"),
        ("ann-marie and ann.b", "ann-marie and ann.b"),
    ):
        assert person.replace_in({"a": [text]}) == {"a": [expected]}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_renamed_or_deleted_user_of_this_version_is_erased(data_dir, is_deleted):
    """The rows have an id that says nothing; the names are in one place, and in texts."""
    User.objects.create_superuser("root")
    user = User.objects.create(username=f"{MARK}-before")
    user.username = f"{MARK}-now"
    user.save()
    key = factories.key(f"{MARK}-laptop", user=user)[0]
    row = factories.record(key=key, opening={"user": user.username})
    record(Action.READ, row, detail=f"{MARK}-now and {user.person.pk}")
    ident = user.person.pk
    if is_deleted:
        key.delete()
        user.delete()
    assert MARK not in repr((row.user, row.key_name, ident))

    run("--yes", name=f"{MARK}-now")

    # Of a deleted account, the audit log does not say which earlier names and keys it had.
    left = {"AuditEntry.changes", "AuditEntry.object_name"} if is_deleted else set()
    assert columns_with_the_mark() <= left
    row.refresh_from_db()
    assert row.user == pseudonym_of(ident)
    assert not Person.objects.filter(pk=ident).exists()


def test_an_archived_month_that_is_still_in_the_database_is_written_again(ledger, data_dir):
    """The rows of September are in the file and in the database."""
    key = ApiKey.objects.get(name=f"{MARK}-laptop")
    at = OCTOBER - timedelta(days=40)
    factories.record(at=at, key=key, with_content=False, opening={"user": NAME})
    call_command("archivemonths", "--before", "2026-10", verbosity=0)

    run("--yes")

    month = ArchivedMonth.objects.get(month="2026-09-01")
    assert (month.state, month.version) == ("archived", 1)
    assert files.stored_sha256(month.location, month.file) == month.sha256
    table = duckdb.read_parquet(files.address(month.location, month.file)).fetchall()
    assert len(table) == 1
    assert MARK not in repr(table)


@pytest.fixture
def archived_transcripts(ledger):
    """Transcripts of September in a file: one of Ada and one of Ben, which share a part."""
    Team.objects.update(retention_days=3000)
    batch = []
    for name, mark in ((NAME, MARK), ("ben", "vwnarwhal")):
        body = factories.request_body(
            messages=[{"role": "user", "content": f"{mark} asks"}], system="words of September"
        )
        key = ApiKey.objects.get(name=f"{mark}-laptop")
        at = OCTOBER - timedelta(days=40)
        batch.append(factories.exchange_records(at=at, key=key, body=body, opening={"user": name}))
    write_to_database(batch)
    call_command("archivemonths", "--before", "2026-10", "--remove", verbosity=0)
    month = ArchivedMonth.objects.get(month="2026-09-01")
    assert (month.state, month.transcripts) == ("removed", 2)
    assert "archive" in columns_with_the_mark()
    return month


def test_transcripts_in_files_are_erased_and_the_others_stay(
    archived_transcripts, data_dir, capsys
):
    capsys.readouterr()
    run("--dry-run", "--json")
    run("--yes", "--json")

    planned, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert planned["transcripts"] == done["transcripts"] == 3
    assert planned["archived_requests"] == done["archived_requests"] == 3
    assert columns_with_the_mark() == set()
    assert findings() == []
    assert sorted(path.name for path in (data_dir / "archive").iterdir()) == [
        "requests-2026-09-v2.parquet",
        "requests-2026-10-v2.parquet",
        "transcripts-2026-09-v2.parquet",
    ]
    call_command("restoremonth", "2026-09", verbosity=0)
    assert set(Transcript.objects.values_list("exchange__user", flat=True)) == {"ben"}
    assert findings() == []


def test_a_restored_database_takes_the_newer_file_of_transcripts(archived_transcripts):
    before = ArchivedMonth.objects.values().get(month="2026-09-01")
    run("--yes")
    after = ArchivedMonth.objects.get(month="2026-09-01")
    ArchivedMonth.objects.filter(pk=after.pk).update(**before)

    cause = Cause(Action.ERASE, "erases a user")
    for _ in archived_months.adopt_newer_versions({pseudonym_of(NAME)}, cause):
        pass

    adopted = ArchivedMonth.objects.get(month="2026-09-01")
    assert adopted.transcripts_sha256 == after.transcripts_sha256
    assert (adopted.transcripts, adopted.transcripts_version) == (1, 2)


def test_a_restore_that_was_interrupted_is_erased_on_both_sides(ledger):
    with killed_at(outbox, "_restore_batch", 1, "after"):
        call_command("restoremonth", "2026-10", verbosity=0)

    run("--yes")

    assert columns_with_the_mark() == set()
    assert findings() == []
    call_command("restoremonth", "2026-10", verbosity=0)
    assert ArchivedMonth.objects.get().state == "restored"
    assert columns_with_the_mark() == set()
    assert findings() == []

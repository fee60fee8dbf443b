"""Erase a person step by step. Each step can be repeated, so a second run resumes a killed one."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from django.db import connection

from proxy.audit_log import Action, record
from proxy.conf import conf
from proxy.ledger.archive import outbox
from proxy.ledger.maintenance import archive_run, retention
from proxy.ledger.maintenance.amendments import close_stale_rows
from proxy.ledger.posting import journal_posting
from proxy.ledger.posting.audit_links import Cause
from proxy.models import State

from . import account, archived_months, erased_users, local_files, requests
from .person import MARK, Person

POSTED_WITHIN_S: Final = 10.0
"""How long to wait until a running gateway has written the last requests to the database."""

Advance = Callable[[str, int], None]
"""Reports progress: the name of a step and how many rows were done since the last call."""


class StillRunning(Exception):
    """Requests of the person are not finished, or an export is being written."""


@dataclass(slots=True)
class Erasure:
    """What was erased, or would be."""

    pseudonym: str
    accounts: int = 0
    keys: int = 0
    requests: int = 0
    transcripts: int = 0
    archived_requests: int = 0
    journal_records: int = 0
    audit_entries: int = 0
    left: list[str] = field(default_factory=list)
    """What the command cannot erase."""

    @property
    def counts(self) -> dict[str, int]:
        return {name: n for name, n in asdict(self).items() if isinstance(n, int)}


def count(person: Person) -> Erasure:
    """Return what would be erased, without a change."""
    archived = [
        (month, archived_months.ids_of(month, person)) for month in archived_months.removed_months()
    ]
    return Erasure(
        person.pseudonym,
        accounts=int(person.user_id is not None),
        keys=len(person.keys),
        requests=requests.rows_of(person).count(),
        transcripts=requests.transcripts_of(person).count()
        + sum(archived_months.count_transcripts(month, ids) for month, ids in archived),
        archived_requests=sum(len(ids) for _, ids in archived),
        journal_records=local_files.erase_journals(conf.data_dir, person, only_count=True).erased,
        audit_entries=sum(1 for _ in account.audit_entries(person)),
    )


def erase(
    person: Person,
    advance: Advance,
    *,
    is_restored: bool = False,
    batch: int = requests.BATCH,
    posted_within_s: float = POSTED_WITHIN_S,
) -> Erasure:
    """Erase the person's data; return what was erased.

    ``is_restored``: no gateway runs, and the database is a restored backup; requests that were open
    in it are closed. ``batch``: how many requests one transaction changes. ``posted_within_s``: see
    ``POSTED_WITHIN_S``. Raises StillRunning, ArchiveError or ConfigError; run it again then.
    """
    cause = Cause(Action.ERASE, "erases the requests of a user", person.pseudonym)
    with outbox.work_folder() as folder:
        erased_users.add(person)
        account.revoke_keys(person)
        if is_restored:
            close_stale_rows(conf.data_dir, person.until)
        _wait_for_requests(person, posted_within_s)
        requests.finish_removals()
        done = Erasure(person.pseudonym, int(person.user_id is not None), len(person.keys))
        done.transcripts = requests.transcripts_of(person).count()
        named = requests.rows_of(person).exclude(session_id="")
        sessions = named.exclude(session_id__startswith=MARK).values_list("key_id", "session_id")
        local_files.erase_calls(set(sessions.distinct()))
        for rows in requests.erase_rows(person, cause, batch):
            done.requests += rows
            advance("requests", rows)
        _erase_archived(person, folder, cause, advance, done)
        requests.rename_sums(person)
        requests.erase_sightings(person)
        for parts in retention.prune_parts(datetime.now(UTC)):
            advance("unused parts", parts)
        found = local_files.erase_journals(conf.data_dir, person)
        done.journal_records = found.erased
        if requests.rows_of(person).exists():
            raise StillRunning("the user has sent new requests until the keys stopped working")
        retention.remove_response_files()
        local_files.erase_live_rows()
        local_files.expire_exports()
        done.audit_entries = account.erase(person, cause)
        local_files.write_configuration_again()
        if any(done.counts.values()):
            counts = ", ".join(f"{name}: {n}" for name, n in done.counts.items())
            record(Action.ERASE, detail=counts, subject=person.pseudonym)
        if found.unreadable:
            where = "damaged parts of journals, see their folders quarantine"
            done.left.append(f"{found.unreadable} {where}")
        advance("free space", 0)
        retention.free_space()
        if is_wal_in_use():
            done.left.append("the write-ahead log of the database, which another process reads")
        return done


def _wait_for_requests(person: Person, within_s: float) -> None:
    """Write the journals of dead processes, and wait for the running gateway to write its own."""
    journal_posting.adopt(conf.data_dir)
    deadline = time.monotonic() + within_s
    while waiting := (
        requests.rows_of(person).filter(state=State.OPEN).count()
        + local_files.erase_journals(conf.data_dir, person, only_count=True).waiting
    ):
        if time.monotonic() > deadline:
            raise StillRunning(f"requests of the user that are not finished: {waiting}")
        time.sleep(0.2)
    if local_files.is_export_running():
        raise StillRunning("an export is being written, which may contain rows of the user")


def _erase_archived(
    person: Person, folder: Path, cause: Cause, advance: Advance, done: Erasure
) -> None:
    earlier = (f"{MARK}{digest[:16]}" for digest in erased_users.read())
    pseudonyms = {person.pseudonym, *earlier}
    for rows in archived_months.adopt_newer_versions(pseudonyms, cause):
        advance("archived months", rows)
    for month in archived_months.removed_months():
        if ids := archived_months.ids_of(month, person):
            done.transcripts += archived_months.count_transcripts(month, ids)
            for rows in archived_months.erase_month(month, person, ids, folder, cause):
                advance("archived months", rows)
            done.archived_requests += len(ids)
    for rows in archived_months.write_stale_again(folder):
        advance("archived months", rows)
    archive_run.remove_old_files()


def is_wal_in_use() -> bool:
    """Whether SQLite's write-ahead log still has pages, because another process reads them."""
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        return False
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return bool(cursor.fetchone()[0])


def erase_again(advance: Advance = lambda _step, _rows: None) -> int:
    """Erase users again whose data came back with an older backup; return how many.

    No gateway may run.
    """
    people = erased_users.people_with_data()
    for person in people:
        erase(person, advance, is_restored=True)
    return len(people)

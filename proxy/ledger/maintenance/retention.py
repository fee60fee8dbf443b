"""Delete transcripts past their team's retention, in batches. Ledger rows and rollups stay.

The outcomes of coding agents are derived from transcripts, so they are deleted at the same age.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from django.apps import apps
from django.db import connection, transaction
from django.db.models import Max, Min

from proxy.conf import conf
from proxy.encryption.bodies import MissingBodyKey
from proxy.ledger.database import partitions
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.hash_chain import Link, append, lock_ledger
from proxy.ledger.search import indexer, term_index
from proxy.ledger.transcripts.part_codec import decode_manifest
from proxy.ledger.transcripts.storage import part_ids_in
from proxy.models import (
    AuditEntry,
    CountedToolCall,
    Exchange,
    IdempotentWrite,
    LinkKind,
    Part,
    SearchOccurrence,
    SessionOutcomeDay,
    Team,
    Transcript,
)

# Parts used more recently are not deleted; this is twice the resolution of ``used``.
GRACE = timedelta(hours=2)
FIRST = datetime(1970, 1, 1, tzinfo=UTC)  # this is before the time of every row
PURGES: Final = "purge_"  # the subjects of links that record a deletion
BATCH: Final = 500
"""Rows that one transaction deletes."""
RANGE: Final = 2**27
"""The number of part ids for which the manifests are read once; 16 MB of memory."""
IDEMPOTENT_FOR: Final = timedelta(days=1)
"""How long a write over REST may be repeated with its ``Idempotency-Key``."""
DELETED_TEAM_DAYS = 90  # retention of transcripts whose team was deleted
SQLITE: Final = """SELECT sum(pgsize) FROM dbstat WHERE name IN
            (SELECT name FROM sqlite_master WHERE tbl_name = %s)"""
POSTGRESQL: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(relid)), pg_total_relation_size(%s)) "
    "FROM pg_partition_tree(%s)"
)
SEARCH_TERMS: Final = "proxy_searchterms"
"""The full-text index, which has no model. SQLite stores it as tables with this prefix."""
SQLITE_TERMS: Final = "SELECT sum(pgsize) FROM dbstat WHERE name GLOB 'proxy_searchterms_*'"
DELETED_TEAM_AGE: Final = timedelta(days=DELETED_TEAM_DAYS)


def expired(now: datetime) -> Iterator[tuple[str, datetime]]:
    """Yield the ledger id of each team with the time before which its transcripts are deleted."""
    for team, days in Team.objects.values_list("ledger_id", "retention_days"):
        yield team, now - timedelta(days=days)


def prune_transcripts(now: datetime, cause: Cause, batch: int = BATCH) -> Iterator[int]:
    """Delete transcripts past their team's retention; yield the size of each batch.

    ``cause``: the audit entry that the records of the deletions name.
    """
    teams = dict(expired(now))
    rest = now - DELETED_TEAM_AGE
    oldest = min([*teams.values(), rest]) - GRACE
    for dropped in partitions.drop_months_before(oldest):
        record_deletion(None, oldest, cause)
        yield dropped
        yield from _forget_occurrences(partitions.first_id(oldest), batch)
    for team, before in teams.items():
        yield from _prune(batch, team, before, cause)
    gone = Transcript.objects.filter(created__lt=rest).exclude(exchange__team__in=list(teams))
    for (team,) in list(gone.values_list("exchange__team").distinct()):
        yield from _prune(batch, team, rest, cause)


def prune_outcomes(now: datetime, batch: int = BATCH) -> Iterator[int]:
    """Delete the outcomes of the days before their team's retention; yield the size of each batch.

    Calls that were counted in those days would be counted again if a client resent them.
    """
    teams = dict(expired(now))
    rest = now - DELETED_TEAM_AGE
    for table, time in ((SessionOutcomeDay, "start"), (CountedToolCall, "created")):
        rows = table._default_manager  # noqa: SLF001 -- Django's documented model API
        for team in {*teams, *rows.values_list("team", flat=True).distinct()}:
            before = teams.get(team, rest)
            if table is SessionOutcomeDay:
                before -= timedelta(days=1)  # the day ends within the retention
            old = rows.filter(team=team, **{f"{time}__lt": before})
            while found := list(old.values_list("pk", flat=True)[:batch]):
                yield rows.filter(pk__in=found).delete()[0]


def record_deletion(team: str | None, before: datetime, cause: Cause) -> None:
    """Append a link that records that the team's transcripts before this time are deleted.

    ``team`` None: those of all teams. Without this record, a missing transcript is a finding.
    """
    with transaction.atomic():
        head = lock_ledger()
        note = deletion_note(team, before, cause.link(head))
        subject = f"{PURGES}{head.sequence + 1}"
        link = Link(subject, hashlib.sha256(note.encode()).digest(), note=note)
        append(head, LinkKind.PURGED, [link], datetime.now(UTC))


def deletion_note(team: str | None, before: datetime, audit: int) -> str:
    at = before.astimezone(UTC).isoformat()
    return json.dumps({"team": team, "before": at, "audit": audit})


def _prune(batch: int, team: str, before: datetime, cause: Cause) -> Iterator[int]:
    """Delete the team's transcripts before this time, oldest first; yield the size of each batch.

    The deletion is recorded before the first batch.

    Each query begins at the time of the previous batch. A query from the first ledger row would
    scan all rows whose transcripts are already deleted, because the rows themselves stay.
    """
    due = Transcript.objects.filter(exchange__team=team, created__lt=before)
    if due.exists():
        record_deletion(team, before, cause)
    since = FIRST
    while True:
        with transaction.atomic():
            rest = due.filter(exchange__created__gte=since)
            oldest = rest.order_by("exchange__created").values_list("pk", "exchange__created")
            found = list(oldest[:batch])
            if found:
                lock_ledger()
                indexer.forget_exchanges([pk for pk, _ in found])
            Transcript.objects.filter(pk__in=[pk for pk, _ in found]).delete()
        if not found:
            return
        since = found[-1][1]
        yield len(found)


def _forget_occurrences(before: str, batch: int) -> Iterator[int]:
    """Remove requests with ids below ``before`` from the search index; yield 0 for each batch."""
    old = SearchOccurrence.objects.filter(exchange_id__lt=before).order_by("exchange_id")
    while True:
        with transaction.atomic():
            lock_ledger()
            ids = list(dict.fromkeys(old.values_list("exchange_id", flat=True)[:batch]))
            indexer.forget_exchanges(ids)
        if not ids:
            return
        yield 0


def prune_parts(
    now: datetime, batch: int = BATCH, *, pause: Callable[[], object] = lambda: None
) -> Iterator[int]:
    """Delete parts that no transcript uses; yield the number of deleted parts in each batch.

    ``pause`` is called also between batches of which no part is deleted; there may be many.

    This is safe while the gateway runs: a new transcript updates ``used`` of all its parts, and a
    part is deleted only if its ``used`` is older than GRACE. So a transcript whose key is missing
    can only use parts with a ``used`` of its time or later: those stay.
    """
    before = now - GRACE
    ends = Part.objects.filter(used__lt=before).aggregate(first=Min("pk"), last=Max("pk"))
    if ends["first"] is None:
        return
    for start in range(ends["first"], ends["last"] + 1, RANGE):
        end = min(start + RANGE, ends["last"] + 1)
        used_ids = _UsedIds(start, end)
        used_ids.read_manifests(pause)
        unreadable = used_ids.oldest_unreadable
        safe = before if unreadable is None else min(before, unreadable - GRACE)
        yield from _prune_range(used_ids, safe, batch, pause)


def _prune_range(
    used_ids: "_UsedIds", before: datetime, batch: int, pause: Callable[[], object]
) -> Iterator[int]:
    last = used_ids.start - 1
    while True:
        candidates = Part.objects.filter(used__lt=before, pk__gt=last, pk__lt=used_ids.end)
        ids = list(candidates.order_by("pk").values_list("pk", flat=True)[:batch])
        if not ids:
            return
        last = ids[-1]
        pause()
        free = [pk for pk in ids if pk not in used_ids]
        if free:
            with transaction.atomic():
                lock_ledger()
                unused = Part.objects.filter(pk__in=free, used__lt=before)
                indexer.forget_parts(list(unused.values_list("pk", flat=True)))
                yield unused.delete()[0]


class _UsedIds:
    """The ids from ``start`` to ``end`` of parts that a transcript uses: one bit for each id.

    A set of the ids of ten million parts would take 600 MB, the bits take 1.2 MB.
    """

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self._bits = bytearray((end - start + 7) // 8)
        self.oldest_unreadable: datetime | None = None
        """When the oldest transcript was created whose key is missing."""

    def __contains__(self, part_id: int) -> bool:
        place, bit = divmod(part_id - self.start, 8)
        return bool(self._bits[place] & 1 << bit)

    def read_manifests(self, pause: Callable[[], object]) -> None:
        """Mark the parts of all transcripts."""
        rows = Transcript.objects.values_list("exchange_id", "created", "manifest")
        for number, (exchange_id, created, data) in enumerate(rows.iterator(chunk_size=500)):
            if number % 500 == 499:
                pause()
            try:
                manifest = decode_manifest(exchange_id, data)
            except MissingBodyKey:
                self.oldest_unreadable = min(created, self.oldest_unreadable or created)
                continue
            for part_id in part_ids_in(manifest):
                if self.start <= part_id < self.end:
                    place, bit = divmod(part_id - self.start, 8)
                    self._bits[place] |= 1 << bit


def prune_audit_log(now: datetime) -> int:
    """Delete the audit entries past the retention of the audit log; return how many."""
    old = AuditEntry.objects.filter(created__lt=now - timedelta(days=conf.audit_days))
    return int(old.delete()[0])


def delete_expired_sessions(now: datetime) -> int:
    """Delete expired sign-in sessions; return their number."""
    sessions = apps.get_model("sessions", "Session")
    return int(sessions.objects.filter(expire_date__lt=now).delete()[0])


def delete_expired_writes(now: datetime) -> int:
    """Delete the responses of writes over REST whose ``Idempotency-Key`` has expired."""
    return int(IdempotentWrite.objects.filter(created__lt=now - IDEMPOTENT_FOR).delete()[0])


def remove_response_files() -> None:
    """Delete the file of responses by ``idempotency-key`` that version 1.0 wrote."""
    for path in conf.data_dir.glob("replies.sqlite3*"):
        path.unlink(missing_ok=True)


def free_space(*, full: bool = False) -> None:
    """Free the disk space of deleted rows.

    The SQLite file is rewritten; while this runs, database writers wait, and new records stay in
    the journal. PostgreSQL marks the space for reuse; ``full`` rewrites its tables under an
    exclusive lock.
    """
    if connection.in_atomic_block:  # a VACUUM cannot run inside a transaction
        return
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            term_index.optimize()
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        else:
            for table in (Transcript, Part, *([Exchange] if full else ())):
                name = connection.ops.quote_name(table._meta.db_table)  # noqa: SLF001 -- Django's documented model API
                cursor.execute(f"VACUUM ({'FULL, ' if full else ''}ANALYZE) {name}")
            # Autovacuum analyzes each partition, but not the whole table, as the planner needs.
            cursor.execute(f"ANALYZE {connection.ops.quote_name(Exchange._meta.db_table)}")  # noqa: SLF001 -- Django's documented model API


class TableSize(NamedTuple):
    table: str
    rows: int
    bytes: int


def sizes() -> list[TableSize]:
    """Return the size of each table of all apps, largest first."""
    sql = SQLITE if connection.vendor == "sqlite" else POSTGRESQL
    found = []
    with connection.cursor() as cursor:
        for table in apps.get_models(include_auto_created=True):
            name = table._meta.db_table  # noqa: SLF001 -- Django's documented model API
            cursor.execute(sql, [name] * sql.count("%s"))
            row = cursor.fetchone()
            rows = table._default_manager.count()  # noqa: SLF001 -- Django's documented model API
            found.append(TableSize(name, rows, int(row[0] or 0) if row else 0))
        is_sqlite = connection.vendor == "sqlite"
        cursor.execute(*((SQLITE_TERMS,) if is_sqlite else (sql, [SEARCH_TERMS] * 2)))
        entries = next(size.rows for size in found if size.table == "proxy_searchentry")
        found.append(TableSize(SEARCH_TERMS, entries, int(cursor.fetchone()[0] or 0)))
    return sorted(found, key=lambda size: size.bytes, reverse=True)

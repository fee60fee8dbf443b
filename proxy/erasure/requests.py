"""Erase the requests of a person in the database: rows, transcripts, search index and sums."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

from django.db import transaction
from django.db.models import Model, QuerySet

from proxy.encryption.bodies import MissingBodyKey
from proxy.ledger.archive import outbox
from proxy.ledger.archive.reading import rows_by_id
from proxy.ledger.database.bulk_sql import slices, write
from proxy.ledger.maintenance.retention import FIRST
from proxy.ledger.posting import hash_chain, outcomes, rollups
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.exchange_columns import set_columns
from proxy.ledger.posting.hash_chain import changed_groups
from proxy.ledger.search import indexer
from proxy.ledger.transcripts.part_codec import decode_manifest
from proxy.ledger.transcripts.storage import part_ids_in
from proxy.models import (
    ArchivedMonth,
    ArchiveState,
    Drift,
    Exchange,
    LinkKind,
    Part,
    SessionOutcomeDay,
    State,
    Transcript,
    UsageBySessionDay,
)

from .person import Person

BATCH: Final = 200
SUMS_BY_USER: Final = [table for table in rollups.ALL_TABLES if "user" in rollups.DIMENSIONS[table]]
"""The tables of sums with a column for the user."""


def rows_of(person: Person) -> QuerySet[Exchange]:
    return Exchange.objects.filter(person.is_of_person, created__lte=person.until)


def transcripts_of(person: Person) -> QuerySet[Transcript]:
    return Transcript.objects.filter(exchange__in=rows_of(person))


def states_of(ids: Sequence[str], person: Person) -> dict[str, str]:
    """Return the states of these requests, also archived ones; "" for requests of other people."""
    states: dict[str, str] = {}
    for some in slices(ids):
        columns = ("pk", "state", "created", "user", "key_id")
        found = list(Exchange.objects.filter(pk__in=some).values_list(*columns))
        archived = set(some) - {row[0] for row in found}
        for pk, state, created, user, key_id in [
            *found,
            *map(attrgetter(*columns), rows_by_id(archived)),
        ]:
            own = user == person.pseudonym or person.is_owner(user, key_id)
            states[pk] = state if own and created <= person.until else ""
    return states


def erase_sightings(person: Person) -> None:
    """Delete the unknown protocol names that were first seen in the person's requests.

    Clients choose these names. If another client sends one too, its next request records it again.
    """
    unknown = Drift.objects.exclude(known=True)
    ids = sorted(set(unknown.values_list("first_request", flat=True)))
    own = [request for request, state in states_of(ids, person).items() if state]
    for some in slices(own):
        unknown.filter(first_request__in=some).delete()


def finish_removals() -> None:
    """Delete the rows of months whose removal to the archive was interrupted."""
    started = ArchivedMonth.objects.filter(state=ArchiveState.REMOVING)
    for month in list(started.values_list("month", flat=True)):
        for _ in outbox.remove(month):
            pass


def erase_rows(person: Person, cause: Cause, batch: int = BATCH) -> Iterator[int]:
    """Delete the transcripts and change the rows of closed requests; yield the size of each batch.

    Each batch is one transaction, so a kill leaves whole requests.
    """
    last = ""
    while True:
        closed = rows_of(person).filter(pk__gt=last, state=State.CLOSED).order_by("pk")
        ids = list(closed.values_list("pk", flat=True)[:batch])
        if not ids:
            return
        with transaction.atomic():
            head = hash_chain.lock_ledger()
            rows = list(Exchange.objects.filter(pk__in=ids, state=State.CLOSED).order_by("pk"))
            # A new link would hide that a row differs from its link; its names are erased anyway.
            tampered = {row.pk for row in rows if not hash_chain.is_unchanged(row)}
            entry, notes = cause.link(head), {}
            for row in rows:
                notes[row.pk] = hash_chain.note_of(entry, changed_groups(row, LinkKind.ERASED))
                values = person.columns(row)
                set_columns(row, values)
                row.save(update_fields=list(values))
            _delete_transcripts(ids)
            sealed = [row for row in rows if row.pk not in tampered]
            hash_chain.append_links(
                head, [(row, None) for row in sealed], datetime.now(UTC), LinkKind.ERASED, notes
            )
        last = ids[-1]
        yield len(ids)


def _delete_transcripts(ids: Sequence[str]) -> None:
    """Delete transcripts, and let the next pruning delete those of their parts that are unused.

    The caller has the ledger lock. A part that another request stores at the same time gets a new
    ``used``, so it stays.
    """
    parts: set[int] = set()
    stored = Transcript.objects.filter(pk__in=ids)
    for exchange_id, manifest in stored.values_list("exchange_id", "manifest"):
        with suppress(MissingBodyKey):  # without the key, the parts cannot be read either
            parts |= part_ids_in(decode_manifest(exchange_id, manifest))
    indexer.forget_exchanges(ids)
    stored.delete()
    for some in slices(sorted(parts)):
        Part.objects.filter(pk__in=some).update(used=FIRST)


def rename_sums(person: Person) -> int:
    """Move the person's sums to the pseudonym, in one transaction; return the number of rows.

    No total of a team, a model or a day changes.
    """
    with transaction.atomic():
        hash_chain.lock_ledger()
        return sum(_rename(table, person) for table in SUMS_BY_USER)


def _rename(table: Any, person: Person) -> int:
    """Add the sums of each row to the row of its new dimensions, and delete the old one."""
    old = list(table.objects.filter(person.is_of_person, start__lte=person.until))
    lines: dict[bytes, dict[str, Any]] = {}
    keys: dict[bytes, bytes] = {}
    for row in old:
        values = _values_of(row)
        values |= person.dimensions(values)
        values["id"] = keys[bytes(row.pk)] = rollups.key_of_line(table, values)
        rollups.merge_line(table, lines, values)
    if table is UsageBySessionDay:
        _move_outcomes(keys)
    rollups.add_lines(table, lines)
    for some in slices([row.pk for row in old]):
        table.objects.filter(pk__in=some).delete()
    return len(old)


def _move_outcomes(keys: dict[bytes, bytes]) -> None:
    """Move the outcomes to the new keys of their sums, without the names of what was edited."""
    for some in slices(list(keys)):
        found = SessionOutcomeDay.objects.filter(pk__in=some)
        for row in list(found):
            values = _values_of(row) | {"repository": "", "branch": ""}
            values["usage_id"] = keys[bytes(row.pk)]
            write(SessionOutcomeDay, [values], added=outcomes.COUNTS)
        found.delete()


def _values_of(row: Model) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}  # noqa: SLF001 - documented by Django

"""Read ledger rows of both sides: the database, and the files of the months that were removed.

Every row is on exactly one side at any time: the transaction that deletes rows from the database
also stores the last deleted id, up to which the file of that month is read.
"""

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from django.db import DatabaseError, connections
from django.db.models import Q, QuerySet

from proxy.ledger.database.query_timeout import QueryTimeout
from proxy.models import ArchivedMonth, ArchiveState
from proxy.secrets import ConfigError

from . import files
from .duckdb_backend import ArchivedFile

if TYPE_CHECKING:
    from .duckdb_backend.base import DatabaseWrapper

ARCHIVE: Final = "archive"
"""The alias of the archive in ``DATABASES``."""
ONLY_ARCHIVED: Final = (ArchiveState.REMOVING, ArchiveState.REMOVED)

Read = TypeVar("Read")
Position = tuple[Any, ...]


def within(since: datetime | None, until: datetime | None) -> Q:
    """Return a filter for months that overlap the time range; a bound of None has no effect."""
    months = Q()
    if since is not None:
        months &= Q(month__gte=since.astimezone(UTC).date().replace(day=1))
    if until is not None:
        months &= Q(month__lt=until)
    return months


def with_ids(ids: Sequence[str]) -> Q:
    """Match the months in which a request can have one of these ids."""
    return Q(last_id__gte=min(ids), first_id__lte=max(ids)) if ids else Q(pk__in=())


def read_both(
    rows: QuerySet[Any, Any],
    read: Callable[[QuerySet[Any, Any]], Read],
    months: Q,
    timeout_s: float | None = None,
) -> list[Read]:
    """Return what ``read`` returns for the rows in the database, and then for those in the archive.

    ``months``: which archived months to read. ``timeout_s``: limit of a query of the archive; it
    raises QueryTimeout. Both are read again if rows were moved meanwhile.
    """
    stored = read(rows)
    if not (after := _positions(months)):  # no row had left the database when it was read
        return [stored]
    while True:
        before = after
        found = [read(rows)]
        try:
            with reading(map(_file_of, before), timeout_s):
                found.append(read(rows.using(ARCHIVE)))
        except files.ArchiveError:
            if (after := _positions(months)) == before:
                raise
            continue  # a user was erased: another file has the rows now
        if (after := _positions(months)) == before:
            return found


def has_archived(months: Q) -> bool:
    """Return whether rows of these months are only in files."""
    return bool(_positions(months))


def iterate_both(
    rows: QuerySet[Any, Read], months: Q, key: Callable[[Read], Any], *, reverse: bool = False
) -> Iterator[Read]:
    """Yield all rows, sorted by ``key``, which is the order of ``rows``; ``reverse``: descending.

    A row that was posted after its month was removed is in the database, so both sides are merged.
    """
    return heapq.merge(*read_both(rows, _opened, months), key=key, reverse=reverse)


def _opened(rows: QuerySet[Any, Any]) -> Iterator[Any]:
    """Start the query, so that its result does not change, and return an iterator of its rows."""
    iterator = rows.iterator(chunk_size=1000)
    return chain(list(islice(iterator, 1)), iterator)


def _positions(months: Q) -> list[Position]:
    removed = ArchivedMonth.objects.filter(months, state__in=ONLY_ARCHIVED)
    columns = ("month", "state", "location", "sha256", "removed_to", "version")
    return [
        position
        for position in removed.values_list(*columns)
        if position[1] == ArchiveState.REMOVED or position[4]
    ]


def _file_of(position: Position) -> ArchivedFile:
    month, state, location, sha256, removed_to, version = position
    name = ArchivedMonth(month=month, version=version).file
    path = files.local_path(location, name, sha256)
    return ArchivedFile(str(path), None if state == ArchiveState.REMOVED else removed_to)


@contextmanager
def reading(archived: Iterable[ArchivedFile], timeout_s: float | None = None) -> Iterator[None]:
    """Let the queries on the alias ``archive`` read these files inside the ``with`` block.

    Raise ArchiveError if that fails, and QueryTimeout after ``timeout_s``.
    """
    connection = cast("DatabaseWrapper", connections[ARCHIVE])
    connection.read_files(list(archived))
    timer = threading.Timer(timeout_s, connection.interrupt) if timeout_s else None
    if timer is not None:
        timer.start()
    try:
        yield
    except ConfigError as exc:
        raise files.ArchiveError(str(exc)) from None
    except DatabaseError as exc:
        if "INTERRUPT" in str(exc):
            raise QueryTimeout from exc
        raise files.ArchiveError(f"an archived file cannot be read: {exc}") from exc
    finally:
        if timer is not None:
            timer.cancel()


def changeable_rows() -> Q:
    """Match the rows of the database that may be changed: those of no month that is removed."""
    condition = Q()
    for month in removed_months():
        start, end = bounds(month)
        condition &= ~Q(created__gte=start, created__lt=end)
    return condition


def removed_months() -> list[date]:
    """Return the months whose rows are only in their files, or will soon be, oldest first."""
    removed = ArchivedMonth.objects.filter(state__in=ONLY_ARCHIVED)
    return list(removed.order_by("month").values_list("month", flat=True))


def bounds(month: date) -> tuple[datetime, datetime]:
    """Return the start of a month and the start of the next one."""
    start = datetime(month.year, month.month, 1, tzinfo=UTC)
    end = datetime(month.year + month.month // 12, month.month % 12 + 1, 1, tzinfo=UTC)
    return start, end

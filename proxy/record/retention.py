"""Retention: bodies older than their team keeps them go, in batches; rows and sums stay."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from django.apps import apps
from django.db import connection, transaction

from proxy.models import Exchange, Part, Team, Transcript

from . import frames, partitions
from .conversation import unpack
from .seals import hold_ledger
from .transcripts import named_by

GRACE = timedelta(hours=2)  # parts named within it are left alone; twice what ``used`` is exact to
FIRST = datetime(1970, 1, 1, tzinfo=UTC)  # before every row
FORGOTTEN_TEAM_DAYS = 90  # of a team that was deleted


def expired(now: datetime) -> Iterator[tuple[str, datetime]]:
    """(team, the moment before which its bodies go)."""
    for name, days in Team.objects.values_list("name", "retention_days"):
        yield name, now - timedelta(days=days)


def prune_transcripts(now: datetime, batch: int = 500) -> Iterator[int]:
    """Delete transcripts past their team's retention; yields the size of each batch."""
    teams = dict(expired(now))
    rest = now - timedelta(days=FORGOTTEN_TEAM_DAYS)
    yield from partitions.drop_past(min([*teams.values(), rest]) - GRACE)
    for team, before in teams.items():
        yield from _prune(batch, exchange__team=team, created__lt=before)
    gone = Transcript.objects.filter(created__lt=rest).exclude(exchange__team__in=list(teams))
    for (team,) in list(gone.values_list("exchange__team").distinct()):
        yield from _prune(batch, exchange__team=team, created__lt=rest)


def _prune(batch: int, **where: object) -> Iterator[int]:
    """Oldest first: rows stay, so a batch that began at the first would walk past all before it."""
    since = FIRST
    while True:
        with transaction.atomic():
            rest = Transcript.objects.filter(**where, exchange__created__gte=since)
            oldest = rest.order_by("exchange__created").values_list("pk", "exchange__created")
            found = list(oldest[:batch])
            Transcript.objects.filter(pk__in=[pk for pk, _ in found]).delete()
        if not found:
            return
        since = found[-1][1]
        yield len(found)


def _at_once() -> None:
    """No pause."""


def prune_parts(
    now: datetime, batch: int = 500, *, pause: Callable[[], None] = _at_once
) -> Iterator[int]:
    """Delete parts that no transcript names; yields the size of each batch.

    ``pause`` is called between the steps in which nothing is deleted: there may be many.

    Safe beside a running gateway: a transcript that comes while we look freshens ``used`` of all
    parts it names, and a part is deleted only while its ``used`` is older than the grace.
    """
    before = now - GRACE
    named = _named(pause)
    last = 0
    while True:
        candidates = Part.objects.filter(used__lt=before, pk__gt=last).order_by("pk")
        ids = list(candidates.values_list("pk", flat=True)[:batch])
        if not ids:
            return
        last = ids[-1]
        pause()
        free = [pk for pk in ids if pk not in named]
        if free:
            with transaction.atomic():
                hold_ledger()
                yield Part.objects.filter(pk__in=free, used__lt=before).delete()[0]


def forget_sessions(now: datetime) -> int:
    """Delete the sign-ins that have ended; how many. Nothing else here needs their app."""
    sessions = apps.get_model("sessions", "Session")
    return int(sessions.objects.filter(expire_date__lt=now).delete()[0])


def _named(pause: Callable[[], None]) -> set[int]:
    """Ids of every part that some transcript names."""
    named: set[int] = set()
    manifests = Transcript.objects.values_list("manifest", flat=True)
    for number, manifest in enumerate(manifests.iterator(chunk_size=500)):
        if number % 500 == 499:
            pause()
        named |= named_by(unpack(frames.plain(bytes(manifest))))
    return named


def free_space(*, full: bool = False) -> None:
    """Give the space of what was deleted back to the disk.

    SQLite is rewritten (writers wait meanwhile, the spool keeps what comes). PostgreSQL marks it
    for reuse; ``full`` rewrites its tables under an exclusive lock.
    """
    if connection.in_atomic_block:  # a VACUUM cannot run inside a transaction
        return
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        else:
            for table in (Transcript, Part):
                name = connection.ops.quote_name(table._meta.db_table)  # noqa: SLF001 -- Django's documented model API
                cursor.execute(f"VACUUM ({'FULL, ' if full else ''}ANALYZE) {name}")
            # of a table in parts autovacuum counts each part, but the planner wants the whole, too
            cursor.execute(f"ANALYZE {connection.ops.quote_name(Exchange._meta.db_table)}")  # noqa: SLF001 -- Django's documented model API

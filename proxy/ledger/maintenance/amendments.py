"""Change existing ledger rows, with the rollups and the hash chain in the same transaction.

Costs are computed again, and open rows that no running process will close are closed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from proxy.audit_log import Action
from proxy.ledger.archive.reading import changeable_rows
from proxy.ledger.journal.records import CloseRecord
from proxy.ledger.posting import budget_sync, hash_chain, rollups
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.exchange_columns import FIELDS, columns_from_close, set_columns
from proxy.ledger.posting.hash_chain import changed_groups, columns_changed_by
from proxy.ledger.posting.journal_posting import Advance, adopt, no_progress
from proxy.ledger.posting.rollups import TOKENS
from proxy.ledger.transcripts import storage
from proxy.ledger.usage.pricing import PriceList, cost_of, failed_attempts_cost
from proxy.models import Exchange, LinkKind, State, Transcript
from proxy.models.ledger import HAS_TOKENS
from proxy.models.setup.prices import DIMENSIONS

Change = Callable[[Exchange], Mapping[str, Any] | None]  # returns new columns; None: no change


logger = logging.getLogger(__name__)


def amend(
    ids: Sequence[str], change: Change, kind: LinkKind, cause: Cause, now: datetime | None = None
) -> list[Exchange]:
    """Apply ``change`` to each ledger row, with the ledger locked; return the changed rows.

    It may change the columns of ``kind`` only. ``cause``: the audit entry that the links name.

    Rows of months that are removed to the archive do not change. A row that differs from its link
    of the hash chain does not change either, because a new link would hide the difference.
    """
    now = now or datetime.now(UTC)
    with transaction.atomic():
        head = hash_chain.lock_ledger()
        amended: list[Exchange] = []
        notes: dict[str, hash_chain.Note] = {}
        allowed = columns_changed_by(kind)
        for row in Exchange.objects.filter(changeable_rows(), pk__in=ids).order_by("pk"):
            values = change(row)
            if values is None:
                continue
            if other := values.keys() - allowed:
                raise ValueError(f"{kind} may not change {', '.join(sorted(other))}")
            if not hash_chain.is_unchanged(row):
                logger.error("%s differs from the hash chain, so it is not %s", row.pk, kind)
                continue
            before = changed_groups(row, kind) if row.state == State.CLOSED else b""
            notes[row.pk] = hash_chain.note_of(cause.link(head), before)
            if row.state == State.CLOSED:
                rollups.add([row], -1)
            set_columns(row, values)
            row.save(update_fields=[name for name in FIELDS if name in values])
            amended.append(row)
        rollups.add(row for row in amended if row.state == State.CLOSED)
        links = [(row, body_digest_of(row.pk)) for row in amended]
        hash_chain.append_links(head, links, now, kind, notes)
        budget_sync.apply_amended_rows(amended)
    return amended


def body_digest_of(exchange_id: str) -> bytes | None:
    """Return the body digest in the newest hash chain link of a row.

    If the row has no link, compute the digest of its transcript; None if its key is missing.
    """
    if newest := hash_chain.newest_links([exchange_id]).get(exchange_id):
        return None if newest.body_digest is None else bytes(newest.body_digest)
    stored = Transcript.objects.filter(pk=exchange_id).first()
    try:
        return storage.load(stored).conversation.digest() if stored else None
    except storage.EncryptedTranscript:
        return None


BATCH: Final = 500  # rows in one transaction


@dataclass(frozen=True, slots=True)
class Repriced:
    """A row with its old and new cost in nano-dollars; None: unknown cost."""

    exchange: Exchange
    before: int | None
    after: int | None


def candidates(
    since: datetime | None, until: datetime | None, *, every: bool
) -> "QuerySet[Exchange]":
    """Return the closed rows with known tokens from ``since`` to before ``until``.

    Without ``every``, only rows without a cost. Rows of archived months do not change.
    """
    rows = Exchange.objects.filter(changeable_rows(), HAS_TOKENS, state=State.CLOSED)
    if since:
        rows = rows.filter(created__gte=since)
    if until:
        rows = rows.filter(created__lt=until)
    return (rows if every else rows.filter(cost_nanousd=None)).order_by("pk")


def reprice(
    rows: "QuerySet[Exchange]", *, dry_run: bool, batch: int = BATCH
) -> Iterator[list[Repriced]]:
    """Set the costs of rows by the current prices; yield the changed rows of each batch.

    The cost of a row whose price was deleted does not change. ``dry_run``: change no row.
    """
    prices = PriceList.load()
    ids = list(rows.values_list("pk", flat=True))
    cause = None if dry_run else Cause(Action.RUN, f"prices {len(ids)} requests again")
    for at in range(0, len(ids), batch):
        yield _reprice_batch(ids[at : at + batch], prices, cause)


def _reprice_batch(ids: list[str], prices: PriceList, cause: Cause | None) -> list[Repriced]:
    changed: list[Repriced] = []

    def change(row: Exchange) -> Mapping[str, Any] | None:
        usage = usage_of(row)
        price = prices.of_usage(row.upstream, row.model_upstream, row.created.date(), usage)
        cost = cost_of(usage, price)
        if cost is None:
            return None
        total = cost.total + failed_attempts_cost(row.attempts)  # the stored costs of attempts
        if total == row.cost_nanousd:
            return None
        changed.append(Repriced(row, row.cost_nanousd, total))
        return {"cost_nanousd": total, "price": price}

    if cause is None:
        for row in Exchange.objects.filter(pk__in=ids).order_by("pk"):
            change(row)
    else:
        amend(ids, change, LinkKind.REPRICED, cause)
    return changed


def usage_of(row: Exchange) -> dict[str, Any]:
    """Return what a row has of its CloseRecord's ``usage``: counts, sources and dimensions."""
    counts = {name: getattr(row, f"{name}_tokens") for name in TOKENS}
    others = (*TOKENS.values(), *DIMENSIONS, "iterations")
    return counts | {name: getattr(row, name) or None for name in others}


MAX_ROWS: Final = 200  # rows closed in one transaction


def close_stale_rows(
    directory: Path,
    older_than: datetime,
    now: datetime | None = None,
    advance: Advance = no_progress,
) -> tuple[int, int]:
    """Close open ledger rows that were created before ``older_than``.

    First write the journals of dead processes to the database. Returns the number of these journals
    and the number of closed rows. If the process of a row still runs, its own close record replaces
    this result later.
    """
    now = now or datetime.now(UTC)
    journals = adopt(directory, advance)
    waiting = Exchange.objects.filter(state=State.OPEN, created__lt=older_than)
    ids = list(waiting.order_by("pk").values_list("pk", flat=True))
    prices = PriceList.load()
    cause = Cause(Action.RUN, f"closes {len(ids)} requests that no running process will close")

    def change(row: Exchange) -> Mapping[str, Any] | None:
        if row.state != State.OPEN:
            return None
        ending = CloseRecord(
            id=row.pk,
            finished=now.timestamp(),
            outcome="interrupted",
            status=0,
            error_type="api_error",
            error_message="the process that served the request is gone, and its journal with it",
            error_source="gateway",
            detail="settled",
            usage=usage_of(row),  # the tokens that a hard budget reserved; unknown without one
            delivered=False,
        )
        return columns_from_close(ending, row, prices)

    closed = 0
    for at in range(0, len(ids), MAX_ROWS):
        part = ids[at : at + MAX_ROWS]
        closed += len(amend(part, change, LinkKind.SETTLED, cause, now))
        advance(len(part))
    return journals, closed

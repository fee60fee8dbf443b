"""Changes to rows after the fact: rows, rollups and seals move together or not at all."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from proxy.models import Exchange, Seal, State, Transcript

from . import rollups, seals, spending, transcripts
from .rows import FIELDS, apply

Change = Callable[[Exchange], Mapping[str, Any] | None]  # None: leave the row as it is


def amend(ids: Sequence[str], change: Change, now: datetime | None = None) -> list[Exchange]:
    """Apply ``change`` to each row as it is under the lock; the rows that were changed."""
    now = now or datetime.now(UTC)
    with transaction.atomic():
        head = seals.hold_ledger()
        amended = []
        for row in Exchange.objects.filter(pk__in=ids).order_by("pk"):
            values = change(row)
            if values is None:
                continue
            if row.state == State.CLOSED:
                rollups.add([row], -1)
            apply(row, values)
            row.save(update_fields=[name for name in FIELDS if name in values])
            amended.append(row)
        rollups.add(row for row in amended if row.state == State.CLOSED)
        seals.seal(head, [(row, body_digest_of(row.pk)) for row in amended], now)
        spending.amended(amended)
    return amended


def body_digest_of(exchange_id: str) -> bytes | None:
    """As the newest seal has it; of an exchange never sealed, from its transcript."""
    newest = Seal.objects.filter(exchange_id=exchange_id).order_by("-sequence").first()
    if newest is not None:
        return None if newest.body_digest is None else bytes(newest.body_digest)
    stored = Transcript.objects.filter(pk=exchange_id).first()
    return transcripts.load(stored).conversation.digest() if stored else None

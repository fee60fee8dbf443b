"""Change existing ledger rows, with the rollups and the hash chain in the same transaction."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.db import transaction

from proxy.ledger.archive.reading import changeable_rows
from proxy.ledger.posting import budget_sync, hash_chain, rollups
from proxy.ledger.posting.exchange_columns import FIELDS, set_columns
from proxy.ledger.transcripts import storage
from proxy.models import Exchange, HashChainLink, LinkKind, State, Transcript

Change = Callable[[Exchange], Mapping[str, Any] | None]  # returns new columns; None: no change


logger = logging.getLogger(__name__)

COLUMNS: Final[Mapping[LinkKind, frozenset[str]]] = {
    LinkKind.REPRICED: frozenset({"cost_nanousd", "price"}),
    LinkKind.ENCRYPTED: frozenset(hash_chain.BODY_TEXTS),
}
"""The columns that an amendment may change; ``SETTLED`` writes those of a close record."""


def amend(
    ids: Sequence[str], change: Change, kind: LinkKind, now: datetime | None = None
) -> list[Exchange]:
    """Apply ``change`` to each ledger row, with the ledger locked; return the changed rows.

    Rows of months that are removed to the archive do not change. A row that differs from its link
    of the hash chain does not change either, because a new link would hide the difference.
    """
    now = now or datetime.now(UTC)
    with transaction.atomic():
        head = hash_chain.lock_ledger()
        amended = []
        for row in Exchange.objects.filter(changeable_rows(), pk__in=ids).order_by("pk"):
            values = change(row)
            if values is None:
                continue
            if other := values.keys() - COLUMNS.get(kind, values.keys()):
                raise ValueError(f"{kind} may not change {', '.join(sorted(other))}")
            if not hash_chain.is_unchanged(row):
                logger.error("%s differs from the hash chain, so it is not %s", row.pk, kind)
                continue
            if row.state == State.CLOSED:
                rollups.add([row], -1)
            set_columns(row, values)
            row.save(update_fields=[name for name in FIELDS if name in values])
            amended.append(row)
        rollups.add(row for row in amended if row.state == State.CLOSED)
        hash_chain.append_links(head, [(row, body_digest_of(row.pk)) for row in amended], now, kind)
        budget_sync.apply_amended_rows(amended)
    return amended


def body_digest_of(exchange_id: str) -> bytes | None:
    """Return the body digest in the newest hash chain link of a row.

    If the row has no link, compute the digest of its transcript; None if its key is missing.
    """
    newest = HashChainLink.objects.filter(exchange_id=exchange_id).order_by("-sequence").first()
    if newest is not None:
        return None if newest.body_digest is None else bytes(newest.body_digest)
    stored = Transcript.objects.filter(pk=exchange_id).first()
    try:
        return storage.load(stored).conversation.digest() if stored else None
    except storage.EncryptedTranscript:
        return None

"""Change existing ledger rows, with the rollups and the hash chain in the same transaction."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from proxy.ledger.archive.reading import changeable_rows
from proxy.ledger.posting import budget_sync, hash_chain, rollups
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.exchange_columns import FIELDS, set_columns
from proxy.ledger.posting.row_digests import changed_groups, columns_changed_by
from proxy.ledger.transcripts import storage
from proxy.models import Exchange, HashChainLink, LinkKind, State, Transcript

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
    newest = HashChainLink.objects.filter(exchange_id=exchange_id).order_by("-sequence").first()
    if newest is not None:
        return None if newest.body_digest is None else bytes(newest.body_digest)
    stored = Transcript.objects.filter(pk=exchange_id).first()
    try:
        return storage.load(stored).conversation.digest() if stored else None
    except storage.EncryptedTranscript:
        return None

"""Close open ledger rows that no running process will close."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from proxy.audit_log import Action
from proxy.ledger.journal.records import CloseRecord
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.exchange_columns import columns_from_close
from proxy.ledger.posting.journal_posting import Advance, adopt, no_progress
from proxy.ledger.usage.pricing import PriceList
from proxy.models import Exchange, LinkKind, State

from .amendments import amend
from .reprice import usage_of

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
        return columns_from_close(ending_of(row, now), row, prices)

    closed = 0
    for at in range(0, len(ids), MAX_ROWS):
        part = ids[at : at + MAX_ROWS]
        closed += len(amend(part, change, LinkKind.SETTLED, cause, now))
        advance(len(part))
    return journals, closed


def ending_of(row: Exchange, now: datetime) -> CloseRecord:
    """Return the close record of a request whose process and journal are gone."""
    return CloseRecord(
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

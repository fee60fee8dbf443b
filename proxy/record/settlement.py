"""Settles open rows that no living process will ever close."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from proxy.models import Exchange, State

from .amendment import amend
from .drainer import adopt
from .pricing import PriceList
from .records import CloseRecord
from .repricing import usage_of
from .rows import closed

MOST_TOGETHER: Final = 200  # rows of one transaction


def settle(directory: Path, older_than: datetime, now: datetime | None = None) -> tuple[int, int]:
    """Drain abandoned spools, then close rows left open since before ``older_than``.

    Returns (spools drained, rows closed). A row whose process lives after all is closed again, and
    rightly, when its own close record comes.
    """
    now = now or datetime.now(UTC)
    spools = adopt(directory)
    waiting = Exchange.objects.filter(state=State.OPEN, created__lt=older_than)
    ids = list(waiting.order_by("pk").values_list("pk", flat=True))
    prices = PriceList.load()

    def change(row: Exchange) -> Mapping[str, Any] | None:
        if row.state != State.OPEN:
            return None
        return closed(_ending(row, now), row, prices)

    parts = (ids[at : at + MOST_TOGETHER] for at in range(0, len(ids), MOST_TOGETHER))
    return spools, sum(len(amend(part, change, now)) for part in parts)


def _ending(row: Exchange, now: datetime) -> CloseRecord:
    return CloseRecord(
        id=row.pk,
        finished=now.timestamp(),
        outcome="interrupted",
        status=0,
        error_type="api_error",
        error_message="the process that served the request is gone, and its spool with it",
        error_source="gateway",
        detail="settled",
        usage=usage_of(row),  # what a hard budget reserved; without one, nothing is known
        delivered=False,
    )

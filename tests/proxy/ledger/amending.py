"""Change rows as a command does, with an entry of the audit log."""

from datetime import datetime
from typing import Final

from proxy.audit_log import Action
from proxy.ledger.maintenance.amendments import amend
from proxy.ledger.posting.audit_links import Cause
from proxy.models import Exchange, LinkKind

FOR_PRICES: Final = Cause(Action.RUN, "prices requests again")
FOR_PURGE: Final = Cause(Action.PURGE, "deletes transcripts")


def set_cost(exchange_id: str, nanousd: int, now: datetime | None = None) -> list[Exchange]:
    """Amend the cost of a row, as ``reprice`` does."""
    return amend(
        [exchange_id], lambda _: {"cost_nanousd": nanousd}, LinkKind.REPRICED, FOR_PRICES, now
    )

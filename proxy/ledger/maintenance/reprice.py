"""Compute the cost of ledger rows again: of rows without a cost, or of all rows in a time range."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from proxy.audit_log import Action
from proxy.ledger.archive.reading import changeable_rows
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.rollups import TOKENS
from proxy.ledger.usage.pricing import PriceList, cost_of, failed_attempts_cost
from proxy.models import Exchange, LinkKind, State
from proxy.models.ledger import HAS_TOKENS
from proxy.models.setup.prices import DIMENSIONS

from .amendments import amend

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

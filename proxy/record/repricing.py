"""Prices rows again: those that had no price when they closed, or all of a range."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from proxy.models import Exchange, State

from .amendment import amend
from .pricing import PriceList, cost_of, lost_in
from .rollups import TOKENS


@dataclass(frozen=True, slots=True)
class Repriced:
    """One row: nano-dollars before and after; None where there is no price."""

    exchange: Exchange
    before: int | None
    after: int | None


def candidates(
    since: datetime | None, until: datetime | None, *, every: bool
) -> "QuerySet[Exchange]":
    """Closed rows of the range with known tokens; ``every``: also those that have a price."""
    rows = Exchange.objects.filter(
        Q(input_tokens__isnull=False) | Q(output_tokens__isnull=False), state=State.CLOSED
    )
    if since:
        rows = rows.filter(created__gte=since)
    if until:
        rows = rows.filter(created__lt=until)
    return (rows if every else rows.filter(cost_nanousd=None)).order_by("pk")


def reprice(
    rows: "QuerySet[Exchange]", *, dry_run: bool, batch: int = 500
) -> Iterator[list[Repriced]]:
    """Yields what changed, batch by batch. A price that vanished takes no cost away."""
    prices = PriceList.load()
    ids = list(rows.values_list("pk", flat=True))
    for at in range(0, len(ids), batch):
        yield _some(ids[at : at + batch], prices, dry_run=dry_run)


def _some(ids: list[str], prices: PriceList, *, dry_run: bool) -> list[Repriced]:
    changed: list[Repriced] = []

    def change(row: Exchange) -> Mapping[str, Any] | None:
        price = prices.at(row.upstream, row.model_upstream, row.created.date())
        cost = cost_of(usage_of(row), price)
        if cost is None:
            return None
        total = cost.total + lost_in(row.attempts)  # charged as each attempt was priced
        if total == row.cost_nanousd:
            return None
        changed.append(Repriced(row, row.cost_nanousd, total))
        return {"cost_nanousd": total, "price": price}

    if dry_run:
        for row in Exchange.objects.filter(pk__in=ids).order_by("pk"):
            change(row)
    else:
        amend(ids, change)
    return changed


def usage_of(row: Exchange) -> dict[str, Any]:
    """The row's tokens in the form that prices are applied to."""
    counts = {name: getattr(row, f"{name}_tokens") for name in TOKENS}
    return counts | {source: getattr(row, source) for source in TOKENS.values()}

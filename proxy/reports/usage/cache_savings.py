"""Savings by prompt caching: the cost of cached tokens compared with the price of input tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any, Final

from django.db.models import Q

from proxy.ledger.usage.pricing import NANOUSD_PER_TOKEN, PriceList
from proxy.money import usd
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.rendering import Row
from proxy.reports.core.time_ranges import DAY, TimeRange

from .rollup_queries import Counts, Key, known_token_counts, known_tokens, usage

CACHED: Final = ("cache_read", "cache_write_5m", "cache_write_1h")


@dataclass(slots=True)
class Saving:
    """The saving of one group. It can be negative, because cache writes cost more than input."""

    nanousd: Decimal = Decimal(0)
    priced: bool = False
    unpriced: bool = False

    def add(self, sums: Counts, price: Mapping[str, Any] | None) -> None:
        counts = {name: tokens for name in CACHED if (tokens := known_tokens(sums, name))}
        if not counts:
            return
        if price is None:
            self.unpriced = True
            return
        self.priced = True
        input_price = Decimal(price["input"])
        for name, tokens in counts.items():
            cache_price = input_price if price[name] is None else Decimal(price[name])
            self.nanousd += (input_price - cache_price) * NANOUSD_PER_TOKEN * tokens

    def columns(self) -> Row:
        is_unknown = self.unpriced and not self.priced
        return {
            "saved_usd": None if is_unknown else usd(round(self.nanousd)),
            "saved_is_partial": self.unpriced,
        }


def savings(
    reader: Reader, time_range: TimeRange, groups: Sequence[str], condition: Q
) -> dict[Key, Saving]:
    """Return the saving by prompt caching for each group of the report.

    The prices are those of the upstream, model and UTC day, as for the cost of a request.
    """
    days = _days(time_range)
    names = [*groups, "upstream", "model_upstream"]
    prices = PriceList.load()
    savings_by_group: dict[Key, Saving] = {}
    for (day, key), sums in usage(
        reader, days, names, condition, known_token_counts(CACHED)
    ).items():
        *group, upstream, model = key
        price = prices.at(upstream, model, days.edges[day].date())
        savings_by_group.setdefault(tuple(group), Saving()).add(sums, price)
    return savings_by_group


def _days(time_range: TimeRange) -> TimeRange:
    """Return the same time range, split into one bucket for each UTC day."""
    edges = [time_range.start]
    while edges[-1] < time_range.end:
        midnight = datetime.combine(edges[-1].date() + DAY, time(), tzinfo=UTC)
        edges.append(min(midnight, time_range.end))
    return TimeRange(edges, "1d", time_range.zone)

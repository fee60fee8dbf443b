"""What caches saved: what was read and written there, against the price of plain input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any, Final

from django.db.models import Q

from proxy.record.pricing import NANOUSD_PER_TOKEN, PriceList
from proxy.visibility import Reader

from .answers import Row
from .spans import DAY, Span
from .sums import Key, Sums, known, known_by, usage, usd

CACHED: Final = ("cache_read", "cache_write_5m", "cache_write_1h")


@dataclass(slots=True)
class Saving:
    """Of one group. Writing costs more than plain input, so it may be less than nothing."""

    nanousd: Decimal = Decimal(0)
    priced: bool = False
    unpriced: bool = False

    def add(self, sums: Sums, price: Mapping[str, Any] | None) -> None:
        counts = {name: tokens for name in CACHED if (tokens := known(sums, name))}
        if not counts:
            return
        if price is None:
            self.unpriced = True
            return
        self.priced = True
        plain = Decimal(price["input"])
        for name, tokens in counts.items():
            own = plain if price[name] is None else Decimal(price[name])
            self.nanousd += (plain - own) * NANOUSD_PER_TOKEN * tokens

    def columns(self) -> Row:
        nothing_known = self.unpriced and not self.priced
        return {
            "saved_usd": None if nothing_known else usd(round(self.nanousd)),
            "saved_is_partial": self.unpriced,
        }


def savings(reader: Reader, span: Span, groups: Sequence[str], condition: Q) -> dict[Key, Saving]:
    """By group. Prices are by upstream, model and UTC day, as when a request is priced."""
    days = _days(span)
    names = [*groups, "upstream", "model_upstream"]
    prices = PriceList.load()
    found: dict[Key, Saving] = {}
    for (day, key), sums in usage(reader, days, names, condition, known_by(CACHED)).items():
        *group, upstream, model = key
        price = prices.at(upstream, model, days.edges[day].date())
        found.setdefault(tuple(group), Saving()).add(sums, price)
    return found


def _days(span: Span) -> Span:
    """The same stretch, cut at each midnight of UTC."""
    edges = [span.start]
    while edges[-1] < span.end:
        midnight = datetime.combine(edges[-1].date() + DAY, time(), tzinfo=UTC)
        edges.append(min(midnight, span.end))
    return Span(edges, "1d", span.zone)

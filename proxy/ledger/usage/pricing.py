"""Compute the cost of a response in integer nano-dollars; an unknown cost is None.

Prices are US dollars per million tokens, so one token costs ``usd * 1000`` nano-dollars.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from proxy.models import Price

NANOUSD_PER_TOKEN: Final = 1000  # the cost of a token at a price of one dollar per million tokens

ZERO: Final = Decimal(0)
CLASSES: Final = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
NONE: Final = (False,) * len(CLASSES)
SOURCE_OF: Final[Mapping[str, str]] = {
    "input": "input",
    "output": "output",
    "cache_read": "cache_read",
    "cache_write_5m": "cache_write",
    "cache_write_1h": "cache_write",
    "reasoning": "reasoning",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost in nano-dollars: total, parts by token class, and the part from estimated tokens."""

    total: int
    parts: Mapping[str, int]
    estimated: int


def price_record(price: Price) -> dict[str, Any]:
    """Return the price as JSON, to be stored in ledger rows. Decimals are strings."""
    prices = {name: getattr(price, name) for name in CLASSES}
    return {
        "id": price.pk,
        "upstream": price.upstream.name if price.upstream else None,
        "model": price.model,
        "since": price.since.isoformat(),
        **{name: None if usd is None else format(usd, "f") for name, usd in prices.items()},
    }


def cost_of(usage: Mapping[str, Any], price: Mapping[str, Any] | None) -> Cost | None:
    """Return the cost of the tokens. ``usage`` and ``price`` are those of a CloseRecord.

    Cached tokens without a price of their own cost as much as input tokens. Returns None if there
    is no price, or if the input or output tokens are unknown.
    """
    if price is None or usage.get("input") is None or usage.get("output") is None:
        return None  # a sum without the input or output tokens would be too low
    others = price["input"]
    usd = [others if (own := price.get(name)) is None else own for name in CLASSES]
    counts = [usage.get(name) or 0 for name in CLASSES]
    estimated_classes = NONE
    if "estimated" in usage.values():
        estimated_classes = tuple([source_of(usage, name) == "estimated" for name in CLASSES])
    return _cost(tuple(counts), tuple(usd), estimated_classes)


@lru_cache(maxsize=1024)  # budgets, log, metrics and ledger each compute the same response's cost
def _cost(counts: Sequence[int], usd: Sequence[str], estimated_classes: Sequence[bool]) -> Cost:
    exact = [
        Decimal(n) * _per_token(each) if n else ZERO for n, each in zip(counts, usd, strict=True)
    ]
    estimated = sum(
        (n for n, is_estimated in zip(exact, estimated_classes, strict=True) if is_estimated), ZERO
    )
    # The parts are rounded half to even, like the total.
    parts = dict(zip(CLASSES, map(round, exact), strict=True))
    return Cost(round(sum(exact, ZERO)), parts, round(estimated))


@lru_cache(maxsize=1024)
def _per_token(usd: str) -> Decimal:
    return Decimal(usd) * NANOUSD_PER_TOKEN


def source_of(usage: Mapping[str, Any], name: str) -> str:
    """Return the source of one token class's count: ``reported``, ``estimated`` or ``missing``."""
    if usage.get(name) is None:
        return "missing"
    return str(usage.get(f"{SOURCE_OF[name]}_source") or usage.get("source") or "missing")


def charge_of(
    usage: Mapping[str, Any],
    price: Mapping[str, Any] | None,
    attempts: Iterable[Mapping[str, Any]] = (),
) -> int | None:
    """Return the cost of a request in nano-dollars: its response and its failed attempts.

    The upstream may have billed failed attempts. Returns None if no cost is known. ``usage``,
    ``price`` and ``attempts`` are those of a CloseRecord.
    """
    cost, failed = cost_of(usage, price), failed_attempts_cost(attempts)
    return (failed or None) if cost is None else cost.total + failed


def failed_attempts_cost(attempts: Iterable[Mapping[str, Any]]) -> int:
    """Return the sum of the attempts' costs in nano-dollars; only failed attempts have a cost."""
    return sum([attempt.get("cost_nanousd") or 0 for attempt in attempts])


def estimated_attempts_cost(attempts: Iterable[Mapping[str, Any]]) -> int:
    """Return the part of ``failed_attempts_cost`` that was computed from estimated tokens."""
    return failed_attempts_cost(
        [one for one in attempts if "estimated" in one.get("usage", {}).values()]
    )


class PriceList:
    """All prices, for lookup by upstream, model and day."""

    def __init__(self, prices: Iterable[Price]) -> None:
        self.dated: dict[tuple[str | None, str], list[tuple[date, dict[str, Any]]]] = {}
        for price in prices:
            name = price.upstream.name if price.upstream else None
            dated = self.dated.setdefault((name, price.model), [])
            dated.append((price.since, price_record(price)))
        for dated in self.dated.values():
            dated.sort(key=lambda entry: entry[0], reverse=True)

    @classmethod
    def load(cls) -> "PriceList":
        return cls(Price.objects.select_related("upstream"))

    def at(self, upstream: str, model: str, day: date) -> dict[str, Any] | None:
        """Return the model's price on ``day``; None without one.

        A price for this upstream wins over a price for all upstreams.
        """
        for name in (upstream, None):
            for since, figures in self.dated.get((name, model), ()):
                if since <= day:
                    return figures
        return None

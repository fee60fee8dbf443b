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
from proxy.models.setup.prices import DIMENSIONS

NANOUSD_PER_TOKEN: Final = 1000  # the cost of a token at a price of one dollar per million tokens

Variant = tuple[str, ...]
"""The service tier, speed and region of a price or of a usage; "" is the standard one."""
STANDARD: Final[Variant] = ("",) * len(DIMENSIONS)
STANDARD_NAMES: Final = frozenset({None, "standard", "global", "not_available"})
"""How upstreams call the standard tier, speed and region. ``not_available``: Anthropic's older
models have no regions."""

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
        **{name: value for name in DIMENSIONS if (value := getattr(price, name))},
        "since": price.since.isoformat(),
        **{name: None if usd is None else format(usd, "f") for name, usd in prices.items()},
    }


def variant_of(usage: Mapping[str, Any]) -> Variant:
    """Return the service tier, speed and region in which the tokens were used."""
    names = [usage.get(each) for each in DIMENSIONS]
    return tuple(["" if name in STANDARD_NAMES else str(name) for name in names])


def priced_model(usage: Mapping[str, Any], model: str) -> str:
    """Return the model whose price applies to all of the usage; "" if there are several.

    ``model``: the model that the gateway requested. If that declined the request, Anthropic may
    have let a fallback model answer, which has prices of its own.
    """
    iterations = usage.get("iterations") or ()
    models = {each["model"] for each in iterations if each.get("model")}
    if len(models) > 1:
        return ""
    is_fallback = any(each["type"] == "fallback_message" for each in iterations)
    return models.pop() if is_fallback and models else model


def name_of_usage(usage: Mapping[str, Any], model: str) -> str:
    """Return what needs a price: the model or models, and the dimensions that are not standard."""
    models = sorted({each.get("model") or model for each in usage.get("iterations") or ()})
    named = zip(DIMENSIONS, variant_of(usage), strict=True)
    dimensions = [f"{name}={value}" for name, value in named if value]
    return " ".join([priced_model(usage, model) or "+".join(models), *dimensions])


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


Dated = tuple[date, dict[str, Any]]
"""A price and its first day."""


class PriceList:
    """All prices, for lookup by upstream, model and day."""

    def __init__(self, prices: Iterable[Price]) -> None:
        self.dated: dict[tuple[str | None, str], dict[Variant, list[Dated]]] = {}
        self.upstreams_by_model: dict[str, set[str | None]] = {}
        for price in prices:
            name = price.upstream.name if price.upstream else None
            variant = tuple([getattr(price, each) for each in DIMENSIONS])
            dated = self.dated.setdefault((name, price.model), {}).setdefault(variant, [])
            dated.append((price.since, price_record(price)))
            self.upstreams_by_model.setdefault(price.model, set()).add(name)
        for variants in self.dated.values():
            for dated in variants.values():
                dated.sort(key=lambda entry: entry[0], reverse=True)

    @classmethod
    def load(cls) -> "PriceList":
        return cls(Price.objects.select_related("upstream"))

    def at(
        self, upstream: str, model: str, day: date, variant: Variant = STANDARD
    ) -> dict[str, Any] | None:
        """Return the model's price on ``day`` in this variant; None without one.

        A price for this upstream wins over a price for all upstreams. The price of another variant
        never applies, because it would be a guess.
        """
        for name in (upstream, None):
            for since, figures in self.dated.get((name, model), {}).get(variant, ()):
                if since <= day:
                    return figures
        return None

    def of_usage(
        self, upstream: str, model: str, day: date, usage: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the price of the tokens of a request to ``model``; None without one.

        ``usage`` is that of a CloseRecord.
        """
        return self.at(upstream, priced_model(usage, model), day, variant_of(usage))

    def possible(
        self, upstream: str, model: str, day: date, asked: Variant
    ) -> list[dict[str, Any] | None]:
        """Return the prices that may apply to a request for the variant; None: it has no price.

        A provider may choose another tier or region, but a speed only if the request asks for it.
        """
        speed = DIMENSIONS.index("speed")
        others = {
            variant
            for name in (upstream, None)
            for variant in self.dated.get((name, model), ())
            if variant[speed] == asked[speed]
        }
        found = [self.at(upstream, model, day, variant) for variant in others - {asked}]
        return [self.at(upstream, model, day, asked), *(one for one in found if one is not None)]

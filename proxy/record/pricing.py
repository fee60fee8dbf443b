"""What an answer costs: integer nano-dollars, or None where nobody knows.

A price is US dollars per million tokens, so one token costs ``usd * 1000`` nano-dollars.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from proxy.models import Price

NANOUSD_PER_TOKEN: Final = 1000  # for a price of one dollar per million

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
    """Nano-dollars: in all, by class of token, and the part that rests on estimated tokens."""

    total: int
    parts: Mapping[str, int]
    estimated: int


def snapshot(price: Price) -> dict[str, Any]:
    """The price as it is kept on the row that used it. Decimals are strings."""
    figures = {name: getattr(price, name) for name in CLASSES}
    return {
        "id": price.pk,
        "upstream": price.upstream.name if price.upstream else None,
        "model": price.model,
        "since": price.since.isoformat(),
        **{name: None if usd is None else format(usd, "f") for name, usd in figures.items()},
    }


def cost_of(usage: Mapping[str, Any], price: Mapping[str, Any] | None) -> Cost | None:
    """Price the tokens. ``usage`` and ``price`` as in a CloseRecord.

    A class of cached tokens without a price of its own is charged as plain input. None: there is
    no price, or the input or output tokens are unknown.
    """
    if price is None or usage.get("input") is None or usage.get("output") is None:
        return None  # without these there is no honest sum
    others = price["input"]
    usd = [others if (own := price.get(name)) is None else own for name in CLASSES]
    counts = [usage.get(name) or 0 for name in CLASSES]
    guessed = NONE
    if "estimated" in usage.values():
        guessed = tuple([source_of(usage, name) == "estimated" for name in CLASSES])
    return _cost(tuple(counts), tuple(usd), guessed)


@lru_cache(maxsize=1024)  # each answer is asked about four times: budget, log, metrics, ledger
def _cost(counts: Sequence[int], usd: Sequence[str], guessed: Sequence[bool]) -> Cost:
    exact = [
        Decimal(n) * _per_token(each) if n else ZERO for n, each in zip(counts, usd, strict=True)
    ]
    estimated = sum((n for n, is_one in zip(exact, guessed, strict=True) if is_one), ZERO)
    parts = dict(zip(CLASSES, map(round, exact), strict=True))  # half to even, as those below
    return Cost(round(sum(exact, ZERO)), parts, round(estimated))


@lru_cache(maxsize=1024)
def _per_token(usd: str) -> Decimal:
    return Decimal(usd) * NANOUSD_PER_TOKEN


def source_of(usage: Mapping[str, Any], name: str) -> str:
    """``reported``, ``estimated`` or ``missing`` for one class of tokens."""
    if usage.get(name) is None:
        return "missing"
    return str(usage.get(f"{SOURCE_OF[name]}_source") or usage.get("source") or "missing")


def charge_of(
    usage: Mapping[str, Any],
    price: Mapping[str, Any] | None,
    attempts: Iterable[Mapping[str, Any]] = (),
) -> int | None:
    """Nano-dollars of a request: its answer, and the attempts before it that may have been billed.

    None: neither has a known cost. ``usage``, ``price``, ``attempts`` as in a CloseRecord.
    """
    cost, lost = cost_of(usage, price), lost_in(attempts)
    return (lost or None) if cost is None else cost.total + lost


def lost_in(attempts: Iterable[Mapping[str, Any]]) -> int:
    """Nano-dollars charged for attempts that were sent and failed."""
    return sum([attempt.get("cost_nanousd") or 0 for attempt in attempts])


def estimated_in(attempts: Iterable[Mapping[str, Any]]) -> int:
    """The part of ``lost_in`` that rests on estimated tokens."""
    return lost_in([one for one in attempts if "estimated" in one.get("usage", {}).values()])


class PriceList:
    """All prices, looked up by upstream, model and day."""

    def __init__(self, prices: Iterable[Price]) -> None:
        self._dated: dict[tuple[str | None, str], list[tuple[date, dict[str, Any]]]] = {}
        for price in prices:
            name = price.upstream.name if price.upstream else None
            dated = self._dated.setdefault((name, price.model), [])
            dated.append((price.since, snapshot(price)))
        for dated in self._dated.values():
            dated.sort(key=lambda entry: entry[0], reverse=True)

    @classmethod
    def load(cls) -> "PriceList":
        return cls(Price.objects.select_related("upstream"))

    def at(self, upstream: str, model: str, day: date) -> dict[str, Any] | None:
        """The newest price in force that day; the upstream's own wins over the general one."""
        for name in (upstream, None):
            for since, figures in self._dated.get((name, model), ()):
                if since <= day:
                    return figures
        return None

"""A provider's usage or cost export (CSV), as the ledger counts: day, model, token class, money.

Columns are known by their names: those of Anthropic's console exports and Admin API and of OpenAI's
usage and costs. A column that is not there is not zero: it is not compared, and that is said.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

AMOUNT: Final = "amount"
CLASSES: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")
COMPARED: Final = (*CLASSES, AMOUNT)

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "day": ("usage_date_utc", "start_time_iso", "start_time", "starting_at", "date"),
    "model": ("model_version", "model", "line_item"),
    "input": ("usage_input_tokens_no_cache", "uncached_input_tokens", "input_uncached_tokens"),
    "whole_input": (
        "input_tokens",
    ),  # OpenAI's: what was read from and written to a cache is in it
    "cache_read": (
        "usage_input_tokens_cache_read",
        "cache_read_input_tokens",
        "input_cached_tokens",
    ),
    "cache_write_5m": (
        "usage_input_tokens_cache_write_5m",
        "ephemeral_5m_input_tokens",
        "input_cache_write_tokens",
    ),
    "cache_write_1h": ("usage_input_tokens_cache_write_1h", "ephemeral_1h_input_tokens"),
    "output": ("usage_output_tokens", "output_tokens"),
    AMOUNT: ("cost_usd", "amount_value", "amount_usd"),
}
"""What we call it: what they call it. The first name that the file has counts."""

CACHED: Final = ("cache_read", "cache_write_5m", "cache_write_1h")
WITHIN: Final = frozenset({"input_cached_tokens", "input_cache_write_tokens"})
"""OpenAI's names: what they count is part of its ``input_tokens``. Beside Anthropic's names for the
same, ``input_tokens`` is what came from no cache."""

Place = tuple[date, str]  # UTC day, model
Figures = dict[str, Decimal]


class BadExport(Exception):
    """The file cannot be read as an export; the message says why."""


@dataclass(slots=True)
class Invoice:
    """What one or more exports say."""

    figures: dict[Place, Figures] = field(default_factory=lambda: defaultdict(dict))
    told: set[str] = field(default_factory=set)  # of COMPARED: what some file has a column for

    def read(self, lines: Iterable[str], names: Mapping[str, str], origin: str) -> None:
        """Add a file. ``names``: models that the provider calls otherwise. Raises BadExport."""
        rows = csv.DictReader(lines)
        columns = _columns_of([name.strip().lower() for name in rows.fieldnames or ()], origin)
        rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
        self.told |= {"input" if name == "whole_input" else name for name in columns} & {*COMPARED}
        for row in rows:
            where = f"{origin}, line {rows.line_num}"
            day = _day(row[columns["day"]] or "", where)
            model = (row[columns["model"]] or "").partition(",")[0].strip()
            sums = self.figures[day, names.get(model, model)]
            for name, figure in _figures(row, columns, where).items():
                sums[name] = sums.get(name, Decimal(0)) + figure


def _columns_of(header: list[str], origin: str) -> dict[str, str]:
    found = {
        ours: next(name for name in theirs if name in header)
        for ours, theirs in COLUMNS.items()
        if any(name in header for name in theirs)
    }
    whole = found.pop("whole_input", None)
    beside = {found[name] for name in CACHED if name in found}
    if whole and "input" not in found and beside:  # without them nobody knows what it holds
        found["whole_input" if beside <= WITHIN else "input"] = whole
    if lacking := [name for name in ("day", "model") if name not in found]:
        known = ", ".join(COLUMNS[lacking[0]])
        raise BadExport(f"{origin} has no column for the {lacking[0]}; known: {known}")
    if not set(found) & {*COMPARED, "whole_input"}:
        raise BadExport(f"{origin} has no column of tokens or money that is known here")
    return found


def _figures(row: Mapping[str, str], columns: Mapping[str, str], where: str) -> Figures:
    figures = {
        ours: _number(row[theirs] or "", theirs, where)
        for ours, theirs in columns.items()
        if ours not in {"day", "model"}
    }
    if "whole_input" in figures:
        cached = (figures.get(name, Decimal(0)) for name in CACHED)
        figures["input"] = figures.pop("whole_input") - sum(cached)
    return figures


def _number(text: str, column: str, where: str) -> Decimal:
    plain = text.strip().replace(",", "").removeprefix("$")
    try:
        number = Decimal(plain or 0)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise BadExport(f"{where}: {column} is {text[:40]!r}, not a number")
    return number


def _day(text: str, where: str) -> date:
    """A date, a moment with its zone, or Unix seconds."""
    plain = text.strip()
    try:
        if plain.isdigit():
            return datetime.fromtimestamp(int(plain), UTC).date()
        at = datetime.fromisoformat(plain)
        return at.astimezone(UTC).date() if at.tzinfo else at.date()
    except (ValueError, OverflowError, OSError):
        raise BadExport(f"{where}: {plain[:40]!r} is no day") from None

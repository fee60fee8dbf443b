"""Parse a provider's usage or cost export (CSV) into sums by day, model and token class.

The known column names are those of Anthropic's console exports and Admin API, and of OpenAI's usage
and cost exports. A figure whose column is missing does not count as zero: it is not compared, and
the output of the comparison lists it.
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
    "total_input": ("input_tokens",),  # OpenAI: all input, including cached tokens
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
"""Name of the figure -> column names of providers; the first one in the file's header is used."""

CACHED: Final = ("cache_read", "cache_write_5m", "cache_write_1h")
INCLUDED: Final = frozenset({"input_cached_tokens", "input_cache_write_tokens"})
"""OpenAI's columns for cached tokens, which its ``input_tokens`` includes. In an export with
Anthropic's columns for cached tokens, ``input_tokens`` does not include the cached tokens."""

Place = tuple[date, str]  # (UTC day, model)
Figures = dict[str, Decimal]


class BadExport(Exception):
    """The file cannot be parsed as a provider's export; the message has the reason."""


@dataclass(slots=True)
class Invoice:
    """The figures of one or more export files of a provider."""

    figures: dict[Place, Figures] = field(default_factory=lambda: defaultdict(dict))
    # Names in COMPARED for which a file has a column.
    reported: set[str] = field(default_factory=set)

    def read(self, lines: Iterable[str], names: Mapping[str, str], origin: str) -> None:
        """Add the figures of a file named ``origin``. Raises BadExport.

        ``names`` maps model names in the file to model names in the ledger.
        """
        rows = csv.DictReader(lines)
        columns = _columns_of([name.strip().lower() for name in rows.fieldnames or ()], origin)
        rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
        self.reported |= {"input" if name == "total_input" else name for name in columns} & {
            *COMPARED
        }
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
    total = found.pop("total_input", None)
    beside = {found[name] for name in CACHED if name in found}
    # Without a column for cached tokens, the total may include them or not.
    if total and "input" not in found and beside:
        found["total_input" if beside <= INCLUDED else "input"] = total
    if missing := [name for name in ("day", "model") if name not in found]:
        known = ", ".join(COLUMNS[missing[0]])
        raise BadExport(f"{origin} has no column for the {missing[0]}; known: {known}")
    if not set(found) & {*COMPARED, "total_input"}:
        raise BadExport(f"{origin} has no column of tokens or money that is known here")
    return found


def _figures(row: Mapping[str, str], columns: Mapping[str, str], where: str) -> Figures:
    figures = {
        ours: _number(row[theirs] or "", theirs, where)
        for ours, theirs in columns.items()
        if ours not in {"day", "model"}
    }
    if "total_input" in figures:
        cached = (figures.get(name, Decimal(0)) for name in CACHED)
        figures["input"] = figures.pop("total_input") - sum(cached)
    return figures


def _number(text: str, column: str, where: str) -> Decimal:
    stripped = text.strip().replace(",", "").removeprefix("$")
    try:
        number = Decimal(stripped or 0)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise BadExport(f"{where}: {column} is {text[:40]!r}, not a number")
    return number


def _day(text: str, where: str) -> date:
    """Return the UTC day of a date, an ISO 8601 time, or Unix seconds. Raises BadExport."""
    stripped = text.strip()
    try:
        if stripped.isdigit():
            return datetime.fromtimestamp(int(stripped), UTC).date()
        at = datetime.fromisoformat(stripped)
        return at.astimezone(UTC).date() if at.tzinfo else at.date()
    except (ValueError, OverflowError, OSError):
        raise BadExport(f"{where}: {stripped[:40]!r} is no day") from None

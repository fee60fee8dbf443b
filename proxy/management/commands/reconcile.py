"""Compare the ledger with a provider's usage or cost export: amount and each token class.

The known columns of the CSV files are those of Anthropic's console exports and Admin API, and of
OpenAI's usage and cost exports. A figure whose column is missing does not count as zero: it is not
compared, and the output of the comparison lists it.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandParser
from django.db.models import Q
from rich.table import Table

from proxy.decode_errors import did_you_mean
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import format_count, render_table
from proxy.models import Upstream, UsageByModelDay
from proxy.money import NANO
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.time_ranges import TimeRange, load_zone, midnight
from proxy.reports.usage.rollup_queries import Counts, usage
from proxy.secrets import ConfigError

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


@dataclass(slots=True)
class Invoice:
    """The figures of one or more export files of a provider."""

    figures: dict[Place, Figures] = field(default_factory=lambda: defaultdict(dict))
    # Names in COMPARED for which a file has a column.
    reported: set[str] = field(default_factory=set)

    def read(self, lines: Iterable[str], names: Mapping[str, str], origin: str) -> None:
        """Add the figures of a file named ``origin``. Raises ConfigError.

        ``names`` maps model names in the file to model names in the ledger.
        """
        rows = csv.DictReader(lines)
        rows.fieldnames = header = [name.strip().lower() for name in rows.fieldnames or ()]
        columns = _columns_of(header, origin)
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
        raise ConfigError(f"{origin} has no column for the {missing[0]}; known: {known}")
    if not set(found) & {*COMPARED, "total_input"}:
        raise ConfigError(f"{origin} has no column of tokens or money that is known here")
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
        raise ConfigError(f"{where}: {column} is {text[:40]!r}, not a number")
    return number


def _day(text: str, where: str) -> date:
    """Return the UTC day of a date, an ISO 8601 time, or Unix seconds. Raises ConfigError."""
    stripped = text.strip()
    try:
        if stripped.isdigit():
            return datetime.fromtimestamp(int(stripped), UTC).date()
        at = datetime.fromisoformat(stripped)
        return at.astimezone(UTC).date() if at.tzinfo else at.date()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"{where}: {stripped[:40]!r} is no day") from None


CENT: Final = Decimal("0.01")  # tolerance: providers round the amount of each line of an export
MAX_DAYS: Final = 400

Line = tuple[str, str]  # (ISO day, or "" for all days; model)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure to compare: the provider's value and the ledger's value."""

    line: Line
    what: str
    theirs: Decimal
    ours: Decimal | None  # None if unknown, such as a cost without a price

    def is_within(self, percent: Decimal) -> bool:
        if self.ours is None:
            return self.theirs == 0
        off = abs(self.ours - self.theirs)
        slack = CENT if self.what == AMOUNT else Decimal(0)
        return off <= max(slack, abs(self.theirs) * percent / 100)


class Command(BridgeCommand):
    help = "Compare the ledger with a provider's usage or cost export; exit 1 if they differ."
    example = "manage.py reconcile --upstream openai usage.csv costs.csv"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "files", nargs="+", type=Path, help="CSV files of usage, of costs, or of both"
        )
        parser.add_argument(
            "--upstream",
            action="append",
            required=True,
            help="the upstream of the provider; may be repeated",
        )
        parser.add_argument(
            "--model", action="append", default=[], metavar="THEIRS=OURS",
            help="the provider's name of a model and that of the ledger; may be repeated",
        )  # fmt: skip
        parser.add_argument("--by-day", action="store_true", help="compare each UTC day separately")
        parser.add_argument(
            "--tolerance",
            type=Decimal,
            default=Decimal("0.1"),
            help="percentage that is no difference (default: 0.1)",
        )
        parser.add_argument("--all", action="store_true", help="also show equal figures")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        invoice = _read(options["files"], dict(_renamed(options["model"])))
        days = [day for day, _ in invoice.figures]
        if not days:
            raise ConfigError("the export has no rows")
        since, until = min(days), max(days) + timedelta(days=1)
        if (until - since).days > MAX_DAYS:
            raise ConfigError(f"the export covers more than {MAX_DAYS} days")
        _check_known(options["upstream"])
        ours = _ours(since, until, options["upstream"])
        found = list(_compared(invoice, ours, by_day=options["by_day"]))
        wrong = [one for one in found if not one.is_within(options["tolerance"])]
        compared = [name for name in COMPARED if name in invoice.reported]
        report = {
            "since": since.isoformat(),
            "until": until.isoformat(),
            "upstreams": options["upstream"],
            "compared": compared,
            "not_compared": [name for name in COMPARED if name not in invoice.reported],
            "differences": [_row(one) for one in wrong],
            "agree": len(found) - len(wrong),
            "notes": _notes(ours),
        }
        if options["json"]:
            self.write_json(report)
        else:
            self._show(report, found if options["all"] else wrong)
        if wrong:
            raise SystemExit(FINDING)

    def _show(self, report: Mapping[str, Any], lines: list[Difference]) -> None:
        table = Table("day", "model", "what", "provider", "ledger", "difference")
        for one in lines:
            row = _row(one)
            table.add_row(*(row[name] or "unknown" for name in row))
        if lines:
            self.stdout.write(render_table(table))
        upstreams = ", ".join(report["upstreams"])
        self.stdout.write(f"{report['since']} until {report['until']} (UTC), {upstreams}")
        self.stdout.write(f"compared separately: {', '.join(report['compared'])}")
        if report["not_compared"]:
            self.stdout.write(
                f"NOT compared, missing in the export: {', '.join(report['not_compared'])}"
            )
        for note in report["notes"]:
            self.stdout.write(note)
        differ = format_count(len(report["differences"]), "figure")
        self.stdout.write(f"{differ} differ, {report['agree']:,} agree")


def _renamed(pairs: list[str]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        theirs, sign, ours = pair.partition("=")
        if not sign:
            raise ConfigError(f"--model {pair!r}: write THEIRS=OURS")
        yield theirs, ours


def _check_known(upstreams: list[str]) -> None:
    """Raise CommandError for an unknown upstream, for which the ledger has no requests."""
    known = {*Upstream.objects.values_list("name", flat=True)}
    for name in upstreams:
        if name not in known and not UsageByModelDay.objects.filter(upstream=name).exists():
            hint = did_you_mean(name, known)
            raise ConfigError(f"--upstream: no upstream {name!r}{hint}")


def _read(files: list[Path], names: Mapping[str, str]) -> Invoice:
    invoice = Invoice()
    for path in files:
        try:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                invoice.read(lines, names, path.name)
        except OSError as exc:
            raise ConfigError(f"{path}: {exc.strerror}") from None
        except (csv.Error, UnicodeDecodeError) as exc:
            raise ConfigError(f"{path.name}: {exc}") from None
    return invoice


def _ours(since: date, until: date, upstreams: list[str]) -> dict[tuple[date, str], Counts]:
    """Return the ledger's counts by (UTC day, upstream model)."""
    utc = load_zone("UTC")
    days = [since + timedelta(days=n) for n in range((until - since).days + 1)]
    time_range = TimeRange([midnight(day, utc) for day in days], "1d", utc)
    table = usage(
        Reader(everything=True), time_range, ["model_upstream"], Q(upstream__in=upstreams)
    )
    return {(days[bucket], str(model)): sums for (bucket, (model,)), sums in table.items()}


def _ledger_figures(sums: Counts) -> dict[str, Decimal | None]:
    tokens = {
        name: Decimal(sums[f"{name}_reported"] + sums[f"{name}_estimated"]) for name in CLASSES
    }
    is_unknown = sums["unpriced"] and not sums["cost_nanousd"]
    cost = None if is_unknown else Decimal(sums["cost_nanousd"]) / NANO
    return {**tokens, AMOUNT: cost}


def _compared(
    invoice: Invoice, ours: Mapping[tuple[date, str], Counts], *, by_day: bool
) -> Iterator[Difference]:
    """Yield the provider's and the ledger's figures for each model, summed over all days.

    With ``by_day``, the figures are by day. That can show false differences, because the provider
    may count a request around midnight on another day.
    """
    theirs: dict[Line, Figures] = defaultdict(dict)
    for (day, model), figures in invoice.figures.items():
        sums = theirs[day.isoformat() if by_day else "", model]
        for name, figure in figures.items():
            sums[name] = sums.get(name, Decimal(0)) + figure
    known: dict[Line, Counts] = defaultdict(Counts)
    for (day, model), each in ours.items():
        known[day.isoformat() if by_day else "", model].add(each.counts)
    for line in sorted({*theirs, *known}):
        provider, ledger = theirs.get(line, {}), _ledger_figures(known.get(line, Counts()))
        for name in COMPARED:
            if name in invoice.reported:
                yield Difference(line, name, provider.get(name, Decimal(0)), ledger[name])


def _row(one: Difference) -> dict[str, str | None]:
    off = None if one.ours is None else one.ours - one.theirs
    percent = f" ({100 * off / one.theirs:+.2f} %)" if off is not None and one.theirs else ""
    return {
        "day": one.line[0] or "all",
        "model": one.line[1],
        "what": one.what,
        "provider": _format_number(one.theirs),
        "ledger": None if one.ours is None else _format_number(one.ours),
        "difference": None
        if off is None
        else f"{'+' if off > 0 else ''}{_format_number(off)}{percent}",
    }


def _format_number(number: Decimal) -> str:
    text = f"{number:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _notes(ours: Mapping[Any, Counts]) -> list[str]:
    """Return texts about estimated and unknown figures of the ledger, for the command's output."""
    total = Counts()
    for each in ours.values():
        total.add(each.counts)
    estimated = sum(total[f"{name}_estimated"] for name in CLASSES)
    notes = {
        "the ledger has {} that the gateway estimated": (estimated, "token"),
        "the ledger has {} without output tokens": (total["output_missing"], "request"),
        "the ledger has {} without a price": (total["unpriced"], "request"),
    }
    return [text.format(format_count(*figure)) for text, figure in notes.items() if figure[0]]

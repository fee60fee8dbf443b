"""Compare the ledger with what a provider exports: money, and each class of tokens by itself."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
from django.core.management.base import CommandError, CommandParser
from django.db.models import Q
from rich.table import Table

from proxy.complaints import did_you_mean
from proxy.management.base import FINDING, MISUSE, BridgeCommand
from proxy.management.invoices import AMOUNT, CLASSES, COMPARED, BadExport, Figures, Invoice
from proxy.management.terminal import counted, rendered
from proxy.models import DayWhat, Upstream
from proxy.reports.spans import Span, midnight, zone_named
from proxy.reports.sums import Sums, usage
from proxy.visibility import Reader

CENT: Final = Decimal("0.01")  # providers round each line of an export
NANO: Final = Decimal(10) ** 9
MOST_DAYS: Final = 400

Line = tuple[str, str]  # day or "", model


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of both sides."""

    line: Line
    what: str
    theirs: Decimal
    ours: Decimal | None  # None: nobody knows, such as a cost without a price

    def is_within(self, percent: Decimal) -> bool:
        if self.ours is None:
            return self.theirs == 0
        off = abs(self.ours - self.theirs)
        slack = CENT if self.what == AMOUNT else Decimal(0)
        return off <= max(slack, abs(self.theirs) * percent / 100)


class Command(BridgeCommand):
    help = "Compare the ledger with a provider's usage or cost export; exit 1 where they differ."
    example = "manage.py reconcile --upstream openai usage.csv costs.csv"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", type=Path, help="CSV of usage, of costs, or both")
        parser.add_argument(
            "--upstream", action="append", required=True, help="ours; may be repeated"
        )
        parser.add_argument(
            "--model", action="append", default=[], metavar="THEIRS=OURS",
            help="a model that the provider calls otherwise; may be repeated",
        )  # fmt: skip
        parser.add_argument("--by-day", action="store_true", help="each UTC day by itself")
        parser.add_argument(
            "--tolerance", type=Decimal, default=Decimal("0.1"), help="in per cent (0.1)"
        )
        parser.add_argument("--all", action="store_true", help="show what agrees, too")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        invoice = _read(options["files"], dict(_renamed(options["model"])))
        days = [day for day, _ in invoice.figures]
        if not days:
            raise CommandError("the export has no line", returncode=MISUSE)
        since, until = min(days), max(days) + timedelta(days=1)
        if (until - since).days > MOST_DAYS:
            raise CommandError(f"it is of more than {MOST_DAYS} days", returncode=MISUSE)
        _check_known(options["upstream"])
        ours = _ours(since, until, options["upstream"])
        found = list(_compared(invoice, ours, by_day=options["by_day"]))
        wrong = [one for one in found if not one.is_within(options["tolerance"])]
        compared = [name for name in COMPARED if name in invoice.told]
        told = {
            "since": since.isoformat(),
            "until": until.isoformat(),
            "upstreams": options["upstream"],
            "compared": compared,
            "not_compared": [name for name in COMPARED if name not in invoice.told],
            "differences": [_row(one) for one in wrong],
            "agree": len(found) - len(wrong),
            "notes": _notes(ours),
        }
        if options["json"]:
            self.stdout.write(msgspec.json.encode(told).decode())
        else:
            self._show(told, found if options["all"] else wrong)
        if wrong:
            raise SystemExit(FINDING)

    def _show(self, told: Mapping[str, Any], lines: list[Difference]) -> None:
        table = Table("day", "model", "what", "provider", "ledger", "difference")
        for one in lines:
            row = _row(one)
            table.add_row(*(row[name] or "unknown" for name in row))
        if lines:
            self.stdout.write(rendered(table))
        upstreams = ", ".join(told["upstreams"])
        self.stdout.write(f"{told['since']} until {told['until']} (UTC), {upstreams}")
        self.stdout.write(f"compared, each by itself: {', '.join(told['compared'])}")
        if told["not_compared"]:
            self.stdout.write(
                f"NOT compared, the export does not tell it: {', '.join(told['not_compared'])}"
            )
        for note in told["notes"]:
            self.stdout.write(note)
        differ = counted(len(told["differences"]), "figure")
        self.stdout.write(f"{differ} differ, {told['agree']:,} agree")


def _renamed(pairs: list[str]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        theirs, sign, ours = pair.partition("=")
        if not sign:
            raise CommandError(f"--model {pair!r}: write THEIRS=OURS", returncode=MISUSE)
        yield theirs, ours


def _check_known(upstreams: list[str]) -> None:
    """One that is misspelt would have an empty ledger, and all of the invoice would differ."""
    known = {*Upstream.objects.values_list("name", flat=True)}
    for name in upstreams:
        if name not in known and not DayWhat.objects.filter(upstream=name).exists():
            hint = did_you_mean(name, known)
            raise CommandError(f"--upstream {name!r} is none of ours{hint}", returncode=MISUSE)


def _read(files: list[Path], names: Mapping[str, str]) -> Invoice:
    invoice = Invoice()
    for path in files:
        try:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                invoice.read(lines, names, path.name)
        except (BadExport, OSError, UnicodeDecodeError) as exc:
            raise CommandError(str(exc), returncode=MISUSE) from None
    return invoice


def _ours(since: date, until: date, upstreams: list[str]) -> dict[tuple[date, str], Sums]:
    """By UTC day and the model that the upstream was asked for."""
    utc = zone_named("UTC")
    days = [since + timedelta(days=n) for n in range((until - since).days + 1)]
    span = Span([midnight(day, utc) for day in days], "1d", utc)
    table = usage(Reader(everything=True), span, ["model_upstream"], Q(upstream__in=upstreams))
    return {(days[bucket], str(model)): sums for (bucket, (model,)), sums in table.items()}


def _figures(sums: Sums) -> dict[str, Decimal | None]:
    tokens = {
        name: Decimal(sums[f"{name}_reported"] + sums[f"{name}_estimated"]) for name in CLASSES
    }
    nobody_knows = sums["unpriced"] and not sums["cost_nanousd"]
    cost = None if nobody_knows else Decimal(sums["cost_nanousd"]) / NANO
    return {**tokens, AMOUNT: cost}


def _compared(
    invoice: Invoice, ours: Mapping[tuple[date, str], Sums], *, by_day: bool
) -> Iterator[Difference]:
    """Without ``by_day`` over the whole time: around midnight both may mean another day."""
    theirs: dict[Line, Figures] = defaultdict(dict)
    for (day, model), figures in invoice.figures.items():
        sums = theirs[day.isoformat() if by_day else "", model]
        for name, figure in figures.items():
            sums[name] = sums.get(name, Decimal(0)) + figure
    known: dict[Line, Sums] = defaultdict(Sums)
    for (day, model), each in ours.items():
        known[day.isoformat() if by_day else "", model].add(each.counts)
    for line in sorted({*theirs, *known}):
        told, figured = theirs.get(line, {}), _figures(known.get(line, Sums()))
        for name in COMPARED:
            if name in invoice.told:
                yield Difference(line, name, told.get(name, Decimal(0)), figured[name])


def _row(one: Difference) -> dict[str, str | None]:
    off = None if one.ours is None else one.ours - one.theirs
    percent = f" ({100 * off / one.theirs:+.2f} %)" if off is not None and one.theirs else ""
    return {
        "day": one.line[0] or "all",
        "model": one.line[1],
        "what": one.what,
        "provider": _plain(one.theirs),
        "ledger": None if one.ours is None else _plain(one.ours),
        "difference": None if off is None else f"{'+' if off > 0 else ''}{_plain(off)}{percent}",
    }


def _plain(number: Decimal) -> str:
    text = f"{number:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _notes(ours: Mapping[Any, Sums]) -> list[str]:
    """What of the ledger's own side is no fact."""
    whole = Sums()
    for each in ours.values():
        whole.add(each.counts)
    estimated = sum(whole[f"{name}_estimated"] for name in CLASSES)
    notes = {
        "the ledger has {} that no upstream reported, but we estimated": (estimated, "token"),
        "the ledger has {} without a count of their output": (whole["output_missing"], "request"),
        "the ledger has {} without a price": (whole["unpriced"], "request"),
    }
    return [words.format(counted(*figure)) for words, figure in notes.items() if figure[0]]

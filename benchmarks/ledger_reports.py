"""A 30-day usage report from the rollups, against the scan of the requests, in the same run.

    python benchmarks/ledger_reports.py --rows 1000000
    python benchmarks/ledger_reports.py --rows 10000000 --postgresql   # a private server

Ninety days, all alike: one is made by the ledger's own hand, the others are its copies, so that
ten million rows take minutes. That the sums agree is checked here and proved in the tests.

Scan and report take turns, so that other work on the machine meets both. What it takes from them
is seen in the second line of each: the processor time of this process and of the database's that
answers it. PostgreSQL's helpers of a parallel scan are not counted: the ratio is a floor.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import ledger_world
from rich.console import Console
from rich.progress import track
from rich.table import Table

Lines = dict[tuple[Any, ...], tuple[int, ...]]  # what a line is by -> SHOWN
DAYS = 90
END = datetime(2026, 11, 1, tzinfo=UTC)
BATCH = 20_000
ROUNDS = 7  # a scan and some reports each
REPORTS_A_ROUND = 5  # a report is short: its median takes more of them
SHOWN = ("requests", "input_reported", "output_reported", "cost_nanousd")
SUMMED = ("input_tokens", "output_tokens", "cost_nanousd")
REPORTS = (  # what the lines are by, and the width of their buckets
    ("model and team", ("model", "team"), "all"),
    ("day and model (the default)", ("model",), "1d"),
    ("model", ("model",), "all"),
    ("model, team and key", ("model", "team", "key_id"), "all"),
)
MODELS = [f"claude-model-{n}" for n in range(8)]
ROOMY = ("shared_buffers=1GB", "max_wal_size=16GB", "synchronous_commit=off")
TEAMS = [f"team-{n}" for n in range(20)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--postgresql", action="store_true", help="start a server for this run")
    options = parser.parse_args()
    url = ledger_world.private_postgres(*ROOMY) if options.postgresql else options.database_url
    ledger_world.set_up(url)
    began = time.perf_counter()
    fill(options.rows)
    print(f"{options.rows:,} rows and their rollups made in {ledger_world.seconds(began)}")
    server = ledger_world.server_process() if options.postgresql else None
    table = Table("30 days by", "", "scan, ms", "report, ms", "times faster", "lines", "requests")
    for name, groups, bucket in REPORTS:
        scans, reports, lines = in_turns(
            lambda g=groups, b=bucket: scan(g, b), lambda g=groups, b=bucket: report(g, b), server
        )
        requests = sum(figures[0] for figures in lines.values())
        table.add_row(name, *compared(scans, reports, "wall_ms"), str(len(lines)), f"{requests:,}")
        table.add_row("", *compared(scans, reports, "cpu_ms"), "", "")
    Console(width=100).print(table)


def fill(rows: int, **fields: Callable[[int, Any], Any]) -> None:
    """One day by the ledger's own hand, the other days as its copies inside the database.

    ``fields``: more columns of Exchange, each from the number of the row and the row.
    """
    from proxy.models import Exchange
    from proxy.record import rollups

    chance = random.Random(5)
    in_a_day = rows // DAYS
    for at in range(0, in_a_day, BATCH):
        batch = [row(chance, n, in_a_day) for n in range(at, min(at + BATCH, in_a_day))]
        for number, one in enumerate(batch, at):
            for name, make in fields.items():
                setattr(one, name, make(number, one))
        Exchange.objects.bulk_create(batch, batch_size=500)
        rollups.add(batch)
    for day in track(range(1, DAYS), "days", transient=True):
        for table in (Exchange, *rollups.TABLES):
            copy_first_day(table, day)
    with connection().cursor() as cursor:
        cursor.execute("ANALYZE")
        if connection().vendor == "sqlite":  # as the drainer leaves it: no long log to read through
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def copy_first_day(table: Any, day: int) -> None:
    """Insert the first day's lines of a table again, so many days later, under other ids."""
    sqlite = connection().vendor == "sqlite"
    columns, values = [], []
    meta = table._meta  # noqa: SLF001 -- Django's documented model API
    for field in meta.concrete_fields:
        name = f'"{field.column}"'
        columns.append(name)
        if field.primary_key:
            text = f"'d{day:03d}' || substr({name}, 5)"
            blob = "randomblob(16)" if sqlite else f"decode(md5('{day}' || {name}::text), 'hex')"
            values.append(blob if field.get_internal_type() == "BinaryField" else text)
        elif field.get_internal_type() == "DateTimeField":
            shifted = f"strftime('%Y-%m-%d %H:%M:%f', {name}, '+{day} days')"
            values.append(shifted if sqlite else f"{name} + interval '{day} days'")
        else:
            values.append(name)
    when = "created" if "created" in {f.name for f in meta.concrete_fields} else "start"
    first = END - timedelta(days=DAYS)
    with connection().cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {meta.db_table} ({', '.join(columns)}) "
            f"SELECT {', '.join(values)} FROM {meta.db_table} "
            f'WHERE "{when}" < %s',
            [first + timedelta(days=1)],
        )


def connection() -> Any:
    from django.db import connection

    return connection


def row(chance: random.Random, number: int, rows: int) -> Any:
    from proxy.models import Exchange

    created = END - timedelta(days=DAYS) + timedelta(seconds=86_400 * number // rows)
    team = chance.randrange(20)
    fresh, out = chance.randrange(5000), chance.randrange(800)
    return Exchange(
        id=f"req_{number:026d}", state="closed", outcome="completed", status=200,
        created=created, finished=created + timedelta(seconds=3), team=TEAMS[team],
        key_id=team * 5 + chance.randrange(5), key_name="key", upstream="openai",
        model_requested=chance.choice(MODELS), model_upstream="gpt-5.2",
        input_tokens=fresh, input_source="reported",
        output_tokens=out, output_source="reported",
        cost_nanousd=fresh * 1250 + out * 10_000, stop_reason="end_turn",
    )  # fmt: skip


def scan(groups: tuple[str, ...] = ("model", "team"), bucket: str = "all") -> Lines:
    """What the report says, out of the requests themselves."""
    from django.db.models import Count, F, Sum
    from django.db.models.functions import TruncDay

    from proxy.models import Exchange
    from proxy.reports.sums import DIMENSIONS

    rows = Exchange.objects.order_by().filter(
        state="closed", created__gte=END - timedelta(days=30), created__lt=END
    )
    by = {name: F(DIMENSIONS[name]) for name in groups}
    if bucket == "1d":
        by = {"day": TruncDay("created", tzinfo=UTC)} | by
    by = {f"by_{name}": value for name, value in by.items()}
    sums = {f"sum_{name}": Sum(name) for name in SUMMED}
    grouped = rows.annotate(**by).values(*by).annotate(requests=Count("pk"), **sums)
    lines = grouped.values_list(*by, "requests", *sums)
    return {line[: len(by)]: line[len(by) :] for line in lines}


def report(groups: tuple[str, ...], bucket: str) -> Lines:
    """As the reports read it."""
    from proxy.reports.spans import span_of
    from proxy.reports.sums import usage
    from proxy.visibility import Reader

    span = span_of(END - timedelta(days=30), END, bucket, ZoneInfo("UTC"))
    found = usage(Reader(everything=True), span, groups, counts=SHOWN)
    return {
        (*([span.edges[at]] if bucket == "1d" else []), *key): tuple(sums[n] for n in SHOWN)
        for (at, key), sums in found.items()
    }


class Took(NamedTuple):
    wall_ms: float
    cpu_ms: float


def in_turns(
    scan: Callable[[], Lines], report: Callable[[], Lines], server: int | None
) -> tuple[list[Took], list[Took], Lines]:
    """What scans and reports took, warm, and what both said."""
    lines = scan()
    assert report() == lines, "the rollups do not agree with the rows"
    scans, reports = [], []
    for _ in range(ROUNDS):
        scans.append(once(scan, server))
        reports += [once(report, server) for _ in range(REPORTS_A_ROUND)]
    return scans, reports, lines


def compared(scans: list[Took], reports: list[Took], what: str) -> tuple[str, ...]:
    """The name, both medians and their ratio."""
    one, other = (statistics.median(getattr(t, what) for t in took) for took in (scans, reports))
    name = {"wall_ms": "median", "cpu_ms": "processor"}[what]
    return name, f"{one:.0f}", f"{other:.1f}", f"{one / other:.0f}"


def once(query: Callable[[], Lines], server: int | None = None) -> Took:
    """``server``: the process of the database that answers, whose processor time counts too."""
    worked, began = ledger_world.cpu_ms(server), time.perf_counter()
    query()
    took = (time.perf_counter() - began) * 1000
    return Took(took, ledger_world.cpu_ms(server) - worked)


def timed(query: Callable[[], Lines]) -> tuple[float, Lines]:
    """Milliseconds: the median of five, warm."""
    lines = query()
    return statistics.median(once(query).wall_ms for _ in range(5)), lines


if __name__ == "__main__":
    main()

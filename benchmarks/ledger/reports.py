"""Compare a 30-day usage report from the rollups with a scan of the requests, in the same run.

    python -m benchmarks.ledger.reports --rows 1000000
    python -m benchmarks.ledger.reports --rows 10000000 --postgresql   # a private server

There are ninety equal days: the ledger writes the first one, the others are copies of it, so that
ten million rows take minutes. The benchmark checks that the sums agree.

Scan and report alternate, so that other load affects both. The second line of each shows the CPU
time of this process and of its database process. The workers of a parallel scan in PostgreSQL are
not counted, so the ratio is a lower limit.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.ledger import world

Lines = dict[tuple[Any, ...], tuple[int, ...]]  # dimensions of a line
DAYS = 90
END = datetime(2026, 11, 1, tzinfo=UTC)
BATCH = 20_000
ROUNDS = 7  # a scan and some reports each
REPORTS_A_ROUND = 5  # a report is short, so its median needs more runs
SHOWN = ("requests", "input_reported", "output_reported", "cost_nanousd")
SUMMED = ("input_tokens", "output_tokens", "cost_nanousd")
REPORTS = (  # dimensions of the lines, and the width of their buckets
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
    url = world.private_postgres(*ROOMY) if options.postgresql else options.database_url
    world.set_up(url)
    began = time.perf_counter()
    fill(options.rows)
    print(f"{options.rows:,} rows and their rollups made in {world.seconds(began)}")
    server = world.server_process() if options.postgresql else None
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
    """Write one day with the ledger and copy it to the other days inside the database.

    ``fields``: more columns of Exchange, computed from the row number and the row.
    """
    from proxy.ledger.posting import rollups
    from proxy.models import Exchange

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
        if connection().vendor == "sqlite":  # as the drainer does: no long write-ahead log to read
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def copy_first_day(table: Any, day: int) -> None:
    """Insert the first day's rows of a table again, this many days later, with new ids.

    The sessions of each day are others: their ids end with the date.
    """
    sqlite = connection().vendor == "sqlite"
    first = END - timedelta(days=DAYS)
    date = f"{first + timedelta(days=day):-%m-%d}"
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
        elif field.name == "session_id":
            values.append(f"CASE WHEN {name} = '' THEN '' ELSE {name} || '{date}' END")
        else:
            values.append(name)
    when = "created" if "created" in {f.name for f in meta.concrete_fields} else "start"
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
    """Compute the report from the requests."""
    from django.db.models import Count, F, Sum
    from django.db.models.functions import TruncDay

    from proxy.models import Exchange
    from proxy.reports.core.dimensions import DIMENSIONS

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
    """Compute the report from the rollups, as the reports do."""
    from proxy.permissions.row_permissions import Reader
    from proxy.reports.core.time_ranges import build_time_range
    from proxy.reports.usage.rollup_queries import usage

    span = build_time_range(END - timedelta(days=30), END, bucket, ZoneInfo("UTC"))
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
    """Return the times of scans and reports with warm caches, and the results of both."""
    lines = scan()
    assert report() == lines, "the rollups do not agree with the rows"
    scans, reports = [], []
    for _ in range(ROUNDS):
        scans.append(once(scan, server))
        reports += [once(report, server) for _ in range(REPORTS_A_ROUND)]
    return scans, reports, lines


def compared(scans: list[Took], reports: list[Took], what: str) -> tuple[str, ...]:
    """Return the name, both medians and their ratio."""
    one, other = (statistics.median(getattr(t, what) for t in took) for took in (scans, reports))
    name = {"wall_ms": "median", "cpu_ms": "processor"}[what]
    return name, f"{one:.0f}", f"{other:.1f}", f"{one / other:.0f}"


def once(query: Callable[[], Lines], server: int | None = None) -> Took:
    """Time one call; ``server`` is the database process, whose CPU time counts too."""
    worked, began = world.cpu_ms(server), time.perf_counter()
    query()
    took = (time.perf_counter() - began) * 1000
    return Took(took, world.cpu_ms(server) - worked)


def timed(query: Callable[[], Lines]) -> tuple[float, Lines]:
    """Return the median milliseconds of five calls with warm caches."""
    lines = query()
    return statistics.median(once(query).wall_ms for _ in range(5)), lines


if __name__ == "__main__":
    main()

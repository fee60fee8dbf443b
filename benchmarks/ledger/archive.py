"""Measure reports on archived months: the time of each, and the bytes of a row.

    python -m benchmarks.ledger.archive --rows 30000000 [--folder DIR] [--engines]

DuckDB generates the Parquet files of twelve months with the columns and settings of archivemonths.
The reports are those of the REST API, without HTTP. ``--engines`` compares DuckDB with chDB (the
engine of ClickHouse), one thread each, with the same SQL on the same files.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ledger import world

MONTHS = [datetime(2025, month, 1, tzinfo=UTC) for month in range(1, 13)]
MEASURED = MONTHS[5]  # June, which has 30 days
TIMES = 7
# What differs from zero, an empty text or null; ``n`` is the number of the row in its month.
VALUES = {
    # A ULID begins with the time, so the ids of a month are sorted like their times.
    "id": "'req_' || lpad(to_base(epoch_ms({at}), 32), 10, '0') || lpad(to_base(n, 32), 8, '0') "
    "|| lpad(to_base((random() * 1099511627775)::BIGINT, 32), 8, '0')",
    "state": "'closed'",
    "outcome": "CASE WHEN n % 97 = 0 THEN 'upstream_error' WHEN n % 53 = 0 THEN 'client_gone' "
    "ELSE 'completed' END",
    "status": "CASE WHEN n % 97 = 0 THEN 502 ELSE 200 END",
    "stop_reason": "CASE WHEN n % 97 = 0 THEN '' WHEN n % 3 = 0 THEN 'end_turn' ELSE 'tool_use' "
    "END",
    "error_message": "CASE WHEN n % 97 = 0 THEN 'the upstream closed the connection after ' || "
    "(n % 9000) || ' bytes' ELSE '' END",
    "created": "{at}",
    "finished": "{at} + to_milliseconds(500 + (random() * 60000)::BIGINT)",
    "ttft_ms": "round(random() * 3000, 3)",
    "total_ms": "round(500 + random() * 60000, 3)",
    "upstream_ms": "round(400 + random() * 60000, 3)",
    "overhead_ms": "round(random() * 5, 3)",
    "team": "'team-' || (hash(n) % 40)",
    "key_id": "hash(n) % 1000",
    "key_name": "'key-' || (hash(n) % 1000)",
    "user": "'user-' || (hash(n) % 800) || '@example.com'",
    "session_id": "uuid(n)",
    "ip": "'10.0.' || (hash(n) % 200) || '.' || (hash(n + 1) % 250)",
    "user_agent": "'claude-cli/2.1.' || (hash(n) % 40) || ' (external, cli)'",
    "client_name": "'claude-cli'",
    "client_version": "'2.1.' || (hash(n) % 40)",
    "api_version": "'2023-06-01'",
    "betas": "'[\"interleaved-thinking-2025-05-14\"]'",
    "tags": "CASE WHEN n % 11 = 0 THEN '{{\"project\": \"p' || (n % 30) || '\"}}' ELSE '{{}}' END",
    "endpoint": "'messages'",
    "stream": "true",
    "model_requested": "'claude-model-' || (hash(n + 2) % 8)",
    "model_upstream": "'gpt-' || (hash(n + 2) % 8)",
    "upstream": "'upstream-' || (hash(n + 2) % 4)",
    "dialect": "'responses'",
    "upstream_status": "200",
    "upstream_request_id": "'resp_' || md5(n::VARCHAR)",
    "attempts": '\'[{{"upstream": "upstream-1", "model": "gpt-1", "status": 200, '
    "\"ms\": ' || (random() * 9000)::INT || '}}]'",
    "notes": 'CASE WHEN n % 5 = 0 THEN \'[{{"path": "top_k", "fate": "dropped"}}]\' '
    "ELSE '[]' END",
    "input_tokens": "(random() * 3000)::INT",
    "input_source": "'reported'",
    "output_tokens": "(random() * 2000)::INT",
    "output_source": "'reported'",
    "cache_read_tokens": "(random() * 90000)::INT",
    "cache_read_source": "'reported'",
    "cache_write_5m_tokens": "(random() * 4000)::INT",
    "cache_write_source": "'reported'",
    "reasoning_tokens": "(random() * 500)::INT",
    "reasoning_source": "'reported'",
    "cost_nanousd": "(random() * 50000000)::BIGINT",
    "price": '\'{{"id": 7, "since": "2025-01-01", "input": 1250, "output": 10000, '
    '"model": "gpt-\' || (hash(n + 2) % 8) || \'"}}\'',
    "message_count": "n % 200",
    "tool_calls": "n % 3",
    "tool_names": "CASE n % 3 WHEN 0 THEN '[]' WHEN 1 THEN '[\"Bash\"]' "
    'ELSE \'["Edit", "Read"]\' END',
    "preview": "'Tool result: ' || md5((n * 7)::VARCHAR) || ' of module_' || (n % 5000) || '.py'",
    "prompt": "'Find the bug in module_' || (hash(n) % 5000) || '.py and repair its test.'",
    "request_bytes": "(random() * 250000)::INT",
    "response_bytes": "(random() * 9000)::INT",
    "delivered": "true",
    "worker": "'gateway-' || (n % 4)",
}
EMPTY = {"VARCHAR": "''", "BOOLEAN": "false", "INTEGER": "0"}
NULLABLE = ("queue_ms", "cache_write_1h_tokens", "web_searches")
REPORT_SQL = {
    "sums by model and team": """
        SELECT model_requested, team, count(*), sum(input_tokens), sum(output_tokens),
            sum(cost_nanousd) FROM {table} GROUP BY 1, 2""",
    "failed requests, newest 100": """
        SELECT id, created, error_message FROM {table} WHERE outcome = 'upstream_error'
            ORDER BY created DESC LIMIT 100""",
    "a part of the error message": """
        SELECT count(*) FROM {table} WHERE error_message LIKE '%after 4242 bytes%'""",
    "one session": "SELECT count(*) FROM {table} WHERE session_id = 'none'",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000_000)
    parser.add_argument("--folder", type=Path, help="keep the files here, and use existing ones")
    parser.add_argument("--engines", action="store_true", help="compare DuckDB and chDB")
    options = parser.parse_args()
    directory = world.set_up()
    folder = (options.folder or directory / "archive").absolute()
    generate(folder, options.rows // len(MONTHS))
    Console(width=110).print(measure())
    if options.engines:
        Console(width=110).print(compare_engines(folder))


def generate(folder: Path, rows: int) -> None:
    """Write the files that are missing, and list all of them as archived and removed."""
    from proxy.ledger.archive.parquet import ROW_GROUP
    from proxy.models import ArchivedMonth, ArchiveState

    folder.mkdir(parents=True, exist_ok=True)
    total, began = 0, time.perf_counter()
    for start in MONTHS:
        month = ArchivedMonth(month=start.date(), location=str(folder), rows=rows)
        month.state, month.first_id, month.last_id = ArchiveState.REMOVED, "req_0", "req_Z"
        path = folder / month.file
        if not path.exists():
            part = path.with_suffix(".part")
            _write_month(start, rows, part, ROW_GROUP)
            part.rename(path)
        month.file_bytes = path.stat().st_size
        month.save()
        total += month.file_bytes
    count = rows * len(MONTHS)
    print(
        f"{count:,} rows in {len(MONTHS)} files, {total / 1e9:.2f} GB, "
        f"{total / count:.0f} bytes a row ({world.seconds(began)})"
    )


def _write_month(start: datetime, rows: int, path: Path, row_group: int) -> None:
    import duckdb

    from proxy.ledger.archive.parquet import COLUMNS

    end = (start + timedelta(days=32)).replace(day=1)
    step = (end - start) / timedelta(microseconds=1) / rows
    at = f"(TIMESTAMP '{start:%Y-%m-%d}' + to_microseconds((n * {step})::BIGINT))"
    columns = ", ".join(
        f'({_value(name, kind).format(at=at)})::{kind} AS "{name}"'
        for name, kind in COLUMNS.items()
    )
    with duckdb.connect(config={"threads": 1, "memory_limit": "1GB"}) as database:
        database.execute("CREATE MACRO uuid(n) AS md5((hash(n // 20) % 10000000)::VARCHAR)")
        database.execute(
            f"COPY (SELECT {columns} FROM range({rows}) numbers(n)) TO '{path}' "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {row_group})"
        )


def _value(name: str, kind: str) -> str:
    return VALUES.get(name) or ("NULL" if name in NULLABLE else EMPTY.get(kind, "0"))


def measure() -> Table:
    """Return the times of reports on 30 days, and of questions about one request."""
    from django.db.models import QuerySet

    from proxy.ledger.archive.reading import read_both, within
    from proxy.models import Exchange

    middle = MEASURED + timedelta(days=14)
    some = Exchange.objects.filter(created__gte=middle).order_by("pk")
    _, row = read_both(some, QuerySet.first, within(middle, middle + timedelta(days=1)))
    table = Table("report on archived requests", "p50 ms", "maximum ms", "rows")
    for name, report in _reports(row).items():
        times = []
        for _ in range(TIMES):
            began = time.perf_counter()
            found = report()
            times.append((time.perf_counter() - began) * 1000)
        table.add_row(name, f"{statistics.median(times):.0f}", f"{max(times):.0f}", f"{found:,}")
    return table


def _reports(row: Any) -> dict[str, Callable[[], int]]:
    from django.db.models import Q

    from proxy.ledger.archive.reading import read_both, with_ids
    from proxy.models import Exchange
    from proxy.permissions.row_permissions import Reader
    from proxy.reports.core.time_ranges import TimeRange, load_zone
    from proxy.reports.usage.exchange_queries import by_tool, usage_by_minute, usage_from_requests

    everyone, team = Reader(everything=True), Reader(teams=frozenset({"team-7"}))
    end = MEASURED + timedelta(days=30)
    days = TimeRange([MEASURED, end], "all", load_zone("UTC"))
    day = (MEASURED + timedelta(days=9), MEASURED + timedelta(days=10))
    sums = partial(usage_from_requests, everyone, MEASURED, end)
    one = Exchange.objects.filter(pk=row.pk)
    return {
        "30 days by model": lambda: len(sums(["model_requested"], Q())),
        "30 days by model and key": lambda: len(sums(["model_requested", "key_id"], Q())),
        "30 days by stop reason, of one team": lambda: len(
            usage_from_requests(team, MEASURED, end, ["stop_reason"], Q())
        ),
        "30 days by tool": lambda: len(by_tool(everyone, days, Q())),
        "one day by minute": lambda: len(usage_by_minute(everyone, *day, [], Q())),
        "list: 30 days, newest 100": lambda: _list(everyone, {}),
        "list: failed requests": lambda: _list(everyone, {"outcome": ["upstream_error"]}),
        "list: a part of the error": lambda: _list(everyone, {"error_message": "after 4242 bytes"}),
        "list: of one session": lambda: _list(everyone, {"session_id": [row.session_id]}),
        "list: by tag": lambda: _list(everyone, {"tag": "project:p7"}),
        "list: of one team": lambda: _list(team, {}),
        "one request by id": lambda: len(read_both(one, list, with_ids([row.pk]))[1]),
    }


def _list(reader: Any, filters: dict[str, Any]) -> int:
    from django.http import QueryDict

    from proxy.ledger.archive.reading import read_both, within
    from proxy.reports.requests.filters import RequestParameters
    from proxy.reports.requests.views import RequestsView

    query = QueryDict(mutable=True)
    query.update({"from": f"{MEASURED:%Y-%m-%d}", "to": f"{MEASURED + timedelta(30):%Y-%m-%d}"})
    for name, value in filters.items():
        query.setlist(name, value if isinstance(value, list) else [value])
    parameters = RequestParameters(data=query)
    parameters.is_valid(raise_exception=True)
    rows = RequestsView.matching_rows(reader, parameters.validated_data)
    rows = rows.order_by("-created", "-pk")
    months = within(MEASURED, MEASURED + timedelta(days=30))
    return len(list(chain(*read_both(rows, lambda rows: list(rows[:100]), months))))


ENGINE = """
import statistics, sys, time
path, engine, sql = sys.argv[1:]
if engine == "duckdb":
    import duckdb
    database = duckdb.connect(config={"threads": 1, "memory_limit": "512MB"})
    run = lambda: database.execute(sql.replace("{table}", f"read_parquet('{path}')")).fetchall()
else:
    import chdb
    limits = " SETTINGS max_threads = 1, max_memory_usage = 512000000"
    run = lambda: chdb.query(sql.replace("{table}", f"file('{path}', 'Parquet')") + limits)
times = []
for _ in range(5):
    began = time.perf_counter()
    run()
    times.append((time.perf_counter() - began) * 1000)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(f"{statistics.median(times):.0f}", int(peak.split()[1]) // 1024)
"""


def compare_engines(folder: Path) -> Table:
    """Return the median times of both engines for one month, and the memory of their process."""
    path = folder / f"requests-{MEASURED:%Y-%m}.parquet"
    table = Table("SQL on one month", "DuckDB ms", "MB", "chDB ms", "MB")
    for name, sql in REPORT_SQL.items():
        cells = []
        for engine in ("duckdb", "chdb"):
            command = [sys.executable, "-c", ENGINE, str(path), engine, " ".join(sql.split())]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            cells += done.stdout.split() if done.returncode == 0 else ["failed", "-"]
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    main()

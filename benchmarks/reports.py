"""Measure every report over HTTP on a large ledger while the same gateway serves streams.

    python -m benchmarks.reports --rows 1000000
    python -m benchmarks.reports --rows 10000000 --postgresql   # a private server

SQLite without ``--postgresql``, one worker, the built-in sandbox as upstream. The CPU time is that
of the gateway, without the database server. The ledger has ninety days of requests; each report
covers the last 30, or as many as its API allows, and is requested ``--times`` times.
"""

import argparse
import http.client
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ledger import reports as ledger_reports
from benchmarks.ledger import world

ROOT = Path(__file__).resolve().parents[1]
LIMIT_MS = 1000
CPU_TIMES = 4
PRICE = {"id": 1, "upstream": None, "model": "gpt-5.2", "since": "2026-01-01"} | {
    "input": "1.25", "output": "10", "cache_read": "0.125",
    "cache_write_5m": None, "cache_write_1h": None,
}  # fmt: skip
TOOLS_OF_A_REQUEST = (["Bash"], ["Read"], [], ["Edit"], ["Bash", "Read"], ["Grep"], ["Task"])
MONTH = "from=2026-10-02&to=2026-11-01"
DAY = "from=2026-10-31&to=2026-11-01"
WIRE_MONTH = "starting_at=2026-10-02T00:00:00Z&ending_at=2026-11-01T00:00:00Z&limit=31"
WIRE_WEEK = "starting_at=2026-10-25T00:00:00Z&ending_at=2026-11-01T00:00:00Z&limit=31"
WIRE_DAY = "starting_at=2026-10-31T00:00:00Z&ending_at=2026-11-01T00:00:00Z"
OURS = {
    "usage by day and model": f"usage/?{MONTH}",
    "usage by hour, zone with a half-hour offset": f"usage/?{MONTH}&bucket=1h&tz=Asia/Kolkata",
    "usage by day, team, key, model": f"usage/?{MONTH}&group_by=team,key_id,model",
    "summary": f"summary/?{MONTH}",
    "summary, Berlin's days": f"summary/?{MONTH}&tz=Europe/Berlin",
    "timeseries": f"timeseries/?{MONTH}&by=model&metric=cost,requests",
    "top keys": f"top/?{MONTH}&by=key_id",
    "latency by model": f"latency/?{MONTH}&by=model",
    "errors": f"errors/?{MONTH}",
    "cache by team": f"cache/?{MONTH}&by=team",
    "requests, first page": f"requests/?{MONTH}&limit=100",
    "requests of a team": f"requests/?{MONTH}&team=team-3&limit=100",
    "requests of a session": f"requests/?{MONTH}&session_id=session-7-0-10-31",
    "requests of a tool that was never called": f"requests/?{MONTH}&tool=Nothing",
    "requests, a field that no request has": f"requests/?{MONTH}&stop_reason=refusal",
    "requests, the most expensive": f"requests/?{MONTH}&min_cost_usd=0.0142",
    "sessions of a day": f"sessions/?{DAY}&limit=100",
    "sessions": f"sessions/?{MONTH}&limit=100",
    "one session": "sessions/session-7-0-10-31/",
    "usage by hour and team, one model": f"usage/?{MONTH}&bucket=1h&group_by=team"
    "&model=claude-model-3",
    "usage by 15 minutes, all of one team": f"usage/?{MONTH}&bucket=15m&team=team-3",
    "timeseries by hour and team": f"timeseries/?{MONTH}&bucket=1h&by=team&metric=cost,requests",
    "timeseries by hour, one model": f"timeseries/?{MONTH}&bucket=1h&by=team&model=claude-model-3",
    "top users of ninety days": "top/?from=2026-08-03&to=2026-11-01&by=key&metric=total_tokens",
    "timeseries by hour and user, ninety days": "timeseries/?from=2026-08-04&to=2026-11-01"
    "&bucket=1h&by=user&metric=cost,requests",
    "cache by key, ninety days": "cache/?from=2026-08-03&to=2026-11-01&by=key_id",
    "top sessions": f"top/?{MONTH}&by=session",
    "top tools": f"top/?{MONTH}&by=tool",
    "requests with an error": f"requests/?{MONTH}&error_type=overloaded_error&limit=100",
    "requests whose id is given": f"requests/?{MONTH}&q=req_00000000000000000000000042",
    "latency by key, ninety days": "latency/?from=2026-08-03&to=2026-11-01&by=key_id",
    "latency of a model by team": f"latency/?{MONTH}&by=team&model=claude-model-3",
    "summary of ninety days": "summary/?from=2026-08-03&to=2026-11-01&tz=Asia/Kathmandu",
    "budgets": "budgets/",
    "me": "me/",
}
THEIRS = {
    "usage_report by model, 1d": f"usage_report/messages?{WIRE_MONTH}&group_by[]=model",
    "usage_report by model, 1h": f"usage_report/messages?{WIRE_WEEK}".replace("=31", "=168")
    + "&bucket_width=1h&group_by[]=model",
    "usage_report by minute": f"usage_report/messages?{WIRE_DAY}&bucket_width=1m&limit=1440",
    "usage_report by session": f"usage_report/messages?{WIRE_DAY}&group_by[]=session",
    "usage_report by session, a month": f"usage_report/messages?{WIRE_MONTH}&group_by[]=session",
    "usage_report by session, 1h": f"usage_report/messages?{WIRE_DAY}&bucket_width=1h"
    "&group_by[]=session",
    "usage_report by key and model": f"usage_report/messages?{WIRE_MONTH}"
    "&group_by[]=api_key_id&group_by[]=model",
    "cost_report": f"cost_report?{WIRE_MONTH}",
    "cost_report by description": f"cost_report?{WIRE_MONTH}&group_by[]=description",
    "cost_report by key": f"cost_report?{WIRE_MONTH}&group_by[]=api_key_id",
    "claude_code": "usage_report/claude_code?starting_at=2026-10-31&limit=1000",
    "analytics/usage": f"analytics/usage?{WIRE_WEEK}&group_by[]=actor",
    "analytics/cost": f"analytics/cost?{WIRE_WEEK}&group_by[]=model",
}
PATHS = {name: f"/api/v1/{path}" for name, path in OURS.items()}
PATHS |= {name: f"/v1/organizations/{path}" for name, path in THEIRS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument(
        "--streams", type=int, default=4, help="clients that stream during the measurement"
    )
    parser.add_argument("--postgresql", action="store_true", help="start a server for this run")
    parser.add_argument("--keep", default="", help="a directory to keep the ledger in, and reuse")
    parser.add_argument("--only", default="", help="only reports whose name contains this")
    options = parser.parse_args()
    url = world.private_postgres(*ledger_reports.ROOMY) if options.postgresql else ""
    directory = world.set_up(url, keep=options.keep)
    fill(options.rows)
    from tests.fakes.servers.gateway import Gateway
    from tests.waiting import until

    log = directory / f"gateway-{os.getpid()}"  # a reused directory has the folders of other runs
    environment = {"BRIDGE_DATA_DIR": str(directory)} | ({"DATABASE_URL": url} if url else {})
    with Gateway(log, environment=environment) as gateway:
        words = ("createkey", "--team", "default", "--name", f"benchmark-{os.getpid()}", "--json")
        made = gateway.manage(*words, "--scope", "admin", "--scope", "messages")
        gateway.key = json.loads(made)["key"]
        until(lambda: gateway.request("GET", PATHS["me"]).status == 200)  # the key is known
        streams = Streams(gateway, options.streams)
        streams.start()
        try:
            took = measured(gateway, options)
        finally:  # the threads never end by themselves
            streams.stop()
        show(took, worked(gateway, options), streams)
    scan_ms, _ = ledger_reports.timed(ledger_reports.scan)
    before = time.process_time()
    ledger_reports.scan()
    scan_cpu_ms = (time.process_time() - before) * 1000
    scan = f"{scan_ms:.0f} ms, CPU {scan_cpu_ms:.0f} ms"
    print(f"a plain scan of the same month, by team and model, in the same run: {scan}")


def fill(rows: int) -> None:
    """Create ninety days of requests, unless another run has created them."""
    from proxy.models import Exchange

    if Exchange.objects.exists():
        return
    began = time.perf_counter()
    ledger_reports.fill(
        rows,
        # twenty requests of one key form a session
        session_id=lambda n, row: f"session-{row.key_id}-{n // 2000}",
        price=lambda _, __: PRICE,
        client_name=lambda _, __: "claude-cli",
        tool_names=lambda n, _: TOOLS_OF_A_REQUEST[n % len(TOOLS_OF_A_REQUEST)],
        tool_calls=lambda n, _: len(TOOLS_OF_A_REQUEST[n % len(TOOLS_OF_A_REQUEST)]),
        ttft_ms=lambda n, _: 300.0 + n % 4000,
        total_ms=lambda n, _: 900.0 + n % 40_000,
    )
    print(f"{rows:,} rows and their rollups made in {world.seconds(began)}")


def selected(options: argparse.Namespace) -> dict[str, str]:
    return {name: path for name, path in PATHS.items() if options.only in name}


def measured(gateway: Any, options: argparse.Namespace) -> dict[str, tuple[list[float], int]]:
    """Return report -> sorted milliseconds of its requests, and the bytes of the last response."""
    found = {}
    for name, path in selected(options).items():
        took, size = [], 0
        for _ in range(options.times):
            began = time.perf_counter()
            while (
                answer := gateway.request("GET", path)
            ).status == 429:  # the reports API is throttled
                time.sleep(int(answer.headers["retry-after"]))
                began = time.perf_counter()
            took.append((time.perf_counter() - began) * 1000)
            assert answer.status == 200, f"{path}: {answer.status} {answer.body[:300]!r}"
            size = len(answer.body)
        print(f"  {name}: {sorted(took)[len(took) // 2]:.0f} ms", file=sys.stderr)
        found[name] = (sorted(took), size)
    return found


def worked(gateway: Any, options: argparse.Namespace) -> dict[str, float]:
    """Return report -> milliseconds of the gateway's CPU time, without streams."""
    found = {}
    for name, path in selected(options).items():
        before = cpu_ms(gateway.process.pid)
        for _ in range(CPU_TIMES):
            while gateway.request("GET", path).status == 429:
                time.sleep(1)
        found[name] = (cpu_ms(gateway.process.pid) - before) / CPU_TIMES
    return found


def cpu_ms(pid: int) -> float:
    """Return the user and system CPU time of a process in milliseconds (Linux)."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def show(
    found: dict[str, tuple[list[float], int]], cpu: dict[str, float], streams: "Streams"
) -> None:
    table = Table("report", "p50 ms", "p95 ms", "CPU ms", "KB", "")
    for name, (took, size) in found.items():
        p95 = took[min(len(took) - 1, int(len(took) * 0.95))]
        over = "over" if p95 > LIMIT_MS else ""
        figures = (took[len(took) // 2], p95, cpu[name], size / 1024)
        table.add_row(name, *(f"{figure:.0f}" for figure in figures), over)
    console = Console(width=100)
    console.print(table)
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    console.print(
        f"{streams.done} streams ended during the measurement, {streams.failed} failed; {load}"
    )


class Streams:
    """Clients that run one stream after the other until ``stop()``."""

    def __init__(self, gateway: Any, clients: int) -> None:
        self.gateway, self.done, self.failed = gateway, 0, 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._stream) for _ in range(clients)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _stream(self) -> None:
        history = [{"role": "user", "content": "Hello"}]
        body = {"model": "claude-opus-5-5", "max_tokens": 500, "stream": True, "messages": history}
        packed = json.dumps(body).encode()
        while not self._ended.is_set():
            try:
                kind = {"content-type": "application/json"}
                answer = self.gateway.request("POST", "/v1/messages", packed, kind)
                whole = answer.status == 200 and b"event: message_stop" in answer.body
            except (OSError, http.client.HTTPException):
                whole = False
            self.done, self.failed = self.done + whole, self.failed + (not whole)


if __name__ == "__main__":
    main()

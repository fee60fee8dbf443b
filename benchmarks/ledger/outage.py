"""Stop the ledger's database for minutes under load; no request may fail, each row must exist once.

    python -m benchmarks.ledger.outage [--minutes 5] [--clients 20] [--only sqlite]

Another program locks SQLite; a private PostgreSQL server is stopped as in a crash and started
again. The rows are compared with the counts of the scripted upstream and of the clients.
"""

import argparse
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.fakes.load.outages import Outage, config_for, locked, run_outage, stopped
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.upstream import ScriptedUpstream

LINES = ("requests", "during the outage", "client errors", "backlog (records)", "posted after")
FAULTS = ("lost", "duplicated", "left_open", "wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    options = parser.parse_args()
    table = Table("database", *LINES, *FAULTS)
    good = True
    for name, run in (("sqlite", sqlite), ("postgresql", postgresql)):
        if options.only in (None, name):
            with TimedProgress(f"{name} is down", options.minutes * 60):
                outage = run(options.minutes * 60, options.clients)
            table.add_row(name, *columns(outage))
            good &= not outage.errors and not outage.verdict.faults
    Console().print(table)
    sys.exit(not good)


def sqlite(outage_s: float, clients: int) -> Outage:
    with tempfile.TemporaryDirectory() as folder:
        outage = locked(Path(folder) / "data" / "ledger.sqlite3")
        return measure_outage(Path(folder), {}, outage, outage_s, clients)


def postgresql(outage_s: float, clients: int) -> Outage:
    with Postgres() as server, tempfile.TemporaryDirectory() as folder:
        environment = {"DATABASE_URL": server.url}
        return measure_outage(Path(folder), environment, stopped(server), outage_s, clients)


def measure_outage(
    folder: Path,
    environment: dict[str, str],
    outage: AbstractContextManager[None],
    outage_s: float,
    clients: int,
) -> Outage:
    with (
        ScriptedUpstream() as upstream,
        Gateway(folder, config=config_for(upstream), environment=environment) as gateway,
    ):
        return run_outage(gateway, upstream, outage, outage_s=outage_s, clients=clients)


class TimedProgress:
    """A progress bar that follows the clock while the block runs."""

    def __init__(self, what: str, seconds: float) -> None:
        self.progress = Progress(transient=True)
        self.task = self.progress.add_task(what, total=seconds)
        self.over = threading.Event()
        self.clock = threading.Thread(target=self._tick)

    def _tick(self) -> None:
        began = time.monotonic()
        while not self.over.wait(1):
            self.progress.update(self.task, completed=time.monotonic() - began)

    def __enter__(self) -> None:
        self.progress.start()
        self.clock.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.clock.join()
        self.progress.stop()


def columns(outage: Outage) -> list[str]:
    counts = (len(outage.sent), outage.during, len(outage.errors), outage.backlog)
    faults = (len(getattr(outage.verdict, name)) for name in FAULTS)
    drained = f"{outage.drained_s:.1f} s"
    return [*(f"{n:,}" for n in counts), drained, *(str(n) for n in faults)]


if __name__ == "__main__":
    main()

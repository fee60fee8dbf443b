"""The ledger's database is away for minutes under load: no client notices, every row comes once.

    python benchmarks/ledger_outage.py [--minutes 5] [--clients 20] [--only sqlite]

SQLite is held locked by another program; a private PostgreSQL server is stopped as a crash would
stop it and started again. The oracles are the scripted upstream's tally and the clients.
"""

import argparse
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import ledger_world
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(ledger_world.ROOT))

from tests.fakes.gateway import Gateway
from tests.fakes.outages import Outage, config_for, locked, ride_out, stopped
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.record.postgres import Postgres

LINES = ("requests", "while it was away", "client errors", "waited (records)", "drained after")
FAULTS = ("lost", "doubled", "left_open", "wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    options = parser.parse_args()
    table = Table("database", *LINES, *FAULTS)
    good = True
    for name, ride_on in (("sqlite", sqlite), ("postgresql", postgresql)):
        if options.only in (None, name):
            with shown(f"{name} is away", options.minutes * 60):
                outage = ride_on(options.minutes * 60, options.clients)
            table.add_row(name, *told(outage))
            good &= not outage.errors and not outage.verdict.faults
    Console().print(table)
    sys.exit(not good)


def sqlite(away_s: float, clients: int) -> Outage:
    with tempfile.TemporaryDirectory() as folder:
        away = locked(Path(folder) / "data" / "ledger.sqlite3")
        return ride(Path(folder), {}, away, away_s, clients)


def postgresql(away_s: float, clients: int) -> Outage:
    server = Postgres()
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            environment = {"DATABASE_URL": server.url}
            return ride(Path(folder), environment, stopped(server), away_s, clients)
    finally:
        server.stop()
        server.remove()


def ride(
    folder: Path,
    environment: dict[str, str],
    away: AbstractContextManager[None],
    away_s: float,
    clients: int,
) -> Outage:
    with (
        ScriptedUpstream() as player,
        Gateway(folder, config=config_for(player), environment=environment) as gateway,
    ):
        return ride_out(gateway, player, away, away_s=away_s, clients=clients)


class shown:  # noqa: N801 -- reads as a verb
    """A bar that fills by the clock while the block runs."""

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


def told(outage: Outage) -> list[str]:
    counts = (len(outage.sent), outage.during, len(outage.errors), outage.backlog)
    faults = (len(getattr(outage.verdict, name)) for name in FAULTS)
    drained = f"{outage.drained_s:.1f} s"
    return [*(f"{n:,}" for n in counts), drained, *(str(n) for n in faults)]


if __name__ == "__main__":
    main()

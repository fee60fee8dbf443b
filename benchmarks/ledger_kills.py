"""kill -9 of who writes to the spool, at random moments: what was acknowledged is there.

In turns the process that enters records is killed, its writer, and both at once. A process whose
writer was killed gets a new one and goes on; it is killed later.

python benchmarks/ledger_kills.py [--kills 1000]
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ledger_world
from rich.console import Console
from rich.progress import track
from rich.table import Table

GATEWAY = """
import asyncio, sys, time
sys.path[:0] = [sys.argv[3]]
from pathlib import Path
from proxy.record import slots
from proxy.record.landing import Landing
from proxy.record.spool import Spool
from proxy.record.records import OpenRecord
spool = Spool(slots.take(Path(sys.argv[1])))
spool.start()
sys.stdout.write(f"{spool.writer.pid}\\n")

async def main():
    life, number = sys.argv[2], 0
    while True:
        landings = {f"req_{life}_{number + n}": Landing(lambda: None) for n in range(8)}
        number += 8
        for pk, landing in landings.items():
            spool.enter(OpenRecord(id=pk, created=time.time(), worker="w", team="t", key_id=1,
                                   key_name="k", body=b"x" * 600), landing)
        for pk, landing in landings.items():
            await landing.future
            sys.stdout.write(pk + "\\n")
            sys.stdout.flush()

asyncio.run(main())
"""
KINDS = (("gateway",), ("writer", "gateway"), ("gateway", "writer"))
"""Who is killed in a life, in this order; a new writer needs a while between the two."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    options = parser.parse_args()
    chance = random.Random(1)
    acknowledged: set[str] = set()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bridge-kills-") as directory:
        for life in track(range(options.kills), "killing", transient=True):
            acknowledged |= one_life(directory, life, chance.random() * 0.05)
        found = read_spools(Path(directory))
    table = Table("kills", "acknowledged", "lost", "doubled", "took")
    table.add_row(
        f"{options.kills:,}",
        f"{len(acknowledged):,}",
        str(len(acknowledged - set(found))),
        str(len(found) - len(set(found))),
        ledger_world.seconds(began),
    )
    Console().print(table)
    sys.exit(int(bool(acknowledged - set(found)) or len(found) != len(set(found))))


def one_life(directory: str, life: int, wait_s: float) -> set[str]:
    """Start one, wait for its first acknowledgement and a while longer, kill it."""
    child = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, directory, str(life), str(ledger_world.ROOT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.proxy.record.settings"},
    )
    assert child.stdout is not None
    who = {"gateway": child.pid, "writer": int(child.stdout.readline())}
    first = child.stdout.readline()
    for name in KINDS[life % len(KINDS)]:
        time.sleep(wait_s)
        with contextlib.suppress(ProcessLookupError):  # the writer follows its gateway
            os.kill(who[name], signal.SIGKILL)
    rest = child.stdout.read()
    child.wait()
    child.stdout.close()
    return {line for line in (first + rest).split("\n")[:-1] if line}


def read_spools(directory: Path) -> list[str]:
    from proxy.record import spool_file

    found = []
    for path in directory.glob("spool-*.sqlite3"):
        with contextlib.closing(spool_file.create(path)) as link:
            found += [row[0] for row in link.execute("SELECT id FROM records WHERE kind = 0")]
    return found


if __name__ == "__main__":
    main()

"""kill -9 of a process that writes to the spool, at random moments: what was acknowledged is there.

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

WRITER = """
import sys, time
sys.path[:0] = [sys.argv[3]]
from pathlib import Path
from concurrent.futures import wait
from proxy.record import slots
from proxy.record.spool import Spool
from proxy.record.records import CloseRecord, OpenRecord
from proxy.record.errors import RecordError
slot = slots.take(Path(sys.argv[1]))
spool = Spool(slot)
spool.start()
life, number = sys.argv[2], 0
while True:
    ids = [f"req_{life}_{number + n}" for n in range(8)]
    number += 8
    futures = [
        spool.append(OpenRecord(id=pk, created=time.time(), worker="w", team="t", key_id=1,
                                key_name="k", body=b"x" * 600))
        for pk in ids
    ]
    for pk, future in zip(ids, futures):
        future.result()
        sys.stdout.write(pk + "\\n")
        sys.stdout.flush()
"""


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
    """Start a writer, wait for its first acknowledgement and a while longer, kill it."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, directory, str(life), str(ledger_world.ROOT)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.proxy.record.settings"},
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    time.sleep(wait_s)
    child.send_signal(signal.SIGKILL)
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

"""Send kill -9 to processes that journal, at random times; no acknowledged record may be lost.

``--kills``: kills of a process that only appends to a journal. ``--gateways``: kills of a process
that records and posts as a gateway does; afterwards the rows are counted.

python -m benchmarks.ledger.kills [--kills 1000] [--gateways 100]
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
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.ledger import world

JOURNAL = """
import asyncio, sys, time
sys.path[:0] = [sys.argv[3]]
from pathlib import Path
from proxy.ledger.journal import locks
from proxy.ledger.journal.journal import DurabilityFuture, Journal
from proxy.ledger.journal.records import OpenRecord
journal = Journal(locks.take(Path(sys.argv[1])), segment_bytes=20_000)
journal.start()

async def main():
    life, number = sys.argv[2], 0
    while True:
        futures = {f"req_{life}_{number + n}": DurabilityFuture(lambda: None) for n in range(8)}
        number += 8
        for pk, future in futures.items():
            journal.append(OpenRecord(id=pk, created=time.time(), worker="w", team="t", key_id=1,
                                      key_name="k", body=b"x" * 600), future)
        for pk, future in futures.items():
            await future.wait()
            sys.stdout.write(pk + "\\n")
            sys.stdout.flush()

asyncio.run(main())
"""
RECORDER = """
import asyncio, sys, time
sys.path[:0] = [sys.argv[3]]
import django
django.setup()
from proxy.ledger.recorder import Recorder
from proxy.ledger.journal.records import Chunk, CloseRecord, OpenRecord
from pathlib import Path
recorder = Recorder(Path(sys.argv[1]))
recorder.start()

async def one(pk):
    await recorder.open(OpenRecord(id=pk, created=time.time(), worker="w", team="t", key_id=1,
                                   key_name="k", body=b'{"model":"m","messages":[]}'))
    sys.stdout.write(pk + "\\n")
    sys.stdout.flush()
    recorder.chunk(Chunk(id=pk, reads=[(1.0, b"data: {}\\n\\n")]))
    await recorder.close(CloseRecord(id=pk, finished=time.time(), outcome="completed", status=200))
    sys.stdout.write("closed " + pk + "\\n")
    sys.stdout.flush()

async def main():
    life, number = sys.argv[2], 0
    while True:
        await asyncio.gather(*(one(f"req_{life}_{number + n}") for n in range(8)))
        number += 8

asyncio.run(main())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=100)
    options = parser.parse_args()
    table = Table("killed", "kills", "acknowledged", "lost", "duplicated", "took")
    faults = 0
    if options.kills:
        faults += journals(options.kills, table)
    if options.gateways:
        faults += recorders(options.gateways, table)
    Console().print(table)
    sys.exit(int(bool(faults)))


def journals(kills: int, table: Table) -> int:
    """Kill processes that append; return how many records were lost or duplicated."""
    began = time.perf_counter()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="bridge-kills-") as directory:
        acknowledged: set[str] = set()
        for life in track(range(kills), "journals", transient=True):
            acknowledged |= one_life(JOURNAL, directory, life, chance.random() * 0.05)
        found = Counter(journaled(Path(directory)))
    lost = len(acknowledged - set(found))
    duplicated = found.total() - len(found)
    table.add_row(
        "a process that journals", f"{kills:,}", f"{len(acknowledged):,}",
        str(lost), str(duplicated),
        world.seconds(began),
    )  # fmt: skip
    return lost + duplicated


def recorders(kills: int, table: Table) -> int:
    """Kill processes that record and post; return how many rows are missing, duplicated or open."""
    began = time.perf_counter()
    chance = random.Random(2)
    directory = world.set_up()
    acknowledged: set[str] = set()
    for life in track(range(kills), "recorders", transient=True):
        acknowledged |= one_life(RECORDER, str(directory), life, chance.random() * 0.5)
    from proxy.ledger.posting.journal_posting import adopt
    from proxy.models import Exchange, HashChainLink, UsageDay

    adopt(directory)
    outcomes = dict(Exchange.objects.values_list("pk", "outcome"))
    opened = {name for name in acknowledged if not name.startswith("closed ")}
    closed = {name.removeprefix("closed ") for name in acknowledged - opened}
    lost = len(opened - set(outcomes))
    lost += sum(outcomes.get(name) != "completed" for name in closed)
    lost += sum(outcome not in ("completed", "interrupted") for outcome in outcomes.values())
    requests = sum(UsageDay.objects.values_list("requests", flat=True))
    duplicated = abs(requests - len(outcomes)) + abs(HashChainLink.objects.count() - len(outcomes))
    table.add_row(
        "a recorder with its drainer", f"{kills:,}", f"{len(opened):,}", str(lost), str(duplicated),
        world.seconds(began),
    )  # fmt: skip
    return lost + duplicated


def one_life(program: str, directory: str, life: int, wait_s: float) -> set[str]:
    """Start one, wait for its first acknowledgement and a while longer, kill it."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, directory, str(life), str(world.ROOT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"DJANGO_SETTINGS_MODULE": "tests.proxy.ledger.settings", **os.environ},
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    time.sleep(wait_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    rest = child.stdout.read()
    child.wait()
    child.stdout.close()
    return {line for line in (first + rest).split("\n")[:-1] if line}


def journaled(directory: Path) -> list[str]:
    """Return the id of each record that a reader takes from the journals, with repetitions."""
    from proxy.ledger.journal.reader import JournalReader

    found: list[str] = []
    for path in directory.glob("journal-*/"):
        with contextlib.closing(JournalReader(path)) as own:
            own.read(10**9)
            for name in own.unfinished:
                found += [name for _ in own.bodies(name)]
    return found


if __name__ == "__main__":
    main()

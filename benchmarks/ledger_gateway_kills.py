"""kill -9 of the whole gateway under streams: every request is in the books, exactly once.

    python benchmarks/ledger_gateway_kills.py [--kills 100] [--streams 50]

The oracle is not ours: the scripted upstream counts the calls it got, the clients what they were
told. "Whole, but interrupted": the client had heard the end before the close record was on the
disk; such a row says less than was true, never more.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import ledger_world
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(ledger_world.ROOT))

from tests.fakes.killing import Killing
from tests.fakes.upstream import ScriptedUpstream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--streams", type=int, default=50)
    options = parser.parse_args()
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="bridge-kills-") as folder,
        ScriptedUpstream() as player,
    ):
        killing = Killing(Path(folder), player, streams=options.streams)
        lives = track(killing.lives(options.kills), "killing", total=options.kills)
        cut_off = sum(lives)
        verdict = killing.verdict()
        audit = killing.gateway.manage("verifyledger").strip().splitlines()[-1]
    whole = {each.number for each in killing.sent if each.ending == "whole"}
    table = Table("what", "requests")
    for what, count in (
        ("kill -9 of the gateway", options.kills),
        ("sent by the clients", len(verdict.sent)),
        ("reached the upstream", len(verdict.dialled)),
        ("cut off in the middle by a kill", cut_off),
        ("completed in the books", len(verdict.completed)),
        ("whole, but interrupted in the books", len(whole - verdict.completed)),
        ("lost", len(verdict.lost)),
        ("doubled", len(verdict.doubled)),
        ("left open", len(verdict.left_open)),
        ("with other tokens than the upstream told", len(verdict.wrong)),
    ):
        table.add_row(what, f"{count:,}")
    Console().print(table)
    print(f"{ledger_world.seconds(began)}; verifyledger: {audit}")
    sys.exit(bool(verdict.faults))


if __name__ == "__main__":
    main()

"""Send kill -9 to the whole gateway under streams; each request must have exactly one row.

    python -m benchmarks.ledger.gateway_kills [--kills 100] [--streams 50]

The rows are compared with the calls that the scripted upstream counted and the responses that the
clients received. If a client received the end of a response before the close record was on disk,
the row is interrupted; such a row reports less than was used, never more.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.ledger import world
from tests.fakes.load.kill_process import RepeatedKills
from tests.fakes.upstreams.upstream import ScriptedUpstream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--streams", type=int, default=50)
    options = parser.parse_args()
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="bridge-kills-") as folder,
        ScriptedUpstream() as upstream,
    ):
        killing = RepeatedKills(Path(folder), upstream, streams=options.streams)
        lives = track(killing.kill_times(options.kills), "killing", total=options.kills)
        cut_off = sum(lives)
        verdict = killing.verdict()
        audit = killing.gateway.manage("verifyledger").strip().splitlines()[-1]
    whole = {each.number for each in killing.sent if each.ending == "whole"}
    table = Table("what", "requests")
    for what, count in (
        ("kill -9 of the gateway", options.kills),
        ("sent by the clients", len(verdict.sent)),
        ("reached the upstream", len(verdict.called)),
        ("interrupted by a kill", cut_off),
        ("completed in the ledger", len(verdict.completed)),
        ("complete for the client, interrupted in the ledger", len(whole - verdict.completed)),
        ("lost", len(verdict.lost)),
        ("duplicated", len(verdict.duplicated)),
        ("left open", len(verdict.left_open)),
        ("with other tokens than the upstream reported", len(verdict.wrong)),
    ):
        table.add_row(what, f"{count:,}")
    Console().print(table)
    print(f"{world.seconds(began)}; verifyledger: {audit}")
    sys.exit(bool(verdict.faults))


if __name__ == "__main__":
    main()

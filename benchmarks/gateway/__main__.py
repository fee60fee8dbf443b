"""Measure this gateway beside its peers and the floor, interleaved in one run.

python -m benchmarks.gateway install          install the peers, once
python -m benchmarks.gateway                  everything; the tables are printed and saved
python -m benchmarks.gateway --scenarios S1,S2 --servers bridge-chat,floor-chat --repeats 5
python -m benchmarks.gateway --profile S2     where the gateway's time goes (needs py-spy)
"""

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.gateway import profiler, report, servers
from benchmarks.gateway.run import Bench
from benchmarks.gateway.scenarios import SCENARIOS
from benchmarks.gateway.servers import SERVERS, WORK

console = Console(width=None if sys.stdout.isatty() else 150)


def main() -> None:
    options = arguments().parse_args()
    if options.what == "install":
        servers.install()
        return
    upstream = servers.start_upstream()
    try:
        if options.profile:
            profiler.profile(options.profile, options.servers.split(",")[0], console)
            return
        rows = Bench(console, options.servers.split(",")).run(
            options.scenarios.split(",") if options.scenarios else [], options.repeats
        )
    finally:
        upstream.terminate()
        upstream.wait()
    options.save.parent.mkdir(parents=True, exist_ok=True)
    options.save.write_text(json.dumps(rows, indent=1))
    for sheet in report.sheets(rows):
        sheet.print(console)
    console.print(f"saved: {options.save}")
    console.print(f"{len(os.sched_getaffinity(0))} cores; two workers need two free ones to gain")
    if options.page:
        report.save_markdown(
            options.page, rows, "python -m benchmarks.gateway " + command_options()
        )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["run", "install"], default="run")
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument(
        "--scenarios",
        default=",".join(SCENARIOS),
        help="empty: only S5 and S6, which every start measures",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", type=Path, default=WORK / "gateway.json")
    parser.add_argument("--page", type=Path, help="put the tables into this Markdown page, too")
    parser.add_argument("--profile", metavar="SCENARIO", help="profile the first server in it")
    return parser


def command_options() -> str:
    """Return the options of this run without the output options."""
    words = sys.argv[1:]
    for option in ("--save", "--page"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return " ".join(words)


if __name__ == "__main__":
    main()

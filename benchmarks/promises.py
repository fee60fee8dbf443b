"""Run the long tests of docs/promises.md one after the other and record the results.

    python -m benchmarks.promises --list
    python -m benchmarks.promises                         all of them: days
    python -m benchmarks.promises --only G13,G15 --page docs/promises.md
    python -m benchmarks.promises --quick                 the smallest size of each

promises.toml lists them. The output of each goes into a file. ``--page`` writes the results into
the page's table and leaves the other rows. ``--scale 0.1`` takes a tenth of each size. Exit code
1: one failed.
"""

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / ".bench/promises"
MEASURED = re.compile(r"(<!-- measured: promises -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = ("goal", "what it proves", "command", "verdict", "seconds", "day", "output")
LOOK_S = 0.25


class Long(NamedTuple):
    """One long test: a table of promises.toml, which documents the fields."""

    goal: str
    proves: str
    command: str  # with {size}
    size: float | str
    least: float | str
    minutes: float

    def sized(self, scale: float) -> float | str:
        if scale >= 1:
            return self.size
        if isinstance(self.size, str) or isinstance(self.least, str):
            return self.least
        return max(self.least, type(self.size)(self.size * scale))

    def at(self, scale: float) -> str:
        """Return the shell command of this size."""
        size = self.sized(scale)
        return self.command.format(size=size if isinstance(size, str) else f"{size:.10g}")

    def expected_s(self, scale: float) -> float:
        size = self.sized(scale)
        if isinstance(size, str) or isinstance(self.size, str):
            return self.minutes * 60
        return self.minutes * 60 * size / self.size


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LONG = tuple(Long(**each) for each in TABLE["long"])


class Outcome(NamedTuple):
    long: Long
    command: str
    passed: bool
    seconds: float
    last_line: str

    @property
    def cells(self) -> tuple[str, ...]:
        verdict, day = "met" if self.passed else "**not met**", f"{datetime.now(UTC):%Y-%m-%d}"
        return (self.long.goal, self.long.proves, f"`{self.command}`", verdict,
                f"{self.seconds:,.0f}", day, self.last_line)  # fmt: skip


def run(long: Long, scale: float, file: Path, progress: Progress) -> Outcome:
    """Run one test to its end; the progress bar follows the expected duration."""
    command = long.at(scale)
    task = progress.add_task(f"{long.goal} {long.proves}", total=long.expected_s(scale))
    began = time.monotonic()
    with file.open("wb") as output:
        child = subprocess.Popen(
            arguments(command), env=environment(command), cwd=ROOT, stdout=output, stderr=output
        )
        try:
            while child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_S)
                progress.update(task, completed=time.monotonic() - began)
        finally:  # an interrupted test still stops its servers
            if child.poll() is None:
                child.terminate()
                child.wait()
    progress.remove_task(task)
    return Outcome(long, command, child.returncode == 0, time.monotonic() - began, last_line(file))


def arguments(command: str) -> list[str]:
    """Return the arguments of ``NAME=value pytest …`` for this interpreter, without variables."""
    words = [word for word in shlex.split(command) if not re.match("[A-Z_]+=", word)]
    return [sys.executable, *(["-m", "pytest"] if words[0] == "pytest" else []), *words[1:]]


def environment(command: str) -> dict[str, str]:
    """Return the environment; with CI set, a missing program is a failure, not a skip."""
    variables = dict(
        word.split("=", 1) for word in shlex.split(command) if re.match("[A-Z_]+=", word)
    )
    return {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "CI": "true", **variables}


def last_line(file: Path) -> str:
    """Return the last line that contains a word, without a table's borders."""
    lines = file.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
    plain = (" ".join(re.sub(r"[│|━┃]", " ", line).split()) for line in reversed(lines))
    return next((line for line in plain if re.search(r"\w", line)), "nothing")


def table_of(outcomes: Sequence[Outcome], rows: Sequence[str] = ()) -> list[str]:
    """Return the page's table; a test that did not run now has its earlier row or an empty one."""
    made = {each.long: "| " + " | ".join(each.cells) + " |" for each in outcomes}
    for long in LONG:
        begins = f"| {long.goal} | {long.proves} |"
        none = f"{begins} `{long.at(1)}` | not run | — | — | — |"
        made.setdefault(long, next((row for row in rows if row.startswith(begins)), none))
    head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return [*head, *(made[long] for long in LONG)]


def put(outcomes: Sequence[Outcome], page: Path) -> None:
    """Write the results between the page's marks. Raise ``SystemExit`` when it has none."""
    text = page.read_text(encoding="utf-8")
    found = MEASURED.search(text)
    if found is None:
        sys.exit(f"{page} has no line <!-- measured: promises -->")
    table = "\n".join(table_of(outcomes, found[0].splitlines()))
    page.write_text(
        MEASURED.sub(lambda _: f"{found[1]}{table}\n{found[2]}", text), encoding="utf-8"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises")
    parser.add_argument("--list", action="store_true", help="list the tests and their duration")
    parser.add_argument("--only", default="", help="goals, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of each size")
    parser.add_argument("--quick", action="store_true", help="the smallest size of each")
    parser.add_argument("--page", type=Path, help="page for the results, as docs/promises.md")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for the output")
    options = parser.parse_args()
    scale = 0.0 if options.quick else options.scale
    goals = set(options.only.upper().split(",")) - {""}
    chosen = [long for long in LONG if not goals or long.goal in goals]
    if unknown := goals - {long.goal for long in LONG}:
        parser.error(f"no long test of {', '.join(sorted(unknown))}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    if options.list:
        console.print(listed(chosen, scale))
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    shown = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    outcomes = []
    with Progress(*shown, console=console) as progress, contextlib.suppress(KeyboardInterrupt):
        whole = progress.add_task("all", total=len(chosen))
        for long in chosen:
            file = options.output / f"{long.goal}-{LONG.index(long):02}.txt"
            outcomes.append(run(long, scale, file, progress))
            progress.console.print(*outcomes[-1].cells[:1], *outcomes[-1].cells[3:], file)
            progress.advance(whole)
    table = Table("goal", "verdict", "seconds", "output")
    for each in outcomes:
        table.add_row(each.long.goal, each.cells[3], each.cells[4], each.last_line)
    console.print(table, f"the output is in {options.output}")
    if options.page:
        put(outcomes, options.page)
    return 0 if len(outcomes) == len(chosen) and all(each.passed for each in outcomes) else 1


def listed(chosen: Sequence[Long], scale: float) -> Table:
    table = Table("goal", "what it proves", "command", "minutes")
    for long in chosen:
        table.add_row(long.goal, long.proves, long.at(scale), f"{long.expected_s(scale) / 60:,.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main())

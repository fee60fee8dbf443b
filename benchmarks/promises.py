"""The long versions of docs/promises.md, one after the other, and what became of each.

    python -m benchmarks.promises --list
    python -m benchmarks.promises                         all of them: days
    python -m benchmarks.promises --only G13,G15 --page docs/promises.md
    python -m benchmarks.promises --quick                 the least of each: does it run at all?

Which there are is told in promises.toml. What each says is kept in a file. ``--page`` puts outcomes
into the page's table, where other rows stay. ``--scale 0.1`` takes a tenth of each size. Exit code
1: one was not kept.
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
COLUMNS = ("goal", "what it proves", "command", "verdict", "seconds", "day", "it says")
LOOK_S = 0.25


class Long(NamedTuple):
    """One long version: a table of promises.toml, which says what the fields are."""

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
        """The command as a shell would take it."""
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
    kept: bool
    seconds: float
    says: str  # its last line

    @property
    def cells(self) -> tuple[str, ...]:
        verdict, day = "kept" if self.kept else "**not kept**", f"{datetime.now(UTC):%Y-%m-%d}"
        return (self.long.goal, self.long.proves, f"`{self.command}`", verdict,
                f"{self.seconds:,.0f}", day, self.says)  # fmt: skip


def run(long: Long, scale: float, file: Path, progress: Progress) -> Outcome:
    """Run one to its end; a bar fills by the clock."""
    command = long.at(scale)
    task = progress.add_task(f"{long.goal} {long.proves}", total=long.expected_s(scale))
    began = time.monotonic()
    with file.open("wb") as heard:
        child = subprocess.Popen(
            arguments(command), env=environment(command), cwd=ROOT, stdout=heard, stderr=heard
        )
        try:
            while child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_S)
                progress.update(task, completed=time.monotonic() - began)
        finally:  # who is interrupted lets its servers go
            if child.poll() is None:
                child.terminate()
                child.wait()
    progress.remove_task(task)
    return Outcome(long, command, child.returncode == 0, time.monotonic() - began, last_line(file))


def arguments(command: str) -> list[str]:
    """``NAME=value pytest …`` for this interpreter, without the names."""
    words = [word for word in shlex.split(command) if not re.match("[A-Z_]+=", word)]
    return [sys.executable, *(["-m", "pytest"] if words[0] == "pytest" else []), *words[1:]]


def environment(command: str) -> dict[str, str]:
    """CI: what is missing on this machine is a failure, not a test that was skipped."""
    told = dict(word.split("=", 1) for word in shlex.split(command) if re.match("[A-Z_]+=", word))
    return {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "CI": "true", **told}


def last_line(file: Path) -> str:
    """The last one with a word in it, without a table's borders."""
    lines = file.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
    plain = (" ".join(re.sub(r"[│|━┃]", " ", line).split()) for line in reversed(lines))
    return next((line for line in plain if re.search(r"\w", line)), "nothing")


def table_of(outcomes: Sequence[Outcome], rows: Sequence[str] = ()) -> list[str]:
    """The page's table: a row for each long version, of this run, of another one, or of none."""
    made = {each.long: "| " + " | ".join(each.cells) + " |" for each in outcomes}
    for long in LONG:
        begins = f"| {long.goal} | {long.proves} |"
        none = f"{begins} `{long.at(1)}` | not run | — | — | — |"
        made.setdefault(long, next((row for row in rows if row.startswith(begins)), none))
    head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return [*head, *(made[long] for long in LONG)]


def put(outcomes: Sequence[Outcome], page: Path) -> None:
    """Write the outcomes between the page's marks. Raises ``SystemExit`` where it has none."""
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
    parser.add_argument("--list", action="store_true", help="what there is, and how long it takes")
    parser.add_argument("--only", default="", help="goals, with commas between them")
    parser.add_argument("--scale", type=float, default=1.0, help="of each size")
    parser.add_argument("--quick", action="store_true", help="the least size of each")
    parser.add_argument("--page", type=Path, help="where the outcome goes, as docs/promises.md")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="a folder for what each says")
    options = parser.parse_args()
    scale = 0.0 if options.quick else options.scale
    wanted = set(options.only.upper().split(",")) - {""}
    chosen = [long for long in LONG if not wanted or long.goal in wanted]
    if unknown := wanted - {long.goal for long in LONG}:
        parser.error(f"no long version of {', '.join(sorted(unknown))}")
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
    table = Table("goal", "verdict", "seconds", "it says")
    for each in outcomes:
        table.add_row(each.long.goal, each.cells[3], each.cells[4], each.says)
    console.print(table, f"what each said is in {options.output}")
    if options.page:
        put(outcomes, options.page)
    return 0 if len(outcomes) == len(chosen) and all(each.kept for each in outcomes) else 1


def listed(chosen: Sequence[Long], scale: float) -> Table:
    table = Table("goal", "what it proves", "command", "minutes")
    for long in chosen:
        table.add_row(long.goal, long.proves, long.at(scale), f"{long.expected_s(scale) / 60:,.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main())

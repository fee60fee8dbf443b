"""Output of the commands: progress on stderr, and tables as text.

Progress is a bar on a terminal; in a log or a pipe it is a line now and then.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Final, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

LINE_S: Final = 10.0
"""Seconds between two lines of progress; work that takes less time prints none."""


def render_table(table: Table) -> str:
    """Return a table as text, as wide as the terminal, or 100 columns without a terminal."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


class ProgressLines:
    """Progress as lines of text, with those methods of rich's ``Progress`` that commands use."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._due = clock() + LINE_S
        self._tasks: list[tuple[str, float | None]] = []
        self._completed: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, description: str, *, total: float | None = None) -> TaskID:
        self._tasks.append((description, total))
        self._completed.append(0)
        return TaskID(len(self._tasks) - 1)

    def advance(self, task: TaskID, advance: float = 1) -> None:
        self.update(task, completed=self._completed[task] + advance)

    def update(self, task: TaskID, *, completed: float) -> None:
        self._completed[task] = completed
        if self._clock() < self._due:
            return
        self._due = self._clock() + LINE_S
        description, total = self._tasks[task]
        end = "" if total is None else f" of {total:,.0f}"
        self._out.write(f"{description}: {completed:,.0f}{end}\n")
        self._out.flush()


def progress() -> Progress | ProgressLines:
    """Return the progress of long work, a context manager: a bar on a terminal, else lines."""
    if not sys.stderr.isatty():
        return ProgressLines(sys.stderr)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def track(name: str, batches: Iterable[int], total: float | None = None) -> int:
    """Show the progress of work that yields the size of each batch; return the sum."""
    done = 0
    with progress() as bar:
        task = bar.add_task(name, total=total)
        for count in batches:
            done += count
            bar.advance(task, count)
    return done


def format_count(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 row``, ``2 rows``, ``1,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

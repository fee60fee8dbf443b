"""What a person at a terminal sees: a progress bar on stderr, tables as text."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


def rendered(table: Table) -> str:
    """A table as text, as wide as the terminal (or 100 columns where there is none)."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def progress() -> Progress:
    """Silent when nobody watches. A context manager; ``add_task`` and ``advance`` are rich's."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2 rows``, ``1,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

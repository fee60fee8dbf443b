"""Terminal output of the commands: a progress bar on stderr, and tables as text."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


def render_table(table: Table) -> str:
    """Return a table as text, as wide as the terminal, or 100 columns without a terminal."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def progress() -> Progress:
    """Return a rich progress bar, a context manager; it is invisible without a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def format_count(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 row``, ``2 rows``, ``1,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

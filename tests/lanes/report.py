"""Print what ran and how long it took: by folder after the fast lane, by file after the slow lane."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pytest

from tests import lanes

from .time_limit import TimeLimit, file_of

FOLDERS: Final = 3
"""Parts of a path that name a folder, such as ``tests/proxy/ledger``."""


@dataclass
class Row:
    """The tests of one place."""

    ran: int = 0
    failed: int = 0
    not_run: int = 0
    seconds: float = 0.0


class Report:
    """A plugin that sums the time of setup, call and teardown of each test, in all processes."""

    def __init__(self, limit: TimeLimit, *, whole: bool) -> None:
        self._limit, self._whole = limit, whole
        self._rows: defaultdict[str, Row] = defaultdict(Row)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self._rows[place_of(report.nodeid)]
        row.seconds += report.duration
        row.ran += report.when == "call"
        row.failed += report.failed

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, if the slow lane or the whole fast lane has run."""
        only_collected = terminalreporter.config.option.collectonly
        if only_collected or not (self._whole or lanes.is_slow()):
            return
        for nodeid in self._limit.not_run:
            self._rows[place_of(nodeid)].not_run += 1
        terminalreporter.section(f"{lanes.name()} lane: tests and seconds of the processes")
        for line in table(self._rows):
            terminalreporter.write_line(line)


def place_of(nodeid: str) -> str:
    """Return the file of a test in the slow lane, its folder in the fast lane."""
    path = file_of(nodeid)
    return path if lanes.is_slow() else "/".join(path.split("/")[:-1][:FOLDERS])


def table(rows: dict[str, Row]) -> Iterable[str]:
    """Return lines of text, the longest time first, then the places where nothing ran."""
    yield f"{'seconds':>8} {'ran':>6} {'failed':>6} {'left':>6}"
    order = sorted(rows.items(), key=lambda pair: -pair[1].seconds)
    total = Row(*(sum(getattr(row, name) for row in rows.values()) for name in Row.__annotations__))
    for place, row in [*order, ("all", total)]:
        yield f"{row.seconds:8.1f} {row.ran:6} {row.failed:6} {row.not_run:6}  {place}"

"""The slow lane in limited time: ``--minutes`` and the order of the files.

Each day another file is the first, so that several runs in limited time run everything.
"""

import math
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

import pytest

STEP: Final = 7
"""A run must reach more than one in ``STEP`` of the files; then a week of runs reaches all."""


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--minutes",
        type=float,
        help="start no test after this many minutes, and report those that did not run",
    )


def file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def rotated(items: Iterable[pytest.Item], day: int) -> list[pytest.Item]:
    """Return the items in an order of their files that depends on the day."""
    files = [list(group) for _, group in groupby(items, key=lambda item: file_of(item.nodeid))]
    start = day * -(-len(files) // STEP) % max(1, len(files))
    return [item for group in [*files[start:], *files[:start]] for item in group]


class TimeLimit:
    """A plugin that starts no test after the end of ``--minutes``, and remembers those tests.

    The main process decides on the time and the day, and sends them to the processes of xdist.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.not_run: list[str] = []
        sent: dict[str, Any] = getattr(config, "workerinput", {})
        minutes = config.option.minutes
        self._stop_at = sent.get(
            "stop_at", math.inf if minutes is None else time.time() + minutes * 60
        )
        self._day = sent.get("day", datetime.now(UTC).toordinal())

    def in_order(self, items: list[pytest.Item]) -> list[pytest.Item]:
        return rotated(items, self._day)

    @pytest.hookimpl(optionalhook=True)  # of xdist
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput |= {"stop_at": self._stop_at, "day": self._day}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Return True, which means that the test is done, without a report."""
        if time.time() < self._stop_at:
            return None
        self.not_run.append(item.nodeid)
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In a process of xdist: send the names to the main process."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["not_run"] = self.not_run

    @pytest.hookimpl(optionalhook=True)  # of xdist
    def pytest_testnodedown(self, node: Any) -> None:
        self.not_run += getattr(node, "workeroutput", {}).get("not_run", [])

"""What every test may use: the scripted upstream, how hard the laws are tried, on how many cores."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.fakes import effort  # noqa: F401 - loads the profile before any property is defined
from tests.fakes.upstream import ScriptedUpstream

SIDE_BY_SIDE: Final = 2
"""Processes of a whole run at most: a test has a client, a gateway and upstreams, all busy at once."""

FIRST: Final = (
    "tests/e2e/test_outage_postgresql.py",
    "tests/translator/test_laws.py",
    "tests/e2e/test_outage_sqlite.py",
    "tests/house/test_wheels.py",
    "tests/house/test_coverage.py",
    "tests/proxy/record/test_postgresql.py",
    "tests/house/test_semgrep.py",
)
"""Files that take minutes begin first, so that none is left to one process in the end.

xdist hands files out in turn, and a second one at once to a process whose first has one test. The
outages have one each, and mostly wait: so one process waits for both, one after the other, while
the second is busy with files that need one core.
"""


@pytest.hookimpl(optionalhook=True)  # the core of the suite also runs where xdist is not installed
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means: the whole suite on two cores, any part of it in the process asked for.

    A part is what somebody works at, with a debugger and prints, or what another test runs.
    """
    whole = config.args == config.getini("testpaths")
    return min(SIDE_BY_SIDE, len(os.sched_getaffinity(0))) if whole else 0


@pytest.hookimpl(trylast=True)  # after pytest-django has sorted by the use of the database
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files of ``FIRST`` first where several processes share a run."""
    if hasattr(config, "workerinput"):
        places = {name: place for place, name in enumerate(FIRST)}
        items.sort(key=lambda item: places.get(item.nodeid.split("::", 1)[0], len(FIRST)))


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A scripted upstream on a loopback port; tell it what to answer with ``upstream.on``."""
    with ScriptedUpstream() as running:
        yield running

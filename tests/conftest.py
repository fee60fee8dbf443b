"""What every test may use: the scripted upstream, how hard the laws are tried, and on how many cores."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tests.fakes import effort  # noqa: F401 - loads the profile before any property is defined
from tests.fakes.upstream import ScriptedUpstream

SIDE_BY_SIDE: Final = 2
"""Processes of a whole run at most: a test has a client, a gateway and upstreams, all busy at once."""


@pytest.hookimpl(optionalhook=True)  # the core of the suite also runs where xdist is not installed
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means: the whole suite on two cores, any part of it in the process asked for.

    A part is what somebody works at, with a debugger and prints, or what another test runs.
    """
    whole = config.args == config.getini("testpaths")
    return min(SIDE_BY_SIDE, len(os.sched_getaffinity(0))) if whole else 0


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A scripted upstream on a loopback port; tell it what to answer with ``upstream.on``."""
    with ScriptedUpstream() as running:
        yield running

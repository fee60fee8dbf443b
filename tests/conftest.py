"""Settings and fixtures for all tests: lanes, number of processes, scripted upstream."""

import os
from collections.abc import Generator, Iterator
from dataclasses import fields
from typing import Final

import pytest
from django.core.signals import setting_changed
from django.dispatch import receiver
from hypothesis import is_hypothesis_test

from tests import lanes
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import hypothesis_profiles, report, time_limit

SIDE_BY_SIDE: Final = 2
"""Maximum processes of a full run; one test already runs a client, a gateway and upstreams."""

LIMIT: Final = "time limit"

FIRST: Final = (
    "tests/e2e/recovery/test_outage_postgresql.py",
    "tests/translator/all_dialects/test_laws.py",
    "tests/e2e/recovery/test_outage_sqlite.py",
    "tests/repo/supply/test_wheels.py",
    "tests/repo/lint/test_coverage.py",
    "tests/proxy/ledger/database/test_on_postgresql.py",
    "tests/repo/lint/test_semgrep.py",
)
"""Files that take minutes start first, so that none runs alone at the end.

xdist assigns files in turn, and at once a second file to a process whose first file has one test.
The two outage files have one test each and mostly wait, so one process runs both while the other
runs files that need a core.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    time_limit.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the lane before test files are imported, because they ask for its numbers."""
    lanes.choose_lane(config.option.markexpr)
    hypothesis_profiles.load_profile()
    limit = time_limit.TimeLimit(config)
    config.pluginmanager.register(limit, LIMIT)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(report.Report(limit, whole=is_whole(config)))
        if lanes.is_slow() and config.option.verbose == 0:
            config.option.verbose = 1  # a line for each test, since one may take minutes


def pytest_report_header() -> str:
    return f"lane: {lanes.name()} (docs/contributing.md)"


def is_whole(config: pytest.Config) -> bool:
    """Return True if the command names no path."""
    return config.args == config.getini("testpaths")


@pytest.hookimpl(optionalhook=True)  # the core of the suite also runs where xdist is not installed
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Resolve ``-n auto``: two processes for the whole suite, none for a part of it.

    A part runs in the main process, so that a debugger and prints work.
    """
    return min(SIDE_BY_SIDE, len(os.sched_getaffinity(0))) if is_whole(config) else 0


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Add repeated tests to the slow lane; sort the files of ``FIRST`` to the front.

    pytest selects by marker, and pytest-django sorts by the use of the database, between the two.
    """
    if lanes.is_slow():
        for item in items:
            if item.get_closest_marker("repeated") or is_hypothesis_test(
                getattr(item, "obj", None)
            ):
                item.add_marker("slow")
    yield
    if lanes.is_slow():
        items[:] = config.pluginmanager.get_plugin(LIMIT).in_order(items)
    elif hasattr(config, "workerinput"):
        places = {name: place for place, name in enumerate(FIRST)}
        items.sort(key=lambda item: places.get(item.nodeid.split("::", 1)[0], len(FIRST)))


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A scripted upstream on a loopback port; set its responses with ``upstream.on``."""
    with ScriptedUpstream() as running:
        yield running


@receiver(setting_changed)
def _change_conf(**_: object) -> None:
    """Let the fixture ``settings`` and ``override_settings`` also change ``proxy.conf.conf``.

    The gateway reads Django's settings once, into an object that is immutable.
    """
    from proxy.conf import Conf, conf  # when settings exist

    changed = Conf.from_settings()
    for field in fields(Conf):
        object.__setattr__(conf, field.name, getattr(changed, field.name))

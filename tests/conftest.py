"""Settings and fixtures for all tests: lanes, number of processes, scripted upstream."""

import gc
import os
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import fields
from typing import Final

import pytest
from django.conf import LazySettings
from django.core.signals import setting_changed
from django.dispatch import receiver
from hypothesis import is_hypothesis_test

from proxy.counters.shared_file import FAULTS
from tests import lanes
from tests.fakes.servers import prepared
from tests.fakes.servers.redis_server import redis_server, running_redis
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import hypothesis_profiles, report, time_limit
from tests.lanes.time_limit import file_of

__all__ = ["redis_server", "running_redis"]  # fixtures: one Redis for each process of pytest

# A run starts hundreds of Python processes, and each would compile the code again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

MORE_THAN_CORES: Final = 2
"""Processes of a full run beyond the number of cores, because tests also wait for timers.

On two cores, four processes took 10:37 minutes and three took 12:50.
"""
SIDE_BY_SIDE: Final = 4
"""Maximum processes of a full run; one test already runs a client, a gateway and upstreams."""

LIMIT: Final = "time limit"

GATEWAY_THREADS: Final = {
    "budget-maintenance", "directory", "journal", "live-view-sync", "nightly", "webhooks",
}  # fmt: skip
"""Names of the threads that a gateway starts in its process."""

FIRST: Final = (
    "tests/repo/access/test_write_matrix.py",
    "tests/repo/access/test_access_matrix.py",
    "tests/slow/faults/test_faults.py",
    "tests/slow/browser/test_screens.py",
    "tests/slow/browser/test_walk.py",
    "tests/repo/docs/test_code_blocks.py",
    "tests/proxy/reports/openapi/test_openapi_schema.py",
    "tests/repo/supply/test_wheels.py",
    "tests/e2e/erasure/test_erasure.py",
    "tests/e2e/clients/test_start_page.py",
    "tests/e2e/nodes/test_two_nodes.py",
    "tests/e2e/nodes/test_redis_faults.py",
    "tests/proxy/server/test_server.py",
    "tests/repo/secrets/test_canary.py",
)
"""Files that take long start first, so that none runs alone at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    time_limit.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the lane before test files are imported, because they read its numbers."""
    gc.disable()  # until the tests are collected
    lanes.choose_lane(config.option.markexpr)
    hypothesis_profiles.load_profile()
    prepared.folder_of_this_run()  # before the processes of xdist start, which share it
    limit = time_limit.TimeLimit(config)
    config.pluginmanager.register(limit, LIMIT)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(report.Report(limit, whole=is_whole(config)))
        if lanes.is_slow() and config.option.verbose == 0:
            config.option.verbose = 1  # a line for each test, since one may take minutes


def pytest_collection_finish() -> None:
    """Leave what the collection made out of the garbage collections of the tests (5 % of CPU time)."""
    gc.freeze()
    gc.enable()


def pytest_report_header() -> str:
    return f"lane: {lanes.name()} (docs/contributing.md)"


def is_whole(config: pytest.Config) -> bool:
    """Return True if the command names no path."""
    return config.args == config.getini("testpaths")


@pytest.hookimpl(optionalhook=True)  # the core of the suite also runs where xdist is not installed
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Resolve ``-n auto``: more processes than cores for the whole suite, none for a part of it.

    A part runs in the main process, so that a debugger and prints work.
    """
    cores = len(os.sched_getaffinity(0))
    return min(SIDE_BY_SIDE, cores + MORE_THAN_CORES) if is_whole(config) else 0


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
    elif is_whole(config):
        items.sort(key=place_of)


def place_of(item: pytest.Item) -> int:
    """Return the place of a test's file in the order of a whole run."""
    file = file_of(item.nodeid)
    return FIRST.index(file) if file in FIRST else len(FIRST)


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A scripted upstream on a loopback port; set its responses with ``upstream.on``."""
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def no_gateway_thread_is_left() -> Iterator[None]:
    """Fail if the test file leaves a thread of a gateway, which would use the next file's database.

    A service waits only some seconds for its thread when it stops, so the thread may still run.
    """
    yield
    for thread in threading.enumerate():
        if thread.name in GATEWAY_THREADS:
            thread.join(60)
            assert not thread.is_alive(), f"the thread {thread.name} of a gateway was left"


@pytest.fixture(scope="module", autouse=True)
def no_fault_is_left() -> Iterator[None]:
    """Forget which shared files the test file made unusable: /readyz of the next one names them."""
    yield
    FAULTS.clear()


@pytest.fixture(scope="session", autouse=True)
def settings_without_a_gap() -> Iterator[None]:
    """Let threads of a gateway read Django's settings while a test overrides one.

    Django removes the old settings before it sets the new ones, so that a thread could find none.
    """
    set_attribute = LazySettings.__setattr__

    def replace(settings: LazySettings, name: str, value: object) -> None:
        if name != "_wrapped":
            set_attribute(settings, name, value)
            return
        vars(settings)[name] = value
        for cached in [*vars(settings)]:
            if cached != name:
                vars(settings).pop(cached, None)

    with pytest.MonkeyPatch.context() as patch:
        # This is Django's own method, and each test that overrides a setting calls it.
        patch.setattr(LazySettings, "__setattr__", replace)
        yield


@receiver(setting_changed)
def _change_conf(**_: object) -> None:
    """Let the fixture ``settings`` and ``override_settings`` also change ``proxy.conf.conf``.

    The gateway reads Django's settings once, into an object that is immutable.
    """
    from proxy.conf import Conf, conf  # when settings exist

    changed = Conf.from_settings()
    for field in fields(Conf):
        object.__setattr__(conf, field.name, getattr(changed, field.name))

"""Settings and fixtures for all tests: scripted upstream, Hypothesis profile, number of processes."""

import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

import pytest
from django.core.signals import setting_changed
from django.dispatch import receiver

from tests.fakes.upstreams import hypothesis_profiles  # noqa: F401 - loads the profile before any property is defined
from tests.fakes.upstreams.upstream import ScriptedUpstream

SIDE_BY_SIDE: Final = 2
"""Maximum processes of a full run; one test already runs a client, a gateway and upstreams."""

FIRST: Final = (
    "tests/e2e/recovery/test_outage_postgresql.py",
    "tests/translator/test_laws.py",
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


@pytest.hookimpl(optionalhook=True)  # the core of the suite also runs where xdist is not installed
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Resolve ``-n auto``: two processes for the whole suite, none for a part of it.

    A part runs in the main process, so that a debugger and prints work.
    """
    whole = config.args == config.getini("testpaths")
    return min(SIDE_BY_SIDE, len(os.sched_getaffinity(0))) if whole else 0


@pytest.hookimpl(trylast=True)  # after pytest-django has sorted by the use of the database
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files of ``FIRST`` to the front when several processes share a run."""
    if hasattr(config, "workerinput"):
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

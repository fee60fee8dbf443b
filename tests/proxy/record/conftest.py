"""A spool in a temporary directory, and the gateway's record as a process that can be killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.models import Team
from proxy.record import slots
from proxy.record.drainer import Source, drain
from proxy.record.spool import Spool
from proxy.record.spool_file import connect

from .driver import Driver


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    slot = slots.take(tmp_path)
    spool = Spool(slot, reserve_bytes=65_536)
    spool.start()
    yield spool
    spool.stop()
    slot.release()


@pytest.fixture
def source(spool: Spool) -> Iterator[Source]:
    """The spool as the drainer sees it; ``drain_all`` moves everything in this thread."""
    link = connect(spool.path)
    yield Source(link, spool.call)
    link.close()


@pytest.fixture
def team(db: None) -> Team:
    return Team.objects.create(name="platform", retention_days=30)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    running = Driver(tmp_path / "data")
    yield running
    running.end()


def drain_all(source: Source) -> int:
    return sum(drain(source))

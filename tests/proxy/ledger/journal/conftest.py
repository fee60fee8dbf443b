"""The fixtures of the ledger's tests, and a disk that fails, for the tests of the journal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.ledger.journal import locks
from proxy.ledger.journal.journal import Journal
from tests.proxy.ledger.conftest import driver, journal, own, team

from .faulty_disk import FaultyDisk, make_faulty

__all__ = ["driver", "journal", "own", "team"]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    """The disk under every journal of this process."""
    return make_faulty(monkeypatch)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Journal]:
    """A journal whose segments and bounds are small."""
    with locks.take(tmp_path) as lock:
        small = Journal(lock, reserve_bytes=4_096, max_bytes=100_000, segment_bytes=10_000)
        small.start()
        yield small
        small.stop()

"""What waits for the database, as Prometheus reads it."""

from pathlib import Path

import pytest

from proxy.record.drainer import Source
from proxy.record.gauges import prometheus
from proxy.record.spool import Spool

from .conftest import drain_all
from .making import closing, opening

WELL = {"spool": True, "database": True, "lost_chunks": 0}


def values(text: str) -> dict[str, float]:
    told = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in told}


@pytest.mark.django_db
def test_the_backlog_of_every_spool_is_told_and_falls_to_zero(
    spool: Spool, source: Source, tmp_path: Path
) -> None:
    spool.append(opening(1))
    spool.append(closing(1))

    waiting = values(prometheus(tmp_path, WELL))
    drain_all(source)
    drained = values(prometheus(tmp_path, WELL))

    assert waiting['bridge_record_backlog{spool="spool-0"}'] == 2
    assert drained['bridge_record_backlog{spool="spool-0"}'] == 0
    assert drained['bridge_record_oldest_seconds{spool="spool-0"}'] == 0
    assert drained["bridge_record_spool_bytes"] > 0


def test_what_is_down_is_a_zero(tmp_path: Path) -> None:
    (tmp_path / "spool-3.sqlite3").write_bytes(b"no database at all")

    told = values(prometheus(tmp_path, WELL | {"database": False, "lost_chunks": 7}))

    assert told["bridge_record_database_up"] == 0
    assert told["bridge_record_spool_up"] == 1
    assert told["bridge_record_lost_checkpoints"] == 7

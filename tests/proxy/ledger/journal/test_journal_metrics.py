"""The metrics of the journal, as Prometheus reads them."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from proxy.ledger.journal.journal import Journal
from proxy.ledger.journal.journal_metrics import RecordCollector
from proxy.ledger.journal.reader import JournalReader
from tests.proxy.ledger.conftest import drain_all
from tests.proxy.ledger.factories import closing, opening

WORKING = {"journal": True, "database": True, "lost_chunks": 0}


def values(directory: Path, state: dict[str, Any]) -> dict[str, float]:
    text = generate_latest(RecordCollector(directory, state)).decode()
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


@pytest.mark.django_db
def test_the_backlog_of_every_journal_is_reported_and_falls_to_zero(
    journal: Journal, own: JournalReader, tmp_path: Path
) -> None:
    journal.append_and_wait(opening(1), closing(1))
    own.read(10)
    own.save_watermark()

    waiting = values(tmp_path, WORKING)
    drain_all(own)
    own.save_watermark()
    drained = values(tmp_path, WORKING)

    assert waiting['bridge_record_backlog{spool="journal-0"}'] == 2
    assert drained['bridge_record_backlog{spool="journal-0"}'] == 0
    assert drained['bridge_record_oldest_seconds{spool="journal-0"}'] == 0
    assert drained["bridge_record_spool_bytes"] > 65_536  # the reserve is a part of it


def test_worker_that_reports_knows_its_own_backlog(tmp_path: Path) -> None:
    state = WORKING | {"name": "journal-4", "backlog": 3, "oldest_s": 50.0, "set_aside": 1}

    found = values(tmp_path, state)

    assert found['bridge_record_backlog{spool="journal-4"}'] == 3
    assert found['bridge_record_oldest_seconds{spool="journal-4"}'] == pytest.approx(50, abs=5)
    assert found['bridge_record_set_aside{spool="journal-4"}'] == 1


def test_fault_is_reported_as_zero(tmp_path: Path) -> None:
    (tmp_path / "journal-3").mkdir()
    (tmp_path / "journal-3" / "watermark.json").write_bytes(b"torn {")

    found = values(tmp_path, WORKING | {"database": False, "lost_chunks": 7})

    assert found["bridge_record_database_up"] == 0
    assert found["bridge_record_spool_up"] == 1
    assert found["bridge_record_lost_checkpoints"] == 7
    assert not [name for name in found if "journal-3" in name]

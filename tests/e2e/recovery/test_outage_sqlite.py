"""The SQLite file is locked under load.

``BRIDGE_TEST_OUTAGE_S`` sets the seconds; benchmarks/ledger/outage.py runs an hour.
"""

from pathlib import Path

import pytest

from tests.fakes.load.outages import (
    OUTAGE_S,
    assert_no_client_affected,
    config_for,
    locked,
    run_outage,
)
from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams.upstream import ScriptedUpstream


@pytest.mark.repeated
@pytest.mark.timeout(300 + OUTAGE_S)
def test_locked_sqlite_file_affects_no_client(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway", config=config_for(upstream)) as gateway:
        outage = run_outage(gateway, upstream, locked(tmp_path / "gateway/data/ledger.sqlite3"))

    assert_no_client_affected(outage)

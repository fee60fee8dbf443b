"""The SQLite file is locked under sixty requests a second (G10).

A whole run begins with it (``FIRST`` in tests/conftest.py). BRIDGE_TEST_OUTAGE_S says for how many
seconds, and benchmarks/ledger_outage.py takes an hour.
"""

from pathlib import Path

import pytest

from tests.fakes.gateway import Gateway
from tests.fakes.outages import AWAY_S, config_for, locked, nobody_noticed, ride_out
from tests.fakes.upstream import ScriptedUpstream


@pytest.mark.timeout(300 + AWAY_S)
def test_a_locked_sqlite_file_costs_no_client_anything(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    with Gateway(tmp_path / "gateway", config=config_for(upstream)) as gateway:
        outage = ride_out(gateway, upstream, locked(tmp_path / "gateway/data/ledger.sqlite3"))

    nobody_noticed(outage)

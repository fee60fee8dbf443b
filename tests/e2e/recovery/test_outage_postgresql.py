"""PostgreSQL is stopped under load; see ``test_outage_sqlite``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.load.outages import (
    OUTAGE_S,
    assert_no_client_affected,
    config_for,
    run_outage,
    stopped,
)
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.upstream import ScriptedUpstream

DEGRADED_TEXT = "the database cannot be written"


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A PostgreSQL server for this test only."""
    with Postgres() as server:
        yield server


@pytest.mark.slow  # the fast lane stops PostgreSQL in tests/proxy/ledger/database/test_on_postgresql.py
@pytest.mark.timeout(300 + OUTAGE_S)
def test_stopped_postgresql_affects_no_client(
    upstream: ScriptedUpstream, server: Postgres, tmp_path: Path
) -> None:
    database, config = {"DATABASE_URL": server.url}, config_for(upstream)
    with Gateway(tmp_path / "gateway", config=config, environment=database) as gateway:
        outage = run_outage(gateway, upstream, stopped(server), degraded_text=DEGRADED_TEXT)

    assert_no_client_affected(outage)
    assert DEGRADED_TEXT in str(outage.degraded)

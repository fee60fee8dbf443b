"""PostgreSQL is stopped under sixty requests a second (G10); see ``test_outage_sqlite``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gateway import Gateway
from tests.fakes.outages import AWAY_S, config_for, nobody_noticed, ride_out, stopped
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.record.postgres import Postgres

AWAY = "the database cannot be written"


@pytest.fixture
def server() -> Iterator[Postgres]:
    """Of this test alone."""
    server = Postgres()
    server.start()
    yield server
    server.stop()
    server.remove()


@pytest.mark.timeout(300 + AWAY_S)
def test_a_stopped_postgresql_costs_no_client_anything(
    upstream: ScriptedUpstream, server: Postgres, tmp_path: Path
) -> None:
    database, config = {"DATABASE_URL": server.url}, config_for(upstream)
    with Gateway(tmp_path / "gateway", config=config, environment=database) as gateway:
        outage = ride_out(gateway, upstream, stopped(server), shown=AWAY)

    nobody_noticed(outage)
    assert AWAY in str(outage.degraded)

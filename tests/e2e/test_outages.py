"""The database is away under sixty requests a second (G10).

Half a minute on a push; benchmarks/ledger_outage.py takes it for five minutes, or for an hour.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gateway import Gateway
from tests.fakes.outages import Outage, config_for, locked, ride_out, stopped
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.record.postgres import Postgres

AWAY_S = 30
CLIENTS = 90  # each asks two times in three seconds
AWAY = "the database cannot be written"


@pytest.fixture
def player() -> Iterator[ScriptedUpstream]:
    """Of this test alone: its tally is the oracle."""
    with ScriptedUpstream() as running:
        yield running


@pytest.mark.timeout(240)
def test_a_locked_sqlite_file_costs_no_client_anything(player, tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway", config=config_for(player)) as gateway:
        database = tmp_path / "gateway" / "data" / "ledger.sqlite3"

        outage = ride_out(gateway, player, locked(database), away_s=AWAY_S, clients=CLIENTS)

    _nobody_noticed(outage)


@pytest.mark.timeout(240)
def test_a_stopped_postgresql_costs_no_client_anything(player, tmp_path: Path) -> None:
    server = Postgres()
    server.start()
    environment = {"DATABASE_URL": server.url}
    config = config_for(player)
    with Gateway(tmp_path / "gateway", config=config, environment=environment) as gateway:
        outage = ride_out(
            gateway, player, stopped(server), away_s=AWAY_S, clients=CLIENTS, shown=AWAY
        )
    server.stop()
    server.remove()

    _nobody_noticed(outage)
    assert AWAY in str(outage.degraded)


def _nobody_noticed(outage: Outage) -> None:
    assert outage.during > 0, "nothing was asked meanwhile: the test proves nothing"
    assert outage.backlog > 0
    assert outage.errors == []
    assert outage.verdict.faults == {}
    assert outage.verdict.completed == outage.verdict.sent

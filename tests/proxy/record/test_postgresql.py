"""The same record on PostgreSQL: the same tests, and a server that goes away under load."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from .driver import ROOT, Driver, until
from .postgres import Postgres

LANE = ("audit", "commands", "nightly", "partitions", "posting", "purging", "retention", "rollups")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    yield server
    server.stop()
    server.remove()


@pytest.mark.timeout(900)
def test_every_test_of_the_record_holds_on_postgresql(postgres: Postgres) -> None:
    environment = {**os.environ, "DATABASE_URL": postgres.url}
    environment.pop("BRIDGE_DATA_DIR", None)
    files = [str(HERE / f"test_{name}.py") for name in LANE]

    done = subprocess.run(  # noqa: S603 -- our own command line
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *files],
        check=False, cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6000:]


def test_a_server_that_dies_under_load_costs_no_client_anything(
    postgres: Postgres, tmp_path: Path
) -> None:
    driver = Driver(tmp_path / "data", postgres.url)
    driver.start()

    def count(table: str, where: str = "true") -> int:
        with psycopg.connect(postgres.url) as link:
            row = link.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()  # noqa: S608 -- our own names
        return int(row[0]) if row else 0

    def serve(numbers: range) -> None:
        for number in numbers:
            assert driver.ask(do="open", id=number) == {"opened": number}
            assert driver.ask(do="close", id=number) == {"closed": number}

    serve(range(30))
    postgres.stop()  # at once, as kill -9 would: sessions are cut in mid transaction
    serve(range(30, 130))
    until(lambda: not driver.ask(do="state")["database"])
    postgres.start()
    serve(range(130, 150))

    until(lambda: driver.ask(do="state")["backlog"] == 0)
    assert count("proxy_exchange", "state = 'closed'") == 150
    assert count("proxy_seal") == 150
    driver.end()

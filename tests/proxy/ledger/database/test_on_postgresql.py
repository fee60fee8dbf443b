"""The ledger tests on PostgreSQL, and a PostgreSQL server that dies under load."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fakes.servers.postgresql import Postgres
from tests.lanes import repeat
from tests.proxy.ledger.subprocess_driver import ROOT, Driver
from tests.waiting import until

EXAMPLES = (
    "database/test_partitions.py",
    "maintenance/archive/test_restoremonth.py::test_rows_and_transcripts_come_back_as_they_were",
    "maintenance/test_purge_jobs.py::test_expired_transcripts_are_those_that_a_purge_deletes",
    "maintenance/test_retention.py::test_each_team_has_its_own_retention",
    "posting/test_ledger_writer.py",
    "posting/test_rollups.py::test_buckets_of_each_zone_contain_the_rows_of_that_local_time",
    "posting/test_rollups.py::test_rebuilding_from_the_rows_gives_the_same_sums",
    "search/test_search.py::test_every_kind_of_text_is_found_and_binary_content_is_not",
    "search/test_search.py::test_pages_continue_and_end",
    "search/test_search.py::test_texts_in_several_partitions_are_found_newest_first",
)
"""An example of each statement that differs between PostgreSQL and SQLite."""
ALL = (
    "database/test_partitions.py",
    "maintenance/archive/test_reports.py",
    "maintenance/archive/test_restoremonth.py",
    "maintenance/test_forged_ledger.py",
    "maintenance/test_forgeries.py",
    "maintenance/test_purge_jobs.py",
    "maintenance/test_retention.py",
    "maintenance/test_verifier.py",
    "posting/test_ledger_writer.py",
    "posting/test_rollups.py",
    "search/test_command.py",
    "search/test_search.py",
    "test_commands.py",
)
TESTS = repeat(fast=EXAMPLES, slow=ALL)
HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.mark.repeated
@pytest.mark.timeout(1800)
def test_the_ledger_tests_pass_on_postgresql(postgres: Postgres) -> None:
    environment = {**os.environ, "DATABASE_URL": postgres.url}
    environment.pop("BRIDGE_DATA_DIR", None)
    chosen = [str(HERE / name) for name in TESTS]
    with psycopg.connect(postgres.url, dbname="template1", autocommit=True) as link:
        link.execute("CREATE DATABASE test_postgres TEMPLATE postgres")  # it has the schema

    done = subprocess.run(  # noqa: S603 -- our own command line
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", "--reuse-db", *chosen],
        check=False, cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6000:]


def test_requests_continue_when_postgresql_dies_under_load(
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
            assert driver.request(do="open", id=number) == {"opened": number}
            assert driver.request(do="close", id=number) == {"closed": number}

    serve(range(30))
    postgres.stop()  # immediately: open transactions are aborted
    serve(range(30, 130))
    until(lambda: not driver.request(do="state")["database"])
    postgres.start()
    serve(range(130, 150))

    until(lambda: driver.request(do="state")["backlog"] == 0)
    assert count("proxy_exchange", "state = 'closed'") == 150
    assert count("proxy_hashchainlink") == 150
    driver.end()

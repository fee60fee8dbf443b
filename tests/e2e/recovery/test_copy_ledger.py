"""``copyledger`` moves a gateway from SQLite to PostgreSQL; nothing is lost, doubled or changed."""

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from proxy.management.rich_output import LINE_S
from tests.fakes.forked_python import REPOSITORY
from tests.fakes.load.filled_ledger import fill_ledger
from tests.fakes.servers.gateway import TEAM, Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.servers.prepared import copy_ledger
from tests.waiting import until

REQUESTS = 100
EXAMPLE = f"req_{4:026d}"  # the last turn of the first conversation
PATHS = (
    "/api/v1/usage/?from=2026-11-20&to=2026-12-01&group_by=team,user",
    "/v1/organizations/usage_report/messages?starting_at=2026-11-20T00:00:00Z&bucket_width=1d",
    f"/api/v1/requests/{EXAMPLE}/",
    f"/api/v1/requests/{EXAMPLE}/transcript/",
    "/api/v1/search/?q=topic3x",
    "/api/v1/teams/",
)
BLOCK = """
CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
CREATE TRIGGER wait_for_test BEFORE INSERT ON {table} FOR EACH ROW
EXECUTE FUNCTION wait_for_test();
"""


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    migrated = getattr(request, "param", True)
    with Postgres(migrated=migrated) as server:
        if migrated:
            server.delete_admin()
        yield server


def filled_gateway(folder: Path, requests: int, days_before: int = 0) -> Gateway:
    folder.mkdir()
    copy_ledger(folder / "data")
    gateway = Gateway(folder, config=TEAM)
    secret = {
        "BRIDGE_SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyz" * 2
    }  # signs the hash chain
    gateway.environment |= secret
    fill_ledger(requests, {"BRIDGE_DATA_DIR": str(folder / "data")} | secret, days_before)
    return gateway


def read(gateway: Gateway) -> dict[str, object]:
    """Return the reports, without the time at which they were computed."""
    answers = {}
    for path in PATHS:
        reply = gateway.request("GET", path)
        assert reply.status == 200, (path, reply.body)
        answers[path] = json.loads(reply.body) | {"data_refreshed_at": None}
        assert answers[path].get("data") != [], path
    return answers


def start_copy(gateway: Gateway, postgres: Postgres, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as errors:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "manage.py", "copyledger", "--to", postgres.url],
            cwd=REPOSITORY, env=gateway.environment_variables(), stderr=errors,
        )  # fmt: skip


def kill_while_copying(gateway: Gateway, postgres: Postgres, table: str) -> None:
    """Kill the command when it copies the first row of this table."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(BLOCK.format(table=table))
        connection.execute("SELECT pg_advisory_lock(1)")
        command = start_copy(gateway, postgres, gateway.folder / "copy.log")
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while connection.execute(waiting).fetchone() != (1,):
            assert command.poll() is None, "the command has ended"
            time.sleep(0.02)
        command.kill()
        command.wait()
        connection.execute("SELECT pg_advisory_unlock(1)")
        connection.execute("DROP FUNCTION wait_for_test CASCADE")


@pytest.mark.timeout(240)
def test_a_copy_that_was_killed_is_finished_and_served(tmp_path: Path, postgres: Postgres) -> None:
    gateway = filled_gateway(tmp_path / "gateway", REQUESTS)
    with gateway:
        before = read(gateway)
        running = gateway.run_command("copyledger", "--to", postgres.url)
        gateway.end_process()
        kill_while_copying(gateway, postgres, "proxy_transcript")
        copied = gateway.run_command("copyledger", "--to", postgres.url, "--json")

    assert running.returncode == 2
    assert "in use by another gateway" in running.stderr
    assert copied.returncode == 0, copied.stderr
    result = json.loads(copied.stdout)
    assert result["links"] == {"original": 98, "copy": 98}
    assert result["findings"] == {"original": 0, "copy": 0}
    assert {"table": "proxy_exchange", "original": 100, "copy": 100} in result["tables"]
    assert all(each["original"] == each["copy"] for each in result["tables"])
    gateway.environment["DATABASE_URL"] = postgres.url
    with gateway:
        assert read(gateway) == before
        new = json.dumps({"team": "e2e", "name": "new"}).encode()
        added = gateway.request("POST", "/api/v1/keys/", new, {"content-type": "application/json"})
        assert added.status == 201, added.body


def rows_copied(postgres: Postgres) -> int:
    try:
        with psycopg.connect(postgres.url) as connection:
            [count] = connection.execute("SELECT sum(rows) FROM proxy_copiedtable").fetchone()
            return int(count or 0)
    except psycopg.errors.UndefinedTable:
        return 0


def peak_memory_mb(process: "subprocess.Popen[bytes]") -> float:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("postgres", [False], indirect=True)
def test_twenty_thousand_requests_are_copied_despite_kills(
    tmp_path: Path, postgres: Postgres
) -> None:
    gateway = filled_gateway(tmp_path / "gateway", 20_000)
    with gateway:
        before = read(gateway)
    log = tmp_path / "copy.log"
    for rows in (1, 40_000, 90_000):
        command = start_copy(gateway, postgres, log)
        while rows_copied(postgres) < rows:
            assert command.poll() is None, log.read_text()
            time.sleep(0.2)
        command.kill()
        command.wait()
    copied, memory = rows_copied(postgres), 0.0
    command = start_copy(gateway, postgres, log)
    until(lambda: rows_copied(postgres) > copied, log.read_text)
    command.send_signal(signal.SIGSTOP)  # else a fast machine copies all before a line is due
    time.sleep(LINE_S)
    command.send_signal(signal.SIGCONT)
    while command.poll() is None:
        with contextlib.suppress(OSError, TypeError):  # the process has just ended
            memory = max(memory, peak_memory_mb(command))
        time.sleep(0.2)

    assert command.returncode == 0, log.read_text()
    assert re.search(r"^copying rows: [\d,]+ of [\d,]+$", log.read_text(), re.MULTILINE)
    assert memory < 250
    gateway.environment["DATABASE_URL"] = postgres.url
    with gateway:
        assert read(gateway) == before
        # 19,600 closed requests, and links of the audit log
        assert re.search(r"19,6\d\d links checked: everything", gateway.manage("verifyledger"))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_target_that_is_not_empty_is_refused(tmp_path: Path, postgres: Postgres) -> None:
    gateway = filled_gateway(tmp_path / "gateway", 10)
    command = ("copyledger", "--to", postgres.url)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE shelves (title text)")
        foreign = gateway.run_command(*command)
        connection.execute("DROP TABLE shelves")
        gateway.manage(*command)
        ledger = gateway.run_command(*command)
        [users] = connection.execute("SELECT count(*) FROM proxy_exchange").fetchone()

    assert (foreign.returncode, ledger.returncode) == (2, 2)
    assert "has a table 'shelves' of another program; name an empty database" in foreign.stderr
    assert "the target contains a ledger already; name an empty database" in ledger.stderr
    assert users == 10


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_copy_of_a_changed_ledger_begins_again(tmp_path: Path, postgres: Postgres) -> None:
    gateway = filled_gateway(tmp_path / "gateway", 100)
    kill_while_copying(gateway, postgres, "proxy_transcript")
    served = gateway.run_command("serve", "--port", "0", DATABASE_URL=postgres.url)
    gateway.manage("createkey", "--team", "e2e", "--name", "later")

    refused = gateway.run_command("copyledger", "--to", postgres.url)
    copied = gateway.run_command("copyledger", "--to", postgres.url, "--restart")

    assert served.returncode == 2
    assert "the database is an unfinished copy of another one" in served.stderr
    assert refused.returncode == 2
    assert "changed since this copy began; --restart begins it again" in refused.stderr
    assert copied.returncode == 0, copied.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_copy_brings_archived_months_back(tmp_path: Path, postgres: Postgres) -> None:
    gateway = filled_gateway(tmp_path / "gateway", 40, days_before=140)
    gateway.manage("pruneledger")
    path = "/api/v1/requests/?from=2026-07-01&to=2026-08-01"
    with gateway:
        before = json.loads(gateway.request("GET", path).body)
    month = ("--before", "2026-08", "--to", str(tmp_path / "archive"), "--remove")
    archived = gateway.manage("archivemonths", *month, "--json")
    command = ("copyledger", "--to", postgres.url, "--json")
    (tmp_path / "archive").rename(tmp_path / "moved")
    missing = gateway.run_command(*command)
    (tmp_path / "moved").rename(tmp_path / "archive")

    copied = gateway.run_command(*command)

    assert missing.returncode == 1
    assert "requests-2026-07.parquet is missing" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert json.loads(archived)[0]["state"] == "removed"
    assert copied.returncode == 0, copied.stderr
    result = json.loads(copied.stdout)
    assert {"table": "proxy_exchange", "original": 0, "copy": 0} in result["tables"]
    assert {"table": "proxy_archivedmonth", "original": 1, "copy": 1} in result["tables"]
    assert result["links"]["copy"] == result["links"]["original"] >= 40
    gateway.environment["DATABASE_URL"] = postgres.url
    gateway.manage("restoremonth", "2026-07")
    with gateway:
        assert json.loads(gateway.request("GET", path).body) == before
    assert len(before["data"]) == 40


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_row_that_postgresql_refuses_is_named(tmp_path: Path, postgres: Postgres) -> None:
    gateway = filled_gateway(tmp_path / "gateway", 10)
    with contextlib.closing(sqlite3.connect(gateway.folder / "data/ledger.sqlite3")) as ledger:
        ledger.execute("UPDATE proxy_exchange SET preview = 'a' || char(0) WHERE id = ?", [EXAMPLE])
        ledger.commit()

    refused = gateway.run_command("copyledger", "--to", postgres.url)

    assert refused.returncode == 1
    assert "proxy_exchange: the rows cannot be copied: " in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("table", ["django_content_type", "auth_group", "proxy_searchterms"])
def test_a_copy_continues_in_any_table(tmp_path: Path, postgres: Postgres, table: str) -> None:
    gateway = filled_gateway(tmp_path / "gateway", 10)
    kill_while_copying(gateway, postgres, table)

    copied = gateway.run_command("copyledger", "--to", postgres.url)

    assert copied.returncode == 0, copied.stderr

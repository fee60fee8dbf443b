"""A backup that is taken while the gateway serves, restored after a loss, has every request."""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from tests.fakes.load.kill_process import config_for, wait_until_drained
from tests.fakes.load.load_client import LoadClients, Sent, Verdict, chat_response, compare_records
from tests.fakes.servers.command_server import CommandServer
from tests.fakes.servers.gateway import KEY, TEAM, Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.servers.prepared import copy_ledger
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.waiting import until

CLIENTS = 6


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.choose(chat_response)
        yield running


def serve_and_copy(
    gateway: Gateway, upstream: ScriptedUpstream, copy: Callable[[], object]
) -> list[Sent]:
    """Send requests before, during and after the copy; then kill the gateway."""
    with LoadClients(gateway.port, gateway.key, "load", CLIENTS, pause_s=0.1) as load:
        upstream.wait_until(lambda requests: len(requests) >= CLIENTS, within_s=60)
        until(lambda: has_a_row(gateway), "the copy would be empty")
        copy()
        request_count = len(upstream.requests)
        upstream.wait_until(lambda requests: len(requests) >= request_count + CLIENTS, within_s=60)
    wait_until_drained(gateway)
    gateway.end_process(signal.SIGKILL)
    return load.sent


def has_a_row(gateway: Gateway) -> bool:
    """Return whether a completed request is in the database."""
    path = "/api/v1/requests/?outcome=completed&limit=1"
    return bool(json.loads(gateway.request("GET", path).body)["data"])


def restore_and_compare(
    gateway: Gateway, upstream: ScriptedUpstream, sent: Sequence[Sent]
) -> Verdict:
    """Follow docs/operate.md after the restore; compare clients, upstream and ledger."""
    gateway.manage("settleorphans", "--restore", "1h")
    gateway.start()
    wait_until_drained(gateway)
    verdict = compare_records(sent, upstream.requests, gateway.rows().values())
    assert "everything is as it was written" in gateway.manage("verifyledger")
    gateway.stop()
    return verdict


@pytest.mark.timeout(240)
def test_sqlite_backup_under_load_is_complete_after_restore(upstream, tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "gateway", config=config_for(upstream))
    ledger, copy = tmp_path / "gateway/data/ledger.sqlite3", tmp_path / "copy.sqlite3"
    with gateway:
        sent = serve_and_copy(gateway, upstream, lambda: gateway.manage("backup", str(copy)))
        for file in ledger.parent.glob("ledger.sqlite3*"):
            file.unlink()
        shutil.copy(copy, ledger)

        verdict = restore_and_compare(gateway, upstream, sent)

    assert copy.stat().st_mode & 0o077 == 0
    assert verdict.completed >= {each.number for each in sent if each.ending == "whole"}
    assert verdict.faults == {}


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A PostgreSQL server with a migrated database and the empty database ``second``."""
    with Postgres() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE second")
        yield server


def gateway_on(server: Postgres, folder: Path, config: str | None = None) -> Gateway:
    path = os.pathsep.join((str(server.binaries), os.environ["PATH"]))
    return Gateway(folder, config, {"DATABASE_URL": server.url, "PATH": path})


def restored(server: Postgres, dump: Path) -> str:
    """Restore the dump into the database ``second``; return its URL."""
    url = server.url.replace("/postgres", "/second")
    run(server, "pg_restore", "--no-owner", f"--dbname={url}", str(dump))
    return url


@pytest.mark.slow
def test_postgresql_dump_has_the_rows_of_all_tables(server: Postgres, tmp_path: Path) -> None:
    gateway, dump = gateway_on(server, tmp_path / "gateway"), tmp_path / "copy.dump"
    (tmp_path / "team.toml").write_text(TEAM)
    with contextlib.closing(CommandServer(gateway.environment_variables())) as commands:
        made = commands.run("applyconfig", str(tmp_path / "team.toml"))
        done = commands.run("backup", str(dump))
    assert (made.returncode, done.returncode) == (0, 0), made.stderr + done.stderr

    counts = [row_counts(url) for url in (server.url, restored(server, dump))]

    assert counts[0] == counts[1]
    assert counts[0]["proxy_apikey"] == 1
    assert dump.stat().st_mode & 0o077 == 0


def row_counts(url: str) -> dict[str, int]:
    """Return the number of rows of each table."""
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608 - names of tables
            for (name,) in names.fetchall()
        }


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_postgresql_dump_under_load_is_complete_after_restore(
    upstream, server: Postgres, tmp_path: Path
) -> None:
    dump = tmp_path / "copy.dump"
    gateway = gateway_on(server, tmp_path / "gateway", config_for(upstream))
    with gateway:
        sent = serve_and_copy(gateway, upstream, lambda: gateway.manage("backup", str(dump)))
        gateway.environment["DATABASE_URL"] = restored(server, dump)

        verdict = restore_and_compare(gateway, upstream, sent)

    assert verdict.completed >= {each.number for each in sent if each.ending == "whole"}
    assert verdict.faults == {}


def run(server: Postgres, program: str, *arguments: str) -> None:
    url = [each.replace("postgres://", "postgresql://") for each in arguments]
    subprocess.run(  # noqa: S603 - fixed command line
        [server.binaries / program, *url], check=True, env={"PATH": os.environ["PATH"]}, timeout=60
    )


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandServer]:
    """Commands of a gateway that does not run; each test has its own folder."""
    gateway = Gateway(tmp_path_factory.mktemp("commands"))
    copy_ledger(gateway.folder / "data")
    with contextlib.closing(CommandServer(gateway.environment_variables())) as running:
        yield running


def test_backup_overwrites_no_file(commands: CommandServer, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite3"
    copy.write_text("mine")

    done = commands.run("backup", str(copy))

    assert done.returncode != 0
    assert "exists already" in done.stderr
    assert copy.read_text() == "mine"


@pytest.mark.slow  # a process of its own
def test_backup_requires_a_ledger(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "gateway")
    gateway.folder.mkdir()

    with pytest.raises(AssertionError, match="no ledger"):
        gateway.manage("backup", str(tmp_path / "copy.sqlite3"))

    assert not (tmp_path / "copy.sqlite3").exists()


UNITS = Path(__file__).parents[3] / "deploy/systemd"
OPERATE = Path(__file__).parents[3] / "docs/operate.md"


def test_the_scheduled_backup_keeps_the_newest_copies_and_names_the_rest(
    commands: CommandServer, tmp_path: Path
) -> None:
    """Runs the command of the systemd unit, as its timer does each night."""
    unit = (UNITS / "messages-bridge-backup.service").read_text()
    [command] = re.findall(
        r"^ExecStart=/opt/messages-bridge/bin/messages-bridge (.*)", unit, re.MULTILINE
    )
    assert f"bin/messages-bridge {command} --verbosity 0" in OPERATE.read_text()  # the line of cron
    folder = tmp_path / "backups"
    folder.mkdir()
    arguments = command.replace("/var/backups/messages-bridge", str(folder)).split()
    others = [f"ledger-202601{day:02}T021000Z.sqlite3" for day in range(1, 16)]
    for name in (*others, "mine.sqlite3"):
        (folder / name).touch()

    done = commands.run(*arguments)

    assert done.returncode == 0, done.stderr
    output = done.stdout
    left = {path.name for path in folder.iterdir()}
    [made] = left - {*others, "mine.sqlite3"}
    assert left == {*others[2:], "mine.sqlite3", made}
    with contextlib.closing(sqlite3.connect(folder / made)) as copied:
        assert copied.execute("SELECT count(*) FROM proxy_team").fetchone() == (0,)
    data = commands.environment["BRIDGE_DATA_DIR"]
    assert f"secret key   {data}/secret_key (the master key" in output
    assert re.search(r"^  settings     BRIDGE_DATA_DIR, ", output, re.MULTILINE)
    assert "revoked_keys" in output
    assert KEY not in output

"""A backup that is taken while the gateway serves, restored after a loss, has every request."""

import contextlib
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
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.servers.prepared import copy_ledger
from tests.fakes.upstreams.upstream import ScriptedUpstream

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
        wait_until_drained_once(gateway)
        copy()
        request_count = len(upstream.requests)
        upstream.wait_until(lambda requests: len(requests) >= request_count + CLIENTS, within_s=60)
    wait_until_drained(gateway)
    gateway.stop(signal.SIGKILL)
    return load.sent


def wait_until_drained_once(gateway: Gateway) -> None:
    """Wait until a request is in the database, so that the copy is not empty."""
    while "completed" not in gateway.manage("exportledger", "--format", "ndjson"):
        pass


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


@pytest.mark.timeout(240)
def test_postgresql_dump_under_load_is_complete_after_restore(upstream, tmp_path: Path) -> None:
    server = Postgres()
    server.start()
    dump = tmp_path / "copy.dump"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE first")
        connection.execute("CREATE DATABASE second")
    first, second = (server.url.replace("/postgres", f"/{name}") for name in ("first", "second"))
    path = os.pathsep.join((str(server.binaries), os.environ["PATH"]))
    environment = {"DATABASE_URL": first, "PATH": path}
    gateway = Gateway(tmp_path / "gateway", config=config_for(upstream), environment=environment)
    with gateway:
        sent = serve_and_copy(gateway, upstream, lambda: gateway.manage("backup", str(dump)))
        run(server, "pg_restore", "--no-owner", f"--dbname={second}", str(dump))
        gateway.environment["DATABASE_URL"] = second

        verdict = restore_and_compare(gateway, upstream, sent)
    server.stop()
    server.remove()

    assert verdict.completed >= {each.number for each in sent if each.ending == "whole"}
    assert verdict.faults == {}


def run(server: Postgres, program: str, *arguments: str) -> None:
    url = [each.replace("postgres://", "postgresql://") for each in arguments]
    subprocess.run(  # noqa: S603 - fixed command line
        [server.binaries / program, *url], check=True, env={"PATH": os.environ["PATH"]}, timeout=60
    )


@pytest.mark.parametrize("existing", [True, False])
def test_backup_overwrites_no_file_and_requires_a_ledger(tmp_path: Path, existing: bool) -> None:
    gateway = Gateway(tmp_path / "gateway")
    gateway.folder.mkdir()
    copy = tmp_path / "copy.sqlite3"
    if existing:
        copy.write_text("mine")

    with pytest.raises(AssertionError, match="exists already" if existing else "no ledger"):
        gateway.manage("backup", str(copy))

    assert not existing or copy.read_text() == "mine"
    assert existing or not copy.exists()


UNITS = Path(__file__).parents[3] / "deploy/systemd"
OPERATE = Path(__file__).parents[3] / "docs/operate.md"


def test_the_scheduled_backup_keeps_the_newest_copies_and_names_the_rest(tmp_path: Path) -> None:
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
    gateway = Gateway(tmp_path / "gateway")
    gateway.folder.mkdir()
    copy_ledger(gateway.folder / "data")

    output = gateway.manage(*arguments)

    left = {path.name for path in folder.iterdir()}
    [made] = left - {*others, "mine.sqlite3"}
    assert left == {*others[2:], "mine.sqlite3", made}
    with contextlib.closing(sqlite3.connect(folder / made)) as copied:
        assert copied.execute("SELECT count(*) FROM proxy_team").fetchone() == (0,)
    assert f"secret key   {gateway.folder}/data/secret_key (the master key" in output
    assert re.search(r"^  settings     BRIDGE_DATA_DIR, ", output, re.MULTILINE)
    assert "revoked_keys" in output
    assert gateway.key not in output

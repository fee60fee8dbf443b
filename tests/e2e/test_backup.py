"""A copy taken while the gateway serves, put back after a loss: every request is there again."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from tests.fakes.crowd import Crowd, Sent, Verdict, chat_answer, judge
from tests.fakes.gateway import Gateway
from tests.fakes.killing import config_for, wait_until_drained
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.record.postgres import Postgres

CLIENTS = 6


@pytest.fixture
def player() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.choose(chat_answer)
        yield running


def serve_and_copy(
    gateway: Gateway, player: ScriptedUpstream, copy: Callable[[], object]
) -> list[Sent]:
    """Requests before, during and after the copy; then the gateway is killed."""
    with Crowd(gateway.port, gateway.key, "crowd", CLIENTS, pause_s=0.1) as crowd:
        player.wait_until(lambda asked: len(asked) >= CLIENTS, within_s=60)
        wait_until_drained_once(gateway)
        copy()
        so_far = len(player.asked)
        player.wait_until(lambda asked: len(asked) >= so_far + CLIENTS, within_s=60)
    wait_until_drained(gateway)
    gateway.stop(signal.SIGKILL)
    return crowd.sent


def wait_until_drained_once(gateway: Gateway) -> None:
    """Until some request is in the database, so that the copy holds something."""
    while "completed" not in gateway.manage("exportledger", "--format", "ndjson"):
        pass


def books(gateway: Gateway, player: ScriptedUpstream, sent: Sequence[Sent]) -> Verdict:
    """After the restore, as docs/operate.md tells it."""
    gateway.manage("settleorphans", "--restore", "1h")
    gateway.start()
    wait_until_drained(gateway)
    verdict = judge(sent, player.asked, gateway.rows().values())
    assert "everything is as it was written" in gateway.manage("verifyledger")
    gateway.stop()
    return verdict


@pytest.mark.timeout(240)
def test_a_sqlite_ledger_is_copied_while_it_is_written(player, tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "gateway", config=config_for(player))
    ledger, copy = tmp_path / "gateway/data/ledger.sqlite3", tmp_path / "copy.sqlite3"
    with gateway:
        sent = serve_and_copy(gateway, player, lambda: gateway.manage("backup", str(copy)))
        for lost in ledger.parent.glob("ledger.sqlite3*"):
            lost.unlink()
        shutil.copy(copy, ledger)

        verdict = books(gateway, player, sent)

    assert copy.stat().st_mode & 0o077 == 0
    assert verdict.completed >= {each.number for each in sent if each.ending == "whole"}
    assert verdict.faults == {}


@pytest.mark.timeout(240)
def test_a_dump_of_postgresql_is_put_into_another_database(player, tmp_path: Path) -> None:
    server = Postgres()
    server.start()
    dump = tmp_path / "copy.dump"
    with psycopg.connect(server.url, autocommit=True) as link:
        link.execute("CREATE DATABASE first")
        link.execute("CREATE DATABASE second")
    first, second = (server.url.replace("/postgres", f"/{name}") for name in ("first", "second"))
    environment = {"DATABASE_URL": first}
    gateway = Gateway(tmp_path / "gateway", config=config_for(player), environment=environment)
    with gateway:
        sent = serve_and_copy(
            gateway,
            player,
            lambda: run(server, "pg_dump", "--format=custom", f"--file={dump}", first),
        )
        run(server, "pg_restore", "--no-owner", f"--dbname={second}", str(dump))
        gateway.environment["DATABASE_URL"] = second

        verdict = books(gateway, player, sent)
    server.stop()
    server.remove()

    assert verdict.completed >= {each.number for each in sent if each.ending == "whole"}
    assert verdict.faults == {}


def run(server: Postgres, program: str, *arguments: str) -> None:
    url = [each.replace("postgres://", "postgresql://") for each in arguments]
    subprocess.run(  # noqa: S603 - our own command line
        [server.binaries / program, *url], check=True, env={"PATH": os.environ["PATH"]}, timeout=60
    )


@pytest.mark.parametrize("existing", [True, False])
def test_a_copy_never_overwrites_and_needs_a_ledger(tmp_path: Path, existing: bool) -> None:
    gateway = Gateway(tmp_path / "gateway")
    gateway.folder.mkdir()
    copy = tmp_path / "copy.sqlite3"
    if existing:
        copy.write_text("mine")

    with pytest.raises(AssertionError, match="exists already" if existing else "no ledger"):
        gateway.manage("backup", str(copy))

    assert not existing or copy.read_text() == "mine"
    assert existing or not copy.exists()

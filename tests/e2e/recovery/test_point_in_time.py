"""PostgreSQL returns to the moment before a mistake, as docs/guides/postgresql.md describes."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fakes.load.filled_ledger import fill_ledger
from tests.fakes.servers.gateway import TEAM, Gateway
from tests.fakes.servers.postgresql import Postgres

GUIDE = Path(__file__).parents[3] / "docs/guides/postgresql.md"


def setting(name: str, server: Postgres) -> str:
    """Return a setting of the guide, with the folders of the test."""
    [value] = re.findall(rf"^ *{name} = '(.*)'$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    return value.replace("/archive/", f"{server.home}/archive/")


def wait_for(connection: psycopg.Connection, query: str, *values: str) -> None:
    while connection.execute(query, values).fetchone() != (True,):
        time.sleep(0.1)


SECRET_KEY = "0123456789abcdefghijklmnopqrstuvwxyz" * 2  # signs the hash chain


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres("archive_mode=on") as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_mistake_is_undone_by_a_recovery_to_the_time_before_it(
    server: Postgres, tmp_path: Path
) -> None:
    for name in ("archive", "base"):
        (server.home / name).mkdir(mode=0o700)
        shutil.chown(server.home / name, server.user)
    files, base = Path(server.files), server.home / "base"
    environment = {"DATABASE_URL": server.url, "BRIDGE_SECRET_KEY": SECRET_KEY}
    gateway = Gateway(tmp_path / "gateway", config=TEAM, environment=environment)
    with psycopg.connect(server.url, autocommit=True) as connection:
        archive = setting("archive_command", server).replace("'", "''")
        connection.execute(f"ALTER SYSTEM SET archive_command = '{archive}'")
        connection.execute("SELECT pg_reload_conf()")
        gateway.folder.mkdir()
        fill_ledger(50, gateway.environment_variables(), days_before=10)
        server.run_program(
            "pg_basebackup", f"--pgdata={base}", "--checkpoint=fast",
            f"--dbname={server.url.replace('postgres:', 'postgresql:')}",
        )  # fmt: skip
        gateway.manage("createkey", "--team", "e2e", "--name", "after-the-base-backup")
        [before] = connection.execute("SELECT now()::text").fetchone()
        connection.execute("DROP TABLE proxy_exchange CASCADE")
        [last] = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone()
        wait_for(connection, "SELECT last_archived_wal >= %s FROM pg_stat_archiver", last)
    server.stop()

    files.rename(server.home / "lost")
    base.rename(files)
    with (files / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"restore_command = '{setting('restore_command', server)}'\n")
        settings.write(f"recovery_target_time = '{before}'\n")
        settings.write("recovery_target_action = 'promote'\n")
    (files / "recovery.signal").touch()
    subprocess.run(["chown", "-R", server.user, files], check=True)  # noqa: S603, S607 - our own command line
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        wait_for(connection, "SELECT NOT pg_is_in_recovery()")
        names = connection.execute("SELECT name FROM proxy_apikey").fetchall()

    assert ("after-the-base-backup",) in names
    settled = gateway.run_command("settleorphans", "--restore", "1h")
    assert "records restored: 0" in settled.stdout
    # the ledger was filled without a gateway, and so without a journal
    assert (settled.returncode, "has no journal" in settled.stderr) == (1, True)
    assert "links checked: everything" in gateway.manage("verifyledger")
    assert len(gateway.rows()) == 50

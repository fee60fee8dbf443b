"""With a schema of another version the server refuses to start and names the migration."""

import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.ledger.database.schema_check import check_schema
from proxy.ledger.errors import SchemaMismatch
from proxy.models import CopiedTable
from tests.fakes.servers.command_server import Finished, commands_without_settings
from tests.fakes.servers.prepared import copy_ledger
from tests.proxy.ledger.subprocess_driver import ROOT

SERVE = ("serve", "--port", "0")  # of manage.py
UVICORN = (
    "-m",
    "uvicorn",
    "bridge_project.asgi:application",
    "--port",
    "0",
)  # without manage.py serve
SECRET_KEY = secrets.token_urlsafe(64)
ADD = "INSERT INTO django_migrations (app, name, applied) VALUES ('proxy', '9999_future', '2026-11-21')"
BEFORE_1_0 = ADD.replace("9999_future", "0002_budget_notices")
HALF = "DELETE FROM django_migrations WHERE app = 'proxy'"
INCONSISTENT = "DELETE FROM django_migrations WHERE app = 'auth' AND name = '0001_initial'"


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("migrated") / "data"
    copy_ledger(folder)
    return folder


def run(folder: Path, *command: str) -> "Finished | subprocess.CompletedProcess[str]":
    """Run a program with this data directory until it ends."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environment = {**inherited, "BRIDGE_DATA_DIR": str(folder), "BRIDGE_SECRET_KEY": SECRET_KEY}
    if command == SERVE:
        return commands_without_settings().run(*command, environment=environment)
    return subprocess.run(  # noqa: S603 -- our own command line
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture
def changed(migrated: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the migrated database with one statement run on it."""

    def change(sql: str) -> Path:
        folder = tmp_path / "data"
        shutil.copytree(migrated, folder)
        with sqlite3.connect(folder / "ledger.sqlite3") as link:
            assert link.execute(sql).rowcount > 0
        link.close()
        return folder

    return change


NEWER = "proxy.9999_future, which this version does not know"


@pytest.mark.parametrize(
    ("server", "sql", "named"),
    [
        pytest.param(SERVE, ADD, NEWER, id="newer-serve"),
        pytest.param(UVICORN, ADD, NEWER, id="newer-uvicorn", marks=pytest.mark.slow),
        pytest.param(
            SERVE, BEFORE_1_0, "move the data directory (BRIDGE_DATA_DIR) away", id="before 1.0"
        ),
        pytest.param(
            SERVE, INCONSISTENT, "before its dependency auth.0001_initial", id="inconsistent"
        ),
    ],
)
def test_a_wrong_schema_is_refused_with_its_migration_and_not_changed(
    changed, server, sql, named
) -> None:
    folder = changed(sql)
    before = tables(folder)

    done = run(folder, *server)

    assert done.returncode == 2 if server is SERVE else done.returncode != 0
    assert named in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert tables(folder) == before


def test_a_server_that_does_not_migrate_refuses_a_half_migrated_schema(changed) -> None:
    done = run(changed(HALF), *UVICORN)

    assert done.returncode != 0
    assert "the first is proxy.0001_initial" in done.stdout + done.stderr
    assert "manage.py migrate" in done.stdout + done.stderr


def tables(folder: Path) -> list[tuple[str, ...]]:
    with sqlite3.connect(folder / "ledger.sqlite3") as link:
        rows = link.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        rows += link.execute("SELECT app, name FROM django_migrations ORDER BY id").fetchall()
    link.close()
    return rows


@pytest.mark.django_db
def test_an_unfinished_copy_is_refused_and_copyledger_is_named() -> None:
    check_schema()
    CopiedTable.objects.create(table="proxy_exchange", source="")

    with pytest.raises(
        SchemaMismatch, match=r"unfinished copy of another one; .* copyledger again"
    ):
        check_schema()

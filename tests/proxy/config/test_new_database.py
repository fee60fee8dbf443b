"""A new SQLite database is made at once; it must be the one that all migrations would have made.

After a change of the models write ``proxy/data/schema.sql`` anew, with
``SCHEMA_REWRITE=1 pytest tests/proxy/config/test_new_database.py``, and commit it.
"""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from proxy.config.new_database import MIGRATION, NOW, SNAPSHOT, snapshot
from proxy.record.schema import migrations_on_disk

ROOT = Path(__file__).parents[3]

MAKE = "from proxy.config.new_database import make_schema; assert make_schema()"
MAKE_AGAIN = "from proxy.config.new_database import make_schema; assert not make_schema()"
MAKE_FROM_MODELS = """
from proxy.config import new_database
new_database.migrations_on_disk = set  # others than the file names
assert new_database.make_schema()
"""
MIGRATE = "from django.core.management import call_command; call_command('migrate', verbosity=0)"
BREAK = """
from pathlib import Path
from django.conf import settings
from django.db import OperationalError
from proxy.config import new_database
broken = Path(settings.DATA_DIR, "broken.sql")
broken.write_text(new_database.SNAPSHOT.read_text() + "CREATE NOTHING;")
new_database.SNAPSHOT = broken
try:
    new_database.make_schema()
except OperationalError:
    pass
else:
    raise AssertionError
"""


def run(folder: Path, program: str) -> Path:
    """Run a program with a data directory of its own; the path of its database."""
    environment = {
        **os.environ,
        "BRIDGE_DATA_DIR": str(folder),
        "BRIDGE_SECRET_KEY": "schema-" * 8,
        "DATABASE_URL": f"sqlite:///{folder}/ledger.sqlite3",
        "DJANGO_SETTINGS_MODULE": "bridge_project.settings",
    }
    folder.mkdir(exist_ok=True)
    subprocess.run(  # noqa: S603 -- our own program
        [sys.executable, "-c", f"import django; django.setup()\n{program}"],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    return folder / "ledger.sqlite3"


def schema(database: Path) -> dict[str, Any]:
    """Each table and index by name: the parts of its statement, whatever order columns came in."""
    with sqlite3.connect(database) as link:
        told = link.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: sorted(re.split(r"[,()]\s*", sql)) for name, sql in told}


def rows(database: Path) -> dict[str, Any]:
    """What each table holds, without numbers and times, which may differ."""
    queries = {
        "migrations": "SELECT app, name, applied LIKE '20__-__-__ __:__:__.%' FROM django_migrations",
        "content types": "SELECT app_label, model FROM django_content_type",
        "permissions": "SELECT codename, name FROM auth_permission",
        "roles": """SELECT g.name, p.codename FROM auth_group_permissions gp
                    JOIN auth_group g ON g.id = gp.group_id
                    JOIN auth_permission p ON p.id = gp.permission_id""",
    }
    with sqlite3.connect(database) as link:
        told: dict[str, Any] = {
            name: sorted(link.execute(query)) for name, query in queries.items()
        }
        tables = link.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        counts = {name: _count(link, name) for (name,) in tables}
        return told | {"counts": counts}


def _count(link: sqlite3.Connection, table: str) -> int:
    (count,) = link.execute(f'SELECT count(*) FROM "{table}"').fetchone()  # noqa: S608
    return int(count)


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("migrated"), MIGRATE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("made"), MAKE)


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("modelled"), MAKE_FROM_MODELS)


def ours(migrations: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Others' may be more than when the file was written: then it is the models' turn."""
    return {(app, name) for app, name in migrations if app == "proxy"}


def test_the_file_is_of_all_our_migrations(modelled: Path) -> None:
    if os.environ.get("SCHEMA_REWRITE"):
        with sqlite3.connect(modelled) as link:
            SNAPSHOT.write_text(snapshot(link), encoding="utf-8")
    told = SNAPSHOT.read_text(encoding="utf-8")

    assert ours(MIGRATION.findall(told)) == ours(migrations_on_disk()) != set()
    assert len(MIGRATION.findall(told)) == told.count(NOW)


def test_it_is_the_schema_that_all_migrations_make(made: Path, migrated: Path) -> None:
    assert schema(made) == schema(migrated)


def test_where_other_migrations_are_installed_the_models_make_it(
    modelled: Path, migrated: Path
) -> None:
    assert (schema(modelled), rows(modelled)) == (schema(migrated), rows(migrated))


def test_it_holds_the_rows_that_all_migrations_make(made: Path, migrated: Path) -> None:
    told = rows(made)

    assert told == rows(migrated)
    assert all(told.values())


def test_it_leaves_nothing_for_migrate_to_do(made: Path) -> None:
    before = schema(made), rows(made)

    run(made.parent, MIGRATE)

    assert (schema(made), rows(made)) == before


def test_it_leaves_a_database_alone_that_holds_anything(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.sqlite3") as link:
        link.execute("CREATE TABLE notes (text)")

    database = run(tmp_path, MAKE_AGAIN)

    assert {*schema(database)} == {"notes"}


def test_a_start_that_fails_on_the_way_leaves_nothing_behind(tmp_path: Path) -> None:
    database = run(tmp_path, BREAK)
    assert schema(database) == {}

    run(tmp_path, MAKE)

    assert "proxy_exchange" in schema(database)

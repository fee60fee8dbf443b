"""Files that many tests need and only one makes: a SQLite ledger and a PostgreSQL, both migrated.

A server of a test starts with a copy, which takes a tenth of a second instead of two seconds, and
it finds the admin user, whose password it need not hash. So each test can have a server of its own,
and may stop or damage it. All processes of a run share the
files; the first one that needs them makes them.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.fakes.forked_python import REPOSITORY

VARIABLE: Final = "TESTS_PREPARED_FILES"
"""Names the folder of the files; child processes inherit it."""

ADMIN_PASSWORD: Final = "the password of the admin in tests"
DELETE_ADMIN: Final = """
DELETE FROM proxy_person;
DELETE FROM auth_user;
DELETE FROM proxy_revision;
DELETE FROM proxy_auditentry WHERE model = 'user';
"""
"""The ledger is then as after the migrations."""


def folder_of_this_run() -> Path:
    """Return the folder; the process that creates it removes it at its end."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="bridge-prepared-")
        atexit.register(shutil.rmtree, os.environ[VARIABLE], ignore_errors=True)
    return Path(os.environ[VARIABLE])


def prepare_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the path of the prepared files; call ``make`` with it if they do not exist yet."""
    folder = folder_of_this_run()
    path, finished = folder / name, folder / f"{name}.finished"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            make(path)
            finished.touch()
    return path


def make_ledger(data: Path, **environment: str) -> None:
    """Create the schema and the admin user, with the data directory ``data``."""
    for command in (
        ["migrate", "--verbosity", "0"],
        ["createsuperuser", "--noinput", "--verbosity", "0"],
    ):
        subprocess.run(  # noqa: S603 - the commands above
            [sys.executable, "manage.py", *command],
            cwd=REPOSITORY, check=True, stderr=subprocess.DEVNULL,
            env={
                "PATH": os.environ["PATH"], "BRIDGE_DATA_DIR": str(data),
                "DJANGO_SUPERUSER_USERNAME": "admin", "DJANGO_SUPERUSER_EMAIL": "",
                "DJANGO_SUPERUSER_PASSWORD": ADMIN_PASSWORD, **environment,
            },
        )  # fmt: skip


def copy_ledger(data: Path, *, with_admin: bool = True) -> None:
    """Create the data directory with a ledger that has the schema and no rows but the admin user."""

    def make(path: Path) -> None:
        path.mkdir()
        make_ledger(path)

    source = prepare_once("sqlite", make)
    data.mkdir(mode=0o700)
    copy = data / "ledger.sqlite3"
    shutil.copyfile(source / "ledger.sqlite3", copy)
    copy.chmod(0o600)
    if not with_admin:
        with contextlib.closing(sqlite3.connect(copy)) as ledger, ledger:
            ledger.executescript(DELETE_ADMIN)

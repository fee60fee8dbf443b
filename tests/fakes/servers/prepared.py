"""Files that many tests need and only one makes: a SQLite ledger and a PostgreSQL, both migrated.

A server of a test starts with a copy, which takes a tenth of a second instead of two seconds. So
each test can have a server of its own, and may stop or damage it. All processes of a run share the
files; the first one that needs them makes them.
"""

import atexit
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .command_server import REPOSITORY

VARIABLE: Final = "TESTS_PREPARED_FILES"
"""Names the folder of the files; child processes inherit it."""


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


def migrate(data: Path, **environment: str) -> None:
    """Create the schema as the gateway's first start does, with its data directory ``data``."""
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=REPOSITORY, check=True, stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "BRIDGE_DATA_DIR": str(data), **environment},
    )  # fmt: skip


def copy_ledger(data: Path) -> None:
    """Create the data directory with a ledger that has the schema and no rows."""

    def make(path: Path) -> None:
        path.mkdir()
        migrate(path)

    source = prepare_once("sqlite", make)
    data.mkdir(mode=0o700)
    shutil.copyfile(source / "ledger.sqlite3", data / "ledger.sqlite3")
    (data / "ledger.sqlite3").chmod(0o600)

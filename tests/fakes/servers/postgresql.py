"""A private PostgreSQL server for tests, on a loopback port.

Its files are a copy of prepared files, so that a start takes a third of a second. The server refuses
to run as root, so root runs it as the user ``postgres``.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psycopg

from tests.fakes.load.kill_process import reserved_port
from tests.fakes.optional_tools import skip_or_fail

from .prepared import DELETE_ADMIN, make_ledger, prepare_once

BINARIES = ("initdb", "pg_ctl", "postgres")


def find_binaries() -> Path:
    """Return the folder of the PostgreSQL binaries. If there are none, ``absent`` skips or fails."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *map(Path, os.get_exec_path())]
    matches = (place for place in places if all((place / name).exists() for name in BINARIES))
    return next(matches, None) or skip_or_fail(
        "NO POSTGRESQL HERE (Debian: postgresql): it is not tested"
    )


class Postgres:
    """A server that can be started and stopped repeatedly; use it as a context manager.

    Its database has the schema of the gateway and its admin user; it is empty if ``migrated`` is False.
    """

    def __init__(self, *settings: str, migrated: bool = True) -> None:
        self._settings = settings  # "name=value" of postgresql.conf
        self.binaries = find_binaries()
        self.home = Path(tempfile.mkdtemp(prefix="bridge-pg-"))
        self.user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            try:
                shutil.chown(self.home, self.user)
            except LookupError:
                skip_or_fail("NO USER postgres HERE, and PostgreSQL refuses to run as root")
        self._resources = contextlib.ExitStack()
        self.port = self._resources.enter_context(reserved_port())
        self.url = f"postgres://bridge@127.0.0.1:{self.port}/postgres"
        if migrated:
            self._copy(prepare_once("postgresql", self._prepare))
        else:
            self._copy(prepare_once("initdb", self._initialize))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if (Path(self.files) / "postmaster.pid").exists():
                self.stop()
        finally:
            self._resources.close()
            shutil.rmtree(self.home, ignore_errors=True)

    @property
    def files(self) -> str:
        return str(self.home / "files")

    def _initialize(self, target: Path) -> None:
        self.run_program("initdb", "-D", self.files, "-U", "bridge", "-A", "trust", "--no-sync")
        Path(self.files).rename(target)

    def _prepare(self, target: Path) -> None:
        self._copy(prepare_once("initdb", self._initialize))
        self.start()
        make_ledger(self.home / "data", DATABASE_URL=self.url)
        self.run_program("pg_ctl", "-D", self.files, "-m", "fast", "-w", "stop")
        Path(self.files).rename(target)

    def _copy(self, source: Path) -> None:
        subprocess.run(["cp", "--archive", source, self.files], check=True)  # noqa: S603, S607 - ``cp`` keeps the owner of the files

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.home} -c fsync=off"
        options += "".join(f" -c {setting}" for setting in self._settings)
        self.run_program(
            "pg_ctl", "-D", self.files, "-l", str(self.home / "log"), "-w", "-o", options, "start"
        )

    def delete_admin(self) -> None:
        """Delete the admin user, for a test that needs an empty database or creates this user."""
        with psycopg.connect(self.url) as connection:
            connection.execute(DELETE_ADMIN)

    def stop(self) -> None:
        self.run_program("pg_ctl", "-D", self.files, "-m", "immediate", "-w", "stop")

    def run_program(self, name: str, *arguments: str) -> None:
        command = [str(self.binaries / name), *arguments]
        if os.geteuid() == 0:
            command = [
                "setpriv",
                "--reuid",
                self.user,
                "--regid",
                self.user,
                "--clear-groups",
                *command,
            ]
        subprocess.run(  # noqa: S603 -- the test wrote this command
            command, check=True, cwd=self.home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

"""A SQLite file that all processes of one machine share, made anew when it is damaged or removed.

Its content can be lost: counters come back from the ledger, limits fill within a minute.
"""

import contextlib
import fcntl
import functools
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from .store import StoreReplaced, StoreUnavailable

log = logging.getLogger("proxy.counters")

P = ParamSpec("P")
T = TypeVar("T")

RETRY_S: Final = 0.005
DAMAGED: Final = ".damaged"
"""The suffix of the last damaged file, which is kept for an administrator; empty if a file that a
process used was removed."""
DAMAGE_CODES: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR}
)
"""Result codes of a file that another one must replace: overwritten, truncated or moved."""
NO_TABLE: Final = "no such table"
NO_FILE: Final = (0, 0)

FAULTS: Final[dict[str, str]] = {}
"""For each shared file of this process that cannot be used now: its name and the reason."""


def replaced_files(directory: Path) -> list[str]:
    """Return a text for each shared file that was replaced, until its old one is deleted."""
    return [
        f"a damaged or removed {old.stem} was replaced; {old.name} can be deleted"
        for old in sorted(directory.glob(f"*.sqlite3{DAMAGED}"))
    ]


def open_shared_file(path: Path, schema: str, *, busy_s: float) -> sqlite3.Connection:
    """Open a connection in autocommit mode that any thread may use.

    ``schema``: SQL that creates missing tables. Raises sqlite3.Error or OSError.

    While one process changes a new file to WAL mode, SQLite returns SQLITE_BUSY to other processes
    at once, without waiting for the busy timeout (https://sqlite.org/wal.html, "Sometimes Queries
    Return SQLITE_BUSY In WAL Mode"). So this function retries for ``busy_s``.
    """
    path.touch(mode=0o600)
    connection = sqlite3.connect(
        path, timeout=busy_s, isolation_level=None, check_same_thread=False
    )
    deadline = time.monotonic() + busy_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(schema)
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                connection.close()
                raise
            time.sleep(RETRY_S)
        except sqlite3.Error:
            connection.close()
            raise
        else:
            return connection


def again_on_a_new_file(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method that is one transaction run once more if the file was replaced in it."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except StoreReplaced:
            return method(*args, **kwargs)

    return run


class SharedFile:
    """The connection of one process to a shared file. The caller prevents concurrent use."""

    def __init__(self, path: Path, schema: str, *, busy_s: float) -> None:
        self.path = path
        self._schema = schema
        self._busy_s = busy_s
        self._connection: sqlite3.Connection | None = None
        self._inode = NO_FILE  # device and inode of the open file

    @contextlib.contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction. Raises StoreUnavailable.

        A damaged file is replaced by a new one before the block, as far as a first read shows the
        damage, else after it: then it raises StoreReplaced (see ``again_on_a_new_file``).
        """
        try:
            try:
                connection = self._begin(begin)
            except sqlite3.Error as exc:
                if not self.replace_damaged(exc):
                    raise
                connection = self._begin(begin)
            FAULTS.pop(self.path.name, None)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as exc:
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                FAULTS[self.path.name] = str(exc)
            with contextlib.suppress(OSError):
                if isinstance(exc, sqlite3.Error) and self.replace_damaged(exc):
                    raise StoreReplaced(str(exc)) from exc
            raise StoreUnavailable(str(exc)) from exc

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self) -> sqlite3.Connection:
        """Return the connection; open the file again if another process has replaced it.

        A connection to a file that was moved never writes, and leaves the new file alone when it
        is closed (``databaseIsUnmoved`` in SQLite's pager.c).
        """
        if self._connection is not None and (found := _inode_of(self.path)) != self._inode:
            self.close()
            if found == NO_FILE:
                log.error("%s was removed: a new file replaces it", self.path)
                self.path.with_name(self.path.name + DAMAGED).touch(mode=0o600)
        if self._connection is None:
            self._connection = open_shared_file(self.path, self._schema, busy_s=self._busy_s)
            self._inode = _inode_of(self.path)
        return self._connection

    def replace_damaged(self, error: sqlite3.Error) -> bool:
        """Set a damaged file aside, once for all processes; return whether it is damaged.

        The next connection creates a new file. Raises OSError.
        """
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in DAMAGE_CODES and NO_TABLE not in str(error):
            return False
        damaged = self._inode if self._connection is not None else _inode_of(self.path)
        self.close()
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _inode_of(self.path) == damaged:
                log.error("%s is damaged (%s): a new file replaces it", self.path, error)
                for suffix in ("-wal", "-shm", ""):
                    file = self.path.with_name(self.path.name + suffix)
                    with contextlib.suppress(FileNotFoundError):
                        file.replace(file.with_name(file.name + DAMAGED))
        return True

    def _begin(self, begin: str) -> sqlite3.Connection:
        connection = self.connect()
        connection.execute(begin)
        try:
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return connection


def _inode_of(path: Path) -> tuple[int, int]:
    """Return device and inode of a file; NO_FILE if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return NO_FILE
    return found.st_dev, found.st_ino

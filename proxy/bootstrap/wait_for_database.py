"""Start the gateway while the database is unavailable.

The gateway serves requests with the keys of its last saved configuration, and tries to connect to
the database each second. When the database is available, the gateway does the rest of the start.
"""

import contextlib
import logging
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Self

from django.db import DatabaseError, OperationalError, connection

from proxy.conf import conf
from proxy.ledger.database import access
from proxy.ledger.database.access import database_file
from proxy.ledger.database.schema_check import MIGRATION_PENDING
from proxy.ledger.errors import LedgerUnavailable
from proxy.secrets import ConfigError

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
BUSY_S: Final = 2.0  # SQLite's busy timeout: another program may be writing


class DatabaseUnavailable(ConfigError):
    """The database cannot be reached; a later attempt may succeed without a new configuration."""


@contextlib.contextmanager
def require_database() -> Iterator[None]:
    """Connect to the database, and convert database errors of the ``with`` block.

    Raises DatabaseUnavailable if the database cannot be reached, and ConfigError for other errors.
    """
    _connect()
    try:
        yield
    except DatabaseError as error:
        connection.close()
        _connect()
        raise ConfigError(f"the database cannot be used: {_cause(error)}") from None


def is_new() -> bool:
    """Return whether the database is missing or has no tables, without creating a file."""
    try:
        database_file()
    except LedgerUnavailable:
        return True
    return not connection.introspection.table_names()


def _connect() -> None:
    try:
        if connection.vendor == "sqlite":
            _check_sqlite_file(Path(connection.settings_dict["NAME"]))
        connection.ensure_connection()
    except (OperationalError, sqlite3.OperationalError) as error:
        raise DatabaseUnavailable(f"the database cannot be used: {_cause(error)}") from None
    except (DatabaseError, sqlite3.DatabaseError) as error:
        raise ConfigError(f"the database cannot be used: {_cause(error)}") from None


def _check_sqlite_file(path: Path) -> None:
    """Raise OperationalError if the SQLite file cannot be written.

    A missing or empty file is an error if a gateway has already run in this data directory, because
    only the first start may create the file.
    """
    served_before = conf.last_configuration.exists()
    if not path.exists() and not served_before:
        return
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_S)
    ) as database:
        database.execute("BEGIN IMMEDIATE")
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if served_before and not tables:
        raise sqlite3.OperationalError(
            f"{path} is empty, but a gateway has served from here; "
            f"restore it, or remove {conf.last_configuration.name} to start with an empty one"
        )


def _cause(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


class DatabaseWaiter:
    """Calls ``prepare`` each second in a thread until the database is available.

    Any ConfigError but DatabaseUnavailable is stored in ``error`` and ends the gateway. Worker
    processes that start before the end of ``prepare`` accept a database that is not migrated yet.
    """

    def __init__(self, prepare: Callable[[], None]) -> None:
        self.error: ConfigError | None = None
        self._prepare = prepare
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="database-wait", daemon=True)

    def __enter__(self) -> Self:
        os.environ[MIGRATION_PENDING] = "1"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(RETRY_S):
            try:
                self._prepare()
            except DatabaseUnavailable:
                continue
            except ConfigError as error:
                self.error = error
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                del os.environ[MIGRATION_PENDING]
                log.warning("the database is available: the start is complete")
            finally:
                connection.close()
            return


LOCK: Final = 0x6D62_7374  # "mbst"; id of the advisory lock, different from all other ids


def startup_lock() -> AbstractContextManager[None]:
    """Wait until no other gateway that uses this database is starting: only one migrates it.

    A SQLite database is used by one gateway only, which has already locked its data directory.
    """
    return access.advisory_lock(LOCK, wait=True)

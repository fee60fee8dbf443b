"""A database that is away when the gateway starts (promises.md D01).

Known keys are served meanwhile, as a running gateway would go on; it is asked for again each
second, and what a start does with it is done when it is there.
"""

import contextlib
import logging
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from django.db import DatabaseError, OperationalError, connection

from proxy.conf import conf
from proxy.record.database import present
from proxy.record.errors import LedgerAway
from proxy.secrets import ConfigError

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
BUSY_S: Final = 2.0  # another program may write for a moment


class DatabaseAway(ConfigError):
    """It may come back without anybody changing anything here."""


@contextlib.contextmanager
def reached() -> Iterator[None]:
    """Use the database. DatabaseAway: it is not there, or left; ConfigError: it cannot be used."""
    _reach()
    try:
        yield
    except DatabaseError as error:
        connection.close()
        _reach()
        raise ConfigError(f"the database cannot be used: {_cause(error)}") from None


def is_new() -> bool:
    """The database holds nothing yet, so that everything is to be made. Asking makes no file."""
    try:
        present()
    except LedgerAway:
        return True
    return not connection.introspection.table_names()


def _reach() -> None:
    try:
        if connection.vendor == "sqlite":
            _reach_file(Path(connection.settings_dict["NAME"]))
        connection.ensure_connection()
    except (OperationalError, sqlite3.OperationalError) as error:
        raise DatabaseAway(f"the database cannot be used: {_cause(error)}") from None
    except (DatabaseError, sqlite3.DatabaseError) as error:
        raise ConfigError(f"the database cannot be used: {_cause(error)}") from None


def _reach_file(path: Path) -> None:
    """It can be written to now. A new one is made by a first start only, never in place of one."""
    served_before = conf.last_configuration.exists()
    if not path.exists() and not served_before:
        return
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_S)
    ) as link:
        link.execute("BEGIN IMMEDIATE")
        (tables,) = link.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if served_before and not tables:
        raise sqlite3.OperationalError(
            f"{path} is empty, but a gateway has served from here; "
            f"restore it, or remove {conf.last_configuration.name} to start anew"
        )


def _cause(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


class Waiting:
    """Tries in a thread until ``prepare`` has worked once; a ConfigError ends the gateway."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self.mistake: ConfigError | None = None
        self._prepare = prepare
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arrival", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(RETRY_S):
            try:
                self._prepare()
            except DatabaseAway:
                continue
            except ConfigError as mistake:
                self.mistake = mistake
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                log.warning("the database is there: everything is as after any start")
            finally:
                connection.close()
            return

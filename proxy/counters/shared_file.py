"""Open a SQLite file that all processes of one machine share."""

import sqlite3
import time
from pathlib import Path
from typing import Final

RETRY_S: Final = 0.005


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
        else:
            return connection

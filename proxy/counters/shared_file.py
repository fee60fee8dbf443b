"""A SQLite file that all processes of one machine share."""

import sqlite3
import time
from pathlib import Path
from typing import Final

LOOK_AGAIN_S: Final = 0.005


def opened(path: Path, schema: str, *, busy_s: float) -> sqlite3.Connection:
    """A connection for any thread, in autocommit; ``schema`` makes what is missing.

    Raises sqlite3.Error or OSError.

    While one process turns a new file to WAL, the others are told at once that it is locked,
    however long they would wait (https://sqlite.org/wal.html, "Sometimes Queries Return
    SQLITE_BUSY In WAL Mode"); so the waiting is done here.
    """
    path.touch(mode=0o600)
    link = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    deadline = time.monotonic() + busy_s
    while True:
        try:
            link.execute("PRAGMA journal_mode = WAL")
            link.executescript(schema)
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                link.close()
                raise
            time.sleep(LOOK_AGAIN_S)
        else:
            return link

"""Whether the ledger's database is there, told from faults of single records."""

from pathlib import Path
from typing import Final

from django.db import DataError, IntegrityError, connection

from .errors import LedgerAway

# A record that the database refuses whatever we do, unlike a database that is away.
POISON: Final = (
    DataError, IntegrityError, ValueError, TypeError, LookupError, AttributeError, OverflowError,
)  # fmt: skip

LITTLE: Final = "PRAGMA cache_size=-2048"  # KiB
"""With 4,096 an exchange of 2 KB reads 4.2 pages from files instead of 5.6, a turn of a session of
46 KB and more 7 instead of 42 (65 and 95 MB of database), and the time does not tell them apart."""

_inodes: dict[str, int] = {}  # SQLite file -> its inode when the connection was made


def present() -> tuple[str, int] | None:
    """The SQLite file and its inode; None: another kind of database.

    Raises LedgerAway when the file is gone, so that no empty one takes its place.
    """
    name = str(connection.settings_dict["NAME"])
    if connection.vendor != "sqlite" or "memory" in name:
        return None
    try:
        return name, Path(name).stat().st_ino
    except OSError as exc:
        connection.close()
        raise LedgerAway(f"the database file cannot be reached: {exc.strerror}") from exc


def check_present() -> None:
    """Raises LedgerAway. A file that was replaced (by a backup) is connected to anew."""
    file = present()
    if file is None:
        return
    name, inode = file
    if _inodes.setdefault(name, inode) != inode:
        connection.close()
        _inodes[name] = inode


def need_little() -> None:
    """Of SQLite's memory, for a connection that only adds rows and reads back what it just wrote.

    The 16 MB that a report may fill (settings.py) would be filled here too, within minutes.
    """
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(LITTLE)


def reconnect() -> None:
    """Drop a connection that failed; the next query makes a new one."""
    try:
        connection.close()
    except Exception:  # noqa: BLE001 -- it is broken already; that is why we close it
        connection.connection = None

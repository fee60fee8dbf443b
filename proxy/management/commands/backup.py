"""Copy the SQLite database while the gateway runs. For PostgreSQL, use pg_dump instead."""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connection

from proxy.management.base import FINDING, MISUSE, BridgeCommand


class Command(BridgeCommand):
    help = "Copy the SQLite ledger into a file while the gateway runs; its integrity is checked."
    example = "manage.py backup /backups/ledger-2026-11-21.sqlite3"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("to", type=Path, help="the file to write; it must not exist yet")

    def handle(self, *args: Any, **options: Any) -> None:
        to: Path = options["to"]
        if connection.vendor != "sqlite":
            raise CommandError(
                'the ledger is in PostgreSQL: pg_dump --format=custom "$DATABASE_URL" > copy.dump',
                returncode=MISUSE,
            )
        if not to.parent.is_dir():
            raise CommandError(f"there is no folder {to.parent}", returncode=MISUSE)
        if to.exists():
            raise CommandError(f"{to} exists already", returncode=MISUSE)
        ledger = Path(str(connection.settings_dict["NAME"]))
        if not ledger.exists():
            raise CommandError(f"there is no ledger at {ledger}", returncode=MISUSE)
        unfinished = to.with_name(f"{to.name}.part")
        try:
            _copy(ledger, unfinished)
            unfinished.rename(to)
        except (OSError, sqlite3.Error) as error:
            unfinished.unlink(missing_ok=True)
            raise CommandError(f"no copy was made: {error}", returncode=FINDING) from None
        self.stdout.write(f"{to}: {to.stat().st_size:,} bytes, checked")


def _copy(ledger: Path, to: Path) -> None:
    """Copy a consistent snapshot of the database, without blocking the gateway's writes."""
    os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with (
        contextlib.closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(to)) as copy,
    ):
        # Without this transaction, each write of the gateway would restart the copy.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(copy, pages=-1)
        result = copy.execute("PRAGMA quick_check").fetchone()[0]
        if result != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {result}")

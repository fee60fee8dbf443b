"""Copy the database into a file while the gateway runs, and name what else a restore needs."""

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import connection
from psycopg.conninfo import make_conninfo

from proxy.conf import conf
from proxy.ledger.archive.files import address
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import progress
from proxy.models import ArchivedMonth, Upstream, Webhook
from proxy.secrets import ConfigError

SUFFIXES: Final = {"sqlite": ".sqlite3", "postgresql": ".dump"}
NAME: Final = re.compile(r"ledger-\d{8}T\d{6}Z\.(sqlite3|dump)")
"""The name of a backup in a folder; ``--keep`` deletes no other file."""
PAGES: Final = 2000  # SQLite's pages that are copied between two reports of the progress
DJANGO_OPTIONS: Final = frozenset(
    {"assume_role", "isolation_level", "pool", "server_side_binding"}
)  # fmt: skip
"""Options of Django's PostgreSQL backend that libpq does not know."""


class Command(BridgeCommand):
    help = (
        "Copy the database into a file while the gateway runs: SQLite with a check of its "
        "integrity, PostgreSQL with pg_dump. Names what else a restore needs."
    )
    example = "manage.py backup /backups/ --keep 14"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "to", type=Path, help="a new file, or a folder for files named by the time (UTC)"
        )
        parser.add_argument(
            "--keep",
            type=int,
            metavar="N",
            help="delete all but the newest N backups in the folder",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        to, keep = options["to"], options["keep"]
        folder = to if to.is_dir() else None
        if keep is not None and (folder is None or keep < 1):
            raise ConfigError("--keep is 1 or more, and needs a folder")
        if folder is not None:
            now = datetime.now(UTC)
            to = folder / f"ledger-{now:%Y%m%dT%H%M%SZ}{SUFFIXES[connection.vendor]}"
        _write(to)
        for old in _older(folder, keep) if folder and keep else ():
            old.unlink()
            self.stdout.write(f"{old}: deleted")
        checked = ", checked" if connection.vendor == "sqlite" else ""
        self.stdout.write(f"{to}: {to.stat().st_size:,} bytes{checked}")
        if options["verbosity"]:
            self.stdout.write("A restore also needs, stored apart from the copy:")
            for name, where in also_needed():
                self.stdout.write(f"  {name:<13}{where}")


def _write(to: Path) -> None:
    """Copy the database to a file that appears only when it is complete."""
    if not to.parent.is_dir():
        raise ConfigError(f"there is no folder {to.parent}")
    if to.exists():
        raise ConfigError(f"{to} exists already")
    unfinished = to.with_name(f"{to.name}.part")
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        if connection.vendor == "sqlite":
            _copy_sqlite(unfinished)
        else:
            _dump_postgresql(unfinished)
        unfinished.rename(to)
    except (OSError, sqlite3.Error) as error:
        raise CommandError(f"no copy was made: {error}", returncode=FINDING) from None
    finally:
        unfinished.unlink(missing_ok=True)


def _copy_sqlite(to: Path) -> None:
    """Copy a consistent snapshot of the database, without blocking the gateway's writes."""
    ledger = Path(str(connection.settings_dict["NAME"]))
    if not ledger.exists():
        raise ConfigError(f"there is no ledger at {ledger}")
    with (
        contextlib.closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(to)) as copy,
        progress() as bar,
    ):
        task = bar.add_task("copying pages", total=None)
        # Without this transaction, each write of the gateway would restart the copy.
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(
            copy,
            pages=PAGES,
            progress=lambda _, remaining, total: bar.update(task, completed=total - remaining),
        )
        result = copy.execute("PRAGMA quick_check").fetchone()[0]
        if result != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {result}")


def _dump_postgresql(to: Path) -> None:
    """Run pg_dump; the password is in its environment, which other users cannot read."""
    program = shutil.which("pg_dump")
    if program is None:
        raise ConfigError(
            "pg_dump is not installed here; it comes with PostgreSQL's client programs"
        )
    known = connection.settings_dict
    options = {k: v for k, v in known["OPTIONS"].items() if k not in DJANGO_OPTIONS}
    names = {"host": "HOST", "port": "PORT", "user": "USER", "dbname": "NAME"}
    place = make_conninfo(**options, **{k: known[v] for k, v in names.items() if known[v]})
    password = {"PGPASSWORD": str(known["PASSWORD"])} if known["PASSWORD"] else {}
    done = subprocess.run(  # noqa: S603 - a fixed program
        [program, "--format=custom", f"--file={to}", f"--dbname={place}"],
        env={**os.environ, **password}, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandError(f"no copy was made: {cause}", returncode=FINDING)


def _older(folder: Path, keep: int) -> list[Path]:
    """Return the backups in the folder except the newest ``keep``; names sort by time."""
    found = sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name))
    return found[: max(0, len(found) - keep)]


def also_needed() -> Iterator[tuple[str, str]]:
    """Yield the name and the place of each thing that the copy does not contain."""
    names = [v.name for v in settings.BRIDGE_VARIABLES]
    given = [each for name in names for each in (name, f"{name}_FILE") if each in os.environ]
    key = [name for name in given if name.startswith("BRIDGE_SECRET_KEY")]
    places = key if any("FALLBACKS" not in name for name in key) else [
        *key, str(settings.SECRET_KEY_PATH)
    ]  # fmt: skip
    yield "secret key", f"{', '.join(places)} (the master key of stored upstream secrets too)"
    yield "settings", ", ".join(given) or "none is set"
    references = [*Upstream.objects.values_list("secret", flat=True)]
    for name in ("secret", "previous_secret"):
        references += Webhook.objects.values_list(name, flat=True)
    secrets = {str(one[kind]) for one in references for kind in ("env", "file") if kind in one}
    yield "secrets", ", ".join(sorted(secrets)) or "none is named"
    yield "bridge.toml", "the file of serve --config, if there is one"
    yield "revoked keys", f"{conf.data_dir}/revoked_keys, for a restore on another machine"
    yield "erased users", f"{conf.data_dir}/erased_users, for a restore on another machine"
    archives = ArchivedMonth.objects.order_by("location").values_list("location", flat=True)
    yield "archives", ", ".join(map(address, archives.distinct())) or "no month is archived"
    yield "journals", f"{conf.data_dir}/journal-*, for requests after the copy"

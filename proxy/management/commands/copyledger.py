"""Copy the whole gateway database, usually from SQLite, into an empty PostgreSQL database."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import dj_database_url
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, connection

from proxy.bootstrap import data_directory
from proxy.conf import conf
from proxy.ledger.database.schema_check import check_migratable, check_migrations, check_schema
from proxy.ledger.errors import SchemaMismatch
from proxy.ledger.maintenance import ledger_copy, verifier
from proxy.ledger.maintenance.ledger_copy import Count, default_database
from proxy.ledger.maintenance.verifier import Checkpoint
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import format_count, progress, track
from proxy.secrets import ConfigError

CONNECT_S = 5


class Command(BridgeCommand):
    help = (
        "Copy everything in the database into an empty PostgreSQL database, and verify both; an "
        "interrupted copy is continued. Stop the gateway first."
    )
    example = "manage.py copyledger --to postgres://bridge@db.example.com/bridge"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--to",
            required=True,
            metavar="URL",
            help="the target; its password may be in PGPASSWORD or ~/.pgpass instead",
        )
        parser.add_argument(
            "--restart", action="store_true", help="delete an unfinished copy and begin again"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        target = _parse(options["to"])
        if _place(target) == _place(connection.settings_dict):
            raise ConfigError("--to names the database that DATABASE_URL names")
        data_directory.prepare(conf.data_dir)
        lock = data_directory.Lock(conf.data_dir)
        try:
            check_schema()
            with default_database(target):
                counts = _copy(restart=options["restart"])
                copied = _verify("verifying the copy")
            original = _verify("verifying the original")
            self._report(counts, original, copied, as_json=options["json"])
            _require_equal(counts, original, copied)
            with default_database(target):
                ledger_copy.finish()
        except SchemaMismatch as mismatch:
            raise ConfigError(str(mismatch)) from None
        except ledger_copy.CopyError as error:
            raise CommandError(str(error), returncode=FINDING) from None
        finally:
            lock.release()
        if not options["json"]:
            self.stdout.write("The copy is complete: set DATABASE_URL to it and start the gateway.")
        if original.found:
            raise CommandError(
                f"{format_count(original.found, 'finding')} of verifyledger, in the original too",
                returncode=FINDING,
            )

    def _report(
        self, counts: list[Count], original: Checkpoint, copied: Checkpoint, *, as_json: bool
    ) -> None:
        if as_json:
            result = {
                "tables": [count._asdict() for count in counts],
                "links": {"original": original.links, "copy": copied.links},
                "findings": {"original": original.found, "copy": copied.found},
            }
            self.write_json(result)
            return
        for count in sorted(counts):
            if count.original or count.copy:
                self.stdout.write(f"{count.table}: {count.original:,} rows, copied {count.copy:,}")
        for name, state in (("original", original), ("copy", copied)):
            found = format_count(state.found, "finding") if state.found else "no finding"
            self.stdout.write(f"{name}: {format_count(state.links, 'link')} verified, {found}")


def _parse(url: str) -> dict[str, Any]:
    """Return Django's settings of the target. Error messages do not quote the URL."""
    if not url.startswith(("postgres://", "postgresql://")):
        raise ConfigError("--to is not postgres://USER@HOST/NAME")
    try:
        settings: dict[str, Any] = {**dj_database_url.parse(url)}
    except ValueError:
        raise ConfigError("--to is not postgres://USER@HOST/NAME") from None
    settings["OPTIONS"] = {"connect_timeout": CONNECT_S, **settings.get("OPTIONS", {})}
    return settings


def _place(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(settings.get(name) or "") for name in ("ENGINE", "HOST", "PORT", "NAME"))


def _copy(*, restart: bool) -> list[Count]:
    """Copy into the default database what is not copied yet; return the rows of each table."""
    try:
        connection.ensure_connection()
    except DatabaseError as error:
        cause = str(error).strip().splitlines()[0]
        raise ConfigError(f"the target cannot be used: {cause}") from None
    ledger_copy.check_target()
    if not ledger_copy.is_unfinished():  # a migration would create groups and permissions again
        check_migratable()
        call_command("migrate", verbosity=0, interactive=False)
    check_migrations()
    done = ledger_copy.begin(restart=restart)
    began = ledger_copy.source_state()
    track("copying rows", chain([done], ledger_copy.copy()), ledger_copy.rows_to_copy())
    if ledger_copy.source_state() != began:
        raise ledger_copy.CopyError(
            "a gateway changed the ledger during the copy: stop it and use --restart"
        )
    return ledger_copy.counts()


def _verify(description: str) -> Checkpoint:
    """Verify the ledger in the default database as ``verifyledger`` does."""
    state = Checkpoint()
    with progress() as bar:
        task = bar.add_task(description, total=verifier.link_range(state.days)[1])
        for _ in verifier.steps(state):
            bar.update(task, completed=state.sequence)
    return state


def _require_equal(counts: list[Count], original: Checkpoint, copied: Checkpoint) -> None:
    """Raise CopyError if the copy differs from the original."""
    differing = [count.table for count in counts if count.original != count.copy]
    if differing:
        raise ledger_copy.CopyError(f"the copy has another number of rows in {differing[0]}")
    if (original.links, original.found) != (copied.links, copied.found):
        raise ledger_copy.CopyError("the verification of the copy has another result")

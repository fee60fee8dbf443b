"""Apply a bridge.toml (the configuration file) in one transaction, and print the changes."""

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandParser
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from proxy.bootstrap import data_directory, env_check, first_start, wait_for_database
from proxy.conf import conf
from proxy.config import apply, load
from proxy.config.used_upstreams import missing_secret_warnings
from proxy.ledger.database.schema_check import check_migratable, check_schema
from proxy.ledger.errors import SchemaMismatch
from proxy.management.base import BridgeCommand
from proxy.secrets import ConfigError, has_root, mistakes_error, new_root

IN_MEMORY: Final = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}


class Command(BridgeCommand):
    help = (
        "Apply a bridge.toml. Prints + for new, ~ for changed, - for removed, = for what stays "
        "different from the file; a second run changes nothing."
    )
    example = "manage.py applyconfig bridge.toml --dry-run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="the bridge.toml")
        parser.add_argument("--dry-run", action="store_true", help="print the plan, change nothing")
        parser.add_argument("--json", action="store_true", help="print the plan as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        file = load.parse_file(options["file"], load.read_draft)
        if file.mistakes:
            raise ConfigError(f"{options['file']}: {mistakes_error(_all_mistakes(file))}")
        env_check.check_early(os.environ, file)
        if options["dry_run"]:
            _prepare_dry_run()
        else:
            data_directory.prepare(conf.data_dir)
            data_directory.ensure_secret_key()
            first_start.migrate()
        env_check.check_environment(os.environ, file)
        changes = apply.apply(file, dry_run=options["dry_run"])
        for missing in missing_secret_warnings(file):
            self.stderr.write(f"warning: {missing}")
        if options["json"]:
            self.stdout.write(json.dumps([asdict(change) for change in changes]))
            return
        for change in changes:
            self.stdout.write(str(change))
        ending = "nothing was changed (dry run)" if options["dry_run"] else "applied"
        applied = sum(change.sign != "=" for change in changes)
        count = f"{applied} change{'' if applied == 1 else 's'}"
        self.stdout.write(f"{count}, {ending}." if applied else "No changes.")


def _all_mistakes(file: load.BridgeFile) -> list[str]:
    """Return the mistakes, with those of references if the database can be read as it is."""
    with contextlib.suppress(ConfigError, DatabaseError):
        _prepare_dry_run()
        return apply.all_mistakes(file)[: load.MAX_MISTAKES]
    return file.mistakes[: load.MAX_MISTAKES]


def _prepare_dry_run() -> None:
    """Prepare this process to apply a file and roll back, without a new file, key or table.

    If there is no database yet, the process uses an empty database in memory. Raises ConfigError if
    the schema of the database is that of another version.
    """
    if not has_root():
        settings.SECRET_KEY = new_root()
    if wait_for_database.is_new():
        connections.settings[DEFAULT_DB_ALIAS] |= IN_MEMORY
        del connections[DEFAULT_DB_ALIAS]
        first_start.migrate()
        return
    ending = ""
    try:
        check_migratable()
        ending = "; a dry run does not migrate"
        check_schema()
    except SchemaMismatch as mismatch:
        raise ConfigError(f"{mismatch}{ending}") from None

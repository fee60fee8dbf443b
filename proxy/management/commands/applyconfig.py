"""Apply a bridge.toml (the configuration file) in one transaction, and print the changes."""

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.db import DatabaseError

from proxy.bootstrap import config_dry_run, data_directory, env_check, first_start
from proxy.conf import conf
from proxy.config import apply, load
from proxy.config.used_upstreams import missing_secret_warnings
from proxy.management.base import BridgeCommand
from proxy.secrets import ConfigError, mistakes_error


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
            config_dry_run.prepare()
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
        config_dry_run.prepare()
        return apply.all_mistakes(file)[: load.MAX_MISTAKES]
    return file.mistakes[: load.MAX_MISTAKES]

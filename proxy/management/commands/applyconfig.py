"""Apply a bridge.toml: print the plan, then make it so, all or nothing."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from proxy.conf import conf
from proxy.config import applying, datadir, first_start, reading, rehearsal, variables
from proxy.config.upstreams import lacking_secrets
from proxy.management.base import BridgeCommand


class Command(BridgeCommand):
    help = (
        "Apply a bridge.toml. Prints + for new, ~ for changed, - for gone, = for what stays "
        "although the file says otherwise; twice changes nothing."
    )
    example = "manage.py applyconfig bridge.toml --dry-run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="the bridge.toml")
        parser.add_argument("--dry-run", action="store_true", help="print the plan, change nothing")
        parser.add_argument("--json", action="store_true", help="print the plan as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        file = reading.read_file(options["file"])
        variables.check_early(os.environ, file)
        if options["dry_run"]:
            rehearsal.prepare()
        else:
            datadir.prepare(conf.data_dir)
            datadir.ensure_secret_key()
            first_start.migrate()
        variables.check_environment(os.environ, file)
        changes = applying.apply(file, dry_run=options["dry_run"])
        for missing in lacking_secrets(file):
            self.stderr.write(f"warning: {missing}")
        if options["json"]:
            self.stdout.write(json.dumps([asdict(change) for change in changes]))
            return
        for change in changes:
            self.stdout.write(str(change))
        ending = "nothing was changed (dry run)" if options["dry_run"] else "applied"
        made = sum(change.sign != "=" for change in changes)
        count = f"{made} change{'' if made == 1 else 's'}"
        self.stdout.write(f"{count}, {ending}." if made else "No changes.")

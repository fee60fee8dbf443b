"""Write the journals of a host that is gone to the database."""

from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from proxy.ledger.posting.journal_posting import adopt_host
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import progress
from proxy.models import DrainWatermark
from proxy.secrets import ConfigError


class Command(BridgeCommand):
    help = (
        "Write the journals of a host that is gone to the database; exit 1 if one is not written."
    )
    example = "manage.py adoptjournal /mnt/old-disk/data --host gateway-2"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "path", type=Path, help="the data directory of the host, a copy of it, or one journal"
        )
        parser.add_argument(
            "--host", help="the name of that host; ends the notice that its records are waiting"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with progress() as bar:
                advance = partial(bar.advance, bar.add_task("requests"))
                found = adopt_host(options["path"].resolve(), advance)
        except OSError as error:
            raise ConfigError(str(error)) from None
        is_complete = not found.in_use and not found.incomplete
        if options["host"] and is_complete:
            DrainWatermark.objects.filter(pk__startswith=f"{options['host']}:").delete()
        if options["json"]:
            self.write_json(found._asdict())
        else:
            for name in found.adopted:
                self.stdout.write(f"{name}: all requests are in the database")
            for name in found.in_use:
                self.stdout.write(f"{name}: a running process uses it")
            for name in found.incomplete:
                self.stdout.write(f"{name}: see the files in {name}/quarantine")
        if not is_complete:
            raise CommandError("some journals are not in the database", returncode=FINDING)

"""Close what nobody will close any more; fill a restored database from the spools."""

import contextlib
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.core.management.base import CommandParser

from proxy.conf import conf
from proxy.management.base import BridgeCommand
from proxy.management.moments import moment
from proxy.record import settlement, spool_file


class Command(BridgeCommand):
    help = "Drain the spools of dead workers and close rows left open as interrupted."
    example = "manage.py settleorphans --older-than 2h"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than",
            type=moment,
            default="1h",
            help="close open rows accepted before then; keep it above the longest answer (1h)",
        )
        parser.add_argument(
            "--restore",
            type=moment,
            metavar="SINCE",
            help="after a restore from a backup: move again what the spools moved since then",
        )
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        restored = restore(options["restore"]) if options["restore"] else 0
        spools, rows = settlement.settle(conf.data_dir, options["older_than"], datetime.now(UTC))
        told = {"spools_drained": spools, "rows_closed": rows, "records_restored": restored}
        if options["json"]:
            self.stdout.write(msgspec.json.encode(told).decode())
            return
        for name, count in told.items():
            self.stdout.write(f"{name.replace('_', ' ')}: {count}")


def restore(since: datetime) -> int:
    """Records of all spools that will be moved again; what the database has stays as it is."""
    records = 0
    for path in sorted(conf.data_dir.glob("spool-*.sqlite3")):
        with contextlib.closing(spool_file.connect(path)) as link:
            records += spool_file.restore(link, since.timestamp())
    return records

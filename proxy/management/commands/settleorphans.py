"""Close the open request rows of dead gateway processes.

The command can also add the requests that a restored database lacks, from the journals. Then it
also erases the users again that were erased after the backup.
"""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec
from django.core.management.base import CommandError, CommandParser

from proxy.bootstrap import data_directory
from proxy.conf import conf
from proxy.erasure import erase
from proxy.ledger.maintenance.close_stale_rows import close_stale_rows
from proxy.ledger.posting.journal_posting import KEEP_POSTED_S, post_again
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.datetime_args import parse_datetime
from proxy.management.rich_output import progress

RETENTION: Final = timedelta(seconds=KEEP_POSTED_S)
SLACK: Final = timedelta(minutes=1)  # the options are parsed shortly before ``now`` is read


class Command(BridgeCommand):
    help = "Write the journals of dead processes to the database, and close their open rows."
    example = "manage.py settleorphans --older-than 2h"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than",
            type=parse_datetime,
            default="1h",
            metavar="TIME",
            help="close rows that are open since before this time (default: 1h ago); choose more "
            "than any request takes",
        )
        parser.add_argument(
            "--restore",
            type=parse_datetime,
            metavar="SINCE",
            help="after a restore, before the gateway starts: post all records of the journals "
            "again, and erase again the users who were erased since; exit 1 if SINCE, the time of "
            "the backup, is before the first record",
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        now = datetime.now(UTC)
        # The database ignores records that it already has, so this posts all records of the
        # journals again and does not select them by the option's time.
        with progress() as bar:
            advance = partial(bar.advance, bar.add_task("requests"))
            restored = post_again(conf.data_dir, advance) if options["restore"] else 0
            journals, rows = close_stale_rows(conf.data_dir, options["older_than"], now, advance)
        counts = {"journals_drained": journals, "rows_closed": rows, "records_restored": restored}
        if options["restore"]:
            data_directory.ensure_secret_key()
            counts["users_erased_again"] = erase.erase_again()
        if options["json"]:
            self.stdout.write(msgspec.json.encode(counts).decode())
        else:
            for name, count in counts.items():
                self.stdout.write(f"{name.replace('_', ' ')}: {count}")
        if options["restore"] and options["restore"] < now - RETENTION - SLACK:
            first, last = (f"{at:%Y-%m-%d %H:%M}" for at in (options["restore"], now - RETENTION))
            raise CommandError(
                f"journals contain posted records of {RETENTION // timedelta(hours=1)} hours only: "
                f"requests from {first} to {last} UTC may be missing",
                returncode=FINDING,
            )

"""Close the open request rows of dead gateway processes.

The command can also add the requests that a restored database lacks, from the journals. Then it
also erases the users again that were erased after the backup.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser

from proxy.bootstrap import data_directory
from proxy.conf import conf
from proxy.erasure import erase
from proxy.ledger.maintenance.amendments import close_stale_rows
from proxy.ledger.posting.journal_posting import (
    KEEP_POSTED_BYTES,
    KEEP_POSTED_S,
    RestoredJournal,
    post_again,
)
from proxy.management.arguments import parse_datetime
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import format_count, progress

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
            "again, and erase again the users who were erased since; show from when to when the "
            "journals are complete; exit 1 if a request since SINCE, the time of the backup, may "
            "be missing",
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        now, since = datetime.now(UTC), options["restore"]
        # The database ignores records that it already has, so this posts all records of the
        # journals again and does not select them by the option's time.
        with progress() as bar:
            advance = partial(bar.advance, bar.add_task("requests"))
            journals = post_again(conf.data_dir, advance) if since else []
            adopted, rows = close_stale_rows(conf.data_dir, options["older_than"], now, advance)
        restored = sum(each.records for each in journals)
        counts = {"journals_drained": adopted, "rows_closed": rows, "records_restored": restored}
        if since:
            data_directory.ensure_secret_key()
            counts["users_erased_again"] = erase.erase_again()
        self._print(counts, journals, as_json=options["json"])
        if since and (missing := [*_may_be_missing(journals, since, now)]):
            raise CommandError("; ".join(missing), returncode=FINDING)

    def _print(
        self, counts: dict[str, int], journals: list[RestoredJournal], *, as_json: bool
    ) -> None:
        if as_json:
            covered = [
                {
                    "journal": each.name,
                    "from": _iso(each.since) if each.since else None,
                    "to": _iso(each.until) if each.until else None,
                    "requests_lacking": each.lacking,
                    "damaged_bytes": each.damaged_bytes,
                }
                for each in journals
            ]
            result = counts | ({"journals": covered} if covered else {})
            self.write_json(result)
            return
        for name, count in counts.items():
            self.stdout.write(f"{name.replace('_', ' ')}: {count}")
        for each in journals:
            begin = _minute(each.since) if each.since else "its beginning"
            end = f"to {_minute(each.until)} UTC" if each.until else "and is empty"
            self.stdout.write(f"{each.name} is complete from {begin} {end}")


def _may_be_missing(
    journals: Sequence[RestoredJournal], since: datetime, now: datetime
) -> Iterator[str]:
    """Yield a line for each reason why the database may lack requests since this time."""
    if not journals:
        yield f"{conf.data_dir} has no journal: all requests since the backup may be missing"
    if since < now - RETENTION - SLACK:
        first, last = _minute(since.timestamp()), _minute((now - RETENTION).timestamp())
        yield (
            f"journals contain posted records of {RETENTION // timedelta(hours=1)} hours only: "
            f"requests from {first} to {last} UTC may be missing"
        )
    for each in journals:
        if each.since > since.timestamp():
            first, last = _minute(since.timestamp()), _minute(each.since)
            yield (
                f"{each.name} kept its newest {KEEP_POSTED_BYTES // 2**20} MB of posted records "
                f"only: requests from {first} to {last} UTC may be missing"
            )
        if each.lacking:
            yield f"{each.name} has records of {format_count(each.lacking, 'request')} not restored"
        if each.damaged_bytes:
            yield f"{each.name} has {each.damaged_bytes} damaged bytes: requests may be missing"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _minute(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"

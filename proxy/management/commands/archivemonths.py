"""Write closed months of requests and transcripts to Parquet files, and delete them here."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.core.management.base import CommandParser
from rich.filesize import decimal
from rich.table import Table

from proxy.conf import conf
from proxy.ledger.archive.files import address, check_location
from proxy.ledger.archive.parquet import load_arrow
from proxy.ledger.maintenance.archive_run import archive_months, first_of_month, remove_months
from proxy.management.arguments import parse_month
from proxy.management.base import BridgeCommand
from proxy.management.rich_output import progress, render_table
from proxy.models import ArchivedMonth


class Command(BridgeCommand):
    help = "Write closed months of requests to Parquet files; --remove deletes their rows."
    example = "manage.py archivemonths --before 2026-08 --to s3://company-ledger/gateway --remove"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--before",
            type=parse_month,
            metavar="YYYY-MM",
            help="only months before this one (default: all months that have ended)",
        )
        parser.add_argument(
            "--to",
            metavar="LOCATION",
            default=conf.archive_to,
            help="a folder that all hosts of the gateway can read, or s3://bucket/prefix "
            "(default: BRIDGE_ARCHIVE_TO, or archive in the data directory)",
        )
        parser.add_argument(
            "--remove",
            action="store_true",
            help="delete the requests and transcripts of archived months from the database; "
            "restoremonth brings them back",
        )
        parser.add_argument("--list", action="store_true", help="only show the archived months")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["list"]:
            load_arrow()
            self._run(options)
        months = list(ArchivedMonth.objects.all())
        if options["json"]:
            self.write_json([_columns(month) for month in months])
        else:
            self._show(months)

    def _run(self, options: dict[str, Any]) -> None:
        this_month = first_of_month(datetime.now(UTC))
        before = min(options["before"][0] if options["before"] else this_month, this_month)
        location = check_location(options["to"])
        with progress() as bar:

            def start_step(text: str) -> Callable[[int], object]:
                return partial(bar.advance, bar.add_task(text, total=None))

            archive_months(before, location, start_step)
            if options["remove"]:
                remove_months(before, start_step)

    def _show(self, months: list[ArchivedMonth]) -> None:
        table = Table("month", "state", "rows", "transcripts", "size", "location")
        for month in months:
            columns = _columns(month)
            table.add_row(
                columns["month"],
                month.get_state_display(),
                f"{month.rows:,}",
                f"{month.transcripts:,}",
                decimal(month.file_bytes),
                address(month.location, month.file),
            )
        self.stdout.write(render_table(table) if months else "no month is archived")


def _columns(month: ArchivedMonth) -> dict[str, Any]:
    has_transcripts = month.transcripts_sha256 != ""
    transcripts = address(month.location, month.transcripts_file) if has_transcripts else ""
    return {
        "month": f"{month.month:%Y-%m}",
        "state": month.state,
        "rows": month.rows,
        "bytes": month.file_bytes,
        "file": address(month.location, month.file),
        "sha256": month.sha256,
        "transcripts": month.transcripts,
        "transcripts_file": transcripts,
        "transcripts_sha256": month.transcripts_sha256,
        "chain_sequence": month.head_sequence,
        "chain_head": bytes(month.head_digest).hex(),
    }

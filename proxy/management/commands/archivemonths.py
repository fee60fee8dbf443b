"""Write closed months of requests to Parquet files, and delete them from the database."""

from datetime import UTC, date, datetime
from typing import Any

import msgspec
from django.core.management.base import CommandError, CommandParser
from rich.filesize import decimal
from rich.table import Table

from proxy.audit_log import Action, record
from proxy.conf import conf
from proxy.ledger.archive import outbox
from proxy.ledger.archive.duckdb_backend import load_duckdb
from proxy.ledger.archive.files import check_location
from proxy.ledger.archive.reading import bounds
from proxy.ledger.maintenance import verifier
from proxy.ledger.maintenance.verifier import DayRange
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.datetime_args import parse_month
from proxy.management.rich_output import format_count, progress, render_table
from proxy.models import ArchivedMonth
from proxy.secrets import ConfigError


class Command(BridgeCommand):
    help = "Write closed months of requests to Parquet files; with --remove, delete them here."
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
            default=str(conf.data_dir / "archive"),
            help="a folder that all hosts of the gateway can read, or s3://bucket/prefix "
            "(default: the folder archive in the data directory)",
        )
        parser.add_argument(
            "--remove",
            action="store_true",
            help="delete the rows of archived months from the database, as soon as the retention "
            "of their transcripts has ended",
        )
        parser.add_argument("--list", action="store_true", help="only show the archived months")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["list"]:
            load_duckdb()
            try:
                self._run(options)
            except OSError as error:
                raise CommandError(str(error), returncode=FINDING) from None
        months = list(ArchivedMonth.objects.all())
        if options["json"]:
            self.stdout.write(msgspec.json.encode([_columns(month) for month in months]).decode())
        else:
            self._show(months)

    def _run(self, options: dict[str, Any]) -> None:
        this_month = datetime.now(UTC).date().replace(day=1)
        before = min(options["before"][0] if options["before"] else this_month, this_month)
        location = check_location(options["to"])
        with outbox.work_folder() as folder, progress() as bar:
            for month in outbox.closed_months(before):
                self._verify(month)
                task = bar.add_task(f"archiving {month:%Y-%m}", total=None)
                for rows in outbox.archive(month, location, folder):
                    bar.advance(task, rows)
                record(Action.EXPORT, detail=f"{month:%Y-%m} archived to {location}")
            for month, obstacle in outbox.removable_months() if options["remove"] else ():
                if month >= before:
                    continue
                if obstacle:
                    self.stderr.write(f"{month:%Y-%m} stays in the database: {obstacle}")
                    continue
                task = bar.add_task(f"removing {month:%Y-%m}", total=None)
                for rows in outbox.remove(month):
                    bar.advance(task, rows)
                record(Action.PURGE, detail=f"{month:%Y-%m} removed, it is archived")

    def _verify(self, month: date) -> None:
        """Verify the month's links of the hash chain, and that each closed row has a link.

        Raises ConfigError if anything is wrong.
        """
        start, end = bounds(month)
        findings = verifier.verify_links_of_rows(start, end)
        for checked in verifier.verify(bodies=False, days=DayRange(month, end.date())):
            findings += checked.findings
        if findings:
            raise ConfigError(
                f"{month:%Y-%m} has {format_count(len(findings), 'finding')} of "
                f"manage.py verifyledger, such as {findings[0].where}: {findings[0].why}"
            )

    def _show(self, months: list[ArchivedMonth]) -> None:
        table = Table("month", "state", "rows", "size", "location")
        for month in months:
            columns = _columns(month)
            table.add_row(
                columns["month"],
                month.get_state_display(),
                f"{month.rows:,}",
                decimal(month.file_bytes),
                f"{month.location}/{month.file}",
            )
        self.stdout.write(render_table(table) if months else "no month is archived")


def _columns(month: ArchivedMonth) -> dict[str, Any]:
    return {
        "month": f"{month.month:%Y-%m}",
        "state": month.state,
        "rows": month.rows,
        "bytes": month.file_bytes,
        "file": f"{month.location}/{month.file}",
        "sha256": month.sha256,
        "chain_sequence": month.head_sequence,
        "chain_head": bytes(month.head_digest).hex(),
    }

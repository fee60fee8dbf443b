"""Bring the requests and transcripts of an archived month back to the database."""

from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from proxy.ledger.archive.parquet import load_arrow
from proxy.ledger.maintenance.archive_run import restore_month
from proxy.management.arguments import parse_month
from proxy.management.base import BridgeCommand
from proxy.management.rich_output import format_count, progress
from proxy.models import ArchivedMonth


class Command(BridgeCommand):
    help = (
        "Bring an archived month back: its requests and transcripts are inserted as they were. "
        "Run it again after an interruption. Exit 1: a file is missing, damaged or changed."
    )
    example = "manage.py restoremonth 2026-06 --dry-run   # verify the files, change nothing"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "month", type=parse_month, metavar="YYYY-MM", help="a month of archivemonths --list"
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="compare the files with the hash chain and count what would be inserted",
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        load_arrow()
        month = options["month"][0]
        known = ArchivedMonth.objects.filter(pk=month).first()
        with progress() as bar:
            task = bar.add_task(f"restoring {month:%Y-%m}", total=known.rows if known else None)
            done = restore_month(month, partial(bar.advance, task), is_dry_run=options["dry_run"])
        if options["json"]:
            result = {"month": f"{month:%Y-%m}", "dry_run": options["dry_run"], **done._asdict()}
            self.write_json(result)
            return
        if not done.rows:
            self.stdout.write(f"{month:%Y-%m} is in the database already")
            return
        verb = "would be inserted" if options["dry_run"] else "inserted"
        self.stdout.write(
            f"{month:%Y-%m}: {format_count(done.inserted, 'request')} of {done.rows:,} and "
            f"{format_count(done.inserted_transcripts, 'transcript')} of {done.transcripts:,} "
            f"{verb}"
        )

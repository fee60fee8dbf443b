"""Export the ledger as text, one line for each request."""

import sys
from argparse import FileType
from typing import Any

from django.core.management.base import CommandParser

from proxy.ledger.archive.reading import archived_months, restore_hint
from proxy.ledger.maintenance.export import rows_between
from proxy.management.arguments import check_range, parse_datetime
from proxy.management.base import BridgeCommand
from proxy.management.rich_output import progress
from proxy.models.ledger_names import with_names
from proxy.permissions.readings import record_export
from proxy.reports.core.rendering import LINE_FORMATS, column_names
from proxy.reports.requests.serializers import LedgerRow, ledger_row


class Command(BridgeCommand):
    help = "Write the ledger, one line for each request, oldest first."
    example = "manage.py exportledger --since 2026-11-01 --until 2026-12-01 --format csv > nov.csv"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--since",
            type=parse_datetime,
            help="only requests since this time, such as 2026-11-01 or 7d",
        )
        parser.add_argument("--until", type=parse_datetime, help="only requests before this time")
        parser.add_argument(
            "--format", choices=sorted(LINE_FORMATS), default="ndjson", help="default: ndjson"
        )
        parser.add_argument(
            "--open", action="store_true", help="also write requests that are still running"
        )
        parser.add_argument(
            "--output", type=FileType("w", encoding="utf-8"), help="a file (default: stdout)"
        )
        self.add_reason_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        check_range(options["since"], options["until"])
        rows = rows_between(options["since"], options["until"], with_open=options["open"])
        if hint := restore_hint(archived_months(options["since"], options["until"])):
            self.stderr.write(hint)
        bounds = f"since {options['since']} until {options['until']}"
        record_export(f"{options['format']}, {bounds}", reason=options["reason"])
        out = options["output"] or self.stdout
        with progress() as bar:
            shows_total = sys.stderr.isatty()
            total = rows.count() if shows_total else None
            task = bar.add_task("exporting", total=total)
            found = map(ledger_row, with_names(rows.iterator(chunk_size=1000)))
            for line in LINE_FORMATS[options["format"]][0](found, column_names(LedgerRow())):
                out.write(line, ending="") if out is self.stdout else out.write(line)
                bar.advance(task)
        out.flush()

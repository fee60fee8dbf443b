"""Delete transcripts that are past their retention, and free their disk space."""

from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandParser
from rich.filesize import decimal
from rich.table import Table

from proxy.audit_log import Action, record
from proxy.conf import conf
from proxy.ledger.journal.journal_metrics import journal_bytes
from proxy.ledger.maintenance import archive_run, retention
from proxy.ledger.maintenance.retention import TableSize, sizes
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.webhooks import prune_events
from proxy.management.arguments import parse_datetime
from proxy.management.base import BridgeCommand
from proxy.management.rich_output import format_count, render_table, track
from proxy.reports.exports import jobs


class Command(BridgeCommand):
    help = "Delete expired transcripts, audit entries and exports; rows of requests stay."
    example = "manage.py pruneledger --sizes   # table sizes only, deletes nothing"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--sizes", action="store_true", help="only show the size of each table")
        parser.add_argument(
            "--batch", type=int, default=500, help="rows in one transaction (default: 500)"
        )
        parser.add_argument(
            "--now", type=parse_datetime, help="delete what is expired at this time instead of now"
        )
        parser.add_argument(
            "--keep-space", action="store_true", help="do not free disk space afterwards"
        )
        parser.add_argument(
            "--full",
            action="store_true",
            help="free it with VACUUM FULL, which locks the tables (PostgreSQL)",
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        before = sizes()
        if options["sizes"]:
            self._show(before, options)
            return
        now = options["now"] or datetime.now(UTC)
        present = min(now, datetime.now(UTC))
        batch = options["batch"]
        cause = Cause(Action.PURGE, "deletes transcripts past their retention")
        transcripts = track("transcripts", retention.prune_transcripts(now, cause, batch))
        track("outcomes", retention.prune_outcomes(now, batch))
        parts = track("unused parts", retention.prune_parts(present, batch))
        transcripts += archive_run.prune_archived(now, cause)
        exports = jobs.expire(now)
        entries = retention.prune_audit_log(present)
        retention.delete_expired_sessions(present)
        retention.delete_expired_writes(present)
        prune_events(present)
        if not options["keep_space"]:
            retention.free_space(full=options["full"])
        freed = sum(size.bytes for size in before) - sum(size.bytes for size in sizes())
        result = {"transcripts": transcripts, "parts": parts, "exports": exports}
        result["bytes_freed"] = freed
        counts = ", ".join(f"{name}: {count}" for name, count in result.items())
        record(Action.PURGE, detail=f"{counts}, audit_entries: {entries}")
        if options["json"]:
            self.write_json(result)
            return
        self.stdout.write(
            f"{format_count(transcripts, 'transcript')} and {format_count(parts, 'part')} deleted, "
            f"{decimal(max(0, freed))} freed"
        )

    def _show(self, found: list[TableSize], options: dict[str, Any]) -> None:
        if options["json"]:
            self.write_json([size._asdict() for size in found])
            return
        table = Table("table", "rows", "size")
        for size in found:
            table.add_row(size.table, f"{size.rows:,}", decimal(size.bytes))
        table.add_section()
        table.add_row("together", "", decimal(sum(size.bytes for size in found)))
        table.add_row("journals (files)", "", decimal(journal_bytes(conf.data_dir)))
        self.stdout.write(render_table(table))

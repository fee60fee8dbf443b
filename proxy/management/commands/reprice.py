"""Compute the cost of requests again: of those without a price when they ended, or of a range."""

from collections import defaultdict
from typing import Any

from django.core.management.base import CommandParser
from rich.table import Table

from proxy.ledger.maintenance.amendments import BATCH, Repriced, candidates, reprice
from proxy.management.arguments import check_range, parse_datetime
from proxy.management.base import BridgeCommand
from proxy.management.rich_output import format_count, progress, render_table
from proxy.money import usd


class Command(BridgeCommand):
    help = "Compute the cost of requests again after a price change, with all sums."
    example = "manage.py reprice --since 2026-11-01 --dry-run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--since",
            type=parse_datetime,
            help="only requests since this time, such as 2026-11-01 or 7d",
        )
        parser.add_argument("--until", type=parse_datetime, help="only requests before this time")
        parser.add_argument(
            "--all",
            action="store_true",
            help="also requests that already have a cost (default: only those without)",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="show the difference, change nothing"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        check_range(options["since"], options["until"])
        rows = candidates(options["since"], options["until"], every=options["all"])
        changed: dict[tuple[str, str], list[Repriced]] = defaultdict(list)
        with progress() as bar:
            total = rows.count()
            task = bar.add_task("pricing", total=total)
            for number, batch in enumerate(reprice(rows, dry_run=options["dry_run"]), 1):
                for one in batch:
                    changed[(one.exchange.upstream, one.exchange.model_upstream)].append(one)
                bar.update(task, completed=min(total, number * BATCH))
        groups = [summed(*key, group) for key, group in sorted(changed.items())]
        if options["json"]:
            self.write_json(groups)
            return
        self._show(groups, dry_run=options["dry_run"])

    def _show(self, groups: list[dict[str, Any]], *, dry_run: bool) -> None:
        table = Table("upstream", "model", "requests", "before USD", "after USD")
        for line in groups:
            table.add_row(*(str(value) for value in line.values()))
        if groups:
            self.stdout.write(render_table(table))
        requests = sum(line["requests"] for line in groups)
        self.stdout.write(
            f"{format_count(requests, 'request')} {'would change' if dry_run else 'changed'}"
        )


def summed(upstream: str, model: str, group: list[Repriced]) -> dict[str, Any]:
    return {
        "upstream": upstream,
        "model": model,
        "requests": len(group),
        "before_usd": usd(sum(one.before or 0 for one in group)),
        "after_usd": usd(sum(one.after or 0 for one in group)),
    }

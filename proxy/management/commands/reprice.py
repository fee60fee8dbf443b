"""Price requests that had no price when they ended, or a whole range anew."""

from collections import defaultdict
from typing import Any

import msgspec
from django.core.management.base import CommandParser
from rich.table import Table

from proxy.management.base import BridgeCommand
from proxy.management.moments import check_range, moment
from proxy.management.terminal import counted, progress, rendered
from proxy.record.export import usd
from proxy.record.repricing import Repriced, candidates, reprice


class Command(BridgeCommand):
    help = "Price requests again after prices were added or mended; sums and seals follow."
    example = "manage.py reprice --since 2026-11-01 --dry-run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--since", type=moment, help="accepted at or after")
        parser.add_argument("--until", type=moment, help="accepted before")
        parser.add_argument("--all", action="store_true", help="also those that have a price")
        parser.add_argument("--dry-run", action="store_true", help="show the difference only")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        check_range(options["since"], options["until"])
        rows = candidates(options["since"], options["until"], every=options["all"])
        changed: dict[tuple[str, str], list[Repriced]] = defaultdict(list)
        with progress() as bar:
            task = bar.add_task("pricing", total=rows.count())
            for batch in reprice(rows, dry_run=options["dry_run"]):
                for one in batch:
                    changed[(one.exchange.upstream, one.exchange.model_upstream)].append(one)
                bar.advance(task, 500)
        told = [summed(*key, group) for key, group in sorted(changed.items())]
        if options["json"]:
            self.stdout.write(msgspec.json.encode(told).decode())
            return
        self._show(told, dry_run=options["dry_run"])

    def _show(self, told: list[dict[str, Any]], *, dry_run: bool) -> None:
        table = Table("upstream", "model", "requests", "before USD", "after USD")
        for line in told:
            table.add_row(*(str(value) for value in line.values()))
        if told:
            self.stdout.write(rendered(table))
        requests = sum(line["requests"] for line in told)
        self.stdout.write(
            f"{counted(requests, 'request')} {'would change' if dry_run else 'changed'}"
        )


def summed(upstream: str, model: str, group: list[Repriced]) -> dict[str, Any]:
    return {
        "upstream": upstream,
        "model": model,
        "requests": len(group),
        "before_usd": usd(sum(one.before or 0 for one in group)),
        "after_usd": usd(sum(one.after or 0 for one in group)),
    }

"""Search the transcripts, or build the search index for those that were stored without it."""

import sys
from typing import Any

import msgspec
from django.core.management.base import CommandError, CommandParser
from rich.table import Table
from rich.text import Text

from proxy.ledger.maintenance.search_reindex import reindex
from proxy.ledger.search.query import InvalidQuery
from proxy.ledger.search.search import Page, Result, SearchTooSlow
from proxy.ledger.transcripts.visible_text import escape_invisible_json, show_invisible
from proxy.management.arguments import check_range, parse_datetime
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import format_count, render_table, track
from proxy.models import Transcript
from proxy.permissions.row_permissions import Reader
from proxy.secrets import ConfigError
from proxy.transcript_search import (
    Filters,
    SearchSwitchedOff,
    off_reason,
    result_row,
    search_transcripts,
)

MAX_RESULTS = 1000


class Command(BridgeCommand):
    help = "Search prompts, responses, tool inputs and tool results, newest first."
    example = 'manage.py searchtranscripts "rate limit" --team platform --since 7d'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "query",
            nargs="?",
            default="",
            help='words, paths and "phrases"; a text must contain all of them',
        )
        for name in ("team", "key", "user", "model"):
            parser.add_argument(f"--{name}", default="", help=f"only requests of this {name}")
        parser.add_argument(
            "--since",
            type=parse_datetime,
            help="only requests since this time, such as 2026-11-01 or 7d",
        )
        parser.add_argument("--until", type=parse_datetime, help="only requests before this time")
        parser.add_argument(
            "--limit",
            type=int,
            default=20,
            help=f"number of results, at most {MAX_RESULTS} (default: 20)",
        )
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object for each result"
        )
        self.add_reason_argument(parser)
        parser.add_argument(
            "--reindex",
            action="store_true",
            help="index the transcripts that are not indexed; an interrupted run is continued",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if off_reason():
            raise ConfigError(str(SearchSwitchedOff()))
        if options["reindex"]:
            total = Transcript.objects.count() if sys.stderr.isatty() else None
            count = track("transcripts", reindex(), total)
            self.stdout.write(f"{format_count(count, 'transcript')} checked, all are indexed")
            return
        check_range(options["since"], options["until"])
        if not 1 <= options["limit"] <= MAX_RESULTS:
            raise ConfigError(f"--limit is not 1 to {MAX_RESULTS}")
        results = self._search(options)
        if options["json"]:
            for result in results:
                line = msgspec.json.encode(result_row(result)).decode()
                self.stdout.write(escape_invisible_json(line))
            return
        table = Table("time (UTC)", "request", "who", "kind", "passage")
        for result in results:
            row = result.exchange
            who = _as_one_line(f"{row.names.team} / {row.names.user or row.names.key}")
            table.add_row(
                f"{row.created:%Y-%m-%d %H:%M}",
                row.pk,
                Text(who),
                Text(result.kind),
                _passage(result),
            )
        self.stdout.write(render_table(table) if results else "no text matches")

    def _search(self, options: dict[str, Any]) -> list[Result]:
        names = ("team", "key", "user", "model", "since", "until")
        filters = Filters(**{name: options[name] for name in names})
        results: list[Result] = []
        page = Page((), None)
        while len(results) < options["limit"]:
            try:
                page = search_transcripts(
                    Reader(everything=True),
                    options["query"],
                    filters,
                    limit=options["limit"] - len(results),
                    below=page.next_position,
                    reason=options["reason"],
                )
            except (InvalidQuery, SearchSwitchedOff) as error:
                raise ConfigError(str(error)) from None
            except SearchTooSlow:
                raise CommandError(
                    "the search took too long; use a longer or rarer word", returncode=FINDING
                ) from None
            results += page.results
            if page.next_position is None:
                break
        return results


def _passage(result: Result) -> Text:
    """Return the passage with the matches in bold."""
    text = Text("…" if result.is_cut_before else "")
    for fragment in result.fragments:
        text.append(_as_one_line(fragment.text), "bold" if fragment.matched else "")
    return text.append("…" if result.is_cut_after else "")


def _as_one_line(text: str) -> str:
    return show_invisible("".join(" " if c.isspace() else c for c in text))

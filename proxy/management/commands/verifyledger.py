"""Verify the integrity of the ledger: hash chain, rows, transcripts and rollups.

The position is stored every few seconds, so an interrupted verification can be resumed.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandParser

from proxy.conf import conf
from proxy.ledger.maintenance import published_heads, verifier
from proxy.ledger.maintenance.published_heads import PublishedHead
from proxy.ledger.maintenance.verifier import EVERYTHING, Checkpoint, Claims, DayRange, claims_of
from proxy.management.arguments import parse_datetime, parse_month
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import format_count, progress
from proxy.secrets import ConfigError

FILE: Final = "verifyledger.json"
SAVE_S: Final = 5.0
MAX_SHOWN = 50
INTACT = "everything is as it was written"


class Command(BridgeCommand):
    help = "Verify the hash chain, rows, transcripts and sums; exit 1 if anything is wrong."
    example = "manage.py verifyledger --heads   # store the last line elsewhere"

    def add_arguments(self, parser: CommandParser) -> None:
        scope = parser.add_mutually_exclusive_group()
        scope.add_argument(
            "--day",
            type=parse_datetime,
            metavar="YYYY-MM-DD",
            help="verify only the links of one day (UTC)",
        )
        scope.add_argument(
            "--month",
            type=parse_month,
            metavar="YYYY-MM",
            help="verify only the links of one month (UTC)",
        )
        scope.add_argument(
            "--resume", action="store_true",
            help="continue the interrupted verification with its options",
        )  # fmt: skip
        parser.add_argument("--no-bodies", action="store_true", help="do not verify transcripts")
        parser.add_argument("--no-sums", action="store_true", help="do not verify sums")
        parser.add_argument(
            "--heads", action="store_true", help="print the last digest of each day"
        )
        parser.add_argument(
            "--published", type=Path, metavar="FILE",
            help="heads that were published, a copy of ledger_heads or of lines of the log "
            "(default: ledger_heads of the data directory)",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        path = conf.data_dir / FILE
        state = Checkpoint.load(path) if options["resume"] else _new_checkpoint(options)
        if state is None:
            raise ConfigError("there is no interrupted verification to resume")
        self._verify(state, path)
        published = self._check_published(state, options["published"])
        claims = claims_of(state, published)
        path.unlink(missing_ok=True)
        heads = verifier.heads() if options["heads"] else []
        if options["json"]:
            result = {
                "links": state.links,
                "findings": [finding._asdict() for finding in state.findings],
                "encrypted_transcripts": state.encrypted,
                "proven": claims.proven,
                "not_proven": claims.not_proven,
                "heads": [{"day": d, "links": n, "digest": digest} for d, n, digest in heads],
            }
            self.write_json(result)
        else:
            self._print(state, claims, heads)
        if state.found:
            raise SystemExit(FINDING)

    @staticmethod
    def _check_published(state: Checkpoint, path: Path | None) -> list[PublishedHead]:
        """Compare with the published heads. Raises ConfigError if a named file has none."""
        source = path or conf.data_dir / published_heads.FILE
        heads = published_heads.published(source)
        if path and not heads:
            raise ConfigError(f"{path} has no published head")
        state.add([*verifier.check_published(source)])
        return heads

    def _verify(self, state: Checkpoint, path: Path) -> None:
        """Run all steps from the position in ``state``."""
        with progress() as bar:
            task = bar.add_task("verifying", total=verifier.link_range(state.days)[1])
            for _ in saved_steps(state, path):
                bar.update(task, completed=state.sequence)

    def _print(self, state: Checkpoint, claims: Claims, heads: list[Any]) -> None:
        for day, count, digest in heads:
            self.stdout.write(f"{day}  {count:>8} links  {digest}")
        for finding in islice(state.findings, MAX_SHOWN):
            self.stdout.write(f"{finding.what:>8}  {finding.where}: {finding.why}")
        if state.found > MAX_SHOWN:
            self.stdout.write(f"... and {state.found - MAX_SHOWN} more")
        for title, sentences in (("proven", claims.proven), ("not proven", claims.not_proven)):
            for sentence in sentences:
                self.stdout.write(f"{title}: {sentence}")
        verdict = format_count(state.found, "finding") if state.found else INTACT
        self.stdout.write(f"{format_count(state.links, 'link')} checked: {verdict}")


def saved_steps(
    state: Checkpoint, path: Path, *, batch_size: int = verifier.BATCH, save_s: float = SAVE_S
) -> Iterator[None]:
    """Verify step by step; store ``state`` every ``save_s`` seconds."""
    saved_at = time.monotonic()
    for _ in verifier.steps(state, batch_size):
        if time.monotonic() - saved_at >= save_s:
            state.save(path)
            saved_at = time.monotonic()
        yield


def _new_checkpoint(options: dict[str, Any]) -> Checkpoint:
    days = DayRange(*options["month"]) if options["month"] else EVERYTHING
    if options["day"]:
        day = options["day"].date()
        days = DayRange(day, day + timedelta(days=1))
    return Checkpoint(days=days, bodies=not options["no_bodies"], sums=not options["no_sums"])

"""Translate a stored upstream stream again with the current translator, and show differences."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from proxy.audit_log import Action
from proxy.ledger.maintenance.json_diff import pretty
from proxy.ledger.maintenance.replay_comparison import CannotReplay, Comparison, compare
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.storage import StoredTranscript
from proxy.management.base import FINDING, MISUSE, BridgeCommand
from proxy.models import Exchange
from proxy.permissions.readings import record_reading
from proxy.permissions.row_permissions import Reader
from proxy.secrets import ConfigError
from translator.stream.sse import format_sse


class Command(BridgeCommand):
    help = "Translate a stored request and its response again; exit 1 if the response differs."
    example = "manage.py replay req_01KAJ4Z7Q8V5X2M3N6P9R0S1T2"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("request_id", help="the request-id of the response to the client")
        parser.add_argument(
            "--events", action="store_true", help="print the client's stream as translated now"
        )
        parser.add_argument(
            "--raw", action="store_true", help="print the stored bytes of the upstream"
        )
        parser.add_argument(
            "--request",
            action="store_true",
            help="print the body to the upstream as translated now",
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        self.add_reason_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        stored = self._stored(options["request_id"])
        exchange = Exchange.objects.filter(pk=stored.exchange_id).first()
        record_reading(
            Reader(everything=True),
            Action.READ,
            [exchange or Exchange(pk=stored.exchange_id)],
            detail="replay",
            reason=options["reason"],
        )
        if options["raw"]:
            for each in stored.failed:
                attempt = each.as_dict()
                heading = "# attempt {attempt}, {upstream}: status {status}".format(**attempt)
                self.stdout.write(heading)
                self.stdout.write(attempt["body"])
            for ms, body in stored.upstream_reads:
                self.stdout.write(f"# {ms:.1f} ms\n{body.decode('utf-8', 'replace')}")
            return
        try:
            comparison = compare(stored)
        except CannotReplay as exc:
            code = FINDING if stored.upstream_reads else MISUSE
            raise CommandError(str(exc), returncode=code) from None
        if options["request"]:
            self.stdout.write(pretty(comparison.replayed.body))
            return
        if options["events"]:
            for event in comparison.replayed.events:
                self.stdout.write(format_sse(event["type"], event), ending="")
            return
        self._compare(stored, comparison, as_json=options["json"])

    def _stored(self, request_id: str) -> StoredTranscript:
        try:
            stored = storage.read(request_id)
        except storage.BrokenTranscript as exc:
            raise CommandError(f"{request_id}: {exc}", returncode=FINDING) from None
        if stored is None:
            raise ConfigError(
                f"{request_id}: no transcript is stored (unknown, pruned, or metadata only)"
            )
        return stored

    def _compare(self, stored: StoredTranscript, comparison: Comparison, *, as_json: bool) -> None:
        if as_json:
            result = {
                "same": comparison.same,
                "stored": comparison.stored_answer,
                "today": comparison.replayed.answer,
            }
            self.write_json(result)
        elif comparison.same:
            self.stdout.write(f"{stored.exchange_id}: the response equals the stored one")
        else:
            self.stdout.write("\n".join(comparison.lines()))
        if not comparison.same:
            raise SystemExit(FINDING)

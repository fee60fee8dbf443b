"""Run a stored upstream stream through today's translator and show what differs."""

from typing import Any

import msgspec
from django.core.management.base import CommandError, CommandParser

from proxy.management.base import FINDING, MISUSE, BridgeCommand
from proxy.models import Exchange
from proxy.record import transcripts
from proxy.record.replaying import CannotReplay, Comparison, compare, pretty
from proxy.record.transcripts import StoredTranscript
from translator.sse import format_sse


class Command(BridgeCommand):
    help = "Translate a stored exchange again; exit 1 when the answer is not what it was."
    example = "manage.py replay req_01KAJ4Z7Q8V5X2M3N6P9R0S1T2"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("request_id", help="the request-id that the client saw")
        parser.add_argument("--events", action="store_true", help="print today's event stream")
        parser.add_argument("--raw", action="store_true", help="print the upstream's stored bytes")
        parser.add_argument("--request", action="store_true", help="print today's upstream body")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        stored = self._stored(options["request_id"])
        if options["raw"]:
            for each in stored.failed:
                told = each.told()
                self.stdout.write("# attempt {attempt}, {upstream}: status {status}".format(**told))
                self.stdout.write(told["body"])
            for ms, body in stored.upstream_reads:
                self.stdout.write(f"# {ms:.1f} ms\n{body.decode('utf-8', 'replace')}")
            return
        try:
            found = compare(stored, self._request_bytes(stored))
        except CannotReplay as exc:
            code = FINDING if stored.upstream_reads else MISUSE
            raise CommandError(str(exc), returncode=code) from None
        if options["request"]:
            self.stdout.write(pretty(found.again.body))
            return
        if options["events"]:
            for event in found.again.events:
                self.stdout.write(format_sse(event["type"], event), ending="")
            return
        self._compare(stored, found, as_json=options["json"])

    def _stored(self, request_id: str) -> StoredTranscript:
        try:
            stored = transcripts.read(request_id)
        except transcripts.BrokenTranscript as exc:
            raise CommandError(f"{request_id}: {exc}", returncode=FINDING) from None
        if stored is None:
            raise CommandError(
                f"{request_id}: no transcript is kept (unknown, pruned, or metadata only)",
                returncode=MISUSE,
            )
        return stored

    def _request_bytes(self, stored: StoredTranscript) -> int:
        rows = Exchange.objects.filter(pk=stored.exchange_id)
        return rows.values_list("request_bytes", flat=True).first() or 0

    def _compare(self, stored: StoredTranscript, found: Comparison, *, as_json: bool) -> None:
        if as_json:
            told = {"same": found.same, "stored": found.then, "today": found.again.answer}
            self.stdout.write(msgspec.json.encode(told).decode())
        elif found.same:
            self.stdout.write(f"{stored.exchange_id}: today's answer is the stored one")
        else:
            self.stdout.write("\n".join(found.lines()))
        if not found.same:
            raise SystemExit(FINDING)

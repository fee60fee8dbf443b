"""Check that the ledger is what was written: chain, rows, transcripts and sums."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
from django.core.management.base import CommandParser
from django.db.models import Max, Min

from proxy.management.base import FINDING, BridgeCommand
from proxy.management.moments import moment
from proxy.management.terminal import counted, progress
from proxy.models import Exchange, Seal
from proxy.record import audit
from proxy.record.audit import Finding

SHOWN = 50
INTACT = "everything is as it was written"


class Command(BridgeCommand):
    help = (
        "Walk the hash chain and compare it with rows, transcripts and sums; exit 1 on a finding."
    )
    example = "manage.py verifyledger --heads   # write the last line down elsewhere"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--day", type=moment, help="one UTC day of the chain only")
        parser.add_argument("--no-bodies", action="store_true", help="leave transcripts unread")
        parser.add_argument("--no-sums", action="store_true", help="leave the rollups unread")
        parser.add_argument("--heads", action="store_true", help="print each day's last digest")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        day = options["day"].date() if options["day"] else None
        links, findings = self._walk(day, bodies=not options["no_bodies"])
        if not options["no_sums"]:
            findings += sums(options["day"])
        heads = audit.heads() if options["heads"] else []
        if options["json"]:
            told = {
                "links": links,
                "findings": [finding._asdict() for finding in findings],
                "heads": [{"day": d, "links": n, "digest": digest} for d, n, digest in heads],
            }
            self.stdout.write(msgspec.json.encode(told).decode())
        else:
            self._tell(links, findings, heads)
        if findings:
            raise SystemExit(FINDING)

    def _walk(self, day: Any, *, bodies: bool) -> tuple[int, list[Finding]]:
        seals = Seal.objects.filter(day=day) if day else Seal.objects.all()
        links, findings = 0, []
        with progress() as bar:
            task = bar.add_task("verifying", total=seals.count())
            for checked in audit.verify(bodies=bodies, day=day):
                links = checked.links
                findings += checked.findings
                bar.update(task, completed=links)
        return links, findings

    def _tell(self, links: int, findings: list[Finding], heads: list[Any]) -> None:
        for day, count, digest in heads:
            self.stdout.write(f"{day}  {count:>8} links  {digest}")
        for finding in islice(findings, SHOWN):
            self.stdout.write(f"{finding.what:>8}  {finding.where}: {finding.why}")
        if len(findings) > SHOWN:
            self.stdout.write(f"... and {len(findings) - SHOWN} more")
        verdict = counted(len(findings), "finding") if findings else INTACT
        self.stdout.write(f"{counted(links, 'link')} checked: {verdict}")


def sums(day: datetime | None) -> list[Finding]:
    """The rollups of one UTC day, or of every day that has rows."""
    span = Exchange.objects.aggregate(first=Min("created"), last=Max("created"))
    first, last = (day, day) if day else (span["first"], span["last"])
    findings: list[Finding] = []
    if first is None or last is None:
        return findings
    at = first.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while at <= last:
        findings += audit.verify_sums(at, at + timedelta(days=1))
        at += timedelta(days=1)
    return findings

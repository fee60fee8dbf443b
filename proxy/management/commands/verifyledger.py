"""Verify the integrity of the ledger: hash chain, rows, transcripts and rollups."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
from django.core.management.base import CommandParser
from django.db.models import Max, Min

from proxy.ledger.maintenance import verifier
from proxy.ledger.maintenance.verifier import Finding
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.datetime_args import parse_datetime
from proxy.management.rich_output import format_count, progress
from proxy.models import Exchange, HashChainLink

MAX_SHOWN = 50
INTACT = "everything is as it was written"


class Command(BridgeCommand):
    help = "Verify the hash chain, rows, transcripts and sums; exit 1 on a finding."
    example = "manage.py verifyledger --heads   # store the last line elsewhere"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--day", type=parse_datetime, help="only the links of one UTC day")
        parser.add_argument("--no-bodies", action="store_true", help="skip transcripts")
        parser.add_argument("--no-sums", action="store_true", help="skip rollups")
        parser.add_argument("--heads", action="store_true", help="print each day's last digest")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        day = options["day"].date() if options["day"] else None
        links, findings = self._verify(day, bodies=not options["no_bodies"])
        if not options["no_sums"]:
            findings += sums(options["day"])
        heads = verifier.heads() if options["heads"] else []
        if options["json"]:
            result = {
                "links": links,
                "findings": [finding._asdict() for finding in findings],
                "heads": [{"day": d, "links": n, "digest": digest} for d, n, digest in heads],
            }
            self.stdout.write(msgspec.json.encode(result).decode())
        else:
            self._print(links, findings, heads)
        if findings:
            raise SystemExit(FINDING)

    def _verify(self, day: Any, *, bodies: bool) -> tuple[int, list[Finding]]:
        chain = HashChainLink.objects.filter(day=day) if day else HashChainLink.objects.all()
        links, findings = 0, []
        with progress() as bar:
            task = bar.add_task("verifying", total=chain.count())
            for checked in verifier.verify(bodies=bodies, day=day):
                links = checked.links
                findings += checked.findings
                bar.update(task, completed=links)
        return links, findings

    def _print(self, links: int, findings: list[Finding], heads: list[Any]) -> None:
        for day, count, digest in heads:
            self.stdout.write(f"{day}  {count:>8} links  {digest}")
        for finding in islice(findings, MAX_SHOWN):
            self.stdout.write(f"{finding.what:>8}  {finding.where}: {finding.why}")
        if len(findings) > MAX_SHOWN:
            self.stdout.write(f"... and {len(findings) - MAX_SHOWN} more")
        verdict = format_count(len(findings), "finding") if findings else INTACT
        self.stdout.write(f"{format_count(links, 'link')} checked: {verdict}")


def sums(day: datetime | None) -> list[Finding]:
    """Return the errors found in the rollups of one UTC day, or of all days with requests."""
    time_range = Exchange.objects.aggregate(first=Min("created"), last=Max("created"))
    first, last = (day, day) if day else (time_range["first"], time_range["last"])
    findings: list[Finding] = []
    if first is None or last is None:
        return findings
    at = first.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while at <= last:
        findings += verifier.verify_sums(at, at + timedelta(days=1))
        at += timedelta(days=1)
    return findings

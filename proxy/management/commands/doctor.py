"""Examine the installation and print what a client must be told."""

import json
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from proxy.config import datadir
from proxy.config.doctor import Finding, examine
from proxy.management.base import FINDING, BridgeCommand

MARKS = {True: "ok  ", False: "BAD ", None: "info"}
DEFAULT_URL = "http://127.0.0.1:8000"  # of a serve without options
CLIENT = """
A client needs, with a key of `manage.py createkey`:
  Claude Code   ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN=<key>
  SDKs          base_url="{url}", api_key="<key>"
  curl          {url}/v1/messages  -H 'x-api-key: <key>' -H 'anthropic-version: 2023-06-01'"""


class Command(BridgeCommand):
    help = "Check settings, files, schema, clock and upstreams; print the client settings."
    example = "manage.py doctor --no-stream --json"
    requires_system_checks = []  # they are part of the report

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--no-stream",
            action="store_true",
            help="do not ask each upstream for a short stream (it costs a few tokens)",
        )
        parser.add_argument(
            "--url", help="where clients reach us (default: the address of the running gateway)"
        )
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = []
        for finding in examine(stream=not options["no_stream"]):
            findings.append(finding)
            if not options["json"]:
                self.stdout.write(_line(finding))
        if options["json"]:
            self.stdout.write(json.dumps([asdict(finding) for finding in findings]))
        else:
            url = options["url"] or datadir.address_of(settings.DATA_DIR) or DEFAULT_URL
            self.stdout.write(CLIENT.format(url=url))
        bad = [finding for finding in findings if finding.ok is False]
        if bad:
            raise CommandError(f"{len(bad)} to mend", returncode=FINDING)


def _line(finding: Finding) -> str:
    hint = f"  {finding.hint}" if finding.hint else ""
    return f"{MARKS[finding.ok]}  {finding.subject}: {finding.says}.{hint}"

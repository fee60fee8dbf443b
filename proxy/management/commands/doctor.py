"""Check the installation, and print the settings that a client of the gateway needs."""

import json
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from proxy.bootstrap import data_directory
from proxy.bootstrap.doctor import run_checks
from proxy.bootstrap.upstream_checks import Finding
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import format_count

MARKS = {True: "ok  ", False: "BAD ", None: "info"}
DEFAULT_URL = "http://127.0.0.1:8000"  # the address of ``manage.py serve`` without options
CLIENT = """
A client needs, with a key of `manage.py createkey`:
  Claude Code   ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN=<key>
  SDKs          base_url="{url}", api_key="<key>"
  curl          {url}/v1/messages  -H 'x-api-key: <key>' -H 'anthropic-version: 2023-06-01'"""


class Command(BridgeCommand):
    help = (
        "Check settings, files, schema, clock and upstreams; print the client settings. "
        "Exit 1 if there is a problem."
    )
    example = "manage.py doctor --no-stream --json"
    requires_system_checks = []  # run_checks() runs Django's system checks

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--no-stream",
            action="store_true",
            help="do not request a short stream from each upstream (it costs a few tokens)",
        )
        parser.add_argument(
            "--url", help="URL of the gateway for clients (default: that of the running gateway)"
        )
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = []
        for finding in run_checks(stream=not options["no_stream"]):
            findings.append(finding)
            if not options["json"]:
                self.stdout.write(_line(finding))
        if options["json"]:
            self.stdout.write(json.dumps([_json(finding) for finding in findings]))
        else:
            url = options["url"] or data_directory.address_of(settings.DATA_DIR) or DEFAULT_URL
            self.stdout.write(CLIENT.format(url=url))
        bad = [finding for finding in findings if finding.ok is False]
        if bad:
            if not options["json"]:
                self.stdout.write(f"\n{format_count(len(bad), 'problem')} found (BAD above).")
            raise SystemExit(FINDING)


def _json(finding: Finding) -> dict[str, Any]:
    return {
        "subject": finding.subject,
        "ok": finding.ok,
        "says": finding.text,
        "hint": finding.hint,
    }


def _line(finding: Finding) -> str:
    """Return the finding and its remedy as one line, also if a text of a package has several."""
    line = f"{finding.subject}: {finding.text.rstrip('.')}. {finding.hint}"
    return f"{MARKS[finding.ok]}  {' '.join(line.split())}"

"""Convert the configuration of another gateway product to a bridge.toml.

The command also reports the parts that it could not convert.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils.timezone import now
from rich.table import Table
from rich.text import Text

from proxy.config import litellm
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import progress, render_table
from proxy.secrets import ConfigError


class Command(BridgeCommand):
    help = "Convert a LiteLLM config to a bridge.toml; exit 1 if a part is not converted."
    example = "manage.py importconfig --from litellm config.yaml --out bridge.toml"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="the other gateway's configuration")
        parser.add_argument(
            "--from", dest="source", choices=["litellm"], required=True, help="the other gateway"
        )
        parser.add_argument(
            "--out", type=Path, help="a new file for the bridge.toml (default: stdout)"
        )
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        with progress() as bar:
            bar.add_task("converting")
            imported = litellm.read_file(options["file"], today=now().date())
        if options["out"]:
            _write(options["out"], imported.toml)
        else:
            self.stdout.write(imported.toml, ending="")
        report = self.stdout if options["out"] else self.stderr  # stdout is for the bridge.toml
        report.write(_as_json(imported) if options["json"] else _as_table(imported))
        if imported.findings:
            sys.exit(FINDING)


def _write(path: Path, text: str) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists; name a new file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _as_json(imported: litellm.Imported) -> str:
    findings = [asdict(finding) for finding in imported.findings]
    return json.dumps({"written": imported.counts, "findings": findings})


def _as_table(imported: litellm.Imported) -> str:
    counts = ", ".join(f"{count} {kind}" for kind, count in imported.counts.items())
    if not imported.findings:
        return f"{counts}; everything was converted."
    table = Table("where", "verdict", "why", title="Changed or left out")
    for finding in imported.findings:
        table.add_row(Text(finding.where), finding.verdict, Text(finding.why))
    return f"{render_table(table)}\n{counts}; {len(imported.findings)} entries changed or left out."

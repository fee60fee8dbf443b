"""Write the generated parts of the docs: ``python docs/generate``; ``--check`` only compares.

A generated part is between ``<!-- generated: NAME -->`` and ``<!-- end -->``. The picture
``layers.svg`` is generated as a whole.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")

# These imports need the path and the settings from above.
import layers  # noqa: E402
import license_table  # noqa: E402
import promise_tables  # noqa: E402
import translation_tables  # noqa: E402
from django.core.management import get_commands, load_command_class  # noqa: E402

from bridge_project.env import TABLE  # noqa: E402
from proxy.admission_checks import CHECKS  # noqa: E402
from proxy.metrics.definitions import METRICS  # noqa: E402

PART = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def settings_table() -> str:
    rows = ["| name | default | purpose |", "|---|---|---|"]
    for variable in TABLE:
        default = f"`{variable.default}`" if variable.default else "unset"
        secret = " Secret." if variable.secret else ""
        rows.append(f"| `{variable.name}` | {default} | {variable.meaning}{secret} |")
    return "\n".join(rows)


def command_table() -> str:
    rows = ["| command | description |", "|---|---|"]
    for name in project_commands():
        command = load_command_class("proxy", name)
        first, _, _ = command.help.partition(". ")
        rows.append(f"| `{name}` | {first.rstrip('.')} |")
    return "\n".join(rows)


def project_commands() -> list[str]:
    return sorted(name for name, app in get_commands().items() if app == "proxy")


def metrics_table() -> str:
    from proxy.ledger.journal.journal_metrics import GAUGES  # noqa: PLC0415 - it imports models
    from proxy.metrics.node_state import NODE_GAUGES  # noqa: PLC0415 - it imports models

    rows = ["| metric | type | labels | description |", "|---|---|---|---|"]
    metrics = [(m.full_name, m.family.type, m.label_names, m.family.documentation) for m in METRICS]
    gauges = (*GAUGES, *NODE_GAUGES)
    metrics += [(gauge.name, "gauge", gauge.label_names, gauge.help) for gauge in gauges]
    for name, kind, label_names, text in metrics:
        labels = ", ".join(f"`{label}`" for label in label_names)
        rows.append(f"| `{name}` | {kind} | {labels} | {text} |")
    return "\n".join(rows)


def checks_table() -> str:
    rows = ["| | applies to | check | response if it fails |", "|---|---|---|---|"]
    for number, check in enumerate(CHECKS, 1):
        rows.append(
            f"| {number} | {check.subject} | {check.question} | {check.status} `{check.error}` |"
        )
    return "\n".join(rows)


PARTS: dict[str, Callable[[], str | None]] = {
    "checks": checks_table,
    "settings": settings_table,
    "commands": command_table,
    "metrics": metrics_table,
    **license_table.PARTS,
    **promise_tables.PARTS,
    **translation_tables.PARTS,
}


def update_page(text: str) -> str:
    """Return the page with current generated parts; None from a generator leaves its part."""

    def update_part(part: re.Match[str]) -> str:
        content = PARTS[part["name"]]()
        return part[0] if content is None else f"{part[1]}{content}\n{part[3]}"

    return PART.sub(update_part, text)


def main() -> int:
    import django  # noqa: PLC0415 - needs DJANGO_SETTINGS_MODULE

    django.setup()
    stale = layers.write_layers(check="--check" in sys.argv)
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        updated = update_page(text)
        if updated == text:
            continue
        if "--check" in sys.argv:
            sys.stderr.write(f"{page.name} is out of date; run python docs/generate\n")
            stale = 1
        else:
            page.write_text(updated, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())

"""Write the generated tables of the docs: ``python docs/generate.py``; ``--check`` only compares.

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")

# What stands beside us, and what reads settings.
import corpus_table  # noqa: E402
import promise_tables  # noqa: E402
import translation_tables  # noqa: E402
from django.core.management import get_commands, load_command_class  # noqa: E402

from bridge_project.env import TABLE  # noqa: E402
from proxy.admission import DOORS  # noqa: E402
from proxy.metrics.catalogue import CATALOGUE  # noqa: E402

PART = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def settings_table() -> str:
    rows = ["| name | default | what it is for |", "|---|---|---|"]
    for variable in TABLE:
        default = f"`{variable.default}`" if variable.default else "unset"
        secret = " Secret." if variable.secret else ""
        rows.append(f"| `{variable.name}` | {default} | {variable.meaning}{secret} |")
    return "\n".join(rows)


def command_table() -> str:
    rows = ["| command | what it does |", "|---|---|"]
    for name in our_commands():
        command = load_command_class("proxy", name)
        rows.append(f"| `{name}` | {command.help} |")
    return "\n".join(rows)


def our_commands() -> list[str]:
    return sorted(name for name, app in get_commands().items() if app == "proxy")


def metrics_table() -> str:
    from proxy.record.gauges import GAUGES  # noqa: PLC0415 - it imports models

    rows = ["| metric | kind | labels | what it tells |", "|---|---|---|---|"]
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    rows += [f"| `{each.name}` | gauge | {each.label} | {each.help} |" for each in GAUGES]
    return "\n".join(rows)


def doors_table() -> str:
    rows = ["| | of the | asked | a No is |", "|---|---|---|---|"]
    for place, door in enumerate(DOORS, 1):
        rows.append(f"| {place} | {door.whose} | {door.asks} | {door.status} `{door.error}` |")
    return "\n".join(rows)


PARTS: dict[str, Callable[[], str | None]] = {
    "doors": doors_table,
    "settings": settings_table,
    "commands": command_table,
    "metrics": metrics_table,
    **corpus_table.PARTS,
    **promise_tables.PARTS,
    **translation_tables.PARTS,
}


def renewed(text: str) -> str:
    """The page with its generated parts written anew."""

    def anew(part: re.Match[str]) -> str:
        made = PARTS[part["name"]]()
        return part[0] if made is None else f"{part[1]}{made}\n{part[3]}"

    return PART.sub(anew, text)


def main() -> int:
    import django  # noqa: PLC0415 - the settings come first

    django.setup()
    stale = 0
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if renewed(text) == text:
            continue
        if "--check" in sys.argv:
            sys.stderr.write(f"{page.name} is not current; run python docs/generate.py\n")
            stale = 1
        else:
            page.write_text(renewed(text), encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())

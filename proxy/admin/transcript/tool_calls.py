"""Format the input of known tools: a command as in a shell, an edit as removed and added lines.

No field is lost: the fields that a tool's layout does not show follow as JSON. The exact input is
on the tab "Client request". No I/O.
"""

from collections.abc import Mapping
from typing import Any, Final

from .truncation import dump_json

REMOVED: Final = "- "
ADDED: Final = "+ "
LAYOUTS: Final[Mapping[str, Mapping[str, str]]] = {
    "Bash": {"command": "$ "},
    "Edit": {"file_path": "", "old_string": REMOVED, "new_string": ADDED},
    "Read": {"file_path": ""},
    "Write": {"file_path": "", "content": ADDED},
}
"""Tool -> the fields that are shown, in order, each with the text before it. The marks of removed
and added text precede each of its lines."""


def format_tool_input(name: str, tool_input: Any) -> str | None:
    """Return the tool's input as text; None for an unknown tool or input of another shape."""
    layout = LAYOUTS.get(name)
    if layout is None or not isinstance(tool_input, dict):
        return None
    lines: list[str] = []
    for field, before in layout.items():
        text = tool_input.get(field)
        if not isinstance(text, str):
            return None
        if before not in {REMOVED, ADDED}:
            lines.append(f"{before}{text}")
        elif text:
            lines += [f"{before}{line}" for line in text.split("\n")]
    rest = {field: value for field, value in tool_input.items() if field not in layout}
    return "\n".join(lines) + (f"\n\n{dump_json(rest, indent=2)}" if rest else "")

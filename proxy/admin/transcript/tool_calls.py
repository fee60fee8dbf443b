"""Format the input of known tools: a command as in a shell, an edit as removed and added lines.

No field is lost: the fields that a tool's layout does not show follow as JSON. The exact input is
on the tab "Client request". No I/O.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from .truncation import dump_json

ToolInput = dict[str, Any]


def format_tool_input(name: str, tool_input: Any) -> str | None:
    """Return the tool's input as text; None for an unknown tool or input of another shape."""
    layout = LAYOUTS.get(name)
    return layout(dict(tool_input)) if layout and isinstance(tool_input, dict) else None


def _command(tool_input: ToolInput) -> str | None:
    command = tool_input.pop("command", None)
    return _with_other_fields(f"$ {command}", tool_input) if isinstance(command, str) else None


def _path(tool_input: ToolInput) -> str | None:
    path = tool_input.pop("file_path", None)
    return _with_other_fields(path, tool_input) if isinstance(path, str) else None


def _edit(tool_input: ToolInput) -> str | None:
    path, old, new = (
        tool_input.pop(name, None) for name in ("file_path", "old_string", "new_string")
    )
    if not (isinstance(path, str) and isinstance(old, str) and isinstance(new, str)):
        return None
    lines = (path, *_prefix_lines("-", old), *_prefix_lines("+", new))
    return _with_other_fields("\n".join(lines), tool_input)


def _write(tool_input: ToolInput) -> str | None:
    path, content = tool_input.pop("file_path", None), tool_input.pop("content", None)
    if not (isinstance(path, str) and isinstance(content, str)):
        return None
    return _with_other_fields("\n".join((path, *_prefix_lines("+", content))), tool_input)


def _prefix_lines(prefix: str, text: str) -> list[str]:
    """Return each line of the text with the prefix before it; no lines for an empty text."""
    return [f"{prefix} {line}" for line in text.split("\n")] if text else []


def _with_other_fields(text: str, rest: ToolInput) -> str:
    return f"{text}\n\n{dump_json(rest, indent=2)}" if rest else text


LAYOUTS: Final[Mapping[str, Callable[[ToolInput], str | None]]] = {
    "Bash": _command,
    "Edit": _edit,
    "Read": _path,
    "Write": _write,
}

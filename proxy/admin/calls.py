"""A tool call's input as people read it: a command as in a shell, an edit as lines gone and come.

Pure, and nothing is left out: what a tool's layout does not name follows as JSON. The exact input
is one click away, under the client's request.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from .clips import dump

Given = dict[str, Any]


def readable(name: str, given: Any) -> str | None:
    """None: a tool we do not know, or an input of another shape; JSON shows it best."""
    layout = LAYOUTS.get(name)
    return layout(dict(given)) if layout and isinstance(given, dict) else None


def _command(given: Given) -> str | None:
    command = given.pop("command", None)
    return _joined(f"$ {command}", given) if isinstance(command, str) else None


def _path(given: Given) -> str | None:
    path = given.pop("file_path", None)
    return _joined(path, given) if isinstance(path, str) else None


def _edit(given: Given) -> str | None:
    path, old, new = (given.pop(name, None) for name in ("file_path", "old_string", "new_string"))
    if not (isinstance(path, str) and isinstance(old, str) and isinstance(new, str)):
        return None
    lines = (path, *_marked("-", old), *_marked("+", new))
    return _joined("\n".join(lines), given)


def _write(given: Given) -> str | None:
    path, content = given.pop("file_path", None), given.pop("content", None)
    if not (isinstance(path, str) and isinstance(content, str)):
        return None
    return _joined("\n".join((path, *_marked("+", content))), given)


def _marked(sign: str, text: str) -> list[str]:
    """Each line behind its sign; of no text at all nothing."""
    return [f"{sign} {line}" for line in text.split("\n")] if text else []


def _joined(told: str, rest: Given) -> str:
    return f"{told}\n\n{dump(rest, indent=2)}" if rest else told


LAYOUTS: Final[Mapping[str, Callable[[Given], str | None]]] = {
    "Bash": _command,
    "Edit": _edit,
    "Read": _path,
    "Write": _write,
}

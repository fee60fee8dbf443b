"""Follow the contents of files through a session, from what the agent read and wrote.

An edit that writes a whole file, or replaces every occurrence of a text, does not have the lines
that it removes. They are known if the agent read or wrote the whole file earlier in the session.
"""

import re
from typing import Final

from .agent_tools import CONTENT, NEW, OLD, PATH, REPLACE_ALL, ToolCall, ToolKind

NUMBERED: Final = re.compile(r"^ *(\d+)(?:→|\t)(.*)$")
READERS: Final = frozenset({"read", "read_file", "view"})
PARTIAL: Final = ("offset", "limit", "view_range", "start_line", "end_line")
MAX_BYTES: Final = 16 * 2**20  # characters of all known files; more are forgotten
MAX_WORK: Final = 64 * 2**20
"""Characters that are copied or compared for one request. After that, contents are unknown: a
client could otherwise send edits that take minutes."""


class KnownFiles:
    """The contents of files by path. ``follow`` must be called with each tool call, in order."""

    def __init__(self) -> None:
        self._contents: dict[str, str] = {}
        self._size = 0
        self._work = 0

    def follow(self, call: ToolCall) -> tuple[str | None, str | None]:
        """Update the known contents with a tool call and its result.

        Return the contents of the file before and after an accepted edit; None: they are unknown.
        """
        path = call.text(PATH)
        if path is None or call.is_error or call.is_rejected:
            return None, None
        if call.kind is None:
            if call.name.lower() in READERS and (contents := _contents_read(call)) is not None:
                self._set(path, contents)
            return None, None
        before = self._contents.get(path)
        after = self._after(call, before)
        self._set(path, after)
        self._work += len(before or "") + len(after or "")
        return (None, None) if self._work > MAX_WORK else (before, after)

    def _after(self, call: ToolCall, before: str | None) -> str | None:
        """Return the contents of the file after an accepted edit; None if they are unknown."""
        old, new = call.text(OLD), call.text(NEW)
        match call.kind:
            case ToolKind.WRITE:
                return call.text(CONTENT)
            case ToolKind.EDIT if old == "":
                return new
            case ToolKind.EDIT if before is not None and new is not None:
                return self._replaced(before, old, new, call)
            case ToolKind.MULTI_EDIT if before is not None:
                contents: str | None = before
                for each in edits_in(call):
                    if contents is None:
                        break
                    contents = self._replaced(contents, each.text(OLD), each.text(NEW) or "", each)
                return contents
        return None

    def _replaced(self, before: str, old: str | None, new: str, call: ToolCall) -> str | None:
        """Return the contents after one replacement; None if they are unknown or too large."""
        self._work += len(before)
        if self._work > MAX_WORK:
            return None
        if call.input.get("command") == "insert":
            at = call.input.get("insert_line")
            lines = before.split("\n")
            if type(at) is not int or not 0 <= at <= len(lines):
                return None
            return "\n".join([*lines[:at], *new.removesuffix("\n").split("\n"), *lines[at:]])
        if not old or old not in before:
            return None
        count = before.count(old) if replaces_all(call) else 1
        if len(before) + count * (len(new) - len(old)) > MAX_BYTES:
            return None
        return before.replace(old, new, count)

    def _set(self, path: str, contents: str | None) -> None:
        self._size -= len(self._contents.pop(path, ""))
        if contents is None:
            return
        if self._size + len(contents) > MAX_BYTES:
            self._contents.clear()
            self._size = 0
        self._contents[path] = contents
        self._size += len(contents)


def edits_in(call: ToolCall) -> list[ToolCall]:
    """Return the edits of a call with a list of them."""
    edits = call.input.get("edits")
    each = [edit for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []
    return [ToolCall(call.id, "edit", edit, call.result, is_error=False) for edit in each]


def replaces_all(call: ToolCall) -> bool:
    return any(call.input.get(name) is True for name in REPLACE_ALL)


def _contents_read(call: ToolCall) -> str | None:
    """Return a file as the result of a whole read shows it, with a number before each line."""
    if any(call.input.get(name) is not None for name in PARTIAL):
        return None
    lines = []
    for number, line in enumerate(call.result.split("\n"), 1):
        found = NUMBERED.match(line)
        if found is None or int(found[1]) != number:
            break
        lines.append(found[2])
    rest = "\n".join(call.result.split("\n")[len(lines) :]).strip()
    if not lines or (rest and not rest.startswith("<system-reminder>")) or "truncated" in rest:
        return None
    return "\n".join(lines) + "\n"

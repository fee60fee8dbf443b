"""Derive what an agent did from its tool calls and their results in a request.

A client sends a tool call together with its result in the request after the call, and again in all
later requests of the session. So each request is searched for calls with a result; the caller of
this module counts each call once.

The names of Claude Code's tools come first; the others are those of Anthropic's text editor and
bash tools, Codex, Gemini CLI, opencode, Crush, Cline and Goose. A tool that is not in the tables
has no outcome. Lines are counted as ``git diff --numstat`` counts them. An edit that writes a whole
file, or replaces every occurrence of a text, does not have the lines that it removes: they are
known if the agent read or wrote the whole file earlier in the session.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from proxy.ledger.transcripts.body_parts import Piece, decode_json

from .shell_commands import outcome_of, pull_request_urls


class ToolKind(StrEnum):
    """What a tool call does; the first four are the kinds of edits in Anthropic's reports."""

    EDIT = "edit"
    MULTI_EDIT = "multi_edit"
    WRITE = "write"
    NOTEBOOK_EDIT = "notebook_edit"
    COMMAND = "command"
    PULL_REQUEST = "pull_request"


EDIT_KINDS: Final = (ToolKind.EDIT, ToolKind.MULTI_EDIT, ToolKind.WRITE, ToolKind.NOTEBOOK_EDIT)
NAMES: Final[Mapping[ToolKind, tuple[str, ...]]] = {
    ToolKind.EDIT: (
        "edit", "replace", "str_replace", "edit_file", "replace_in_file", "apply_diff",
        "apply_patch", "patch",
    ),
    ToolKind.MULTI_EDIT: ("multiedit", "multi_edit"),
    ToolKind.WRITE: ("write", "write_file", "write_to_file", "create_file"),
    ToolKind.NOTEBOOK_EDIT: ("notebookedit", "notebook_edit"),
    ToolKind.COMMAND: (
        "bash", "shell", "local_shell", "shell_command", "exec_command", "execute_command",
        "run_shell_command", "run_command", "run_terminal_cmd", "run_in_terminal", "terminal",
        "developer__shell",
    ),
    ToolKind.PULL_REQUEST: ("create_pull_request", "mcp__github__create_pull_request"),
}  # fmt: skip
KIND_OF: Final = {name: kind for kind, names in NAMES.items() for name in names}
EDITORS: Final = frozenset(
    {"str_replace_editor", "str_replace_based_edit_tool", "text_editor", "developer__text_editor"}
)
"""Tools whose field ``command`` says what the call does."""
EDITOR_KINDS: Final = {
    "create": ToolKind.WRITE,
    "write": ToolKind.WRITE,
    "str_replace": ToolKind.EDIT,
    "insert": ToolKind.EDIT,
}

PATH: Final = ("file_path", "filePath", "notebook_path", "path", "target_file", "file")
OLD: Final = ("old_string", "oldString", "old_str", "old_text", "oldText")
NEW: Final = ("new_string", "newString", "new_str", "new_text", "newText", "new_source")
CONTENT: Final = ("content", "file_text", "contents", "text")
PATCH: Final = ("input", "patch", "patchText", "diff")
SCRIPT: Final = ("command", "cmd", "script")
REPLACE_ALL: Final = ("replace_all", "replaceAll")

REJECTIONS: Final = (
    "the user doesn't want to proceed with this tool use",
    "the user doesn't want to take this action right now",
    "[request interrupted by user for tool use]",
    "permission for this tool use was denied",
    "permission to use ",
    "user rejected tool use",
    "the user rejected permission",
    "the user has specified a rule which prevents",
    "exec command rejected by user",
    "patch rejected by user",
    "rejected by user",
    "the user denied this operation",
    "[operation cancelled]",
)
"""The beginnings of tool results, in lower case, with which agents report a refused tool call."""
ERROR_PREFIXES: Final = ("<tool_use_error>", "error:")


class ToolCall(NamedTuple):
    """One tool call of an agent with its result, as the client sent them."""

    id: str
    name: str
    input: Mapping[str, Any]
    result: str
    is_error: bool

    @property
    def kind(self) -> ToolKind | None:
        """What the call does; None: no outcome is derived from this tool."""
        name = self.name.lower()
        if name in EDITORS:
            return EDITOR_KINDS.get(str(self.input.get("command")))
        return KIND_OF.get(name)

    @property
    def is_rejected(self) -> bool:
        """Whether the user, or a rule of the user, refused the call."""
        begin = self.result[:400].lstrip().lower()
        for prefix in ERROR_PREFIXES:
            begin = begin.removeprefix(prefix).lstrip()
        return begin.startswith(REJECTIONS)

    def text(self, names: tuple[str, ...]) -> str | None:
        """Return the first of these input fields that contains text; None if there is none."""
        found = (self.input.get(name) for name in names)
        return next((value for value in found if isinstance(value, str)), None)


MAX_DIFFERENCES: Final = 400
"""Texts with more differences are compared without the order of their lines: the exact comparison
takes time with the square of the differences, 25 ms for 400."""
PATCH_FILES: Final = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "+++ ")
"""The beginnings of lines with the name of a file, in a Codex patch and in a unified diff."""
SEARCH_MARK: Final = re.compile(r"[<-]{3,9} ?SEARCH\b")
MIDDLE_MARK: Final = re.compile(r"={5,9}\s?\Z")
REPLACE_MARK: Final = re.compile(r"[>+]{3,9} ?REPLACE\b")


MAX_STEPS: Final = 100_000
"""Compared lines of one comparison. Long runs of equal lines would otherwise be compared again for
each of up to 800 shifts between the two texts."""


class LineChanges(NamedTuple):
    added: int
    removed: int


def lines_of(text: str) -> list[str]:
    """Return the lines of a whole file, as git counts them."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def changes_of_file(before: str, after: str) -> LineChanges:
    """Return the changed lines between two versions of a whole file."""
    return count_changes(lines_of(before), lines_of(after))


def changes_of_fragment(old: str, new: str) -> LineChanges:
    """Return the changed lines if ``new`` replaces ``old`` somewhere in a file.

    The last line of each text is also compared if it is empty: the rest of the line follows it.
    """
    return count_changes(old.split("\n"), new.split("\n"))


def count_changes(old: Sequence[str], new: Sequence[str]) -> LineChanges:
    """Return the smallest number of added and removed lines that turn ``old`` into ``new``."""
    start = 0
    end = min(len(old), len(new))
    while start < end and old[start] == new[start]:
        start += 1
    shared = 0
    while shared < end - start and old[-1 - shared] == new[-1 - shared]:
        shared += 1
    old, new = old[start : len(old) - shared], new[start : len(new) - shared]
    if not old or not new:
        return LineChanges(len(new), len(old))
    differences = count_differences(old, new)
    if differences is None:
        only_new, only_old = Counter(new) - Counter(old), Counter(old) - Counter(new)
        return LineChanges(only_new.total(), only_old.total())
    surplus = len(new) - len(old)
    return LineChanges((differences + surplus) // 2, (differences - surplus) // 2)


def count_differences(old: Sequence[str], new: Sequence[str]) -> int | None:
    """Return the length of the shortest edit script.

    Return None if it exceeds ``MAX_DIFFERENCES`` or finding it takes more than ``MAX_STEPS``.
    Source: E. Myers, "An O(ND) Difference Algorithm and Its Variations", 1986, figure 2.
    """
    furthest = {1: 0}  # number of the diagonal -> furthest position in ``old`` on it
    steps = 0
    for differences in range(min(len(old) + len(new), MAX_DIFFERENCES) + 1):
        for diagonal in range(-differences, differences + 1, 2):
            below, beside = furthest.get(diagonal + 1, -1), furthest.get(diagonal - 1, -1)
            x = below if below > beside else beside + 1
            y = x - diagonal
            start = x
            while x < len(old) and 0 <= y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            if x >= len(old) and y >= len(new):
                return differences
            furthest[diagonal] = x
            steps += 1 + x - start
        if steps > MAX_STEPS:
            return None
    return None


class PatchChanges(NamedTuple):
    """The changes of a patch. ``changes`` is None if the patch does not have all of its lines."""

    paths: list[str]
    changes: LineChanges | None


def changes_of_patch(patch: str) -> PatchChanges:
    """Return the files and changed lines of a Codex patch, a unified diff or SEARCH blocks.

    A Codex patch deletes a file without its lines, so the number of removed lines is unknown.
    """
    if each := [count_changes(old, new) for old, new in _search_blocks(patch)]:
        return PatchChanges([], LineChanges(*map(sum, zip(*each, strict=True))))
    lines = patch.split("\n")
    headers = [line for line in lines if line.startswith(PATCH_FILES)]
    paths = [line.partition(" File: ")[2] or line[4:].removeprefix("b/") for line in headers]
    if not paths or any(line.startswith("*** Delete") for line in headers):
        return PatchChanges(paths, None)
    lines = [line for line in lines if not line.startswith(("+++", "---"))]
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    return PatchChanges(paths, LineChanges(added, removed))


def _search_blocks(patch: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the old and the new lines of each SEARCH/REPLACE block."""
    old: list[str] = []
    new: list[str] = []
    target: list[str] | None = None  # the lines that are read now; None: outside of a block
    for line in patch.split("\n"):
        if SEARCH_MARK.match(line):
            old, new = [], []
            target = old
        elif target is old and MIDDLE_MARK.match(line):
            target = new
        elif target is new and REPLACE_MARK.match(line):
            yield old, new
            target = None
        elif target is not None:
            target.append(line)


NUMBERED: Final = re.compile(r"^ *(\d{1,9})(?:→|\t)(.*)$")
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


MAX_CALLS: Final = 500  # calls of one request; only the last ones are counted
MAX_NEW_BYTES: Final = 8 * 2**20  # of the new messages; a larger request is not read
MAX_HISTORY_BYTES: Final = 8 * 2**20  # a longer history is not searched for contents of files
MAX_PATHS: Final = 200  # files of one patch
RANDOM_ID: Final = 12  # characters; a shorter id of a call may be repeated by other sessions
CREATED: Final = ("created", "new file")
BACKGROUND: Final = ("run_in_background", "is_background")
_canonical: Final = msgspec.json.Encoder(order="deterministic").encode

Counts = Counter[str]


@dataclass(slots=True)
class CallOutcome:
    """What one tool call did. ``counts``: names of columns of ``SessionOutcomeDay``."""

    counts: Counts
    paths: list[str] = field(default_factory=list)
    """The files that the call changed."""


class TooLarge(Exception):
    """The new messages of a request exceed the limit."""


class Transcript:
    """The tool calls in the messages of one request."""

    def __init__(self, messages: Sequence[Piece], new_from: int) -> None:
        """Read the messages that the request adds to its session. Raises TooLarge.

        ``new_from``: index of the first new message. The message before it is read too, as a
        request may end with the beginning of the assistant's message.
        """
        first = max(0, new_from - 1)
        if sum(len(piece.text) for piece in messages[first:]) > MAX_NEW_BYTES:
            raise TooLarge
        self._earlier = messages[:first]
        self._new = [decode_json(piece.text) for piece in messages[first:]]
        self.calls: Final = list(calls_in(self._new))[-MAX_CALLS:]
        self._before: dict[str, tuple[str | None, str | None]] | None = None

    def outcome(self, call: ToolCall) -> CallOutcome:
        """Return what the call did."""
        kind = call.kind
        counts = Counts(tool_results=1)
        if kind in EDIT_KINDS:
            return self._edit_outcome(call, kind, counts)
        if kind == ToolKind.COMMAND:
            _add_command(call, counts)
        elif kind == ToolKind.PULL_REQUEST and not call.is_error and not call.is_rejected:
            counts["pull_requests"] += bool(pull_request_urls(call.result))
        return CallOutcome(counts)

    def _edit_outcome(self, call: ToolCall, kind: ToolKind, counts: Counts) -> CallOutcome:
        if call.is_rejected:
            counts[f"{kind}_rejected"] += 1
            return CallOutcome(counts)
        if call.is_error:
            counts[f"{kind}_failed"] += 1
            return CallOutcome(counts)
        counts[f"{kind}_accepted"] += 1
        paths, changes = self._changes(call, kind)
        if changes is None:
            counts["edits_without_lines"] += 1
        else:
            counts["lines_added"], counts["lines_removed"] = changes
        return CallOutcome(counts, paths)

    def _changes(self, call: ToolCall, kind: ToolKind) -> tuple[list[str], LineChanges | None]:
        """Return the paths and the changed lines of an edit; None: the lines are unknown."""
        path, patch = call.text(PATH), call.text(PATCH)
        paths = [] if path is None else [path]
        if kind == ToolKind.EDIT and call.text(OLD) is None and patch is not None:
            found = changes_of_patch(patch)
            return (found.paths or paths)[:MAX_PATHS], found.changes
        return paths, self._line_changes(call, kind)

    def _line_changes(self, call: ToolCall, kind: ToolKind) -> LineChanges | None:
        match kind:
            case ToolKind.NOTEBOOK_EDIT:
                return _notebook_changes(call)
            case ToolKind.MULTI_EDIT if not any(map(replaces_all, edits_in(call))):
                return _list_changes(call)
            case ToolKind.WRITE:
                return self._changes_of_write(call, call.text(CONTENT))
            case ToolKind.EDIT if not replaces_all(call):
                return self._changes_of_edit(call)
        return self._changes_of_contents(call)

    def _changes_of_edit(self, call: ToolCall) -> LineChanges | None:
        old, new = call.text(OLD), call.text(NEW)
        if old == "":  # the call creates a file
            return self._changes_of_write(call, new)
        if call.input.get("command") == "insert" and new is not None:
            return LineChanges(len(lines_of(new)), 0)
        return None if old is None or new is None else changes_of_fragment(old, new)

    def _changes_of_write(self, call: ToolCall, content: str | None) -> LineChanges | None:
        if content is None:
            return None
        if any(word in call.result[:300].lower() for word in CREATED):
            return LineChanges(len(lines_of(content)), 0)
        return self._changes_of_contents(call)

    def _changes_of_contents(self, call: ToolCall) -> LineChanges | None:
        """Return the changed lines if the contents of the file before the call are known."""
        if self._before is None:
            self._before = self._follow_files()
        before, after = self._before.get(call.id, (None, None))
        return None if before is None or after is None else changes_of_file(before, after)

    def _follow_files(self) -> dict[str, tuple[str | None, str | None]]:
        """Return the contents of the file before and after each edit, by id of the call."""
        if sum(len(piece.text) for piece in self._earlier) > MAX_HISTORY_BYTES:
            return {}
        files, found = KnownFiles(), {}
        earlier = [decode_json(piece.text) for piece in self._earlier]
        for call in calls_in([*earlier, *self._new]):
            found[call.id] = files.follow(call)
        return found


def calls_in(messages: Sequence[Any]) -> Iterator[ToolCall]:
    """Yield the tool calls in these messages that have a result, in the order of the results."""
    waiting: dict[str, Mapping[str, Any]] = {}
    for block in (block for message in messages for block in _blocks(message)):
        if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
            waiting[block["id"]] = block
        elif block.get("type") == "tool_result":
            call = waiting.pop(str(block.get("tool_use_id")), None)
            if call is not None:
                yield ToolCall(
                    id=call["id"],
                    name=str(call.get("name")),
                    input=call["input"] if isinstance(call.get("input"), dict) else {},
                    result=_result_text(block.get("content")),
                    is_error=block.get("is_error") is True,
                )


def _blocks(message: Any) -> Iterator[Mapping[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield block


def _result_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def call_key(call: ToolCall, team: str, key_id: int | None, session_id: str) -> bytes:
    """Return the digest by which a call is counted once, also if a new session resends it.

    Another team cannot prevent that a call is counted. Ids that are too short to be random are
    unique within their session only.
    """
    scope: list[Any] = [team]
    if len(call.id) < RANDOM_ID:
        scope += [key_id, session_id]
    identity = [*scope, call.id, call.name, call.input]
    return hashlib.sha256(_canonical(identity)).digest()[:16]


def _notebook_changes(call: ToolCall) -> LineChanges | None:
    """Return the changed lines of a notebook's cell; a replaced or deleted cell is unknown."""
    source = call.text(NEW)
    if call.input.get("edit_mode") == "insert" and source is not None:
        return LineChanges(len(lines_of(source)), 0)
    return None


def _list_changes(call: ToolCall) -> LineChanges | None:
    """Return the sums of the edits in a call with a list of them; None if there are none."""
    each = [changes_of_fragment(e.text(OLD) or "", e.text(NEW) or "") for e in edits_in(call)]
    return LineChanges(*map(sum, zip(*each, strict=True))) if each else None


def _script_of(call: ToolCall) -> str:
    """Return the script that a call runs; Codex sends it as ``["bash", "-lc", script]``."""
    command: Any = next((call.input[name] for name in SCRIPT if name in call.input), "")
    if isinstance(command, list):
        words = [str(word) for word in command]
        return words[2] if len(words) == 3 and words[1] in ("-c", "-lc") else " ".join(words)
    return command if isinstance(command, str) else ""


def _add_command(call: ToolCall, counts: Counts) -> None:
    if call.is_rejected:
        counts["commands_rejected"] += 1
        return
    counts["commands_run"] += 1
    counts["commands_failed"] += call.is_error
    found = outcome_of(
        _script_of(call),
        call.result,
        is_error=call.is_error,
        in_background=any(call.input.get(name) is True for name in BACKGROUND),
    )
    counts["test_runs"] += found.test_runs
    if found.tests_passed is not None:
        counts["test_runs_passed" if found.tests_passed else "test_runs_failed"] += found.test_runs
    counts["pull_requests"] += found.pull_requests
    for commit in found.commits:
        counts["commits_reported" if commit.is_reported else "commits_derived"] += 1
        if commit.added is None or commit.removed is None:
            counts["commits_without_lines"] += 1
        else:
            counts["commit_lines_added"] += commit.added
            counts["commit_lines_removed"] += commit.removed

"""Derive what an agent did from its tool calls and their results in a request.

A client sends a tool call together with its result in the request after the call, and again in all
later requests of the session. So each request is searched for calls with a result; the caller of
this module counts each call once.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from proxy.ledger.transcripts.body_parts import Piece, decode_json

from .agent_tools import CONTENT, EDIT_KINDS, NEW, OLD, PATCH, PATH, SCRIPT, ToolCall, ToolKind
from .known_files import KnownFiles, edits_in, replaces_all
from .line_changes import (
    LineChanges,
    changes_of_file,
    changes_of_fragment,
    changes_of_patch,
    lines_of,
)
from .shell_commands import outcome_of, pull_request_urls

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

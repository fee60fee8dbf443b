"""The tools of coding agents that edit files or run commands, as tables of their names and fields.

Claude Code's names come first; the other names are those of Anthropic's text editor and bash tools,
Codex, Gemini CLI, opencode, Crush, Cline and Goose. A tool that is not in the table has no outcome.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple


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

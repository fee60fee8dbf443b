"""Summarize what a request adds to its conversation, for the lists of requests and sessions.

The messages come from clients, so any value may have an unexpected type. No function raises an
error.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

MAX_SUMMARY: Final = 200  # characters
MAX_TARGET: Final = 80  # characters of the target of one tool call
MAX_TARGET_READ: Final = 2000  # characters of a tool's input that are searched for the target
MAX_RESULTS: Final = 4  # tool results that a summary names
LOOK_BACK: Final = 200  # messages in which the last prompt is searched
REMINDER: Final = "<system-reminder>"
TARGET_FIELDS: Final = (
    "command", "file_path", "notebook_path", "pattern", "url", "query", "description", "prompt",
    "path",
)  # fmt: skip
"""The fields of a tool's input that say what the call is about, the most specific ones first."""


class TurnSummary(NamedTuple):
    preview: str = ""
    """The new words of the user, or the tool calls whose results are new."""
    prompt: str = ""
    """The last words of the user, in this or an earlier message."""


def summarize_turn(messages: Sequence[Any]) -> TurnSummary:
    """Return the summary of the newest message that is not a system message.

    Claude Code's last message is a system message, which lists the available tools and agents.
    """
    at = next((n for n in range(len(messages) - 1, -1, -1) if _role(messages[n]) != "system"), -1)
    if not messages:
        return TurnSummary()
    words = _words(messages[at])
    calls = _calls(messages[at - 1]) if at > 0 else {}
    preview = words or _results(messages[at], calls) or _first_type(messages[at])
    return TurnSummary(preview, _last_prompt(messages[: at + 1] if at >= 0 else ()))


def cut_middle(text: str, limit: int) -> str:
    """Return the text with at most ``limit`` characters: its beginning and end around "…"."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _blocks(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return (
        [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    )


def _words(message: Any) -> str:
    """Return the last text block that is no reminder, else the last text block, as one line."""
    texts = [str(one.get("text") or "") for one in _blocks(message) if one.get("type") == "text"]
    return _one_line((_without_reminders(texts) or texts or [""])[-1])


def _without_reminders(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if not text.lstrip().startswith(REMINDER)]


def _last_prompt(messages: Sequence[Any]) -> str:
    for message in reversed(messages[-LOOK_BACK:]):
        if _role(message) == "user":
            texts = [str(b.get("text") or "") for b in _blocks(message) if b.get("type") == "text"]
            if found := _without_reminders(texts):
                return _one_line(found[-1])
    return ""


def _calls(message: Any) -> dict[str, str]:
    """Return, by the id of each tool call of the message, its tool and target."""
    return {
        str(block.get("id")): f"{block.get('name')} {_target(block.get('input'))}".strip()
        for block in _blocks(message)
        if block.get("type") == "tool_use"
    }


def _target(tool_input: Any) -> str:
    if not isinstance(tool_input, dict):
        return ""
    texts = (tool_input.get(name) for name in (*TARGET_FIELDS, *tool_input))
    found = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    return cut_middle(" ".join(found[:MAX_TARGET_READ].split()), MAX_TARGET)


def _results(message: Any, calls: Mapping[str, str]) -> str:
    """Return the calls whose results the message has, such as ``Bash make · Read a.py``."""
    results = [block for block in _blocks(message) if block.get("type") == "tool_result"]
    known = [
        f"{call} (failed)" if block.get("is_error") is True else call
        for block in results
        if (call := calls.get(str(block.get("tool_use_id"))))
    ]
    more = f" and {len(known) - MAX_RESULTS} more" if len(known) > MAX_RESULTS else ""
    return " · ".join(known[:MAX_RESULTS])[: MAX_SUMMARY - len(more)] + more if known else ""


def _first_type(message: Any) -> str:
    """Return the type of the message's first block, such as ``[tool result]``."""
    blocks = _blocks(message)
    return f"[{str(blocks[0].get('type'))[:60].replace('_', ' ')}]" if blocks else ""


def _one_line(text: str) -> str:
    return " ".join(text[: MAX_SUMMARY * 8].split())[:MAX_SUMMARY]

"""Choose the sandbox's response by words in the name of the requested model."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

LABEL: Final = "sandbox"
QUOTE_LENGTH: Final = 200

THINKING: Final = (
    "This text stands in place of the thinking of a reasoning model. The sandbox is a script and "
    "does not think."
)
GREETING: Final = (
    "Hello from the sandbox of Messages Bridge. This response comes from a script on your own "
    "machine, not from a model. The script sent it as OpenAI events; you receive Anthropic events."
)
CALL_TEXT: Final = "The sandbox calls a tool, as requested."
NO_CALL: Final = (
    "The sandbox calls a tool only if you name or require it, and never one that could change or "
    "start something."
)
RESULT_TEXT: Final = "The sandbox received the result of its tool call. The script ends here."


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function tool; ``arguments`` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """The fields of a request that select the response, the same for both OpenAI APIs."""

    model: str
    prompt: str
    tools: Sequence[tuple[str, Mapping[str, Any]]]
    """(name, JSON schema of the parameters) of each function in ``tools``."""
    forced_tool: str = ""
    """The name of the function that ``tool_choice`` requires; empty if it names none."""
    required: bool = False
    """Whether ``tool_choice`` requires a call of any function."""
    has_tool_result: bool = False
    """Whether a tool result follows the last message of the assistant."""
    max_tokens: int | None = None
    size: int = 0
    """Number of characters of the whole request; four characters count as one token."""


@dataclass(frozen=True, slots=True)
class SandboxResponse:
    """One successful response, or an error if ``status`` is not 200."""

    thinking: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()
    pause_s: float = 0.02
    """Seconds to wait between two deltas of a stream."""
    truncated: bool = False
    """Whether the response reached the token limit of the request."""
    cut: bool = False
    """Whether the connection ends in the middle of the stream, as after a crash."""
    status: int = 200


ERRORS: Final[Mapping[int, tuple[str, str]]] = {
    400: ("invalid_request_error", "the model name requests an invalid request error"),
    401: ("authentication_error", "the model name requests a refused key"),
    404: ("invalid_request_error", "the model name requests an unknown model"),
    429: ("rate_limit_error", "the model name requests a rate limit"),
    500: ("server_error", "the model name requests a server error"),
    503: ("server_error", "the model name requests an overloaded server"),
}


def build_response(request: SandboxRequest) -> SandboxResponse:
    """Return the response that words in the model's name select; by default, thinking and text.

    The client, usually an agent, executes each tool call that it receives; calls of a tool like
    ``Agent`` could start other agents without end. The response therefore contains a tool call
    only if the request demands it, and only if ``is_harmless`` accepts the tool.
    """
    words = set(re.split(r"[^a-z0-9]+", request.model.lower()))
    if "error" in words:
        status = next(
            (int(word) for word in words if word.isdecimal() and int(word) in ERRORS), 500
        )
        return SandboxResponse(status=status)
    calls = () if words & {"text", "thinking"} else _calls(request, required="tools" in words)
    response = SandboxResponse(thinking=THINKING, text=_text(request, calls), calls=calls)
    if "text" in words:
        response = replace(response, thinking="")
    elif "tools" in words:
        response = replace(response, thinking="", calls=calls * 2)
    if "slow" in words:
        response = replace(response, pause_s=0.5)
    return _truncate(replace(response, cut="cut" in words), request.max_tokens)


def ends_with_tool_result(authors: Sequence[Any]) -> bool:
    """Whether the last "tool" in a list of message roles comes after the last "assistant"."""
    return next(
        (author == "tool" for author in reversed(authors) if author in {"tool", "assistant"}),
        False,
    )


def _text(request: SandboxRequest, calls: tuple[Call, ...]) -> str:
    if request.has_tool_result:
        return RESULT_TEXT
    if calls:
        return CALL_TEXT
    quote = request.prompt[:QUOTE_LENGTH] + ("…" if len(request.prompt) > QUOTE_LENGTH else "")
    parts = (GREETING, NO_CALL if request.tools else "", f"You wrote: “{quote}”" if quote else "")
    return " ".join(part for part in parts if part)


def _calls(request: SandboxRequest, *, required: bool) -> tuple[Call, ...]:
    """Return one call of a harmless tool of the request, or no call.

    The tool is the one in ``tool_choice``, or one that the prompt names, or, if a call is required,
    the first one. After a tool result there is no call, so that the conversation ends.
    """
    if request.has_tool_result:
        return ()
    offered = {name: schema for name, schema in request.tools if is_harmless(name)}
    if request.forced_tool:
        names = [request.forced_tool] if request.forced_tool in offered else []
    else:
        names = [name for name in offered if _mentions(request.prompt, name)]
        if required or request.required:
            names += offered
    return tuple(Call(name, json.dumps(sample_value(offered[name]))) for name in names[:1])


def _mentions(prompt: str, tool: str) -> bool:
    """Whether the prompt contains the name of the tool as a separate word."""
    position = prompt.find(tool) if tool else -1
    while position >= 0:
        end = position + len(tool)
        if not (_is_word(prompt[position - 1 : position]) or _is_word(prompt[end : end + 1])):
            return True
        position = prompt.find(tool, end)
    return False


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


ACTIONS: Final = frozenset(
    {
        "add", "agent", "agents", "apply", "bash", "browser", "cancel", "cmd", "command",
        "computer", "create", "cron", "delete", "deploy", "drop", "edit", "editor", "enter",
        "eval", "exec", "execute", "execution", "exit", "fetch", "insert", "install", "invoke",
        "kill", "launch", "merge", "modify", "move", "notebook", "overwrite", "patch", "post",
        "publish", "purge", "push", "put", "python", "remove", "rename", "repl", "replace",
        "reset", "restart", "run", "save", "schedule", "script", "send", "set", "shell",
        "skill", "spawn", "start", "stop", "subagent", "task", "tasks", "terminal", "todo",
        "transfer", "trigger", "update", "upload", "web", "workflow", "worktree", "write",
    }
)  # fmt: skip
"""Words in the names of tools that may write, run, send or start something."""


def is_harmless(tool: str) -> bool:
    """Whether ``ACTIONS`` has no word of the name, such as "write" of ``TodoWrite``."""
    words = {*re.findall(r"[A-Z]?[a-z]+", tool), *re.split(r"[^A-Za-z]+", tool)}
    return ACTIONS.isdisjoint(word.lower() for word in words)


def _truncate(response: SandboxResponse, max_tokens: int | None) -> SandboxResponse:
    """Truncate the response at the request's token limit, as a model does."""
    if max_tokens is None or max_tokens * 4 >= len(response.thinking) + len(response.text):
        return response
    limit = max_tokens * 4
    thinking = response.thinking[:limit]
    text = response.text[: max(0, limit - len(thinking))]
    return replace(response, thinking=thinking, text=text, calls=(), truncated=True)


SAMPLES: Final[Mapping[str, Any]] = {
    "string": LABEL,
    "integer": 1,
    "number": 1,
    "boolean": False,
    "array": [],
    "null": None,
}


def sample_value(schema: Any, depth: int = 0) -> Any:
    """Return a small example for a JSON schema; an object gets only its required fields."""
    if not isinstance(schema, Mapping) or depth > 8:
        return LABEL
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return sample_value(schema[key][0], depth + 1)
    schema_type = schema.get("type", "object")
    if isinstance(schema_type, list):
        schema_type = schema_type[0] if schema_type else "null"
    if schema_type != "object":
        return SAMPLES.get(schema_type, LABEL)
    fields = schema.get("properties") or {}
    return {
        name: sample_value(fields.get(name), depth + 1) for name in schema.get("required") or ()
    }


def split_deltas(text: str) -> Iterator[str]:
    """Yield the text in deltas: each is a word with the whitespace after it."""
    yield from re.findall(r"\S+\s*|\s+", text)


def count_tokens(characters: int) -> int:
    return (characters + 3) // 4


def token_usage(request: SandboxRequest, response: SandboxResponse) -> tuple[int, int, int]:
    """Return (input, output, reasoning) tokens; the output tokens include the reasoning tokens."""
    reasoning = count_tokens(len(response.thinking))
    call_characters = sum(len(call.name) + len(call.arguments) for call in response.calls)
    return (
        count_tokens(request.size),
        reasoning + count_tokens(len(response.text) + call_characters),
        reasoning,
    )

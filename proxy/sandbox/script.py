"""What the sandbox says: one scene for a request, chosen by words in the model's name."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

LABEL: Final = "sandbox"
QUOTE_LENGTH: Final = 200

THINKING: Final = (
    "I am a script and cannot think. These words stand where a reasoning model "
    "would show its thoughts."
)
GREETING: Final = (
    "Hello from the sandbox of Messages Bridge. I am a script on your own machine, not a model: "
    "this answer left me as OpenAI events and reached you as Anthropic ones."
)
CALLING: Final = "The sandbox calls a tool, as requested."
NO_CALL: Final = (
    "I call a tool only when you name it or require one, and none that could change or start "
    "anything."
)
RETURNED: Final = "The sandbox got the result of its tool call, and its script ends here."


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; arguments as the JSON text that goes over the wire."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What the script needs to know of a request, whichever dialect it came in."""

    model: str
    said: str
    tools: Sequence[tuple[str, Mapping[str, Any]]]
    """Name and parameter schema of each function offered."""
    wanted_tool: str = ""
    """The function that ``tool_choice`` names; empty: none in particular."""
    required: bool = False
    """``tool_choice`` demands a call of any function."""
    returned: bool = False
    """A tool's result came after the last thing that the assistant wrote."""
    max_tokens: int | None = None
    size: int = 0
    """Characters of the whole request; the sandbox counts a token for four of them."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One answer, or one error."""

    thinking: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()
    pause_s: float = 0.02
    """Between two deltas."""
    truncated: bool = False
    """The token limit of the request was reached."""
    cut: bool = False
    """The connection ends in the middle, as if the server had crashed."""
    status: int = 200


ERRORS: Final[Mapping[int, tuple[str, str]]] = {
    400: ("invalid_request_error", "the sandbox was asked for a bad request"),
    401: ("authentication_error", "the sandbox was asked to refuse the key"),
    404: ("invalid_request_error", "the sandbox was asked not to know the model"),
    429: ("rate_limit_error", "the sandbox was asked for a rate limit"),
    500: ("server_error", "the sandbox was asked for a server error"),
    503: ("server_error", "the sandbox was asked to be overloaded"),
}


def scene_for(ask: Ask) -> Scene:
    """The scene that the model's name requests; any other name gets thinking and text.

    An agent executes each call that it receives: one that offers ``Agent`` would start others,
    which offer it too. So a tool is called only by request, and only one that ``is_harmless``.
    """
    words = set(re.split(r"[^a-z0-9]+", ask.model.lower()))
    if "error" in words:
        asked = next((int(word) for word in words if word.isdecimal() and int(word) in ERRORS), 500)
        return Scene(status=asked)
    calls = () if words & {"text", "thinking"} else _calls(ask, required="tools" in words)
    scene = Scene(thinking=THINKING, text=_speech(ask, calls), calls=calls)
    if "text" in words:
        scene = replace(scene, thinking="")
    elif "tools" in words:
        scene = replace(scene, thinking="", calls=calls * 2)
    if "slow" in words:
        scene = replace(scene, pause_s=0.5)
    return _shortened(replace(scene, cut="cut" in words), ask.max_tokens)


def is_returned(kinds: Sequence[Any]) -> bool:
    """Whether, of who wrote each entry of a conversation, ``tool`` is newer than ``assistant``."""
    return next(
        (kind == "tool" for kind in reversed(kinds) if kind in {"tool", "assistant"}), False
    )


def _speech(ask: Ask, calls: tuple[Call, ...]) -> str:
    if ask.returned:
        return RETURNED
    if calls:
        return CALLING
    quote = ask.said[:QUOTE_LENGTH] + ("…" if len(ask.said) > QUOTE_LENGTH else "")
    parts = (GREETING, NO_CALL if ask.tools else "", f"You wrote: “{quote}”" if quote else "")
    return " ".join(part for part in parts if part)


def _calls(ask: Ask, *, required: bool) -> tuple[Call, ...]:
    """Return one call of a tool on offer, or none.

    It is the tool of ``tool_choice``, else one that the prompt names, else the first one where any
    is required. There is none after a result, so that a conversation comes to an end.
    """
    if ask.returned:
        return ()
    offered = {name: schema for name, schema in ask.tools if is_harmless(name)}
    if ask.wanted_tool:
        found = [ask.wanted_tool] if ask.wanted_tool in offered else []
    else:
        found = [name for name in offered if _names(ask.said, name)]
        if required or ask.required:
            found += offered
    return tuple(Call(name, json.dumps(sample(offered[name]))) for name in found[:1])


def _names(prompt: str, tool: str) -> bool:
    """Whether the tool's name stands in the prompt as a word."""
    at = prompt.find(tool) if tool else -1
    while at >= 0:
        end = at + len(tool)
        if not (_is_word(prompt[at - 1 : at]) or _is_word(prompt[end : end + 1])):
            return True
        at = prompt.find(tool, end)
    return False


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


ACTS: Final = frozenset(
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
"""Words in the names of tools that write, run, send or start something."""


def is_harmless(tool: str) -> bool:
    """Whether no word of the tool's name, such as ``TodoWrite`` or ``run_command``, is an act."""
    words = {*re.findall(r"[A-Z]?[a-z]+", tool), *re.split(r"[^A-Za-z]+", tool)}
    return ACTS.isdisjoint(word.lower() for word in words)


def _shortened(scene: Scene, max_tokens: int | None) -> Scene:
    """The scene cut to the token limit, as a model's answer would be."""
    if max_tokens is None or max_tokens * 4 >= len(scene.thinking) + len(scene.text):
        return scene
    room = max_tokens * 4
    thinking = scene.thinking[:room]
    text = scene.text[: max(0, room - len(thinking))]
    return replace(scene, thinking=thinking, text=text, calls=(), truncated=True)


SAMPLES: Final[Mapping[str, Any]] = {
    "string": LABEL,
    "integer": 1,
    "number": 1,
    "boolean": False,
    "array": [],
    "null": None,
}


def sample(schema: Any, depth: int = 0) -> Any:
    """A small value that fits a JSON schema; of an object, the required fields only."""
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
            return sample(schema[key][0], depth + 1)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0] if kind else "null"
    if kind != "object":
        return SAMPLES.get(kind, LABEL)
    fields = schema.get("properties") or {}
    return {name: sample(fields.get(name), depth + 1) for name in schema.get("required") or ()}


def pieces(text: str) -> Iterator[str]:
    """The text as deltas: a word with the blank after it."""
    yield from re.findall(r"\S+\s*|\s+", text)


def tokens(characters: int) -> int:
    return (characters + 3) // 4


def usage_of(ask: Ask, scene: Scene) -> tuple[int, int, int]:
    """Input, output and, within output, reasoning tokens."""
    reasoning = tokens(len(scene.thinking))
    called = sum(len(call.name) + len(call.arguments) for call in scene.calls)
    return tokens(ask.size), reasoning + tokens(len(scene.text) + called), reasoning

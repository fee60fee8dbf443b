"""Read the calls inside a call of OpenAI's own wrapper for parallel calls.

OpenAI's models were trained with a tool ``multi_tool_use.parallel`` and sometimes call it although
no such tool is declared (vercel/ai#19067). No client has it, so its calls would be lost.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final

from translator.notes import Note
from translator.stream.tool_arguments import parse_arguments

WRAPPERS: Final = frozenset({"parallel", "multi_tool_use.parallel", "multi_tool_use_parallel"})
PREFIX: Final = "functions."
"""The namespace of the client's tools in OpenAI's prompts."""
UNWRAPPED: Final = Note(
    "content", "repaired", "a call of the model's own wrapper is given as the calls inside"
)

MAX_INNER: Final = 64
"""Maximum calls inside; a model sends far fewer."""

InnerCall = tuple[str, dict[str, Any]]
"""The client's name of the tool, and the input."""


def is_wrapper(name: str) -> bool:
    """Return whether the name of a call is that of the wrapper."""
    return name.removeprefix(PREFIX) in WRAPPERS


def calls_inside(arguments: str, name_of: Callable[[str], str | None]) -> list[InnerCall] | None:
    """Return the calls inside a wrapper; None if one of them is none of a declared tool.

    ``name_of`` returns the client's name of the upstream's tool; None if no such tool is declared.
    """
    value, _ = parse_arguments(arguments)
    uses = value.get("tool_uses") if isinstance(value, dict) else None
    if not uses or not isinstance(uses, list) or len(uses) > MAX_INNER:
        return None
    calls: list[InnerCall] = []
    for use in uses:
        recipient = use.get("recipient_name") if isinstance(use, dict) else None
        inner = use.get("parameters", {}) if isinstance(use, dict) else None
        if isinstance(inner, str):
            inner, _ = parse_arguments(inner)
        name = name_of(recipient.removeprefix(PREFIX)) if isinstance(recipient, str) else None
        if name is None or not isinstance(inner, dict):
            return None
        calls.append((name, inner))
    return calls


def inner_id(wrapper_id: str, number: int) -> str:
    """Return the id of a call inside; the first one has the wrapper's, which may have a record."""
    if not number:
        return wrapper_id
    digest = hashlib.sha256(f"{wrapper_id}/{number}".encode(errors="surrogatepass"))
    return f"toolu_{digest.hexdigest()[:24]}"

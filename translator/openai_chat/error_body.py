"""Chat's errors: as the body of an error status, and inside a 200."""

from typing import Any, Final

from translator.dialect import UpstreamError
from translator.upstream_errors import error_aside, inner_status, map_error, read_error

__all__ = ["error_in_answer", "map_error"]

WORDS: Final = ("detail", "error_msg", "errors", "message", "msg")
"""What tells of a failure where there are no choices beside it; a list of them at Cloudflare."""

SIGNS: Final = frozenset({"base_resp", "error", "type", "x_groq", *WORDS})
"""Fields that hardly any chunk has and that may make it an error."""


def error_in_answer(answer: Any) -> UpstreamError | None:
    """The error that came instead of a chunk or a whole answer; None when it is an answer.

    Servers send an error object, a bare ``message`` or ``detail`` without choices, a list
    (Gemini), or a choice that holds its error (OpenRouter).
    """
    body: Any = None
    plain = type(answer) is list or ("object" in answer and answer["object"] == "error")
    if plain or (not SIGNS.isdisjoint(answer) and _is_error(answer)):
        body = answer
    elif "choices" in answer:
        choices = answer["choices"]
        first = choices[0] if choices and type(choices) is list else None
        if type(first) is dict and "error" in first and first["error"]:
            body = {"error": first["error"]}
    return None if body is None else map_error(inner_status(read_error(body)), body)


def _is_error(answer: dict[str, Any]) -> bool:
    if "choices" not in answer and any(answer.get(word) for word in WORDS):
        return True
    if answer.get("error") or answer.get("type") == "error":
        return True
    return bool(error_aside(answer))

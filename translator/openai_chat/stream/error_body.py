"""Find errors in Chat Completions responses with status 200 (others: ``map_error``)."""

from typing import Any, Final

from translator.dialect import UpstreamError
from translator.upstream_errors import map_error, read_error, status_of_error, vendor_error

__all__ = ["find_error", "map_error"]

MESSAGE_FIELDS: Final = ("detail", "error_msg", "errors", "message", "msg")
"""Fields with the message of an error without choices; Cloudflare sends a list of messages in one
of them."""

ERROR_FIELDS: Final = frozenset({"base_resp", "error", "type", "x_groq", *MESSAGE_FIELDS})
"""Fields that may report an error; few normal chunks contain one of these fields."""


def find_error(chunk: Any) -> UpstreamError | None:
    """Return the error that ``chunk`` contains instead of content; None if there is no error.

    Servers send an error object, a ``message`` or ``detail`` without choices, a list (Gemini), or a
    choice with an error (OpenRouter).
    """
    body: Any = None
    is_error_object = type(chunk) is list or ("object" in chunk and chunk["object"] == "error")
    if is_error_object or (not ERROR_FIELDS.isdisjoint(chunk) and _is_error(chunk)):
        body = chunk
    elif "choices" in chunk:
        choices = chunk["choices"]
        first = choices[0] if choices and type(choices) is list else None
        if type(first) is dict and "error" in first and first["error"]:
            body = {"error": first["error"]}
    return None if body is None else map_error(status_of_error(read_error(body)), body)


def _is_error(chunk: dict[str, Any]) -> bool:
    if "choices" not in chunk and any(chunk.get(name) for name in MESSAGE_FIELDS):
        return True
    if chunk.get("error") or chunk.get("type") == "error":
        return True
    return bool(vendor_error(chunk))

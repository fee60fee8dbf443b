"""Reads the error bodies of OpenAI-like servers, which agree on little, into one record.

Source: mapping.md 5.2 and the recorded errors of OpenAI, Azure, Gemini, Ollama, vLLM, OpenRouter,
Mistral, Groq, DeepSeek, xAI and Perplexity.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from translator.secret_redaction import error_text

MAX_RETRY_AFTER_S: Final = 300

SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
NUMBER: Final = r"\d{1,9}(?:\.\d{1,6})?"
WAIT_TEXT: Final = re.compile(
    rf"(?:retry|try again) (?:after|in) ({NUMBER}(?: ?(?:h|ms|m|s){NUMBER}){{0,3}} ?(?:h|ms|m|s)?)",
    re.IGNORECASE,
)
WAIT_PART: Final = re.compile(rf"({NUMBER}) ?(h|ms|m|s)?", re.IGNORECASE)
MAX_DURATION: Final = 64
"""Characters of a duration: ``6m0s``."""
CODE: Final = re.compile(r"[A-Za-z0-9][\w.:-]{0,63}", re.ASCII)
"""What an upstream calls an error or a field: a name. A longer one would be a text."""
MAX_PARTS: Final = 16
"""Of a message that is a list."""

MESSAGES: Final = ("message", "detail", "error", "errors", "Message", "msg", "error_msg")
"""Where an error has its text; the last two are those of Chinese vendors and their proxies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFields:
    """What an error body says, in the one shape that the rules read."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""
    status: int | None = None
    """The HTTP status that the body names; it counts where the error came inside a 200."""
    retry_after_s: int | None = None
    filters: tuple[str, ...] = ()
    """Azure: the categories that its content filter objects to."""
    readable: bool = True
    """False: plain text, HTML or nothing; the message must be our own."""


def read_error(body: Any) -> ErrorFields:
    """Read any decoded error body; never raises."""
    if isinstance(body, list):  # Gemini
        body = next((entry for entry in body if isinstance(entry, dict)), None)
    if not isinstance(body, dict):
        page = error_text(body) if isinstance(body, str) else ""
        return ErrorFields(message=page, readable=False)
    inner = body.get("error") or error_aside(body)
    if isinstance(inner, dict):
        return _fields(inner, body)
    if isinstance(inner, str) and inner:  # Ollama, xAI
        return _fields({**body, "message": inner}, body)
    return _fields(body, body)  # vLLM, FastAPI, Azure's front door


def error_aside(body: Mapping[str, Any]) -> dict[str, Any] | str | None:
    """An error that a vendor keeps beside its answer; None: there is none.

    MiniMax ends all in a ``base_resp``, whose codes are numbers of its own. Groq tells in
    ``x_groq`` why it broke a stream off.
    """
    base, groq = body.get("base_resp"), body.get("x_groq")
    if isinstance(base, dict) and base.get("status_code"):
        return {"message": base.get("status_msg"), "code": f"minimax.{base['status_code']}"}
    error = groq.get("error") if isinstance(groq, dict) else None
    return error if isinstance(error, dict | str) else None


def _fields(error: Mapping[str, Any], body: Mapping[str, Any]) -> ErrorFields:
    message = _message(error)
    return ErrorFields(
        message=message,
        type=_word(error.get("type")),
        code=_word(error.get("code")) or _word(error.get("status")),
        param=error_text(param) if isinstance(param := error.get("param"), str) else "",
        status=_status(error) or _status(body),
        retry_after_s=_retry_after(error, message),
        filters=_filters(error.get("innererror")),
        readable=bool(message or error.get("code") or error.get("type")),
    )


def _message(error: Mapping[str, Any]) -> str:
    """The text of an error: ``message``, or FastAPI's ``detail`` (text, or a list of faults)."""
    for name in MESSAGES:
        text = _text_of(error.get(name))
        if text:
            return text
    return ""


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return error_text(value)
    if isinstance(value, dict):
        names = ("detail", "msg", "message", "error")
        return _text_of(next((value[name] for name in names if value.get(name)), None))
    if isinstance(value, list):
        return error_text("; ".join(filter(None, map(_text_of, value[:MAX_PARTS]))))
    return ""


def _word(value: Any) -> str:
    """A type or a code: "" for what is no name, since that could quote anything."""
    return error_text(value) if isinstance(value, str) and CODE.fullmatch(value) else ""


def _status(error: Mapping[str, Any]) -> int | None:
    for name in ("code", "status_code", "statusCode", "status", "http_code"):
        value = error.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:4])
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return value
    return None


def _retry_after(error: Mapping[str, Any], message: str) -> int | None:
    """Seconds to wait: Gemini's ``RetryInfo``, or a sentence of OpenAI or Azure; clamped."""
    details = error.get("details")
    waits = [
        entry["retryDelay"]
        for entry in (details[:MAX_PARTS] if isinstance(details, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("retryDelay"), str)
    ]
    sentence = WAIT_TEXT.search(message)
    wait = waits[0] if waits else sentence[1] if sentence else ""
    seconds = seconds_in(wait)
    return math.ceil(min(seconds, MAX_RETRY_AFTER_S)) if seconds else None


def seconds_in(duration: str) -> float | None:
    """The seconds of ``6m0s``, ``86ms`` or ``12``; None where nothing like that is said."""
    parts = WAIT_PART.findall(duration[:MAX_DURATION])
    return sum(float(n) * SECONDS[unit.lower()] for n, unit in parts) if parts else None


def _filters(inner: Any) -> tuple[str, ...]:
    result = inner.get("content_filter_result") if isinstance(inner, dict) else None
    if not isinstance(result, dict):
        return ()
    return tuple(
        name
        for name, verdict in sorted(result.items())[:MAX_PARTS]
        if isinstance(verdict, dict) and verdict.get("filtered") and CODE.fullmatch(name)
    )

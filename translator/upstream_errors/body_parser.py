"""Parse the error bodies of OpenAI-compatible servers, which differ a lot, into one record.

Source: docs/mapping.md and the recorded errors of OpenAI, Azure, Gemini, Ollama, vLLM,
OpenRouter, Mistral, Groq, DeepSeek, xAI and Perplexity.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from translator.secret_redaction import clean_error_text

MAX_RETRY_AFTER_S: Final = 300

SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
NUMBER: Final = r"\d{1,9}(?:\.\d{1,6})?"
WAIT_TEXT: Final = re.compile(
    rf"(?:retry|try again) (?:after|in) ({NUMBER}(?: ?(?:h|ms|m|s){NUMBER}){{0,3}} ?(?:h|ms|m|s)?)",
    re.IGNORECASE,
)
WAIT_PART: Final = re.compile(rf"({NUMBER}) ?(h|ms|m|s)?", re.IGNORECASE)
MAX_DURATION: Final = 64
"""Maximum characters of a duration such as ``6m0s``."""
CODE: Final = re.compile(r"[A-Za-z0-9][\w.:-]{0,63}", re.ASCII)
"""An upstream's name for an error or a field; a longer string is treated as free text."""
MAX_PARTS: Final = 16
"""Maximum number of parts to read of an error message that is a list."""

MAX_NESTED: Final = 16_384
"""Maximum characters of an error body inside of an error text."""
PROVIDER_FAILED: Final = re.compile(r"provider returned error\W*\Z", re.IGNORECASE)

MESSAGES: Final = ("message", "detail", "error", "errors", "Message", "msg", "error_msg")
"""Fields with the text of an error; Chinese vendors and their proxies use the last two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFields:
    """The fields of an upstream's error body, in one form for all servers."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""
    status: int | None = None
    """The HTTP status in the body; used for errors in a response with HTTP status 200."""
    retry_after_s: int | None = None
    prompt_tokens: int = 0
    """llama.cpp only: the length of the prompt; 0 if not reported."""
    context_window: int = 0
    """llama.cpp only: the size of the context window; 0 if not reported."""
    filters: tuple[str, ...] = ()
    """Azure only: the categories of its content filter that matched."""
    readable: bool = True
    """False for plain text, HTML or an empty body; the gateway then writes its own error
    message."""


def read_error(body: Any) -> ErrorFields:
    """Parse any decoded error body; never raise."""
    if isinstance(body, list):  # Gemini sends a list with one object
        body = next((entry for entry in body if isinstance(entry, dict)), None)
    if not isinstance(body, dict):
        page = clean_error_text(body) if isinstance(body, str) else ""
        return ErrorFields(message=page, readable=False)
    inner = body.get("error") or vendor_error(body)
    if isinstance(inner, dict):
        return _fields(inner, body)
    if isinstance(inner, str) and inner:  # Ollama and xAI send the message itself
        return _fields({**body, "message": inner}, body)
    # vLLM, FastAPI and Azure's gateway send the fields without an ``error`` object around them.
    return _fields(body, body)


def vendor_error(body: Mapping[str, Any]) -> dict[str, Any] | str | None:
    """Return an error that a vendor adds to a normal response or chunk; None if there is none.

    MiniMax ends every response with a ``base_resp``, which has MiniMax's own error codes. Groq
    reports in ``x_groq`` why a stream broke off.
    """
    base_response, groq = body.get("base_resp"), body.get("x_groq")
    if isinstance(base_response, dict) and base_response.get("status_code"):
        return {
            "message": base_response.get("status_msg"),
            "code": f"minimax.{base_response['status_code']}",
        }
    error = groq.get("error") if isinstance(groq, dict) else None
    return error if isinstance(error, dict | str) else None


def _fields(error: Mapping[str, Any], body: Mapping[str, Any]) -> ErrorFields:
    message = _message(error)
    return ErrorFields(
        message=message,
        type=_parse_name(error.get("type")),
        code=_parse_name(error.get("code")) or _parse_name(error.get("status")),
        param=clean_error_text(param) if isinstance(param := error.get("param"), str) else "",
        status=_status(error) or _status(body),
        retry_after_s=_retry_after(error, message),
        prompt_tokens=_count(error.get("n_prompt_tokens")),
        context_window=_count(error.get("n_ctx")),
        filters=_filters(error.get("innererror")),
        readable=bool(message or error.get("code") or error.get("type")),
    )


def _message(error: Mapping[str, Any]) -> str:
    """Return the error text: ``message``, or FastAPI's ``detail`` (a text or a list of faults).

    OpenRouter's own message is only that the provider failed; ``metadata.raw`` has its error.
    """
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    texts = (_text_of(error.get(name)) for name in MESSAGES)
    message = next(filter(None, texts), "")
    if raw and (not message or PROVIDER_FAILED.match(message)):
        return _text_of(unwrapped(raw)) or message
    return _text_of(inner) if (inner := unwrapped(message)) is not message else message


def unwrapped(text: Any) -> Any:
    """Return the error inside of a text that is JSON, as of proxies; otherwise the text itself."""
    if not isinstance(text, str) or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        body = json.loads(text[:MAX_NESTED])
    except (ValueError, RecursionError):
        return text
    return body if _text_of(body) else text


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < 10**9 else 0


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return clean_error_text(value)
    if isinstance(value, dict):
        fields_ = ("detail", "msg", "message", "error")
        # ASP.NET and Rails send the texts by the name of the field that each is about.
        lists = [texts for texts in value.values() if isinstance(texts, list)]
        return _text_of(next((value[name] for name in fields_ if value.get(name)), lists))
    if isinstance(value, list):
        return clean_error_text("; ".join(filter(None, map(_text_of, value[:MAX_PARTS]))))
    return ""


def _parse_name(value: Any) -> str:
    """Return an error type or code; "" if it is no identifier: it could quote any text."""
    return clean_error_text(value) if isinstance(value, str) and CODE.fullmatch(value) else ""


def _status(error: Mapping[str, Any]) -> int | None:
    for name in ("code", "status_code", "statusCode", "status", "http_code"):
        value = error.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:4])
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return value
    return None


def _retry_after(error: Mapping[str, Any], message: str) -> int | None:
    """Return the seconds to wait, clamped, from Gemini's ``RetryInfo`` or from the error text."""
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
    """Return the seconds of a duration like ``6m0s``, ``86ms`` or ``12``; else None."""
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

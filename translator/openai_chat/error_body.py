"""Chat's errors: as the body of an error status, and inside a 200."""

from typing import Any

from translator.dialect import UpstreamError
from translator.upstream_errors import inner_status, map_error, read_error

__all__ = ["error_in_answer", "map_error"]


def error_in_answer(answer: Any) -> UpstreamError | None:
    """The error that came instead of a chunk or a whole answer; None when it is an answer.

    Servers send an error object, a bare ``message`` or ``detail`` without choices, a list
    (Gemini), or a choice that holds its error (OpenRouter).
    """
    body = _error_body(answer)
    return None if body is None else map_error(inner_status(read_error(body)), body)


def _error_body(answer: Any) -> Any:
    if isinstance(answer, list):
        return answer
    if answer.get("error") or "error" in (answer.get("object"), answer.get("type")):
        return answer
    if "choices" not in answer:
        return answer if answer.get("detail") or answer.get("message") else None
    choices = answer["choices"]
    first = choices[0] if isinstance(choices, list) and choices else None
    failed = first.get("error") if isinstance(first, dict) else None
    return {"error": failed} if failed else None

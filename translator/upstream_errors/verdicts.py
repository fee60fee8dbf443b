"""An OpenAI-like upstream's failure in Anthropic's terms (mapping.md 5.2)."""

import re
from dataclasses import dataclass
from typing import Any, Final

from translator.anthropic.error_body import client_message
from translator.dialect import UpstreamError

from .fields import ErrorFields, read_error


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the client gets. ``message``: our own words, or "" for the upstream's."""

    status: int
    error_type: str
    message: str = ""
    should_retry: bool | None = None


INVALID: Final = Verdict(400, "invalid_request_error")
FAILED: Final = Verdict(500, "api_error", "", True)
BROKEN: Final = Verdict(502, "api_error")
SLOW: Final = Verdict(504, "timeout_error")
OVERLOADED: Final = Verdict(529, "overloaded_error")
LIMITED: Final = Verdict(429, "rate_limit_error")
# Never 401: the client would throw its own, good key away.
UNAUTHENTICATED: Final = Verdict(500, "api_error", "upstream authentication failed", False)
UNPAID: Final = Verdict(402, "billing_error", "", False)
FORBIDDEN: Final = Verdict(403, "permission_error")
NO_MODEL: Final = Verdict(404, "not_found_error")
NO_ENDPOINT: Final = Verdict(500, "api_error", "upstream has no such endpoint", False)

TOO_LARGE: Final = 413  # says it all: Groq calls it a rate limit, but waiting would not help

BY_STATUS: Final = {
    400: INVALID,
    401: UNAUTHENTICATED,
    402: UNPAID,
    403: FORBIDDEN,
    404: NO_ENDPOINT,
    405: NO_ENDPOINT,
    408: Verdict(408, "timeout_error"),
    409: Verdict(409, "conflict_error"),
    TOO_LARGE: Verdict(413, "request_too_large"),
    415: INVALID,
    422: INVALID,
    429: LIMITED,
    500: FAILED,
    503: OVERLOADED,
    504: SLOW,
    524: SLOW,
    529: OVERLOADED,
}
"""Any other status is ``BROKEN``: nothing that a chat server should ever answer."""

BY_WORD: Final = {
    # error codes
    "insufficient_quota": UNPAID,
    "billing_hard_limit_reached": UNPAID,
    "billing_not_active": UNPAID,
    "Arrearage": UNPAID,  # Qwen
    "exceeded_current_quota_error": UNPAID,  # Moonshot
    "1113": UNPAID,  # GLM
    "minimax.1008": UNPAID,
    "model_not_found": NO_MODEL,
    "DeploymentNotFound": NO_MODEL,
    "invalid_api_key": UNAUTHENTICATED,
    "minimax.1004": UNAUTHENTICATED,
    "minimax.2049": UNAUTHENTICATED,
    "unsupported_country_region_territory": FORBIDDEN,
    "rate_limit_exceeded": LIMITED,
    "RateLimitReached": LIMITED,
    "RESOURCE_EXHAUSTED": LIMITED,
    "rate_limit_reached_error": LIMITED,  # Moonshot
    "too_many_requests": LIMITED,
    "minimax.1002": LIMITED,
    "minimax.1039": LIMITED,
    "minimax.1041": LIMITED,
    "minimax.2056": LIMITED,
    "minimax.1001": SLOW,
    "server_is_overloaded": OVERLOADED,
    "engine_overloaded_error": OVERLOADED,  # Moonshot
    "data_residency_mismatch": FORBIDDEN,
    # why a response failed, where there is no status
    "server_error": FAILED,
    "vector_store_timeout": FAILED,
    "invalid_prompt": INVALID,
    "minimax.2013": INVALID,
    "invalid_image": INVALID,
    "invalid_image_format": INVALID,
    "invalid_base64_image": INVALID,
    "invalid_image_url": INVALID,
    "invalid_image_mode": INVALID,
    "image_too_large": INVALID,
    "image_too_small": INVALID,
    "image_parse_error": INVALID,
    "image_file_too_large": INVALID,
    "image_file_not_found": INVALID,
    "unsupported_image_media_type": INVALID,
    "empty_image_file": INVALID,
    "failed_to_download_image": INVALID,
    # error types
    "authentication_error": UNAUTHENTICATED,
    "not_found_error": NO_MODEL,
    "overloaded_error": OVERLOADED,
}

BY_TYPE_ALONE: Final = {
    "invalid_request_error": INVALID,
    "BadRequestError": INVALID,
    "rate_limit_error": LIMITED,
    "tokens": LIMITED,
    "requests": LIMITED,
    "timeout_error": SLOW,
    "api_error": FAILED,
}
"""For errors inside a 200 that name no status."""

BY_PHRASE: Final = (
    (
        (re.compile(r"(?:incorrect|invalid) api key|api key not valid", re.IGNORECASE),),
        UNAUTHENTICATED,
    ),
    (
        (
            re.compile(r"\bmodel\b", re.IGNORECASE),
            re.compile(r"\b(?:not found|does not exist)", re.IGNORECASE),
        ),
        NO_MODEL,
    ),
    ((re.compile(r"\boverloaded\b", re.IGNORECASE),), OVERLOADED),
)
"""Phrases that stand in the text one behind the other: as one pattern, ``model.*not found`` would
scan the whole rest of the text for each ``model`` in it."""

TOO_LONG: Final = re.compile(
    r"context[ _](?:length|window|size)|(?:prompt|messages|input) (?:is )?too long"
    r"|too_many_prompt_tokens|too many tokens|maximum prompt length|input token count"
    r"|exceeded model token limit|prompt exceeds max|range of input length"
    r"|exceeds the maximum allowed length|must have less than \d+ tokens",
    re.IGNORECASE,
)
"""OpenAI, Mistral, llama.cpp; Perplexity, Cohere, xAI, Gemini; Moonshot, GLM, Qwen; SGLang, TGI.

Not Anthropic's own ``input length and `max_tokens` exceed context limit``: clients read its numbers
and ask for less output.
"""

TOO_LONG_CODES: Final = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",  # Copilot
        "tokens_limit_reached",  # GitHub Models
        "too_many_prompt_tokens",
    }
)
LIMIT: Final = re.compile(
    r"\d tokens > (\d{1,9})"
    r"|(?:context (?:length|window|size)[^\d.]{0,40}|max(?:imum)?\D{0,40})(\d{1,9})"
    r"|(?:limit of|less than) (\d{1,9})|(\d{1,9}) maximum context"
)
ASKED: Final = re.compile(
    r"(\d{1,9}) tokens > \d"
    r"|(?:total of at least|requested|resulted in|has|contains|request|token count|Given:)"
    r"[^\d.]{0,30}(\d{1,9}) ?(?:tokens|input)?"
)

REFUSALS: Final = {
    "content_filter": None,
    "ResponsibleAIPolicyViolation": None,
    "data_inspection_failed": None,  # Qwen
    "1301": None,  # GLM
    "minimax.1026": None,  # what was asked, and what was about to be answered
    "minimax.1027": None,
    "content_policy_violation": None,
    "image_content_policy_violation": None,
    "bio_policy": "bio",
    "cyber_policy": "cyber",
    "misalignment_policy_violation": None,
}
"""Codes that refuse the prompt itself, and Anthropic's category where it has one."""


def map_error(status: int, body: Any) -> UpstreamError:
    """HTTP status and decoded error body (dict, list, text or None) -> what the client gets."""
    fields = read_error(body)
    if fields.code in REFUSALS or fields.type in REFUSALS:
        return _refusal(fields)
    if _too_long(status, fields):
        return UpstreamError(
            status=400,
            error_type="invalid_request_error",
            message=_too_long_message(fields.message),
            should_retry=False,
            code=fields.code or fields.type,
        )
    verdict = _verdict(status, fields)
    message = verdict.message or client_message(_own_words(status, fields))
    return UpstreamError(
        status=verdict.status,
        error_type=verdict.error_type,
        message=message,
        should_retry=verdict.should_retry,
        retry_after_s=fields.retry_after_s,
        # "model" lets the gateway say the name that the client asked for.
        param="model" if verdict is NO_MODEL else fields.param or None,
        code=fields.code or fields.type,
    )


def inner_status(fields: ErrorFields) -> int:
    """The status that an error inside a 200 would have had."""
    if fields.status is not None:
        return fields.status
    verdict = BY_TYPE_ALONE.get(fields.type)
    return verdict.status if verdict is not None else 502


def _verdict(status: int, fields: ErrorFields) -> Verdict:
    """Codes say more than the status, and the status more than a phrase in the text."""
    by_status = BY_STATUS.get(status, BROKEN)
    for word in (fields.code, fields.type) if status != TOO_LARGE else ():
        verdict = BY_WORD.get(word)
        if verdict is FAILED and by_status not in (OVERLOADED, SLOW):
            by_status = FAILED  # OpenAI's own 503 and 504 are a ``server_error``, too
        elif verdict is not None and verdict is not FAILED:
            return verdict
    if by_status in (INVALID, NO_ENDPOINT, BROKEN, FAILED):
        for phrases, verdict in BY_PHRASE:
            if fields.readable and _stand_in(fields.message, phrases):
                return verdict
    return by_status


def _stand_in(text: str, phrases: tuple[re.Pattern[str], ...]) -> bool:
    """Whether each phrase is found behind the one before it. One pass over the text."""
    end = 0
    for phrase in phrases:
        found = phrase.search(text, end)
        if found is None:
            return False
        end = found.end()
    return True


def _own_words(status: int, fields: ErrorFields) -> str:
    if fields.readable and fields.message:
        return fields.message
    return told_of(status, "" if fields.readable else fields.message)


def told_of(status: int, text: str) -> str:
    """What a client hears instead of ``text``, which is a page and no error; "" for nothing."""
    kind = ""
    if text:
        kind = " (text/html)" if text.lstrip().startswith("<") else " (text/plain)"
    return f"upstream returned HTTP {status}{kind}"


def _too_long(status: int, fields: ErrorFields) -> bool:
    if fields.code in TOO_LONG_CODES or fields.type in TOO_LONG_CODES:
        return True
    return status in (400, 422) and fields.readable and bool(TOO_LONG.search(fields.message))


def _too_long_message(message: str) -> str:
    """Anthropic's own wording: clients compact their conversation when they read it."""
    found = LIMIT.search(message)
    limit = int(found[found.lastindex or 0]) if found else 0
    # vLLM tells the tokens of the answer first: those alone are not too many.
    asked = [int(each[each.lastindex or 0]) for each in ASKED.finditer(message)]
    for tokens in asked:
        if tokens > limit > 0:
            return f"prompt is too long: {tokens} tokens > {limit} maximum"
    if message.startswith("prompt is too long"):
        return client_message(message)
    return client_message(f"prompt is too long: {message}")


def _refusal(fields: ErrorFields) -> UpstreamError:
    message = client_message(fields.message)
    if fields.filters or not fields.readable or not message:
        named = f": {', '.join(fields.filters)}" if fields.filters else ""
        message = f"the upstream's content filter refused the prompt{named}"
    return UpstreamError(
        status=400,
        error_type="invalid_request_error",
        message=message,
        should_retry=False,
        is_refusal=True,
        refusal_category=REFUSALS.get(fields.code) or REFUSALS.get(fields.type),
        param=fields.param or None,
        code=fields.code or fields.type,
    )

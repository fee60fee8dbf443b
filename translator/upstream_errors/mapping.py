"""Map failures of OpenAI-compatible upstreams to Anthropic errors (docs/mapping.md)."""

import re
from dataclasses import dataclass
from typing import Any, Final

from translator.anthropic.error_body import client_message
from translator.dialect import UpstreamError

from .body_parser import ErrorFields, read_error
from .context_overflow import limits_of, overflow_message


@dataclass(frozen=True, slots=True)
class ErrorMapping:
    """The error for the client. An empty ``message`` stands for the upstream's own message."""

    status: int
    error_type: str
    message: str = ""
    should_retry: bool | None = None
    prefix: str = ""
    """Put before the upstream's own message, for clients that recover by Anthropic's words."""


INVALID: Final = ErrorMapping(400, "invalid_request_error")
BAD_PICTURE: Final = ErrorMapping(400, "invalid_request_error", prefix="Could not process image: ")
"""Anthropic's words, at which Claude Code drops the picture from its history and goes on."""
FAILED: Final = ErrorMapping(500, "api_error", "", True)
BROKEN: Final = ErrorMapping(502, "api_error")
SLOW: Final = ErrorMapping(504, "timeout_error")
OVERLOADED: Final = ErrorMapping(529, "overloaded_error")
LIMITED: Final = ErrorMapping(429, "rate_limit_error")
# Never 401, because the client would then discard its own valid key.
UNAUTHENTICATED: Final = ErrorMapping(500, "api_error", "upstream authentication failed", False)
UNPAID: Final = ErrorMapping(402, "billing_error", "", False)
FORBIDDEN: Final = ErrorMapping(403, "permission_error")
NO_MODEL: Final = ErrorMapping(404, "not_found_error")
NO_ENDPOINT: Final = ErrorMapping(500, "api_error", "upstream has no such endpoint", False)
NOT_FOUND: Final = ErrorMapping(404, "not_found_error", "", False)
UNUSABLE: Final = ErrorMapping(400, "invalid_request_error", "", False)
"""A request that this model can never answer, whatever status the server sends."""

TOO_LARGE: Final = 413
"""The status alone decides: waiting does not help, although Groq calls it a rate limit."""

BY_STATUS: Final = {
    400: INVALID,
    401: UNAUTHENTICATED,
    402: UNPAID,
    403: FORBIDDEN,
    404: NO_ENDPOINT,
    405: NO_ENDPOINT,
    408: ErrorMapping(408, "timeout_error"),
    409: ErrorMapping(409, "conflict_error"),
    TOO_LARGE: ErrorMapping(413, "request_too_large"),
    415: INVALID,
    422: INVALID,
    429: LIMITED,
    500: FAILED,
    503: OVERLOADED,
    504: SLOW,
    524: SLOW,
    529: OVERLOADED,
}
"""HTTP status -> error; any other status is ``BROKEN``, since a model server should not return
it."""

BY_CODE: Final = {
    # Error codes
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
    # Error codes of failed responses, which have no HTTP status
    "server_error": FAILED,
    "vector_store_timeout": FAILED,
    "invalid_prompt": INVALID,
    "minimax.2013": INVALID,
    "invalid_image": BAD_PICTURE,
    "invalid_image_format": BAD_PICTURE,
    "invalid_base64_image": BAD_PICTURE,
    "invalid_image_url": INVALID,
    "invalid_image_mode": BAD_PICTURE,
    "image_too_large": INVALID,
    "image_too_small": INVALID,
    "image_parse_error": BAD_PICTURE,
    "image_file_too_large": INVALID,
    "image_file_not_found": INVALID,
    "unsupported_image_media_type": BAD_PICTURE,
    "empty_image_file": BAD_PICTURE,
    "failed_to_download_image": INVALID,
    # Error types
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
"""Error type -> error, for errors that are sent with HTTP status 200 and contain no other
status."""

NO_IMAGES: Final = re.compile(
    r"image input is not supported|does not support (?:image|vision|multimodal)"
    r"|support (?:image|vision) input|not a multimodal model|at most 0 image"
    r"|only 'text' content type|data required for image input|image_url.{0,20} is only supported"
    r"|unknown variant `image_url`|(?:image_url|input_image).{0,20} not supported"
    r"|\b(?:images?|vision|multi-?modal) (?:(?:content|inputs?|data|uploads?) )?(?:is|are)"
    r" (?:not|un) ?(?:supported|allowed|accepted|available|enabled)"
    r"|(?:not|n't|cannot) (?:support|accept|allow|process|handle|take|have)(?: \w{1,9}){0,2}"
    r" (?:images?|image_url|vision|multi-?modal)\b"
    r"(?! ?(?:formats?|types?|urls?|sizes?|details?|from))"
    r"|type: input should be 'text'|allowed values: \['text'\]|content['`\"]? must be a string",
    re.IGNORECASE,
)
"""Texts about an image for a model without vision: of llama.cpp, vLLM, SGLang, MLX, Ollama, LM
Studio, OpenAI, GitHub Copilot, OpenRouter, DeepSeek, Bedrock, Mistral, Cerebras, GLM and Groq."""

BAD_IMAGE: Final = re.compile(
    r"(?:cannot|could not|unable to|failed to) (?:identify|load|decode|open|parse|process)"
    r" (?:the |an? |input |this )?image|(?:invalid|unsupported|corrupt(?:ed)?|empty) image"
    r"|image (?:data )?(?:is |was )?(?:not valid|invalid|corrupt|truncated)"
    r"|not represent a valid image|\bimage (?:\w{1,8} ){0,4}do(?:es)? not meet"
    r"|图片.{0,12}(?:错误|失败|不支持)",
    re.IGNORECASE,
)
"""Texts about a picture that the server cannot read: of vLLM (Pillow), llama.cpp, Ollama, LM
Studio, OpenAI, Qwen, GLM and OpenAI-compatible gateways."""

NO_ROUTE: Final = re.compile(
    r"(?:error )?(?:404|405)?[: ]{0,3}(?:(?:file|page|path|url|route|endpoint|resource) )?"
    r"(?:not found|method not allowed)\W{0,3}\Z"
    r"|(?:invalid|unknown|unexpected) (?:url|path|endpoint|route)|cannot (?:get|post)\b"
    r"|no (?:such )?(?:route|endpoint|handler)\b(?! .{0,20}support)",
    re.IGNORECASE,
)
"""Texts that only repeat the status: the server has no such path."""

BY_PHRASE: Final = (
    ((NO_IMAGES,), UNUSABLE),
    ((BAD_IMAGE,), BAD_PICTURE),
    ((re.compile(r"jinja|chat[ _]template|roles must alternate", re.IGNORECASE),), UNUSABLE),
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
"""Phrases that must appear in this order, and the error they mean. A single pattern such as
``model.*not found`` would scan the rest of the text for each ``model`` in it."""

REFUSALS: Final = {
    "content_filter": None,
    "ResponsibleAIPolicyViolation": None,
    "data_inspection_failed": None,  # Qwen
    "1301": None,  # GLM
    "minimax.1026": None,  # MiniMax, for the prompt and for the response
    "minimax.1027": None,
    "content_policy_violation": None,
    "image_content_policy_violation": None,
    "bio_policy": "bio",
    "cyber_policy": "cyber",
    "misalignment_policy_violation": None,
}
"""Codes of content filters that rejected the prompt, and Anthropic's refusal category, if any."""


def map_error(status: int, body: Any) -> UpstreamError:
    """Map an HTTP status and a decoded error body (dict, list, text, None) to an error."""
    fields = read_error(body)
    if fields.code in REFUSALS or fields.type in REFUSALS:
        message = client_message(fields.message)
        if fields.filters or not fields.readable or not message:
            filter_names = f": {', '.join(fields.filters)}" if fields.filters else ""
            message = f"the upstream's content filter refused the prompt{filter_names}"
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
    if (overflow := overflow_message(status, fields)) is not None:
        return UpstreamError(
            status=400,
            error_type="invalid_request_error",
            message=overflow,
            should_retry=False,
            exceeds_quota=limits_of(fields).is_quota,
            code=fields.code or fields.type,
        )
    mapping = _find_mapping(status, fields)
    text = fields.message if fields.readable else ""
    text = text or http_status_message(status, "" if fields.readable else fields.message)
    message = mapping.message or mapping.prefix + client_message(text)
    return UpstreamError(
        status=mapping.status,
        error_type=mapping.error_type,
        message=message,
        should_retry=mapping.should_retry,
        retry_after_s=fields.retry_after_s,
        # For "model", the gateway inserts the model name that the client sent.
        param="model" if mapping is NO_MODEL else fields.param or None,
        code=fields.code or fields.type,
    )


def status_of_error(fields: ErrorFields) -> int:
    """Return the HTTP status that fits an error sent with HTTP status 200."""
    if fields.status is not None:
        return fields.status
    mapping = BY_TYPE_ALONE.get(fields.type)
    return mapping.status if mapping is not None else 502


def _find_mapping(status: int, fields: ErrorFields) -> ErrorMapping:
    """Find the client's error: by code, otherwise by HTTP status, otherwise by phrase."""
    status_mapping = BY_STATUS.get(status, BROKEN)
    for word in (fields.code, fields.type) if status != TOO_LARGE else ():
        mapping = BY_CODE.get(word)
        if mapping is FAILED and status_mapping not in (OVERLOADED, SLOW):
            status_mapping = FAILED  # OpenAI also sends the code server_error with 503 and 504
        elif mapping is not None and mapping is not FAILED:
            return mapping
    if status_mapping in (INVALID, NO_ENDPOINT, BROKEN, FAILED):
        for phrases, mapping in BY_PHRASE:
            if fields.readable and _contains_in_order(fields.message, phrases):
                return mapping
    if status_mapping is NO_ENDPOINT and fields.readable and fields.message:
        return status_mapping if NO_ROUTE.match(fields.message) else NOT_FOUND
    return status_mapping


def _contains_in_order(text: str, phrases: tuple[re.Pattern[str], ...]) -> bool:
    """Return whether ``text`` contains all phrases in this order, in one pass over the text."""
    end = 0
    for phrase in phrases:
        match_ = phrase.search(text, end)
        if match_ is None:
            return False
        end = match_.end()
    return True


def http_status_message(status: int, text: str) -> str:
    """Return an error message for a response whose body is not JSON.

    ``text`` is the body, which may be HTML; "" is an empty body.
    """
    kind = ""
    if text:
        kind = " (text/html)" if text.lstrip().startswith("<") else " (text/plain)"
    return f"upstream returned HTTP {status}{kind}"

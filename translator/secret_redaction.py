"""Cut and redact the text of upstream errors; all error texts pass through this module.

An upstream may quote a credential, a host of the operator's network or a very long text. Every
error text passes through ``clean_error_text`` before other patterns are applied, so those patterns
see at most ``MAX_TEXT`` characters. The patterns in this module take linear time.
"""

import re
from typing import Any, Final

MAX_TEXT: Final = 2_048
"""Maximum characters of one error text; OpenAI's longest recorded error text has 700."""
MAX_BODY: Final = 64 * 1024
"""Maximum characters of all texts in an error body that is passed to the client."""
REMOVED: Final = "[removed]"

_SHAPES: Final = (
    # A pattern's first group, if any, is not redacted: it contains the name in front of the secret.
    r"(://[^/\s:@]*:)[^@\s/]+(?=@)",
    (
        r"(\b(?:api[-_ ]?key|authorization|passw(?:or)?d|secret|token)"
        r"[\\'\"]{0,2}\s{0,4}[=:]\s{0,4}[\\'\"]{0,2})"
        r"(?:(?:bearer|basic)\s{1,4})?[^\s\\'\",;]{6,}"
    ),
    r"(\bbearer\s{1,4})[A-Za-z0-9._~+/=*-]{6,}",
    r"(\bbasic\s{1,4})[A-Za-z0-9+/=_-]{12,}",
    (
        r"\b(?:sk|pk|rk|gsk|xai|hf|r8|nvapi|pplx|glpat|xox[a-z]|gh[a-z])[-_][A-Za-z0-9*_-]{6,}"
        r"|\bAIza[A-Za-z0-9_-]{16,}|\bya29\.[A-Za-z0-9_-]{8,}|\bAKIA[A-Z0-9]{12,}"
        r"|\beyJ[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]+)*"
    ),
)
"""Formats of credentials: OpenAI, Anthropic, this gateway, Groq, xAI, Hugging Face, Replicate,
NVIDIA, Perplexity, GitLab, Slack, GitHub, Google, AWS, JSON Web Tokens."""
_IN_TEXT: Final = tuple(re.compile(shape, re.IGNORECASE) for shape in _SHAPES)
_IN_BYTES: Final = tuple(re.compile(shape.encode(), re.IGNORECASE) for shape in _SHAPES)


def clean_error_text(text: str) -> str:
    """Return an upstream's error text, cut to ``MAX_TEXT`` characters, without credentials."""
    return redact_secrets(text[:MAX_TEXT])


def redact_secrets(text: str, instead: str = REMOVED) -> str:
    """Replace everything in the format of a credential, in linear time; nothing is cut."""
    for shape in _IN_TEXT:
        text = shape.sub(
            lambda match_: (match_[1] if match_.re.groups and match_[1] else "") + instead, text
        )
    return text


def mask_secrets(raw: bytes) -> bytes:
    """Replace credentials by as many asterisks, so that byte offsets and JSON remain valid."""
    for shape in _IN_BYTES:
        raw = shape.sub(_stars, raw)
    return raw


def redact_error_body(value: Any) -> Any:
    """Return a decoded error body with each text cut and redacted.

    Returns ``value`` itself if nothing changes, so that the original bytes can be passed on. Texts
    after the first ``MAX_BODY`` characters in total become empty.
    """
    budget = MAX_BODY

    def clean(part: Any) -> Any:
        nonlocal budget
        budget -= 1
        if isinstance(part, str):
            text = clean_error_text(part) if budget > 0 else ""
            budget -= len(text)
            return text
        if isinstance(part, dict):
            return {clean(name): clean(item) for name, item in part.items()} if budget > 0 else {}
        if isinstance(part, list):
            return [clean(item) for item in part] if budget > 0 else []
        return part

    cleaned = clean(value)
    return value if cleaned == value else cleaned


def _stars(match_: re.Match[bytes]) -> bytes:
    label = match_[1] if match_.re.groups else b""
    return label + b"*" * (len(match_[0]) - len(label))

"""Cut and redact the text of an upstream's error: the one place where such text enters.

An upstream may quote a credential, a host of the operator's network or a text without end. Every
dialect sends the texts of its errors through ``error_text`` before any rule reads them, so each
pattern of the rules sees at most ``MAX_TEXT`` characters. The patterns here take linear time.
"""

import re
from typing import Any, Final

MAX_TEXT: Final = 2_048
"""Characters of one error text; OpenAI's longest recorded one has 700."""
MAX_BODY: Final = 64 * 1024
"""Characters of all texts of one error body that is passed on."""
REMOVED: Final = "[removed]"

_SHAPES: Final = (
    # The first group, where there is one, stays: it says what was hidden.
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
"""Credentials by their shape: OpenAI, Anthropic, this gateway, Groq, xAI, Hugging Face, Replicate,
NVIDIA, Perplexity, GitLab, Slack, GitHub, Google, AWS, JSON Web Tokens."""
_IN_TEXT: Final = tuple(re.compile(shape, re.IGNORECASE) for shape in _SHAPES)
_IN_BYTES: Final = tuple(re.compile(shape.encode(), re.IGNORECASE) for shape in _SHAPES)


def error_text(text: str) -> str:
    """Return an upstream's text cut to ``MAX_TEXT`` characters and without credentials."""
    return without_secrets(text[:MAX_TEXT])


def without_secrets(text: str, instead: str = REMOVED) -> str:
    """Replace what has the shape of a credential. Linear in the text, which is not cut."""
    for shape in _IN_TEXT:
        text = shape.sub(lambda found: _label(found) + instead, text)
    return text


def masked_shapes(raw: bytes) -> bytes:
    """Replace the same in bytes by as many stars, so that offsets and JSON stay valid."""
    for shape in _IN_BYTES:
        raw = shape.sub(_stars, raw)
    return raw


def redacted(value: Any) -> Any:
    """Return a decoded error body with each text cut and redacted.

    ``value`` itself is returned where nothing changes: its bytes may then be passed on. Texts
    beyond ``MAX_BODY`` characters in all are emptied.
    """
    room = MAX_BODY

    def clean(part: Any) -> Any:
        nonlocal room
        room -= 1
        if isinstance(part, str):
            text = error_text(part) if room > 0 else ""
            room -= len(text)
            return text
        if isinstance(part, dict):
            return {clean(name): clean(each) for name, each in part.items()} if room > 0 else {}
        if isinstance(part, list):
            return [clean(each) for each in part] if room > 0 else []
        return part

    made = clean(value)
    return value if made == value else made


def _label(found: re.Match[str]) -> str:
    return found[1] if found.re.groups and found[1] else ""


def _stars(found: re.Match[bytes]) -> bytes:
    label = found[1] if found.re.groups else b""
    return label + b"*" * (len(found[0]) - len(label))

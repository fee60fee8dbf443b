"""Convert OpenAI's ``x-ratelimit-*`` headers to Anthropic's ``anthropic-ratelimit-*``.

OpenAI gives the time until a bucket is full as a duration, Anthropic as a timestamp. The gateway's
own limits take precedence over the upstream's.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from translator.upstream_errors.body_parser import seconds_in

Header = tuple[bytes, bytes]

BUCKET_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "requests": ("requests",),
    "tokens": ("tokens", "input-tokens"),
}
"""Anthropic's bucket names for OpenAI's. OpenAI's ``tokens`` also become ``input-tokens``."""

OPENAI_HEADERS: Final = frozenset(
    f"x-ratelimit-{what}-{kind}"
    for what in ("limit", "remaining", "reset")
    for kind in BUCKET_NAMES
)
PREFIX: Final = b"anthropic-ratelimit-"
MOST_DIGITS: Final = 15
MOST_SECONDS: Final = 10 * 365 * 86400.0


def map_rate_limit_headers(ours: list[Header], upstream: Mapping[str, str]) -> list[Header]:
    """Return the gateway's response headers and the upstream's converted rate limit headers."""
    if OPENAI_HEADERS.isdisjoint(upstream):  # most servers send none; this saves 35 calls
        return ours
    names = {name for name, _ in ours}
    return ours + [header for header in _convert_headers(upstream) if header[0] not in names]


def _convert_headers(upstream: Mapping[str, str]) -> list[Header]:
    headers: list[Header] = []
    for kind, names in BUCKET_NAMES.items():
        texts = {what: _number(upstream, what, kind) for what in ("limit", "remaining")}
        texts["reset"] = _reset_timestamp(upstream.get(f"x-ratelimit-reset-{kind}", ""))
        for name in names:
            headers += [
                (PREFIX + f"{name}-{what}".encode(), text.encode())
                for what, text in texts.items()
                if text
            ]
    return headers


def _number(upstream: Mapping[str, str], what: str, kind: str) -> str:
    text = upstream.get(f"x-ratelimit-{what}-{kind}", "").strip()
    return text if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else ""


def _reset_timestamp(duration: str) -> str:
    """Return the time after a duration like ``6m0s`` in RFC 3339; empty if it is not a duration."""
    seconds = seconds_in(duration)
    if seconds is None or seconds > MOST_SECONDS:
        return ""
    return datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""An OpenAI-like upstream's rate limit headers under Anthropic's names (mapping.md 5.3).

OpenAI says when a bucket is full again as a duration, Anthropic as an instant. What this gateway
limits itself, it tells itself: those headers win.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from translator.upstream_errors.fields import seconds_in

Header = tuple[bytes, bytes]

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "requests": ("requests",),
    "tokens": ("tokens", "input-tokens"),
}
"""OpenAI's buckets and Anthropic's: what is left of its tokens holds for the input's, too."""

TOLD: Final = frozenset(
    f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in KINDS
)
PREFIX: Final = b"anthropic-ratelimit-"
MOST_DIGITS: Final = 15
MOST_SECONDS: Final = 10 * 365 * 86400.0


def told_limits(ours: list[Header], upstream: Mapping[str, str]) -> list[Header]:
    """Our headers of an answer, with those of the upstream that gives it."""
    if TOLD.isdisjoint(upstream):  # most servers tell none: 1 call instead of 36
        return ours
    names = {name for name, _ in ours}
    return ours + [header for header in _limits(upstream) if header[0] not in names]


def _limits(upstream: Mapping[str, str]) -> list[Header]:
    headers: list[Header] = []
    for kind, names in KINDS.items():
        texts = {what: _number(upstream, what, kind) for what in ("limit", "remaining")}
        texts["reset"] = _instant(upstream.get(f"x-ratelimit-reset-{kind}", ""))
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


def _instant(duration: str) -> str:
    """``6m0s`` from now, in RFC 3339; empty where it is no duration."""
    seconds = seconds_in(duration)
    if seconds is None or seconds > MOST_SECONDS:
        return ""
    return datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

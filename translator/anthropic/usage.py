"""Token counts of one response as Anthropic defines them: input classes do not overlap."""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from translator.notes import Note

Source = Literal["reported", "estimated", "missing"]

MAX_COUNT: Final = 10**8
"""Maximum valid token count. A larger count must be an upstream's error: no model has a context
window of this size."""


# The class is not frozen, because freezing would cost a call for each field.
@dataclass(slots=True, kw_only=True)
class Usage:
    """Token counts of one response; None means unknown: the upstream did not report the count.

    ``input`` excludes tokens read from or written to the prompt cache; ``output`` includes
    ``reasoning``. All cache writes are ``cache_write_5m`` plus ``cache_write_1h``.
    """

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write_5m: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None
    web_searches: int | None = None
    service_tier: str | None = None
    source: Source = "missing"
    output_source: Source | None = None
    """The source of the output count, if it differs from the source of the input count."""

    def to_wire(self) -> dict[str, Any]:
        """Return Anthropic's ``usage`` object.

        ``input_tokens`` and ``output_tokens`` are always ints, 0 if unknown. Other counts that the
        upstream did not report are omitted.
        """
        wire: dict[str, Any] = {
            "input_tokens": self.input or 0,
            "output_tokens": self.output or 0,
        }
        if self.cache_write_5m is not None or self.cache_write_1h is not None:
            written_5m, written_1h = self.cache_write_5m or 0, self.cache_write_1h or 0
            wire["cache_creation_input_tokens"] = written_5m + written_1h
            wire["cache_creation"] = {
                "ephemeral_5m_input_tokens": written_5m,
                "ephemeral_1h_input_tokens": written_1h,
            }
        if self.cache_read is not None:
            wire["cache_read_input_tokens"] = self.cache_read
        if self.reasoning is not None:
            wire["output_tokens_details"] = {"thinking_tokens": self.reasoning}
        if self.web_searches is not None:
            wire["server_tool_use"] = {
                "web_search_requests": self.web_searches,
                "web_fetch_requests": 0,
            }
        if self.service_tier is not None:
            wire["service_tier"] = self.service_tier
        return wire


DOUBTFUL_COUNTS: Final = Note(
    "usage", "ignored", "bad_usage: no tokens are reported for the content"
)

COUNT_NAMES: Final = (
    "input",
    "output",
    "cache read",
    "cache write",
    "long cache write",
    "reasoning",
)
"""Names of the token counts, for notes about invalid counts."""

SUMMED_COUNTS: Final = (
    "input",
    "output",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "reasoning",
    "web_searches",
)
WORST_SOURCES: Final[tuple[Source, ...]] = ("missing", "estimated", "reported")
"""The sources of counts, the least reliable one first."""

NO_USAGE: Final = Usage()
"""Usage before the upstream has reported any counts."""


def usage_from_openai(
    *,
    total_input: Any,
    output: Any,
    cached: Any = None,
    written: Any = None,
    written_1h: Any = None,
    reasoning: Any = None,
    web_searches: int | None = None,
    service_tier: str | None = None,
) -> tuple[Usage, list[Note]]:
    """Convert OpenAI's counts, whose total includes the cache, to Anthropic's disjoint classes.

    The arguments up to ``reasoning`` are unchecked JSON values; an invalid count becomes None, with
    a ``bad_usage`` note. ``written_1h`` is the part of ``written`` that the cache stores for one
    hour.
    """
    notes: list[Note] = []
    counts = [total_input, output, cached, written, written_1h, reasoning]
    for number, value in enumerate(counts):
        if value is not None and (type(value) is not int or not 0 <= value <= MAX_COUNT):
            counts[number] = _checked_count(COUNT_NAMES[number], value, notes)
    total, output_count, cached_count, written_count, written_1h_count, reasoning_count = counts
    if written_count is not None or written_1h_count is not None:
        written_count = max(written_count or 0, written_1h_count or 0)
        written_1h_count = written_1h_count or 0
    uncached = None if total is None else total - (cached_count or 0) - (written_count or 0)
    return Usage(
        # A negative difference means that the upstream's total excludes cached tokens, like
        # Anthropic's ``input_tokens``.
        input=total if uncached is not None and uncached < 0 else uncached,
        output=output_count,
        cache_read=cached_count,
        cache_write_5m=None
        if written_count is None or written_1h_count is None
        else written_count - written_1h_count,
        cache_write_1h=written_1h_count,
        reasoning=reasoning_count,
        web_searches=web_searches,
        service_tier=service_tier,
        source="missing" if total is None or output_count is None else "reported",
    ), notes


def has_doubtful_counts(usage: Usage, characters: int) -> bool:
    """Return whether reported counts cannot be true for a response with ``characters`` of content.

    Some servers and proxies report zero tokens. A small count is believed: it is what the upstream
    charges.
    """
    if usage.source != "reported" or not characters:
        return False
    return _has_no_input(usage) or not usage.output


def without_doubtful_counts(usage: Usage, characters: int) -> Usage:
    """Return the usage without the counts that cannot be true; these are then estimated."""
    return replace(
        usage,
        input=None if _has_no_input(usage) else usage.input,
        output=usage.output or None,
        source="missing",
    )


def _has_no_input(usage: Usage) -> bool:
    counts = (usage.input, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h)
    return not any(counts)


def add_usage(first: Usage, second: Usage) -> Usage:
    """Return the usage of two responses together; a count that neither reported stays unknown."""
    counts: dict[str, Any] = {
        name: (getattr(first, name) or 0) + (getattr(second, name) or 0)
        for name in SUMMED_COUNTS
        if (getattr(first, name), getattr(second, name)) != (None, None)
    }
    sources = {first.source, second.source, second.output_source or second.source}
    worst = next(source for source in WORST_SOURCES if source in sources)
    return replace(second, source=worst, output_source=None, **counts)


def usage_from_wire(wire: dict[str, Any]) -> tuple[Usage, list[Note]]:
    """Parse the ``usage`` object of an Anthropic upstream."""
    notes: list[Note] = []

    def count(name: str, *path: str) -> int | None:
        value: Any = wire
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return _checked_count(name, value, notes)

    split_5m = count("5m cache write", "cache_creation", "ephemeral_5m_input_tokens")
    split_1h = count("1h cache write", "cache_creation", "ephemeral_1h_input_tokens")
    written = count("cache write", "cache_creation_input_tokens")
    if split_5m is None and split_1h is None:
        # Older servers report only the sum; the lifetime was always five minutes.
        split_5m = written
    tier = wire.get("service_tier")
    usage = Usage(
        input=count("input", "input_tokens"),
        output=count("output", "output_tokens"),
        cache_read=count("cache read", "cache_read_input_tokens"),
        cache_write_5m=split_5m,
        cache_write_1h=split_1h,
        reasoning=count("reasoning", "output_tokens_details", "thinking_tokens"),
        web_searches=count("web search", "server_tool_use", "web_search_requests"),
        service_tier=tier if isinstance(tier, str) else None,
    )
    is_reported = usage.input is not None and usage.output is not None
    return replace(usage, source="reported" if is_reported else "missing"), notes


def _checked_count(name: str, value: Any, notes: list[Note]) -> int | None:
    if value is None or (type(value) is int and 0 <= value <= MAX_COUNT):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # some servers send 12.0
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        notes.append(Note("usage", "ignored", f"bad_usage: {name} tokens are no count"))
        return None
    return value

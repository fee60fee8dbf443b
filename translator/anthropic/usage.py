"""Token counts of one answer, in Anthropic's arithmetic: the input classes are disjoint."""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from translator.notes import Note

Source = Literal["reported", "estimated", "missing"]

MAX_COUNT: Final = 2**53
"""No answer has more tokens; a bigger count is a fault (and no double could hold it)."""


@dataclass(slots=True, kw_only=True)  # not frozen: that would be a call for each field
class Usage:
    """Counts are tokens; None: the upstream did not say (unknown is not zero, D12).

    ``input`` excludes what was read from or written to the cache; ``output`` includes
    ``reasoning``. ``cache_write_5m`` and ``cache_write_1h`` are parts of the cache writes.
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
    """Where the output's differs from that of the input."""

    def to_wire(self) -> dict[str, Any]:
        """Anthropic's ``usage`` object; ``input_tokens`` and ``output_tokens`` are always ints.

        What the upstream did not report is left out rather than claimed to be zero.
        """
        wire: dict[str, Any] = {
            "input_tokens": self.input or 0,
            "output_tokens": self.output or 0,
        }
        if self.cache_write_5m is not None or self.cache_write_1h is not None:
            short, long = self.cache_write_5m or 0, self.cache_write_1h or 0
            wire["cache_creation_input_tokens"] = short + long
            wire["cache_creation"] = {
                "ephemeral_5m_input_tokens": short,
                "ephemeral_1h_input_tokens": long,
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


NAMES: Final = ("input", "output", "cache read", "cache write", "long cache write", "reasoning")
"""Of the counts that OpenAI tells, as a note names them."""

UNTOLD: Final = Usage()
"""Of an answer whose upstream has told nothing yet."""


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
    """OpenAI's counts, where the total includes the cache, as Anthropic's disjoint classes.

    The arguments up to ``reasoning`` are what the wire said, unchecked; a count that is none
    becomes missing, with a ``bad_usage`` note. ``written_1h`` is the part of ``written`` that
    lives longest.
    """
    notes: list[Note] = []
    counts = [total_input, output, cached, written, written_1h, reasoning]
    for number, value in enumerate(counts):
        if value is not None and (type(value) is not int or not 0 <= value <= MAX_COUNT):
            counts[number] = _count(NAMES[number], value, notes)
    total, said, read, write, long, thought = counts
    if write is not None or long is not None:
        write = max(write or 0, long or 0)
        long = long or 0
    rest = None if total is None else total - (read or 0) - (write or 0)
    return Usage(
        # Below zero: this server's total leaves the cache out, as Anthropic's own does.
        input=total if rest is not None and rest < 0 else rest,
        output=said,
        cache_read=read,
        cache_write_5m=None if write is None or long is None else write - long,
        cache_write_1h=long,
        reasoning=thought,
        web_searches=web_searches,
        service_tier=service_tier,
        source="missing" if total is None or said is None else "reported",
    ), notes


def usage_from_wire(wire: dict[str, Any]) -> tuple[Usage, list[Note]]:
    """Anthropic's own ``usage`` object, as an Anthropic upstream reports it; guarded alike."""
    notes: list[Note] = []

    def count(name: str, *path: str) -> int | None:
        value: Any = wire
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return _count(name, value, notes)

    split_5m = count("5m cache write", "cache_creation", "ephemeral_5m_input_tokens")
    split_1h = count("1h cache write", "cache_creation", "ephemeral_1h_input_tokens")
    written = count("cache write", "cache_creation_input_tokens")
    if split_5m is None and split_1h is None:
        split_5m = written  # older servers do not split; five minutes was the only lifetime
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
    told = usage.input is not None and usage.output is not None
    return replace(usage, source="reported" if told else "missing"), notes


def _count(name: str, value: Any, notes: list[Note]) -> int | None:
    if value is None or (type(value) is int and 0 <= value <= MAX_COUNT):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # some servers write 12.0
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        notes.append(Note("usage", "ignored", f"bad_usage: {name} tokens are no count"))
        return None
    return value

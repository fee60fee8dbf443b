"""Token counts of one response as Anthropic defines them: input classes do not overlap."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from translator.notes import Note

from .token_estimate import tokens_of_characters

Source = Literal["reported", "estimated", "missing"]

MAX_NAME: Final = 32
"""Maximum characters of a tier, speed or region that an upstream names; a longer one is ignored."""

MAX_COUNT: Final = 10**8
"""Maximum valid token count. A larger count must be an upstream's error: no model has a context
window of this size."""


MAX_ITERATIONS: Final = 1000
"""Maximum iterations that are read of one response; a request makes far fewer."""

WIRE_TIERS: Final = frozenset({"standard", "priority", "batch"})
"""The service tiers that Anthropic's ``usage`` can name; any other tier is ``standard`` there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The token counts of one sampling of a request that the upstream answered in several.

    ``type`` is ``message``, ``compaction``, ``advisor_message``, ``fallback_message`` or a newer
    one; ``model`` is None if the upstream did not name it. Source: ``BetaIterationsUsage`` of
    Anthropic's SDKs.
    """

    type: str
    model: str | None = None
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0


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
    """The tier that served the request: ``standard``, ``priority``, ``batch``, OpenAI's ``flex``
    and ``scale``, or an unknown name of at most ``MAX_NAME`` characters."""
    speed: str | None = None
    """Anthropic's inference speed, ``standard`` or ``fast``, or an unknown name."""
    inference_geo: str | None = None
    """Where Anthropic made the inference, such as ``us``; it has prices of its own."""
    iterations: tuple[Iteration, ...] = ()
    """The samplings of the request, as reported. The counts above leave some of them out, such as
    compactions; ``billed_iterations`` returns those that are charged."""
    source: Source = "missing"
    output_source: Source | None = None
    """The source of the output count, if it differs from the source of the input count."""

    def to_wire(self) -> dict[str, Any]:
        """Return Anthropic's ``usage`` object, with every field that the types of its SDKs demand.

        ``input_tokens`` and ``output_tokens`` are ints, 0 if unknown. Any other count that the
        upstream did not report is null.
        """
        written = None
        if self.cache_write_5m is not None or self.cache_write_1h is not None:
            written = {
                "ephemeral_5m_input_tokens": self.cache_write_5m or 0,
                "ephemeral_1h_input_tokens": self.cache_write_1h or 0,
            }
        tier = self.service_tier
        return {
            **self.to_delta(),
            "cache_creation": written,
            "inference_geo": self.inference_geo,
            "service_tier": tier if tier is None or tier in WIRE_TIERS else "standard",
            "speed": self.speed,
        }

    def to_delta(self) -> dict[str, Any]:
        """Return the ``usage`` object of ``message_delta``, which has only the cumulative counts.

        Source: ``MessageDeltaUsage`` of Anthropic's SDKs.
        """
        written, details, searches = None, None, None
        if self.cache_write_5m is not None or self.cache_write_1h is not None:
            written = (self.cache_write_5m or 0) + (self.cache_write_1h or 0)
        if self.reasoning is not None:
            details = {"thinking_tokens": self.reasoning}
        if self.web_searches is not None:
            searches = {"web_search_requests": self.web_searches, "web_fetch_requests": 0}
        return {
            "input_tokens": self.input or 0,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": self.cache_read,
            "output_tokens": self.output or 0,
            "output_tokens_details": details,
            "server_tool_use": searches,
        }


DOUBTFUL_COUNTS: Final = Note(
    "usage", "ignored", "bad_usage: no tokens are reported for the content"
)

ESTIMATED_USAGE: Final = Note(
    "usage", "emulated", "the upstream reported no final usage; it is estimated"
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

INPUT_COUNTS: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h")
ITERATION_COUNTS: Final = (*INPUT_COUNTS, "output")
OTHER_COUNTS: Final = ("output", "reasoning", "web_searches")
NAMES: Final = ("service_tier", "speed", "inference_geo")

OPENAI_TIERS: Final = {
    "auto": "standard",
    "default": "standard",
    "fast": "priority",
    "on_demand": "standard",
    "on_demand_flex": "flex",
    "on_demand_priority": "priority",
}
"""OpenAI's service tiers -> the names in ``Usage.service_tier``, where they differ; ``on_demand``
is Groq's name of the usual tier, and Gemini's in capitals, as are the names that begin with it."""

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
    service_tier: Any = None,
) -> tuple[Usage, list[Note]]:
    """Convert OpenAI's counts, whose total includes the cache, to Anthropic's disjoint classes.

    The arguments except ``web_searches`` are unchecked JSON values; an invalid count becomes None,
    with a ``bad_usage`` note. ``service_tier`` is OpenAI's. ``written_1h`` is the part of
    ``written`` that the cache stores for one hour.
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
    tier = _name(service_tier)
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
        service_tier=None if tier is None else OPENAI_TIERS.get(tier.lower(), tier.lower()),
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


def estimated_usage(
    reported: Usage, input_estimate: int, characters: int, *, is_partial: bool = False
) -> Usage:
    """Estimate counts that were not reported; ``characters`` is the length of the response.

    ``is_partial``: the reported output may be that of a part of the response.
    """
    output = tokens_of_characters(characters)
    if reported.output is not None:
        output = max(output, reported.output) if is_partial else reported.output
    return replace(
        reported,
        input=input_estimate if reported.input is None else reported.input,
        output=output,
        source="estimated",
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
    iterations: tuple[Iteration, ...] = ()
    if first.iterations or second.iterations:
        iterations = (*_samplings(first), *_samplings(second))[:MAX_ITERATIONS]
    return replace(second, source=worst, output_source=None, iterations=iterations, **counts)


def _samplings(usage: Usage) -> tuple[Iteration, ...]:
    """Return the reported iterations; without any, the response is one sampling."""
    counts: dict[str, Any] = {name: getattr(usage, name) or 0 for name in ITERATION_COUNTS}
    return usage.iterations or (
        (Iteration(type="message", **counts),) if any(counts.values()) else ()
    )


def merge_usage(previous: Usage, latest: Usage) -> Usage:
    """Merge two usage objects of one response.

    Counts are cumulative, so a later smaller one is no count: some servers and proxies report the
    input at the start and zeros at the end (envoyproxy/ai-gateway#2236). The input counts are
    parts of one total, which a later object may divide in another way; so they are compared by
    their total. Without cache counts, the input at the start may be an estimate; the first object
    with cache counts replaces it.
    """
    counts: dict[str, Any] = {
        name: _larger(getattr(previous, name), getattr(latest, name)) for name in OTHER_COUNTS
    }
    names = {name: getattr(latest, name) or getattr(previous, name) for name in NAMES}
    # Counts that the latest object leaves out are as before.
    known = {
        name: getattr(previous if getattr(latest, name) is None else latest, name)
        for name in INPUT_COUNTS
    }
    if latest.cache_write_1h is None and latest.cache_write_5m is not None:
        # The sum of all cache writes, without their lifetimes: Anthropic's ``message_delta``.
        known["cache_write_5m"] = max(0, latest.cache_write_5m - (previous.cache_write_1h or 0))
    was_split = any(getattr(previous, name) is not None for name in INPUT_COUNTS[1:])
    is_split = any(getattr(latest, name) is not None for name in INPUT_COUNTS[1:])
    total = sum(map(int, filter(None, known.values())))
    previous_total = sum(getattr(previous, name) or 0 for name in INPUT_COUNTS)
    if total < previous_total and (was_split or not (is_split and total)):
        known = {name: getattr(previous, name) for name in INPUT_COUNTS}
    iterations = latest.iterations
    if len(iterations) < len(previous.iterations):
        iterations = previous.iterations
    is_reported = known["input"] is not None and counts["output"] is not None
    return Usage(
        **known,
        **counts,
        **names,
        iterations=iterations,
        source="reported" if is_reported else "missing",
    )


def _larger(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)


def billed_iterations(usage: Usage) -> tuple[Iteration, ...]:
    """Return the iterations that are charged; empty if the upstream reported none.

    The charge for a request is the sum over these. If a fallback model made the response, the
    attempts of the models that declined are ``message`` entries, and are not charged.
    """
    serving = next((i.model for i in usage.iterations if i.type == "fallback_message"), None)
    if serving is None:
        return usage.iterations
    return tuple(i for i in usage.iterations if i.type != "message" or i.model == serving)


def billed_usage(usage: Usage) -> Usage:
    """Return the usage with the counts that are charged: the sums over the billed iterations.

    Sums that are smaller than the counts of the response cannot be all of them.
    """
    billed = billed_iterations(usage)
    if not billed:
        return usage
    sums = {name: sum([getattr(each, name) for each in billed]) for name in ITERATION_COUNTS}
    if any(count < (getattr(usage, name) or 0) for name, count in sums.items()):
        return usage
    known = {name: n for name, n in sums.items() if n or getattr(usage, name) is not None}
    return replace(usage, iterations=billed, **known)


def usage_from_wire(wire: dict[str, Any]) -> tuple[Usage, list[Note]]:
    """Parse the ``usage`` object of an Anthropic upstream.

    A few compatible servers send the counts of Chat Completions in it.
    """
    if "prompt_tokens" in wire and not ("input_tokens" in wire or "output_tokens" in wire):
        details = wire.get("prompt_tokens_details")
        return usage_from_openai(
            total_input=wire["prompt_tokens"],
            output=wire.get("completion_tokens"),
            cached=details.get("cached_tokens") if isinstance(details, dict) else None,
        )
    notes: list[Note] = []
    usage = Usage(
        **_input_from_wire(wire, notes),
        output=_checked_count("output", wire.get("output_tokens"), notes),
        reasoning=_inner_count("reasoning", wire, "output_tokens_details.thinking_tokens", notes),
        web_searches=_inner_count("web search", wire, "server_tool_use.web_search_requests", notes),
        service_tier=_name(wire.get("service_tier")),
        speed=_name(wire.get("speed")),
        inference_geo=_name(wire.get("inference_geo")),
        iterations=_iterations_from_wire(wire.get("iterations"), notes),
    )
    is_reported = usage.input is not None and usage.output is not None
    usage.source = "reported" if is_reported else "missing"
    return usage, notes


def _input_from_wire(wire: dict[str, Any], notes: list[Note]) -> dict[str, Any]:
    """Return the input counts, by their names in ``Usage``."""
    lifetimes = (
        "cache_creation.ephemeral_5m_input_tokens",
        "cache_creation.ephemeral_1h_input_tokens",
    )
    written_5m = _inner_count("5m cache write", wire, lifetimes[0], notes)
    written_1h = _inner_count("1h cache write", wire, lifetimes[1], notes)
    written = _checked_count("cache write", wire.get("cache_creation_input_tokens"), notes)
    if written_5m is None and written_1h is None:
        # Older servers report only the sum; the lifetime was always five minutes.
        written_5m = written
    return {
        "input": _checked_count("input", wire.get("input_tokens"), notes),
        "cache_read": _checked_count("cache read", wire.get("cache_read_input_tokens"), notes),
        "cache_write_5m": written_5m,
        "cache_write_1h": written_1h,
    }


def _iterations_from_wire(value: Any, notes: list[Note]) -> tuple[Iteration, ...]:
    if not value or type(value) is not list:
        return ()
    if len(value) > MAX_ITERATIONS:
        notes.append(Note("usage", "ignored", f"bad_usage: more than {MAX_ITERATIONS} iterations"))
    return tuple(
        Iteration(
            type=_name(entry.get("type")) or "unknown",
            model=entry["model"][:200] if isinstance(entry.get("model"), str) else None,
            output=_checked_count("output", entry.get("output_tokens"), notes) or 0,
            **{name: count or 0 for name, count in _input_from_wire(entry, notes).items()},
        )
        for entry in value[:MAX_ITERATIONS]
        if isinstance(entry, dict)
    )


def _inner_count(name: str, wire: dict[str, Any], path: str, notes: list[Note]) -> int | None:
    outer, _, inner = path.partition(".")
    holder = wire.get(outer)
    return _checked_count(name, holder.get(inner), notes) if isinstance(holder, dict) else None


NO_COUNTS: Final[Mapping[str, Any]] = {}


def inner_counts(counts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object inside of an upstream's counts; empty if there is none."""
    inner = counts.get(name)
    return inner if type(inner) is dict else NO_COUNTS


def first_count(counts: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these counts that is neither null nor zero; else one that is there.

    Some servers and proxies send the names of two APIs, and fill one of them.
    """
    found = [counts[name] for name in names if counts.get(name) is not None]
    return next((count for count in found if count), found[0] if found else None)


def _name(value: Any) -> str | None:
    """Return a name that an upstream sends, such as its service tier; None if it is not valid."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME else None


def _checked_count(name: str, value: Any, notes: list[Note]) -> int | None:
    if value is None or (type(value) is int and 0 <= value <= MAX_COUNT):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # some servers send 12.0
    elif isinstance(value, str) and len(value) <= len(str(MAX_COUNT)) and value.isdecimal():
        value = int(value)  # and a few "12"
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        notes.append(Note("usage", "ignored", f"bad_usage: {name} tokens are no count"))
        return None
    return value

"""The token counts of a response (mapping.md 3.4)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from translator.anthropic.usage import Usage, usage_from_openai
from translator.notes import Note

CHARACTERS_PER_TOKEN: Final = 4

ESTIMATED: Final = Note("usage", "emulated", "the upstream told no final usage; it is estimated")

NONE: Final[Mapping[str, Any]] = {}

OF_CHAT: Final = {
    "prompt_tokens": "input_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens": "output_tokens",
    "completion_tokens_details": "output_tokens_details",
}
"""Chat's names, which servers keep that speak it underneath."""

SERVICE_TIERS: Final = {"priority": "priority", "fast": "priority"}
"""OpenAI's tiers in Anthropic's words; every other one that is named is ``standard``."""


def usage_of(response: Mapping[str, Any], searches: int) -> tuple[Usage, list[Note]]:
    """The usage of a whole response; ``searches`` were seen, should it not count them itself."""
    counts = _under(response, "usage")
    if "input_tokens" not in counts and counts:
        counts = {OF_CHAT.get(name, name): count for name, count in counts.items()}
    read = _under(counts, "input_tokens_details")
    written_1h = None
    if "cache_write_tokens_details" in read:
        written_1h = _under(read, "cache_write_tokens_details").get("ttl_12h_tokens")
    if "tool_usage" in response:
        counted = _under(_under(response, "tool_usage"), "web_search").get("num_requests")
        searches = counted if type(counted) is int and counted >= 0 else searches
    tier = response.get("service_tier")
    return usage_from_openai(
        total_input=counts.get("input_tokens"),
        output=counts.get("output_tokens"),
        cached=read.get("cached_tokens"),
        written=read.get("cache_write_tokens"),
        written_1h=written_1h,
        reasoning=_under(counts, "output_tokens_details").get("reasoning_tokens"),
        web_searches=searches or None,
        service_tier=SERVICE_TIERS.get(tier, "standard") if isinstance(tier, str) else None,
    )


def estimated_usage(known: Usage, input_estimate: int, characters: int) -> Usage:
    """Fill what the upstream never told; ``characters`` were said by it."""
    return replace(
        known,
        input=input_estimate if known.input is None else known.input,
        output=-(-characters // CHARACTERS_PER_TOKEN) if known.output is None else known.output,
        source="estimated",
    )


def _under(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = mapping.get(name)
    return inner if type(inner) is dict else NONE

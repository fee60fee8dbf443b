"""Read the token counts of a Responses API response (docs/mapping.md)."""

from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic.usage import Usage, inner_counts, usage_from_openai
from translator.notes import Note

CHAT_NAMES: Final = {
    "prompt_tokens": "input_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens": "output_tokens",
    "completion_tokens_details": "output_tokens_details",
}
"""Count names of Chat Completions, which some servers use here -> those of this API."""


def read_usage(response: Mapping[str, Any], searches: int) -> tuple[Usage, list[Note]]:
    """Return the usage of a response; ``searches`` applies if it reports no number of searches."""
    counts = inner_counts(response, "usage")
    if not counts.get("input_tokens") and counts:
        renamed = {CHAT_NAMES[name]: n for name, n in counts.items() if name in CHAT_NAMES}
        counts = {**counts, **renamed}
    read = inner_counts(counts, "input_tokens_details")
    written_1h = None
    if "cache_write_tokens_details" in read:
        written_1h = inner_counts(read, "cache_write_tokens_details").get("ttl_12h_tokens")
    if "tool_usage" in response:
        requests = inner_counts(inner_counts(response, "tool_usage"), "web_search").get(
            "num_requests"
        )
        searches = requests if type(requests) is int and requests >= 0 else searches
    return usage_from_openai(
        total_input=counts.get("input_tokens"),
        output=counts.get("output_tokens"),
        cached=read.get("cached_tokens"),
        written=read.get("cache_write_tokens"),
        written_1h=written_1h,
        reasoning=inner_counts(counts, "output_tokens_details").get("reasoning_tokens"),
        web_searches=searches or None,
        service_tier=response.get("service_tier") or counts.get("service_tier"),
    )

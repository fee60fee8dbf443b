"""The token counts of a Chat answer, found under the names that vendors give them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from translator.anthropic.usage import Usage, usage_from_openai
from translator.notes import Note

CHARACTERS_PER_TOKEN: Final = 4

ESTIMATED: Final = Note("usage", "emulated", "the upstream told no final usage; it is estimated")

SERVICE_TIERS: Final = {"priority": "priority", "fast": "priority"}
"""OpenAI's tiers in Anthropic's words; every other one that is named is ``standard``."""

Counts = Mapping[str, Any]


def counts_in(chunk: Mapping[str, Any]) -> Counts | None:
    """The usage object of a chunk or whole answer; Groq and Moonshot tuck it away."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    for holder in (chunk, chunk.get("x_groq"), first):
        counts = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(counts, dict) and counts:
            return counts
    return None


def usage_of(counts: Counts, service_tier: Any = None) -> tuple[Usage, list[Note]]:
    """Anthropic's arithmetic over the vendor's counts (mapping.md 3.4)."""
    prompt = _details(counts, "prompt_tokens_details")
    completion = _details(counts, "completion_tokens_details")
    reasoning = _first(completion.get("reasoning_tokens"), counts.get("reasoning_tokens"))
    usage, notes = usage_from_openai(
        total_input=counts.get("prompt_tokens"),
        output=_output(counts, reasoning),
        cached=_first(
            prompt.get("cached_tokens"),
            counts.get("prompt_cache_hit_tokens"),  # DeepSeek
            counts.get("num_cached_tokens"),  # Mistral
            counts.get("cached_tokens"),  # Moonshot
        ),
        written=prompt.get("cache_write_tokens"),
        reasoning=reasoning,
        service_tier=(
            SERVICE_TIERS.get(service_tier, "standard") if isinstance(service_tier, str) else None
        ),
    )
    searches = _details(counts, "server_tool_use_details").get("web_search_requests")
    if type(searches) is int and searches > 0:  # OpenRouter
        usage = replace(usage, web_searches=searches)
    return usage, notes


def estimated_usage(known: Usage, input_estimate: int, said: int) -> tuple[Usage, Note]:
    """Fill what the upstream never told; ``said`` are the characters of the answer."""
    guess = -(-said // CHARACTERS_PER_TOKEN)
    estimate = replace(
        known,
        input=input_estimate if known.input is None else known.input,
        output=max(guess, known.output or 0),
        source="estimated",
    )
    return estimate, ESTIMATED


def _output(counts: Counts, reasoning: Any) -> Any:
    """All output tokens. Where a server counts reasoning beside them, its own total tells."""
    said, parts = counts.get("completion_tokens"), (counts.get("prompt_tokens"), reasoning)
    if type(said) is not int or not all(type(part) is int and part > 0 for part in parts):
        return said
    return said + reasoning if counts.get("total_tokens") == said + sum(parts) else said


def _details(counts: Counts, name: str) -> Counts:
    details = counts.get(name)
    return details if isinstance(details, dict) else {}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)

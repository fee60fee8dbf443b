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

CACHED: Final = (
    "prompt_cache_hit_tokens",
    "num_cached_tokens",
    "cached_tokens",
    "cache_read_input_tokens",
)
WRITTEN: Final = "cache_creation_input_tokens"
"""Where DeepSeek, Mistral, Moonshot, and Databricks and LiteLLM in front of Anthropic say what
OpenAI says in ``prompt_tokens_details``; ``prompt_tokens`` includes it everywhere."""

Counts = Mapping[str, Any]

NONE: Final[Counts] = {}


def counts_in(chunk: Mapping[str, Any], choices: Any) -> Counts | None:
    """The usage object of a chunk or whole answer; Groq and Moonshot tuck it away."""
    counts = chunk.get("usage")
    if type(counts) is not dict:
        counts = NONE
    if not counts and "x_groq" in chunk:
        counts = _details(_details(chunk, "x_groq"), "usage")
    if not counts and choices and type(choices) is list:
        first = choices[0]
        if type(first) is dict and "usage" in first:
            counts = _details(first, "usage")
    return counts or None


def usage_of(counts: Counts, service_tier: Any = None) -> tuple[Usage, list[Note]]:
    """Anthropic's arithmetic over the vendor's counts (mapping.md 3.4)."""
    prompt = _details(counts, "prompt_tokens_details")
    cached = prompt.get("cached_tokens")
    reasoning = _details(counts, "completion_tokens_details").get("reasoning_tokens")
    if reasoning is None:
        reasoning = counts.get("reasoning_tokens")
    if cached is None:
        told = (counts[name] for name in CACHED if name in counts)
        cached = next((count for count in told if count is not None), None)
    written = prompt.get("cache_write_tokens")
    if written is None and WRITTEN in counts:
        written = counts[WRITTEN]
    output = counts.get("completion_tokens")
    searches = None
    if "server_tool_use_details" in counts:  # OpenRouter
        searches = _details(counts, "server_tool_use_details").get("web_search_requests")
    tier = None
    if type(service_tier) is str:
        tier = SERVICE_TIERS.get(service_tier, "standard")
    return usage_from_openai(
        total_input=counts.get("prompt_tokens"),
        output=_output(counts, output, reasoning) if reasoning else output,
        cached=cached,
        written=written,
        reasoning=reasoning,
        web_searches=searches if type(searches) is int and searches > 0 else None,
        service_tier=tier,
    )


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


def _output(counts: Counts, said: Any, reasoning: Any) -> Any:
    """All output tokens. Where a server counts reasoning beside them, its own total tells."""
    if type(said) is not int or type(reasoning) is not int or reasoning <= 0:
        return said
    prompt = counts.get("prompt_tokens")
    if (
        type(prompt) is int
        and prompt > 0
        and counts.get("total_tokens") == prompt + said + reasoning
    ):
        return said + reasoning
    return said


def _details(counts: Counts, name: str) -> Counts:
    details = counts.get(name)
    return details if type(details) is dict else NONE

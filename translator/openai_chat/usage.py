"""Read the token counts of a Chat Completions response, under each vendor's field names."""

from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic.usage import (
    NO_COUNTS,
    Usage,
    first_count,
    inner_counts,
    usage_from_openai,
)
from translator.notes import Note

CACHED: Final = (
    "prompt_cache_hit_tokens",
    "num_cached_tokens",
    "cached_tokens",
    "cache_read_input_tokens",
)
WRITTEN: Final = ("cache_creation_input_tokens", "cache_creation_tokens")
"""``CACHED`` and ``WRITTEN`` are names that vendors use instead of OpenAI's
``prompt_tokens_details``: DeepSeek, Mistral and Moonshot, and Databricks and LiteLLM as proxies for
Anthropic. ``prompt_tokens`` always includes these tokens. Qwen uses the names of ``WRITTEN`` inside
``prompt_tokens_details``, and LiteLLM the shorter of them."""

LIFETIMES: Final = ("cache_creation", "cache_creation_token_details")
"""Fields in which Qwen and LiteLLM count cache writes by lifetime (five minutes, one hour)."""

Counts = Mapping[str, Any]


def find_counts(chunk: Mapping[str, Any], choices: Any) -> Counts | None:
    """Return the usage object of a chunk or response; None if there is none.

    Groq and Moonshot nest the usage object in another field. llama.cpp reports timings
    even if no usage was requested.
    """
    counts = chunk.get("usage")
    if type(counts) is not dict:
        counts = NO_COUNTS
    if not counts and "x_groq" in chunk:
        counts = inner_counts(inner_counts(chunk, "x_groq"), "usage")
    if not counts and choices and type(choices) is list:
        first = choices[0]
        if type(first) is dict and "usage" in first:
            counts = inner_counts(first, "usage")
    if not counts and "timings" in chunk:
        # Token counts from llama.cpp's timings; old versions do not report cached tokens
        timings = inner_counts(chunk, "timings")
        cached, evaluated = timings.get("cache_n"), timings.get("prompt_n")
        total = cached + evaluated if type(cached) is type(evaluated) is int else None
        counts = {
            "prompt_tokens": total,
            "completion_tokens": timings.get("predicted_n"),
            "cached_tokens": cached,
        }
    return counts or None


def read_usage(counts: Counts, service_tier: Any = None) -> tuple[Usage, list[Note]]:
    """Convert a vendor's token counts to Anthropic's (docs/mapping.md)."""
    prompt = inner_counts(counts, "prompt_tokens_details")
    cached = prompt.get("cached_tokens")
    reasoning = inner_counts(counts, "completion_tokens_details").get("reasoning_tokens")
    if reasoning is None:
        reasoning = counts.get("reasoning_tokens")
    if cached is None:
        candidates = (counts[name] for name in CACHED if name in counts)
        cached = next((count for count in candidates if count is not None), None)
    written, written_1h = prompt.get("cache_write_tokens"), None
    for name in WRITTEN:
        if written is None and (name in prompt or name in counts):
            holder = prompt if name in prompt else counts
            split = next(
                (inner_counts(holder, name) for name in LIFETIMES if name in holder), NO_COUNTS
            )
            written, written_1h = holder[name], split.get("ephemeral_1h_input_tokens")
    # A few servers use the field names of the Responses API.
    total = first_count(counts, "prompt_tokens", "input_tokens")
    output = first_count(counts, "completion_tokens", "output_tokens")
    if reasoning is None and not (prompt or cached or written):
        reasoning = _hidden_reasoning(counts, total, output)
    searches = None
    if "server_tool_use_details" in counts:  # only OpenRouter sends it
        searches = inner_counts(counts, "server_tool_use_details").get("web_search_requests")
    return usage_from_openai(
        total_input=total,
        output=_total_output(counts, total, output, reasoning) if reasoning else output,
        cached=cached,
        written=written,
        written_1h=written_1h,
        reasoning=reasoning,
        web_searches=searches if type(searches) is int and searches > 0 else None,
        service_tier=service_tier or _tier_in(counts),
    )


def _tier_in(counts: Counts) -> Any:
    """Return the tier that the usage object names: Mistral's own, or Gemini's traffic type."""
    if "extra_properties" in counts:
        return inner_counts(inner_counts(counts, "extra_properties"), "google").get("traffic_type")
    return counts.get("service_tier")


def _hidden_reasoning(counts: Counts, total: Any, output: Any) -> int | None:
    """Return the tokens that only ``total_tokens`` has: the thoughts of Gemini.

    The difference means this only where the server divides its counts no further: Mistral has audio
    tokens in it, and proxies for Anthropic cached ones.
    """
    everything = counts.get("total_tokens")
    if "completion_tokens_details" in counts or not (
        type(everything) is type(total) is type(output) is int and total > 0
    ):
        return None
    return everything - total - output if everything > total + output else None


def _total_output(counts: Counts, prompt_tokens: Any, output: Any, reasoning: Any) -> Any:
    """Return all output tokens; ``total_tokens`` shows whether ``output`` excludes reasoning."""
    if type(output) is not int or type(reasoning) is not int or reasoning <= 0:
        return output
    if (
        type(prompt_tokens) is int
        and prompt_tokens > 0
        and counts.get("total_tokens") == prompt_tokens + output + reasoning
    ):
        return output + reasoning
    return output

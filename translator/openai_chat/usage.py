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
WRITTEN: Final = ("cache_creation_input_tokens", "cache_creation_tokens")
"""Where DeepSeek, Mistral, Moonshot, and Databricks and LiteLLM in front of Anthropic say what
OpenAI says in ``prompt_tokens_details``; ``prompt_tokens`` includes it everywhere. Qwen writes the
names of ``WRITTEN`` there, too, and LiteLLM the shorter one."""

LIFETIMES: Final = ("cache_creation", "cache_creation_token_details")
"""Where Qwen and LiteLLM split these by Anthropic's two lifetimes."""

OF_INPUT: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h")
OF_OUTPUT: Final = ("output", "reasoning")

Counts = Mapping[str, Any]

NONE: Final[Counts] = {}


def counts_in(chunk: Mapping[str, Any], choices: Any) -> Counts | None:
    """The usage object of a chunk or whole answer; Groq and Moonshot tuck it away.

    llama.cpp that is not asked for one tells its timings all the same.
    """
    counts = chunk.get("usage")
    if type(counts) is not dict:
        counts = NONE
    if not counts and "x_groq" in chunk:
        counts = _details(_details(chunk, "x_groq"), "usage")
    if not counts and choices and type(choices) is list:
        first = choices[0]
        if type(first) is dict and "usage" in first:
            counts = _details(first, "usage")
    if not counts and "timings" in chunk:
        counts = _timed(_details(chunk, "timings"))
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
    written, written_1h = prompt.get("cache_write_tokens"), None
    for name in WRITTEN:
        if written is None and (name in prompt or name in counts):
            place = prompt if name in prompt else counts
            written, written_1h = place[name], _for_an_hour(place)
    # A few servers take the names of OpenAI's other API.
    total = counts["prompt_tokens"] if "prompt_tokens" in counts else counts.get("input_tokens")
    output = counts.get("completion_tokens" if "completion_tokens" in counts else "output_tokens")
    searches = None
    if "server_tool_use_details" in counts:  # OpenRouter
        searches = _details(counts, "server_tool_use_details").get("web_search_requests")
    tier = None
    if type(service_tier) is str:
        tier = SERVICE_TIERS.get(service_tier, "standard")
    return usage_from_openai(
        total_input=total,
        output=_output(counts, total, output, reasoning) if reasoning else output,
        cached=cached,
        written=written,
        written_1h=written_1h,
        reasoning=reasoning,
        web_searches=searches if type(searches) is int and searches > 0 else None,
        service_tier=tier,
    )


def last_told(before: Usage, told: Usage) -> Usage:
    """What counts after another usage object: counts grow, so a zero after a count tells nothing.

    Proxies tell the prompt in the first chunk and the answer in the last, or end in zeros.
    """
    silent: tuple[str, ...] = ()
    if not (told.input or told.cache_read or told.cache_write_5m or told.cache_write_1h):
        silent = OF_INPUT
    if not told.output:
        silent += OF_OUTPUT
    if not silent:
        return told
    told = replace(told, **{name: getattr(before, name) for name in silent})
    told.source = "missing" if told.input is None or told.output is None else "reported"
    return told


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


def _output(counts: Counts, prompt: Any, said: Any, reasoning: Any) -> Any:
    """All output tokens. Where a server counts reasoning beside them, its own total tells."""
    if type(said) is not int or type(reasoning) is not int or reasoning <= 0:
        return said
    if (
        type(prompt) is int
        and prompt > 0
        and counts.get("total_tokens") == prompt + said + reasoning
    ):
        return said + reasoning
    return said


def _for_an_hour(place: Counts) -> Any:
    """The part of what was written to a cache that lives for an hour, where that is told."""
    split = next((_details(place, name) for name in LIFETIMES if name in place), NONE)
    return split.get("ephemeral_1h_input_tokens")


def _timed(timings: Counts) -> Counts:
    """Counts out of llama.cpp's timings; older ones leave out what was cached of the prompt."""
    cached, evaluated = timings.get("cache_n"), timings.get("prompt_n")
    total = cached + evaluated if type(cached) is type(evaluated) is int else None
    return {
        "prompt_tokens": total,
        "completion_tokens": timings.get("predicted_n"),
        "cached_tokens": cached,
    }


def _details(counts: Counts, name: str) -> Counts:
    details = counts.get(name)
    return details if type(details) is dict else NONE

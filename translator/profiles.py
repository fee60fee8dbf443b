"""Capability profiles: what a kind of upstream server can do, as data.

A dialect never sniffs a model or host name; it asks the profile. ``Profile`` fields with their
default describe the most careful server of all; each named profile says only where it differs.
A single capability can be overridden in ``bridge.toml`` (``capabilities = {...}``).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from .errors import TranslatorError

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one kind of server accepts. Every field is a fact about the server, not a wish."""

    name: str = "generic"

    # Both dialects
    efforts: tuple[Effort, ...] = ()
    """Reasoning efforts it takes, ascending; empty: no effort parameter at all."""
    sampling_with_reasoning: bool = True
    """Takes temperature and top_p although reasoning is on (OpenAI's reasoning models do not)."""
    parallel_tool_calls: bool = False
    """Knows the ``parallel_tool_calls`` parameter."""
    json_schema: bool = True
    """Takes structured output by JSON schema."""
    strict_schemas: bool = False
    """Knows ``strict`` on function schemas, which must then always be sent explicitly."""
    safety_identifier: bool = False
    prompt_cache_key: bool = False
    service_tier: bool = False
    images: bool = True
    max_tools: int = 128
    user_field: bool = False
    """Knows the old ``user`` parameter, the place for the hashed user id where no better one is."""
    computer: bool = False
    """Places clicks well enough for Anthropic's computer tools to be told as functions."""
    inference_geos: tuple[str, ...] = ()
    """Regions that it keeps to; a request that demands another one in ``inference_geo`` is
    refused."""
    broken_tool_json: Literal["raw", "error"] = "raw"
    """What becomes of tool arguments that do not parse: handed on as they are, or an error."""
    refused_prompt: Literal["answer", "error"] = "answer"
    """What becomes of a prompt that its content filter refuses: an answer with ``stop_reason``
    ``refusal``, which agents understand, or a 400 that names the filter."""

    # Responses
    encrypted_reasoning: bool = False
    """Returns reasoning as ``encrypted_content`` and takes it back."""
    reasoning_summary: bool = False
    stream_obfuscation: bool = False
    """Knows ``stream_options.include_obfuscation``."""
    cache_breakpoints: bool = False
    """Knows ``prompt_cache_breakpoint`` on content parts."""
    prewarm: bool = False
    phase: bool = False
    """Reads ``phase`` on assistant messages."""
    configuration_update: bool = False
    compaction: bool = False
    media_in_tool_output: bool = True
    """``function_call_output.output`` may be a list with images and files."""
    web_search: bool = False
    code_interpreter: bool = False
    mcp: bool = False
    count_tokens: bool = False
    """Answers ``POST {base}/responses/input_tokens``; a Chat server, as vLLM and llama.cpp may, on
    ``{base}/messages/count_tokens``."""
    context_window: int = 0
    """Tokens that input and output share; 0: not known."""
    files: bool = False
    """Takes ``input_file`` (Responses) or ``file`` (Chat) parts with PDF data."""

    # Chat Completions
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_options: bool = True
    """Knows ``stream_options.include_usage``."""
    top_k: bool = False
    required_tool_choice: bool = False
    """Takes ``tool_choice: required``; else ``any`` becomes ``auto`` with a note (D11)."""
    developer_role: bool = False
    """System text goes as ``developer`` instead of ``system``."""
    system_in_place: bool = False
    """Takes system messages in mid conversation; else they are hoisted into the first one."""
    reasoning_field: Literal["", "reasoning_content", "reasoning", "reasoning_details"] = ""
    """Where earlier reasoning goes on an assistant message; empty: nowhere."""
    reasoning_required_with_tools: bool = False
    """Refuses an assistant tool call in history without its reasoning (DeepSeek)."""
    thinking_switch: Literal["", "thinking", "enable_thinking"] = ""
    """A vendor's switch: ``thinking.type`` or ``chat_template_kwargs.enable_thinking``."""
    think_tags: bool = False
    """Writes reasoning as ``<think>…</think>`` at the start of the content, or in like tags."""
    think_tags_opened: bool = False
    """Its template writes the opening tag into the prompt, so that the content has only
    ``</think>``. What comes before is held back until it comes: without it, it was the answer."""
    empty_content: bool = False
    """Wants ``""`` instead of null as the content of a message that has only tool calls."""
    merge_users: bool = False
    """Its template demands alternation: consecutive user messages are merged."""
    prefill: bool = False
    """Continues a trailing assistant message."""
    cumulative_arguments: bool = False
    """Sends tool arguments so far in each chunk, not only what is new."""

    # Anthropic Messages: Anthropic itself and servers that are compatible with it
    bearer_auth: bool = False
    """Takes its key as ``Authorization: Bearer`` only, not as ``x-api-key``."""
    refused_fields: tuple[str, ...] = ()
    """Top-level request fields it does not know; they are left out, each with a note."""
    server_tools: bool = True
    """Runs Anthropic's server tools; else they are left out of ``tools``, each with a note."""
    mid_system: bool = True
    """Takes ``role: system`` inside ``messages``; else its text goes as the user's, with a note."""


PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(),
        Profile(
            name="openai",
            efforts=("none", "minimal", "low", "medium", "high", "xhigh"),
            sampling_with_reasoning=False,
            parallel_tool_calls=True,
            strict_schemas=True,
            safety_identifier=True,
            prompt_cache_key=True,
            service_tier=True,
            encrypted_reasoning=True,
            reasoning_summary=True,
            stream_obfuscation=True,
            phase=True,
            web_search=True,
            code_interpreter=True,
            mcp=True,
            count_tokens=True,
            files=True,
            max_tokens_field="max_completion_tokens",
            required_tool_choice=True,
            developer_role=True,
            system_in_place=True,
        ),
        Profile(
            name="azure",
            efforts=("none", "minimal", "low", "medium", "high"),
            sampling_with_reasoning=False,
            parallel_tool_calls=True,
            strict_schemas=True,
            prompt_cache_key=True,
            encrypted_reasoning=True,
            reasoning_summary=True,
            code_interpreter=True,
            files=True,
            max_tokens_field="max_completion_tokens",
            required_tool_choice=True,
            developer_role=True,
            system_in_place=True,
            user_field=True,
        ),
        Profile(
            name="vllm",
            efforts=("low", "medium", "high"),
            parallel_tool_calls=True,
            top_k=True,
            required_tool_choice=True,
            reasoning_field="reasoning",
            thinking_switch="enable_thinking",
            prefill=True,
        ),
        Profile(name="ollama", efforts=("low", "medium", "high"), empty_content=True),
        Profile(
            name="llamacpp",
            top_k=True,
            required_tool_choice=True,
            parallel_tool_calls=True,
            reasoning_field="reasoning_content",
            thinking_switch="enable_thinking",
        ),
        Profile(
            name="deepseek",
            json_schema=False,
            reasoning_field="reasoning_content",
            reasoning_required_with_tools=True,
            thinking_switch="thinking",
            images=False,
        ),
        Profile(
            name="openrouter",
            efforts=("minimal", "low", "medium", "high", "xhigh"),
            parallel_tool_calls=True,
            strict_schemas=True,
            files=True,
            top_k=True,
            required_tool_choice=True,
            system_in_place=True,
            reasoning_field="reasoning_details",
            user_field=True,
        ),
        Profile(
            name="gemini",
            efforts=("none", "low", "medium", "high"),
            required_tool_choice=True,
        ),
        Profile(name="anthropic", count_tokens=True),
    )
}


def profile_with(name: str, overrides: Mapping[str, Any]) -> Profile:
    """The named profile with single capabilities replaced.

    Raises TranslatorError for an unknown profile, capability or value.
    """
    if name not in PROFILES:
        raise TranslatorError(f"unknown profile {name!r}; known: {', '.join(sorted(PROFILES))}")
    types = get_type_hints(Profile)
    known = sorted(types.keys() - {"name"})
    values: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in known:
            raise TranslatorError(f"unknown capability {key!r}; known: {', '.join(known)}")
        values[key] = tuple(value) if isinstance(value, list) else value
        expected = _unfit(values[key], types[key])
        if expected:
            raise TranslatorError(f"capability {key!r} is {value!r}; {expected} is expected")
    return dataclasses.replace(PROFILES[name], **values)


def _unfit(value: Any, kind: Any) -> str:
    """What should stand where a value does not fit its field; empty where it fits."""
    choices = get_args(kind)
    if not choices:
        return "" if type(value) is kind else f"a {kind.__name__}"
    if get_origin(kind) is tuple:
        inner = get_args(choices[0])  # of a Literal; none: any text
        fits = isinstance(value, tuple) and all(
            each in inner if inner else isinstance(each, str) for each in value
        )
        return "" if fits else f"a list of {', '.join(inner) or 'names'}"
    return "" if value in choices else f"one of {', '.join(map(repr, choices))}"

"""Capability profiles: what each kind of upstream server supports, as data.

Request and response translation never inspects a model name or host name; it reads the profile. The
defaults of the ``Profile`` fields describe the least capable server; a named profile lists only its
differences. ``bridge.toml`` can override single capabilities (``capabilities = {...}``).
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
    """The capabilities of one kind of upstream server, such as vLLM or Azure."""

    name: str = "generic"

    # Capabilities for both OpenAI APIs
    efforts: tuple[Effort, ...] = ()
    """Reasoning efforts that the server accepts, ascending; empty if it has no effort parameter."""
    sampling_with_reasoning: bool = True
    """Whether temperature and top_p are sent while the model reasons. OpenAI's reasoning models
    refuse them: the gateway then leaves them out and remembers it for the model."""
    parallel_tool_calls: bool = False
    """Whether the server accepts the ``parallel_tool_calls`` parameter."""
    json_schema: bool = True
    """Whether the server supports structured output by JSON schema."""
    strict_schemas: bool = False
    """Whether the server accepts ``strict`` in function definitions; ``strict`` is then always
    sent, true or false."""
    safety_identifier: bool = False
    prompt_cache_key: bool = False
    service_tier: bool = False
    images: bool = True
    max_tools: int = 0
    """The largest number of tools that the server accepts; 0 if it has no limit, or none is known:
    then the server itself refuses what is too much."""
    user_field: bool = False
    """Whether the server accepts the deprecated ``user`` parameter; it carries the hashed user id
    if the server has no newer field for it."""
    computer: bool = False
    """Whether its models return screen coordinates accurate enough for Anthropic's computer tools,
    which are then offered as functions."""
    inference_geos: tuple[str, ...] = ()
    """Regions in which the upstream processes data. The gateway rejects a request with an
    ``inference_geo`` that is not listed."""
    broken_tool_json: Literal["raw", "error"] = "raw"
    """For tool arguments that are not valid JSON: ``raw`` passes them to the client as a string,
    ``error`` ends the stream with an error."""
    refused_prompt: Literal["answer", "error"] = "answer"
    """For a prompt that the upstream's content filter rejects: ``answer`` returns a message with
    ``stop_reason`` ``refusal``, which agents handle; ``error`` returns a 400 that names the
    filter."""

    # Capabilities for the Responses API only
    min_output_tokens: int = 0
    """The smallest ``max_output_tokens`` that the server accepts: OpenAI rejects less than 16."""
    encrypted_reasoning: bool = False
    """Whether the server returns reasoning as ``encrypted_content`` and accepts it in later
    requests."""
    reasoning_summary: bool = False
    stream_obfuscation: bool = False
    """Whether the server accepts ``stream_options.include_obfuscation``."""
    cache_breakpoints: bool = False
    """Whether the server accepts ``prompt_cache_breakpoint`` on content parts."""
    prewarm: bool = False
    phase: bool = False
    """Whether the server accepts ``phase`` (commentary or final answer) on assistant messages."""
    configuration_update: bool = False
    compaction: bool = False
    media_in_tool_output: bool = True
    """Whether the server accepts a list with images and files in ``function_call_output.output``,
    not only text."""
    web_search: bool = False
    code_interpreter: bool = False
    mcp: bool = False
    count_tokens: bool = False
    """Whether the server has an endpoint that counts tokens: ``POST
    {base}/responses/input_tokens``, or, on Chat Completions servers such as vLLM and llama.cpp,
    ``{base}/messages/count_tokens``."""
    context_window: int = 0
    """Size of the context window (input and output) in tokens; 0 if unknown."""
    files: bool = False
    """Whether the server accepts PDF data in ``input_file`` (Responses) or ``file`` (Chat
    Completions) parts."""

    # Capabilities for Chat Completions only
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_options: bool = True
    """Whether the server accepts ``stream_options.include_usage``."""
    top_k: bool = False
    required_tool_choice: bool = False
    """Whether the server accepts ``tool_choice: required``. Otherwise Anthropic's ``any`` is sent
    as ``auto`` with a note."""
    developer_role: bool = False
    """Whether the server expects the system prompt in a message with the role ``developer`` instead
    of ``system``."""
    system_in_place: bool = False
    """Whether the server accepts system messages between other messages; otherwise their text is
    added to the first system message."""
    reasoning_field: Literal["", "reasoning_content", "reasoning", "reasoning_details"] = ""
    """The field of an assistant message in which reasoning of earlier turns is sent; empty if the
    server accepts none."""
    reasoning_required_with_tools: bool = False
    """Whether the server rejects a history with an assistant tool call that lacks its reasoning
    (DeepSeek)."""
    thinking_switch: Literal["", "thinking", "enable_thinking"] = ""
    """The vendor's field that turns reasoning on and off: ``thinking.type`` or
    ``chat_template_kwargs.enable_thinking``; empty if none."""
    think_tags: bool = False
    """Whether the server sends reasoning as ``<think>…</think>``, or in similar tags, at the start
    of the content."""
    think_tags_opened: bool = False
    """The server's chat template puts the opening tag into the prompt, so the content has only
    ``</think>``. Text is buffered until that tag; without the tag, the text was the answer."""
    empty_content: bool = False
    """Whether the server requires ``""`` instead of null as the content of an assistant message
    with only tool calls."""
    merge_users: bool = False
    """Whether the server's chat template requires alternating roles. Then consecutive messages of
    one role are merged, and user text after a tool result is sent at the end of the result."""
    single_calls: bool = False
    """Whether the server's chat template accepts only one tool call in a message. Then parallel
    calls of the history are sent one after the other."""
    tool_messages: bool = True
    """Whether the server's chat template accepts tool calls and results. Otherwise those of the
    history are sent as text."""
    system_role: bool = True
    """Whether the server's chat template accepts system messages. Otherwise their text is sent at
    the start of the first user message."""
    prefill: bool = False
    """Whether the server continues a final assistant message instead of starting another one."""
    signed_calls: bool = False
    """Whether the server sends a thought signature with tool calls, sometimes at their end
    (Gemini). A call starts only when it is complete, because its id carries the signature."""
    budget_field: Literal["", "thinking_budget_tokens"] = ""
    """The field for the maximum number of reasoning tokens; empty if the server has none."""
    timings_per_token: bool = False
    """Whether the server reports token counts in each chunk on request (llama.cpp). They are
    requested if the gateway may end a response early, at a stop sequence."""
    cumulative_arguments: bool = False
    """Whether the server sends in each chunk all tool arguments so far instead of only the new
    ones."""

    # Capabilities for Anthropic itself and servers compatible with Anthropic's API
    bearer_auth: bool = False
    """Whether the server accepts its API key only as ``Authorization: Bearer``, not as
    ``x-api-key``."""
    refused_fields: tuple[str, ...] = ()
    """Top-level request fields that the server rejects; each is dropped with a note."""
    unsigned_thinking: bool = False
    """Accepts thinking blocks without a signature. Otherwise they are removed from requests, with
    notes."""
    server_tools: bool = True
    """Whether the server runs Anthropic's server tools; otherwise these tools are removed from
    requests, with notes."""
    betas: tuple[str, ...] = ("*",)
    """Names in ``anthropic-beta`` that the server accepts, as globs. Others are dropped, with
    notes."""
    mid_system: bool = True
    """Whether the server accepts messages with ``role: system`` inside ``messages``. Otherwise
    their text is sent as a user message, with a note."""


BEDROCK_BETAS: Final = (
    "compact-*", "computer-use-*", "context-1m-*", "context-management-*", "dangerous-tool-use-*",
    "effort-*", "fine-grained-tool-streaming-*", "interleaved-thinking-*",
    "mid-conversation-*", "thinking-binding-controls-*", "thinking-display-updates-*",
    "tool-examples-*", "tool-search-tool-*",
)  # fmt: skip
"""Amazon answers 400 to any other beta. Source: "Anthropic Claude Messages API" of Bedrock."""

PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(),
        Profile(
            name="openai",
            efforts=("none", "minimal", "low", "medium", "high", "xhigh"),
            parallel_tool_calls=True,
            strict_schemas=True,
            safety_identifier=True,
            prompt_cache_key=True,
            service_tier=True,
            min_output_tokens=16,
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
            efforts=("none", "minimal", "low", "medium", "high", "xhigh"),
            parallel_tool_calls=True,
            strict_schemas=True,
            prompt_cache_key=True,
            min_output_tokens=16,
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
            unsigned_thinking=True,
            budget_field="thinking_budget_tokens",
            timings_per_token=True,
            prefill=True,
            count_tokens=True,
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
            signed_calls=True,
        ),
        Profile(name="anthropic", count_tokens=True),
        Profile(
            name="bedrock",
            count_tokens=True,
            bearer_auth=True,
            betas=BEDROCK_BETAS,
            refused_fields=(
                "container",
                "inference_geo",
                "mcp_servers",
                "service_tier",
                "speed",
                "tags",
            ),
        ),
        Profile(
            name="bedrock_messages",
            count_tokens=True,
            bearer_auth=True,
            betas=(
                *BEDROCK_BETAS,
                "claude-code-*",
                "interleaved-thinking-*",
                "output-128k-*",
                "per-turn-control-*",
                "structured-outputs-*",
                "token-efficient-tools-*",
                "web-search-*",
            ),
            refused_fields=("container", "inference_geo", "mcp_servers", "speed", "tags"),
        ),
        Profile(
            name="vertex",
            count_tokens=True,
            bearer_auth=True,
            betas=(
                "compact-*",
                "computer-use-*",
                "context-1m-*",
                "context-management-*",
                "dangerous-tool-use-*",
                "interleaved-thinking-*",
                "per-turn-control-*",
                "thinking-binding-controls-*",
                "thinking-display-updates-*",
                "tool-search-tool-*",
                "web-search-*",
            ),
            refused_fields=(
                "container",
                "inference_geo",
                "mcp_servers",
                "service_tier",
                "speed",
                "tags",
            ),
        ),
        Profile(
            name="foundry",
            count_tokens=True,
            betas=(
                "advanced-tool-use-*",
                "claude-code-*",
                "code-execution-*",
                "computer-use-*",
                "context-1m-*",
                "context-management-*",
                "dangerous-tool-use-*",
                "effort-*",
                "files-api-*",
                "interleaved-thinking-*",
                "mcp-client-*",
                "per-turn-control-*",
                "prompt-caching-scope-*",
                "skills-*",
                "structured-outputs-*",
                "thinking-display-updates-*",
                "web-fetch-*",
                "web-search-*",
            ),
            refused_fields=("inference_geo", "speed", "tags"),
        ),
    )
}


def profile_with(name: str, overrides: Mapping[str, Any]) -> Profile:
    """Return the named profile with the capabilities in ``overrides`` replaced.

    Raises TranslatorError for an unknown profile, capability or value.
    """
    if name not in PROFILES:
        raise TranslatorError(f"unknown profile {name!r}; known: {', '.join(sorted(PROFILES))}")
    types = get_type_hints(Profile)
    capabilities = sorted(types.keys() - {"name"})
    values: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in capabilities:
            raise TranslatorError(f"unknown capability {key!r}; known: {', '.join(capabilities)}")
        values[key] = tuple(value) if isinstance(value, list) else value
        expected = _expected_value(values[key], types[key])
        if expected:
            raise TranslatorError(f"capability {key!r} is {value!r}; {expected} is expected")
    return dataclasses.replace(PROFILES[name], **values)


def _expected_value(value: Any, kind: Any) -> str:
    """Describe the valid values of a field of type ``kind``; return "" if ``value`` is valid."""
    choices = get_args(kind)
    if not choices:
        return "" if type(value) is kind else f"a {kind.__name__}"
    if get_origin(kind) is tuple:
        allowed = get_args(choices[0])  # the allowed values of a Literal; empty: any string
        is_valid = isinstance(value, tuple) and all(
            item in allowed if allowed else isinstance(item, str) for item in value
        )
        return "" if is_valid else f"a list of {', '.join(allowed) or 'names'}"
    return "" if value in choices else f"one of {', '.join(map(repr, choices))}"

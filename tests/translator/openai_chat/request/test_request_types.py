"""Check that the types of the ``openai`` SDK accept every request body, without unknown keys.

The SDK's TypedDicts are made strict first: no extra keys, no coercion, and lists instead of
iterables (pydantic validates an iterable only when it is read).
"""

import collections.abc
import functools
import json
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import typing_extensions
from openai.types.chat.completion_create_params import CompletionCreateParams
from pydantic import ConfigDict, TypeAdapter, ValidationError

from tests.fakes.anthropic_requests import (
    KEYS,
    PDF,
    PIXEL,
    WEATHER,
    assistant,
    call,
    make_request,
    result,
    text,
    user,
)
from tests.fakes.upstreams.recordings import ABSENT, recordings
from tests.for_each import for_each
from tests.translator.openai_chat.requests import target
from translator.capabilities import PROFILES
from translator.errors import BadRequest
from translator.openai_chat import DIALECT

VENDOR_KEYS = {
    "vllm": {"top_k", "chat_template_kwargs", "continue_final_message", "add_generation_prompt"},
    "llamacpp": {
        "top_k",
        "chat_template_kwargs",
        "thinking_budget_tokens",
        "timings_per_token",
        "continue_final_message",
        "add_generation_prompt",
    },
    "openrouter": {"top_k"},
    "deepseek": {"thinking"},
}
"""Top-level keys that only the server of the profile accepts."""

VENDOR_MESSAGE_KEYS = {"reasoning", "reasoning_content", "reasoning_details"}

REFUSED = {
    "cc-analytics__docs-session-layout-optimization_full_details_with_mitm_detailed__json0": "messages.1",
    "fantasy__TestAnthropicComputerUse-claude-sonnet-4-computer_use__i1": "tools.0.type",
    "pydantic-ai__test_anthropic-test_anthropic_mcp_servers__i1": "mcp_servers",
    "pydantic-ai__test_code_execution_files_vcr-test_anthropic_code_execution_files_cache_prefix_stable-messa-75daf394": "messages.0.content.1.type",
}
"""Recorded requests that Chat cannot serve, and the path in the error: a prefill,
a computer, MCP servers, an upload to a container."""


def strict(kind: Any) -> Any:
    """Return the type with every TypedDict closed and every Iterable replaced by a list."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if typing_extensions.is_typeddict(kind):
        return closed(kind)
    if origin in (collections.abc.Iterable, list):
        return list[strict(arguments[0])]
    if origin is dict:
        return dict[arguments[0], strict(arguments[1])]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(strict(argument) for argument in arguments)]  # noqa: UP007 - built at run time
    if origin in (typing_extensions.Required, typing_extensions.NotRequired, typing.Required):
        return origin[strict(arguments[0])]
    return kind


@functools.cache
def closed(kind: Any) -> Any:
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    fields = {
        name: strict(hint)
        if name in kind.__required_keys__
        else typing_extensions.NotRequired[strict(bare(hint))]
        for name, hint in hints.items()
    }
    made = typing_extensions.TypedDict(kind.__name__, fields)  # type: ignore[operator]  # built at run time
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made


def bare(hint: Any) -> Any:
    marked = typing.get_origin(hint) in (typing_extensions.NotRequired, typing.NotRequired)
    return typing.get_args(hint)[0] if marked else hint


@functools.cache
def judge() -> TypeAdapter[Any]:
    return TypeAdapter(strict(CompletionCreateParams))


def faults(body: dict[str, Any], profile: str) -> list[str]:
    """Return the errors of a body with their paths, without those of vendor keys."""
    known = {k: v for k, v in body.items() if k not in VENDOR_KEYS.get(profile, ())}
    if profile != "openai":
        known["messages"] = [
            {k: v for k, v in message.items() if k not in VENDOR_MESSAGE_KEYS}
            for message in body["messages"]
        ]
    if profile == "gemini":
        for message in known["messages"]:
            if "tool_calls" in message:
                message["tool_calls"] = [
                    {k: v for k, v in call.items() if k != "extra_content"}
                    for call in message["tool_calls"]
                ]
    try:
        judge().validate_python(known, strict=True)
    except ValidationError as error:
        return [f"{fault['loc']}: {fault['type']}" for fault in error.errors()]
    return []


EVERYTHING = make_request(
    user(text("Look."), {"type": "image", "source": PIXEL}),
    assistant(
        {"type": "thinking", "thinking": "Hm.", "signature": ""}, text("Ok."), call(city="Oslo")
    ),
    user(result(text("Shot."), {"type": "image", "source": PIXEL}), text("And?")),
    system=[text("Be brief.", cache_control={"type": "ephemeral"})],
    stream=True,
    temperature=0.5,
    top_p=0.9,
    top_k=5,
    stop_sequences=["END"],
    tools=[WEATHER, {**WEATHER, "name": "loose", "strict": True}],
    tool_choice={"type": "any", "disable_parallel_tool_use": True},
    thinking={"type": "adaptive"},
    output_config={
        "effort": "max",
        "format": {"type": "json_schema", "schema": WEATHER["input_schema"]},
    },
    metadata={"user_id": "user_1_session_2"},
    service_tier="auto",
)


@for_each("profile", PROFILES)
def test_a_request_with_everything_is_valid_for_every_profile(profile):
    built = DIALECT.build_request(EVERYTHING, target(profile, keys=KEYS))

    assert faults(built.body, profile) == []


def test_parts_that_only_openai_takes_are_valid():
    document = {"type": "document", "source": PDF, "cache_control": {"type": "ephemeral"}}
    built = DIALECT.build_request(
        make_request(user(document)), target("openai", cache_breakpoints=True)
    )

    assert faults(built.body, "openai") == []


@for_each(
    "invalid_fields",
    [
        {"top_k": 5},
        {"max_tokens": "100"},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x", "colour": "red"}]}
            ]
        },
        {"messages": [{"role": "assistant", "content": "x", "reasoning": "y"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "schema": {}}}]},
    ],
    ids=["unknown key", "wrong type", "unknown part key", "vendor key", "unknown function key"],
)
def test_the_strict_types_reject_invalid_bodies(invalid_fields):
    sound = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}

    assert faults(sound, "openai") == []
    assert faults(sound | invalid_fields, "openai") != []


@pytest.mark.skipif(not recordings("anthropic-requests"), reason=ABSENT)
@for_each("profile", PROFILES)
@for_each("path", recordings("anthropic-requests"), ids=lambda path: path.stem)
def test_every_recorded_request_becomes_a_valid_body(path, profile):
    request = {"max_tokens": 1024} | request_of(path)  # count_tokens requests have no limit

    body, refused = outcome(request, profile)

    if body is None:
        assert refused == REFUSED.get(path.stem)
    else:
        assert path.stem not in REFUSED or PROFILES[profile].prefill
        assert faults(body, profile) == []


def outcome(request: dict[str, Any], profile: str) -> tuple[dict[str, Any] | None, str]:
    """Return the body, or None and the path in the error."""
    try:
        return DIALECT.build_request(request, target(profile)).body, ""
    except BadRequest as refusal:
        return None, refusal.path


def request_of(path: Path) -> dict[str, Any]:
    recorded = json.loads(path.read_bytes())
    return dict(recorded.get("body") or recorded)

"""Check that the openai SDK's types accept the body of every recorded client request."""

import json

import pydantic
import pytest

from tests.fakes.anthropic_requests import WEATHER, make_request, user
from tests.fakes.upstreams import recordings
from tests.for_each import for_each
from tests.translator.openai_responses.requests import build
from translator.errors import BadRequest

from .strict_types import assert_valid

BODIES = recordings.recordings("anthropic-requests")
TOKENS_TO_COUNT = {"max_tokens": 100}  # a count_tokens body has no limit
REFUSED = {
    "fantasy__TestAnthropicComputerUse-claude-sonnet-4-computer_use__i1": "tools.0.type",
    "pydantic-ai__test_code_execution_files_vcr-test_anthropic_code_execution_files_cache_prefix_stable-messa-75daf394": "messages.0.content.1.type",
}
"""Blocks that every upstream rejects: a computer screen, an upload to an Anthropic container."""
BEYOND = {
    "azure": {"mcp_servers"},
    "vllm": {"mcp_servers", "tools.0.type", "source"},
    "generic": {"mcp_servers", "tools.0.type", "source"},
}
"""Required features that a profile may lack: MCP servers, code execution, PDF documents."""


@pytest.mark.skipif(not BODIES, reason=recordings.ABSENT)
@for_each("path", BODIES, ids=lambda path: path.stem)
@for_each("stream", [True, False])
def test_a_recorded_request_becomes_a_valid_body(path, stream):
    request = TOKENS_TO_COUNT | json.loads(path.read_bytes()) | {"stream": stream}

    refused = refusal(request, "openai")

    assert (refused and refused.path) == REFUSED.get(path.stem)
    if refused is None:
        assert_valid(build(request).body)


@pytest.mark.skipif(not BODIES, reason=recordings.ABSENT)
@for_each("profile", BEYOND)
@for_each("path", BODIES, ids=lambda path: path.stem)
def test_another_profile_makes_a_valid_body_or_names_what_it_lacks(path, profile):
    request = TOKENS_TO_COUNT | json.loads(path.read_bytes())

    refused = refusal(request, profile)

    if refused is None:
        assert_valid(build(request, profile).body)
    else:
        lacks = BEYOND[profile] | {REFUSED.get(path.stem, "mcp_servers")}
        assert any(refused.path.endswith(lack) for lack in lacks), refused


def refusal(request, profile):
    try:
        build(request, profile)
    except BadRequest as refused:
        return refused
    return None


@for_each(
    "fault",
    [
        {"invented": 1},
        {"tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True, "x": 1}]},
        {"tools": [{"type": "function", "name": "f", "parameters": {}}]},
        {"input": [{"type": "message", "role": "user", "content": "x", "cache_control": {}}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "text"}]}]},
        {"reasoning": {"effort": "enormous"}},
    ],
)
def test_the_strict_types_reject_unknown_keys(fault):
    body = build(make_request(user("Hi."), tools=[WEATHER])).body
    assert_valid(body)

    with pytest.raises(pydantic.ValidationError):
        assert_valid(body | fault)

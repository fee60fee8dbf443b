"""Every upstream accepts every answer in the history of the next request.

Each recorded answer goes back as the assistant's turn, with results for its calls, through each
dialect and profile: to the upstream that made it, and to another one. OpenAI bodies are validated
with the types of the openai SDK, Anthropic bodies with the documented rules (``anthropic_rules``).
"""

import json
from typing import Any

import pytest

from tests.fakes import anthropic_rules
from tests.fakes.anthropic_requests import KEYS, make_request, user
from tests.fakes.upstreams import recordings
from tests.for_each import for_each
from tests.lanes import repeat
from tests.translator.openai_chat.request.test_request_types import faults as chat_faults
from tests.translator.openai_responses.request.strict_types import assert_valid
from translator import anthropic_upstream, openai_chat, openai_responses
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget, UpstreamRequest

from . import answers

CONTINUED = {
    "anthropic-json-ai__anthropic-anthropic-tool-search-deferred-regex.2",
    "anthropic-stream-ai__anthropic-anthropic-programmatic-tool-calling.1__answer14",
}
"""They have the result of a call that the server made in the turn before, which is not recorded."""
ALL = [
    answer
    for answer in (*answers.recorded(), *answers.of_anthropic(), *answers.of_cases())
    if not answer.failed and answer.name not in CONTINUED
]
SOME = ALL[:: repeat(fast=20, slow=1)]
RESPONSES = ("openai", "azure", "generic", "vllm", "llamacpp", "openrouter")
ANTHROPIC = ("anthropic", "generic", "vllm", "llamacpp", "bedrock_messages", "vertex")

pytestmark = [
    pytest.mark.repeated,
    pytest.mark.skipif(not answers.recorded(), reason=recordings.ABSENT),
    pytest.mark.timeout(900),
]


def second_turn(answer: answers.Answer) -> dict[str, Any]:
    """Return the request that a client sends after the answer."""
    content = answer.message["content"]
    calls = [block for block in content if block["type"] == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": "Done."} for call in calls
    ]
    turn = user(*results) if calls else user("Go on.")
    # A client must not send an empty turn: the SDKs' examples append the content as it is.
    history = [
        user("Begin."),
        *([{"role": "assistant", "content": content}] if content else []),
        turn,
    ]
    tools = [
        {
            "name": name,
            "description": "A tool.",
            "input_schema": {"type": "object", "properties": {}},
        }
        for name in sorted({call["name"] for call in calls})
    ]
    return make_request(*history, **({"tools": tools} if tools else {}))


def build(dialect: Any, profile: str, answer: answers.Answer, upstream: str) -> UpstreamRequest:
    target = TranslationTarget(
        upstream=upstream, model="m", profile=PROFILES[profile], signing_keys=KEYS
    )
    # A client sends JSON, so nothing that the translator keeps in its objects comes back.
    built: UpstreamRequest = dialect.build_request(
        json.loads(json.dumps(second_turn(answer))), target
    )
    return built


every_answer = for_each("answer", SOME, ids=lambda answer: answer.name)
upstreams = pytest.mark.parametrize("upstream", ["local", "other"])


@upstreams
@pytest.mark.parametrize("profile", PROFILES)
@every_answer
def test_chat_accepts_each_answer(answer, profile, upstream):
    assert chat_faults(build(openai_chat.DIALECT, profile, answer, upstream).body, profile) == []


@upstreams
@pytest.mark.parametrize("profile", RESPONSES)
@every_answer
def test_responses_accepts_each_answer(answer, profile, upstream):
    assert_valid(build(openai_responses.DIALECT, profile, answer, upstream).body)


@pytest.mark.parametrize("profile", ANTHROPIC)
@every_answer
def test_anthropic_accepts_each_answer(answer, profile):
    body = build(anthropic_upstream.DIALECT, profile, answer, "anthropic").body

    unsigned = PROFILES[profile].unsigned_thinking
    assert anthropic_rules.refusals(body["messages"], unsigned_thinking=unsigned) == []


BAD_TURNS = {
    "text content blocks": [{"type": "text", "text": " \n"}],
    "non-empty content": [],
    "Invalid signature": [{"type": "thinking", "thinking": "Hm.", "signature": ""}],
    "no tool_result": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}],
    "should be an object": [{"type": "tool_use", "id": "t1", "name": "f", "input": "{"}],
    "match pattern": [{"type": "tool_use", "id": "t:1", "name": "f", "input": {}}],
    "must be unique": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}] * 2,
    "no call of a server tool": [
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    ],
}


@pytest.mark.parametrize("fault", BAD_TURNS)
def test_the_rules_refuse_what_anthropic_refuses(fault):
    history = [user("Hi."), {"role": "assistant", "content": BAD_TURNS[fault]}, user("Go on.")]

    assert fault in " ".join(anthropic_rules.refusals(history))

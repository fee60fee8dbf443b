import inspect
import json

import pytest

import translator
from tests.for_each import for_each
from tests.translator.anthropic.test_content_blocks import GOOD
from translator import (
    BadRequest,
    BadUpstream,
    map_anthropic_to_openai_chat,
    map_anthropic_to_openai_response,
    map_openai_chat_to_anthropic,
    map_openai_response_to_anthropic,
    translate_openai_chat_events,
    translate_openai_events,
)
from translator.anthropic.content_blocks import BLOCKS_BY_ROLE
from translator.anthropic.request_validation import check_for_translation
from translator.capabilities import PROFILES
from translator.dialect import ResponseContext, TranslationTarget

CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"city":"Oslo"}',
}
RESPONSE = {
    "id": "resp_1",
    "model": "gpt-x",
    "status": "completed",
    "output": [CALL],
    "usage": {"input_tokens": 5, "output_tokens": 7},
}
RESPONSES = [
    {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-x"}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**CALL, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"city":'},
    {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '"Oslo"}'},
    {"type": "response.output_item.done", "output_index": 0, "item": CALL},
    {"type": "response.completed", "response": RESPONSE},
]
COMPLETION = {
    "id": "chatcmpl-1",
    "model": "m",
    "choices": [{"index": 0, "message": {"content": "Hi."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7},
}
CHUNKS = [
    {"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi."}}]},
    {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"id": "chatcmpl-1", "choices": [], "usage": COMPLETION["usage"]},
]
USER = {"role": "user", "content": "Hello."}


async def streamed(events, broken: Exception | None = None):
    for event in events:
        yield event
    if broken is not None:
        raise broken


async def emitted(frames) -> list[dict]:
    return [json.loads(frame.split("data: ", 1)[1]) async for frame in frames]


def test_the_public_names_are_these():
    assert translator.__all__ == sorted(translator.__all__)
    assert set(translator.__all__) == {
        "BadRequest",
        "BadUpstream",
        "IllegalMove",
        "TranslatorError",
        "derive_stop_reason",
        "format_sse",
        "map_anthropic_to_openai_chat",
        "map_anthropic_to_openai_response",
        "map_openai_chat_to_anthropic",
        "map_openai_response_to_anthropic",
        "translate_openai_chat_events",
        "translate_openai_events",
    }
    assert all(hasattr(translator, name) for name in translator.__all__)


@for_each(
    ("function", "parameters"),
    [
        (translator.format_sse, ["event", "payload"]),
        (translator.derive_stop_reason, ["response"]),
        (translate_openai_events, ["events", "finished_blocks", "context"]),
        (translate_openai_chat_events, ["events", "finished_blocks", "context"]),
        (map_openai_response_to_anthropic, ["response", "context"]),
        (map_openai_chat_to_anthropic, ["completion", "context"]),
        (map_anthropic_to_openai_response, ["request", "target"]),
        (map_anthropic_to_openai_chat, ["request", "target"]),
    ],
)
def test_argument_names_are_part_of_the_contract(function, parameters):
    assert list(inspect.signature(function).parameters) == parameters


async def test_a_responses_stream_becomes_an_anthropic_stream():
    frames = [frame async for frame in translate_openai_events(streamed(RESPONSES))]

    assert [frame.split("\n")[0] for frame in frames] == [
        "event: message_start",
        "event: content_block_start",
        "event: content_block_delta",
        "event: content_block_delta",
        "event: content_block_delta",
        "event: content_block_stop",
        "event: message_delta",
        "event: message_stop",
    ]
    stop = json.loads(frames[5].split("data: ", 1)[1])
    assert stop["content_block"] == {
        "type": "tool_use",
        "id": "call_1",
        "name": "get_weather",
        "input": {"city": "Oslo"},
        "caller": {"type": "direct"},
    }


async def test_the_finished_block_can_be_left_out():
    frames = await emitted(translate_openai_events(streamed(RESPONSES), finished_blocks=False))

    assert frames[5] == {"type": "content_block_stop", "index": 0}


async def test_a_chat_stream_becomes_an_anthropic_stream():
    context = ResponseContext(model="claude-x")
    frames = await emitted(translate_openai_chat_events(streamed(CHUNKS), context=context))

    assert frames[0]["message"]["model"] == "claude-x"
    assert frames[-2]["delta"]["stop_reason"] == "end_turn"
    assert frames[-1] == {"type": "message_stop"}


@for_each("cut", range(len(RESPONSES)))
@for_each("broken", [None, OSError("reset")])
async def test_a_source_that_ends_or_breaks_early_ends_in_an_error(cut, broken):
    frames = await emitted(translate_openai_events(streamed(RESPONSES[:cut], broken)))

    kinds = [frame["type"] for frame in frames]
    assert kinds[-1] == "error"
    assert "message_stop" not in kinds
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")


async def test_the_source_is_closed_once_the_answer_is_complete():
    class Source:
        def __init__(self):
            self.rest = iter([*RESPONSES, {"type": "late"}])
            self.closed = False

        def __aiter__(self):
            return self

        async def __anext__(self):
            return next(self.rest)

        async def aclose(self):
            self.closed = True

    source = Source()
    await emitted(translate_openai_events(source))

    assert source.closed
    assert list(source.rest) == [{"type": "late"}]


async def test_a_source_without_aclose_is_accepted():
    class Source:
        rest = iter(RESPONSES)

        def __aiter__(self):
            return self

        async def __anext__(self):
            return next(self.rest)

    assert (await emitted(translate_openai_events(Source())))[-1] == {"type": "message_stop"}


def test_whole_answers_become_messages():
    assert map_openai_response_to_anthropic(RESPONSE)["content"] == [
        {
            "type": "tool_use",
            "id": "call_1",
            "name": "get_weather",
            "input": {"city": "Oslo"},
            "caller": {"type": "direct"},
        }
    ]
    message = map_openai_chat_to_anthropic(COMPLETION, context=ResponseContext(message_id="msg_1"))
    assert message["id"] == "msg_1"
    assert message["content"] == [{"type": "text", "text": "Hi.", "citations": None}]


@for_each(
    ("translate", "answer"),
    [
        (map_openai_response_to_anthropic, {"status": "failed", "error": {"code": "server_error"}}),
        (map_openai_response_to_anthropic, {}),
        (map_openai_chat_to_anthropic, {"error": {"message": "x", "code": 500}}),
        (map_openai_chat_to_anthropic, {"choices": []}),
    ],
)
def test_an_answer_that_failed_is_no_message(translate, answer):
    with pytest.raises(BadUpstream):
        translate(answer)


def test_requests_become_upstream_bodies_with_notes():
    request = {
        "model": "claude-x",
        "max_tokens": 100,
        "system": "Be brief.",
        "messages": [USER],
        "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
        "tool_choice": {"type": "any"},
    }

    chat = map_anthropic_to_openai_chat(request)
    assert chat.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert chat.body["tool_choice"] == "auto"
    assert [note.path for note in chat.notes] == ["tool_choice"]
    response = map_anthropic_to_openai_response(request)
    assert (response.body["model"], response.body["tool_choice"]) == ("claude-x", "required")


def test_a_target_sets_the_model_and_the_capabilities():
    target = TranslationTarget(model="qwen", profile=PROFILES["vllm"])
    request = {"messages": [USER], "tools": [{"name": "f"}], "tool_choice": {"type": "any"}}

    body = map_anthropic_to_openai_chat(request, target=target).body

    assert (body["model"], body["tool_choice"]) == ("qwen", "required")


@for_each("translate", [map_anthropic_to_openai_chat, map_anthropic_to_openai_response])
def test_a_bad_request_is_refused_with_its_path(translate):
    with pytest.raises(BadRequest) as caught:
        translate({"messages": [{"role": "user", "content": [{"type": "video"}]}]})

    assert caught.value.path == "messages.0.content.0.type"


@for_each("translate", [map_anthropic_to_openai_chat, map_anthropic_to_openai_response])
@for_each("profile", PROFILES)
@for_each(
    ("role", "kind"), [(role, kind) for role, kinds in BLOCKS_BY_ROLE.items() for kind in kinds]
)
def test_every_block_is_translated_or_rejected(translate, profile, role, kind):
    block = {"type": kind, **GOOD.get(kind, {"tool_use_id": "s", "content": {}})}
    request = check_for_translation({"messages": [USER, {"role": role, "content": [block]}, USER]})

    try:
        made = translate(request, target=TranslationTarget(model="m", profile=PROFILES[profile]))
    except BadRequest as refused:
        assert refused.path.startswith("messages.1")  # noqa: PT017 - refused or translated, both will do
    else:
        json.dumps(made.body)

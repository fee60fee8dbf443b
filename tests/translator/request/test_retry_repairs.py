"""A refused request is sent again without what the error is about, in whatever words."""

import json
from pathlib import Path

import pytest

from tests.for_each import for_each
from translator import anthropic_upstream, openai_chat, openai_responses

RESPONSES = openai_responses.DIALECT.repair
CHAT = openai_chat.DIALECT.repair
ANTHROPIC = anthropic_upstream.DIALECT.repair

REASONING = {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA"}
MESSAGE = {"type": "message", "role": "user", "content": "Hi"}
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "x"}
HISTORY = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Yes."}]},
    {"role": "assistant", "content": [THOUGHT]},
    {"role": "assistant", "content": [{"type": "text", "text": "No."}]},
    {"role": "user", "content": [THOUGHT]},
]


def refusal(message, param=None, code=None):
    fields = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return {"error": fields}


@for_each(
    ("repair", "body", "error", "repaired", "path"),
    [
        (
            RESPONSES,
            {"input": [MESSAGE, REASONING]},
            refusal("The encrypted content could not be verified.", code="invalid_encrypted_content"),
            {"input": [MESSAGE]},
            "messages",
        ),
        (
            RESPONSES,
            {"reasoning": {"effort": "low", "summary": "auto"}},
            refusal("Your organization must be verified to generate reasoning summaries.",
                    param="reasoning.summary", code="unsupported_value"),
            {"reasoning": {"effort": "low"}},
            "thinking",
        ),
        (
            RESPONSES,
            {"model": "m", "reasoning": {"summary": "auto"}},
            refusal("Unsupported parameter: 'reasoning.summary'"),
            {"model": "m"},
            "thinking",
        ),
        (
            RESPONSES,
            {"temperature": 0.5, "input": []},
            refusal("Unsupported parameter: 'temperature' is not supported with this model."),
            {"input": []},
            "temperature",
        ),
        (
            CHAT,
            {"messages": [{"role": "user"}, {"role": "assistant", "tool_calls": []},
                          {"role": "assistant", "reasoning_content": "Hm"}]},
            refusal("thinking is enabled but reasoning_content is missing in assistant tool call"
                    " message at index 1"),
            {"messages": [{"role": "user"},
                          {"role": "assistant", "tool_calls": [], "reasoning_content": " "},
                          {"role": "assistant", "reasoning_content": "Hm"}]},
            "messages",
        ),
        (
            CHAT,
            {"stream": True, "stream_options": {}},
            {"detail": [{"loc": ["body", "stream_options"], "msg": "stream_options: Extra inputs are not permitted"}]},
            {"stream": True},
            "stream",
        ),
        (
            CHAT,
            {"max_tokens": 5},
            refusal("Unsupported parameter: 'max_tokens' is not supported with this model. Use"
                    " 'max_completion_tokens' instead.", param="max_tokens"),
            {"max_completion_tokens": 5},
            "max_tokens",
        ),
        (
            CHAT,
            {"max_completion_tokens": 5},
            refusal("Unrecognized request argument supplied: max_completion_tokens"),
            {"max_tokens": 5},
            "max_tokens",
        ),
        (
            ANTHROPIC,
            {"messages": HISTORY},
            {"type": "error", "error": {"type": "invalid_request_error", "message":
             "messages.1.content.0: Invalid `signature` in `thinking` block"}},
            {"messages": [
                HISTORY[0],
                {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
                HISTORY[3],
                HISTORY[4],
            ]},
            "messages",
        ),
        (
            ANTHROPIC,
            {"thinking": {"type": "adaptive"}, "messages": []},
            refusal("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`"),
            {"messages": []},
            "thinking",
        ),
    ],
)  # fmt: skip
def test_a_rejected_optional_field_is_removed_once(repair, body, error, repaired, path):
    before = json.dumps(body)

    found = repair(body, 400, error)

    assert found.body == repaired
    assert found.notes[0].path == path
    assert json.dumps(body) == before, "the body that was sent is not touched"
    assert repair(found.body, 400, error) is None, "and never twice"
    assert repair(body, 500, error) == found, "the status says little"
    assert repair(body, 403, error) is None
    assert repair(body, 429, error) is None


def test_a_path_of_the_other_api_names_the_same_field():
    tool = {"type": "function", "function": {"name": "f", "strict": True}}
    body = {"model": "m", "messages": [], "tools": [tool]}

    repaired = openai_chat.DIALECT.repair(
        body, 400, refusal("Unknown parameter: 'tools[0].strict'.", param="tools[0].strict")
    )

    assert repaired.body["tools"] == [{"type": "function", "function": {"name": "f"}}]


def test_the_names_that_a_server_lists_as_right_are_kept():
    body = {"model": "m", "messages": [], "prompt_cache_key": "k", "stop": ["x"], "user": "u"}
    text = "unknown field `prompt_cache_key`, expected one of `model`, `stop`, `user` at column 9"

    repaired = openai_chat.DIALECT.repair(body, 422, {"message": text})

    assert repaired.body == {name: body[name] for name in body if name != "prompt_cache_key"}


def test_reasoning_is_removed_if_unsupported_with_tools():
    error = refusal(
        "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions"
        ". To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
        "reasoning_effort",
    )

    for sent_body in ({"tools": [{}]}, {"tools": [{}], "reasoning_effort": "high"}):
        made = CHAT(sent_body, 400, error)
        assert made.body == {"tools": [{}], "reasoning_effort": "none"}
        assert made.notes[0].lossy


@for_each(
    ("repair", "body", "error"),
    [
        (CHAT, {"temperature": 9}, refusal("temperature must be between 0 and 2", "temperature")),
        (CHAT, {"max_tokens": 9}, refusal("max_tokens is too large: 9")),
        (CHAT, {"top_p": 1}, refusal("Unsupported parameter: 'top_pp'")),
        (CHAT, {}, refusal("Unsupported parameter: 'temperature'")),
        (RESPONSES, {"reasoning": {}}, refusal("Unsupported: 'reasoning.summary'")),
        (RESPONSES, {}, refusal("Unsupported: 'reasoning.summary'")),
        (RESPONSES, {}, refusal("encrypted_content is bad")),
        (RESPONSES, {"temperature": 1}, None),
        (ANTHROPIC, {}, refusal("Invalid `signature` in `thinking` block")),
    ],
)
def test_a_request_fault_is_not_retried(repair, body, error):
    assert repair(body, 400, error) is None


OPENAI = "max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000."
EXPECTED = "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 16384, but got 32000 instead."
GROQ = "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model"
DEEPSEEK = "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"
QWEN = "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]"
ANTHROPICS = "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-haiku-20241022"
VLLM = "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 16384 tokens and your request has {} input tokens (32000 > 16384 - {})."
WINDOW = "This model's maximum context length is 16384 tokens. However, you requested 41000 tokens ({} in the messages, 32000 in the completion). Please reduce the length of the messages or completion."


@for_each(
    ("repair", "field", "error", "room"),
    [
        (CHAT, "max_tokens", OPENAI, 16384),
        (CHAT, "max_completion_tokens", OPENAI, 16384),
        (RESPONSES, "max_output_tokens", EXPECTED, 16384),
        (CHAT, "max_tokens", GROQ, 8192),
        (CHAT, "max_tokens", DEEPSEEK, 8192),
        (CHAT, "max_tokens", QWEN, 8192),
        (CHAT, "max_tokens", ANTHROPICS, 8192),
        (CHAT, "max_tokens", "max_tokens参数非法。限制 [1, 8192]", 8192),
        (
            CHAT,
            "max_tokens",
            "max_tokens (32000) exceeds model's maximum output tokens (8192)",
            8192,
        ),
        (CHAT, "max_tokens", "max_tokens 32000 is greater than the maximum allowed 8192", 8192),
        (CHAT, "max_tokens", VLLM.format(9000, 9000), 7384),
        (CHAT, "max_tokens", WINDOW.format(9000), 7384),
    ],
)
def test_more_output_than_a_model_can_write_is_clamped(repair, field, error, room):
    body = {"model": "m", field: 32000}

    found = repair(body, 400, refusal(error))

    assert found.body == {"model": "m", field: room}
    assert (found.notes[0].path, found.notes[0].fate) == ("max_tokens", "clamped")
    assert repair(found.body, 400, refusal(error)) is None
    assert repair({"model": "m", field: "many"}, 400, refusal(error)) is None


def test_less_output_than_the_upstream_accepts_is_raised_to_its_minimum():
    error = refusal(
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 1"
        " instead.",
        "max_output_tokens",
    )

    found = RESPONSES({"max_output_tokens": 1, "input": []}, 400, error)

    assert found.body == {"max_output_tokens": 16, "input": []}
    assert (found.notes[0].path, found.notes[0].fate) == ("max_tokens", "clamped")
    assert RESPONSES(found.body, 400, error) is None
    assert RESPONSES({"input": []}, 400, error) is None
    assert RESPONSES({"max_output_tokens": 1}, 400, refusal("max_output_tokens is odd")) is None


def test_a_limit_error_of_anthropic_is_not_repaired():
    assert ANTHROPIC({"max_tokens": 32000}, 400, refusal(ANTHROPICS)) is None


@for_each("taken", [15_500, 16_384, 30_000])
@for_each("error", [VLLM, WINDOW])
def test_a_prompt_that_fills_the_window_is_the_client_s_to_shorten(error, taken):
    assert CHAT({"max_tokens": 32000}, 400, refusal(error.format(taken, taken))) is None


@for_each(
    ("error", "room"), [(VLLM.format(15_360, 15_360), 1_024), ("max_tokens: 1 < valid", None)]
)
def test_the_least_room_that_is_worth_a_call(error, room):
    found = CHAT({"max_tokens": 32000}, 400, refusal(error))

    assert (found and found.body) == (room and {"max_tokens": room})


CORPUS = Path(__file__).parents[4] / "shared/corpus/errors"


@pytest.mark.skipif(not CORPUS.exists(), reason="the recorded traffic is not beside the repository")
@for_each(
    ("repair", "name", "field"),
    [
        (CHAT, "ai__openai-chat-reasoning-model-legacy-parameter-error", "max_tokens"),
        (RESPONSES, "ai__openai-responses-reasoning-model-temperature-error", "temperature"),
    ],
)
def test_recorded_refusals_are_understood(repair, name, field):
    error = json.loads((CORPUS / f"{name}.json").read_text(encoding="utf-8"))["body_json"]

    found = repair({field: 1, "model": "m"}, 400, error)

    assert field not in found.body


# Histories and images that a model cannot take

SYSTEM = {"role": "system", "content": "s"}
PROMPT = {"role": "user", "content": "a"}
CALLS = [{"id": id_, "function": {"name": "f", "arguments": "{}"}} for id_ in ("1", "2")]
TWO_CALLS = {"role": "assistant", "content": None, "tool_calls": CALLS}
RESULTS = [{"role": "tool", "tool_call_id": id_, "content": "r"} for id_ in ("1", "2")]
AGAIN = {"role": "user", "content": "b"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@for_each(
    ("text", "messages", "roles", "edit"),
    [
        (
            "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/...",
            [PROMPT, TWO_CALLS, *RESULTS, AGAIN],
            ["user", "assistant", "tool", "tool"],
            "merge_turns",
        ),
        (
            "This model only supports single tool-calls at once!",
            [PROMPT, TWO_CALLS, *RESULTS, AGAIN],
            ["user", "assistant", "tool", "assistant", "tool", "user"],
            "single_calls",
        ),
        ("System role not supported", [SYSTEM, PROMPT], ["user"], "no_system_role"),
        (  # merging does not help: the template knows no tool messages
            "Conversation roles must alternate user/assistant/user/assistant/...",
            [PROMPT, TWO_CALLS, *RESULTS],
            ["user", "assistant", "user"],
            "calls_as_text",
        ),
    ],
)
@for_each("status", [400, 500])
def test_a_history_that_the_template_refuses_gets_another_shape(
    text, messages, roles, edit, status
):
    found = CHAT({"model": "m", "messages": messages}, status, refusal(text))

    assert [message["role"] for message in found.body["messages"]] == roles
    assert [note.fate for note in found.notes] == ["emulated"]
    assert [lesson.edit for lesson in found.lessons] == [edit]
    repeated = CHAT(found.body, status, refusal(text))
    assert repeated is None or repeated.lessons[0].edit == "calls_as_text"
    assert CHAT({"model": "m"}, status, refusal(text)) is None


@for_each(
    ("status", "text"),
    [
        (500, "image input is not supported"),
        (404, "Only 'text' content type is supported."),
        (404, "No endpoints found that support image input"),
        (400, "this model does not support image input"),
        (400, "vision is not supported"),
        (400, "messages[2].content must be a string"),
        (422, "messages.0.content.0.type: Input should be 'text'"),
        (400, "Image input is provided but the model does not have a vision tower"),
        (400, "This model doesn't support the image field."),
        (400, "messages.content.type is invalid, allowed values: ['text']"),
    ],
)
def test_images_for_a_model_without_vision_are_dropped(status, text):
    chat = {"messages": [{"role": "user", "content": [PICTURE]}]}
    item = {"type": "message", "content": [{"type": "input_image", "image_url": "x"}]}

    for found in (
        CHAT(chat, status, refusal(text)),
        RESPONSES({"input": [item]}, status, refusal(text)),
    ):
        assert "image omitted" in json.dumps(found.body)
        assert found.notes[0].lossy
        assert found.lessons == (("images_as_text", ""),)
    assert CHAT({"messages": [PROMPT]}, status, refusal(text)) is None

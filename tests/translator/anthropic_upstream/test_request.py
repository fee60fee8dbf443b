import pytest

from tests.fakes.anthropic_requests import BROKEN_INPUTS
from tests.for_each import for_each
from translator.anthropic_upstream import DIALECT
from translator.capabilities import profile_with
from translator.dialect import TranslationTarget
from translator.errors import BadRequest
from translator.stream.reasoning_signature import SignedReasoning, SigningKeys, sign

KEYS = SigningKeys(current="k", keys={"k": b"secret" * 6})
CARRIER = sign(SignedReasoning(upstream="openai", model="gpt", api="responses"), KEYS)
TEXT = {"type": "text", "text": "x"}


def make_request(*content: dict, **more) -> dict:
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": list(content)},
        {"role": "user", "content": [TEXT]},
    ]
    return {"model": "claude-x", "max_tokens": 9, "messages": messages, **more}


def test_a_request_passes_unchanged():
    request = make_request(
        TEXT, {"type": "thinking", "thinking": "", "signature": "Anthropic's"}, tomorrow=1
    )

    made = DIALECT.build_request(request, TranslationTarget())

    assert made.body == request
    assert all(made.body[name] is request[name] for name in request)
    assert made.notes == ()
    assert (made.response_context.model, made.response_context.max_tokens) == ("claude-x", 9)


def test_only_the_model_changes_for_a_renaming_route():
    request = make_request(TEXT)

    made = DIALECT.build_request(request, TranslationTarget(model="claude-y"))

    assert made.body == {**request, "model": "claude-y"}
    assert made.response_context.model == "claude-x"


SEARCH = [
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [{"type": "web_search_result", "url": "u", "encrypted_content": ""}],
    },
]


@for_each(
    "gone",
    [
        [{"type": "thinking", "thinking": "why", "signature": CARRIER}],
        [{"type": "thinking", "thinking": "why", "signature": ""}],
        [{"type": "thinking", "thinking": "why"}],
        [{"type": "redacted_thinking", "data": CARRIER}],
        SEARCH,
    ],
)
def test_blocks_unreadable_for_anthropic_are_removed(gone):
    request = make_request(*gone, TEXT)

    made = DIALECT.build_request(request, TranslationTarget())

    assert made.body["messages"][1] == {"role": "assistant", "content": [TEXT]}
    assert made.body["messages"][0] is request["messages"][0]
    assert made.body["messages"][2] is request["messages"][2]
    assert len(made.notes) == len(gone)
    assert not any(note.lossy for note in made.notes)
    assert request == make_request(*gone, TEXT)


def test_a_message_without_remaining_blocks_is_removed():
    made = DIALECT.build_request(
        make_request({"type": "redacted_thinking", "data": CARRIER}), TranslationTarget()
    )

    assert [message["role"] for message in made.body["messages"]] == ["user", "user"]


def test_anthropics_own_searches_remain():
    found = {"type": "web_search_result", "url": "u", "encrypted_content": "cipher"}
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [found]}
    failed = {"type": "web_search_tool_result", "tool_use_id": "s2", "content": {"error_code": "x"}}
    unusual = {"type": "web_search_tool_result", "tool_use_id": "s3", "content": []}
    request = make_request(SEARCH[0], result, failed, unusual)

    assert DIALECT.build_request(request, TranslationTarget()).body == request


def test_a_result_that_is_not_an_object_is_removed():
    unusual = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": ["x"]}

    assert len(DIALECT.build_request(make_request(unusual, TEXT), TranslationTarget()).notes) == 1


def test_citations_from_other_vendors_are_removed():
    own = {"type": "web_search_result_location", "encrypted_index": "cipher"}
    page = {"type": "char_location"}
    other = {"type": "web_search_result_location", "encrypted_index": ""}
    request = make_request(
        {**TEXT, "citations": [own, other, page]}, {**TEXT, "citations": [other]}
    )

    made = DIALECT.build_request(request, TranslationTarget())

    assert made.body["messages"][1]["content"] == [{**TEXT, "citations": [own, page]}, TEXT]


def narrow(**capabilities) -> TranslationTarget:
    return TranslationTarget(profile=profile_with("anthropic", capabilities))


def test_fields_that_a_compatible_server_does_not_know_are_left_out_with_a_note():
    request = make_request(TEXT, context_management={"edits": []}, output_config={"effort": "low"})

    made = DIALECT.build_request(request, narrow(refused_fields=["context_management", "thinking"]))

    assert made.body == {k: v for k, v in request.items() if k != "context_management"}
    assert [(note.path, note.fate) for note in made.notes] == [("context_management", "dropped")]
    assert made.body["messages"] is not None


def test_an_unknown_region_is_rejected():
    unaware = narrow(refused_fields=["inference_geo"])

    with pytest.raises(BadRequest, match="inference_geo"):
        DIALECT.build_request(make_request(TEXT, inference_geo="us"), unaware)
    assert DIALECT.build_request(make_request(TEXT), unaware).notes == ()
    assert DIALECT.build_request(
        make_request(TEXT, inference_geo="us"), narrow()
    ).body == make_request(TEXT, inference_geo="us")


def test_server_tools_are_dropped_without_a_server_that_runs_them():
    own = {"name": "ls", "input_schema": {"type": "object"}}
    request = make_request(TEXT, tools=[{"type": "web_search_20250305", "name": "web_search"}, own])

    made = DIALECT.build_request(request, narrow(server_tools=False))

    assert made.body["tools"] == [own]
    assert [note.path for note in made.notes] == ["tools.0"]


def test_choosing_a_dropped_server_tool_is_rejected():
    search = {"type": "web_search_20250305", "name": "web_search"}
    request = make_request(TEXT, tools=[search], tool_choice={"type": "tool", "name": "web_search"})

    with pytest.raises(BadRequest, match=r"tool_choice\.name"):
        DIALECT.build_request(request, narrow(server_tools=False))


def test_mid_conversation_system_text_becomes_user_text_if_unsupported():
    request = make_request(TEXT)
    request["messages"].append({"role": "system", "content": "Be brief."})

    made = DIALECT.build_request(request, narrow(mid_system=False))

    assert made.body["messages"][-1] == {"role": "user", "content": "Be brief."}
    assert made.body["messages"][0] is request["messages"][0]
    assert [(note.path, note.fate) for note in made.notes] == [("messages.3.role", "emulated")]


def test_a_body_without_messages_passes_to_a_server_without_system_messages():
    body = {"model": "claude-x", "max_tokens": 9}

    made = DIALECT.build_request(body, narrow(mid_system=False))

    assert "messages" not in made.body


def test_client_tools_pass_unchanged_to_a_server_without_server_tools():
    request = make_request(TEXT, tools=[{"name": "ls", "input_schema": {"type": "object"}}])

    made = DIALECT.build_request(request, narrow(server_tools=False))

    assert made.body["tools"] is request["tools"]
    assert made.notes == ()


BLANK = {"type": "text", "text": " \n"}
EMPTY = {"type": "text", "text": ""}
CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}


def answered(*content, **fields):
    return {"type": "tool_result", "tool_use_id": "t1", "content": list(content), **fields}


def sent(*messages, **fields):
    """Return the messages of the body, and the paths of the notes."""
    request = {"model": "claude-x", "max_tokens": 9, "messages": list(messages), **fields}
    made = DIALECT.build_request(request, TranslationTarget())
    return made.body["messages"], [note.path for note in made.notes]


def turn(role, *content):
    return {"role": role, "content": list(content)}


def test_texts_of_white_space_are_not_sent_at_any_depth():
    messages, paths = sent(
        turn("user", TEXT, BLANK),
        turn("assistant", EMPTY, CALL),
        turn("user", answered(BLANK, TEXT, EMPTY), TEXT),
        turn("system", TEXT, BLANK),
    )

    assert messages == [
        turn("user", TEXT), turn("assistant", CALL), turn("user", answered(TEXT), TEXT),
        turn("system", TEXT),
    ]  # fmt: skip
    assert paths == [
        "messages.0.content.1", "messages.1.content.0", "messages.2.content.0.content.0",
        "messages.2.content.0.content.2", "messages.3.content.1",
    ]  # fmt: skip


def test_a_message_of_white_space_is_dropped_unless_it_is_the_question():
    history = [turn("user", TEXT), turn("assistant", BLANK), turn("user", BLANK)]

    assert sent(*history, turn("user", TEXT))[0] == [turn("user", TEXT), turn("user", TEXT)]
    assert sent(*history)[0] == [turn("user", TEXT), turn("user", BLANK)]
    string = {"role": "assistant", "content": " \n"}
    assert sent(turn("user", TEXT), string, turn("user", TEXT))[0] == [turn("user", TEXT)] * 2


def test_a_result_of_white_space_stays_a_result():
    history = turn("user", TEXT), turn("assistant", CALL)

    assert sent(*history, turn("user", answered(BLANK)))[0][2] == turn("user", answered())
    failed = sent(*history, turn("user", answered(BLANK, is_error=True)))[0][2]["content"][0]
    assert failed["content"] == "Error"


def test_system_texts_of_white_space_are_not_sent():
    made = DIALECT.build_request(make_request(TEXT, system=[TEXT, BLANK]), TranslationTarget())

    assert made.body["system"] == [TEXT]
    assert [note.path for note in made.notes] == ["system.1"]


@for_each(("broken", "whole"), BROKEN_INPUTS)
@for_each("kind", ["tool_use", "server_tool_use", "mcp_tool_use"])
def test_arguments_that_are_no_object_are_sent_as_one(kind, broken, whole):
    made = DIALECT.build_request(
        make_request(CALL | {"type": kind, "input": broken}), TranslationTarget()
    )

    assert made.body["messages"][1]["content"][0]["input"] == whole
    assert [(note.path, note.fate) for note in made.notes] == [
        ("messages.1.content.0.input", "repaired")
    ]


def test_a_parameter_that_is_not_set_is_not_sent():
    request = make_request(TEXT, top_k=-1, top_p=-1, temperature=0.5)

    made = DIALECT.build_request(request, TranslationTarget())

    assert made.body.keys() & {"top_k", "top_p", "temperature"} == {"temperature"}
    assert [(note.path, note.fate) for note in made.notes] == [
        ("top_p", "ignored"), ("top_k", "ignored"),
    ]  # fmt: skip


@for_each("profile", ["bedrock", "bedrock_messages", "vertex", "foundry"])
def test_tags_go_only_to_upstreams_that_know_them(profile):
    request = make_request(TEXT, tags=["team"], safeguards=[{"type": "dangerous_tool_use"}])

    cloud = DIALECT.build_request(request, TranslationTarget(profile=profile_with(profile, {})))
    anthropic = DIALECT.build_request(request, TranslationTarget())

    assert "tags" not in cloud.body
    assert cloud.body["safeguards"] == request["safeguards"]
    assert anthropic.body == request

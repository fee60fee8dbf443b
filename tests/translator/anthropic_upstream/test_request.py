import pytest

from translator.anthropic_upstream import DIALECT
from translator.carrier import CarrierKeys, Reasoning, mint
from translator.dialect import Target
from translator.errors import BadRequest
from translator.profiles import profile_with

KEYS = CarrierKeys(current="k", keys={"k": b"secret" * 6})
CARRIER = mint(Reasoning(upstream="openai", model="gpt", api="responses"), KEYS)
TEXT = {"type": "text", "text": "x"}


def asking(*content: dict, **more) -> dict:
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": list(content)},
        {"role": "user", "content": [TEXT]},
    ]
    return {"model": "claude-x", "max_tokens": 9, "messages": messages, **more}


def test_a_request_passes_as_it_is():
    request = asking(
        TEXT, {"type": "thinking", "thinking": "", "signature": "Anthropic's"}, tomorrow=1
    )

    made = DIALECT.build_request(request, Target())

    assert made.body == request
    assert all(made.body[name] is request[name] for name in request)
    assert made.notes == ()
    assert (made.answer.model, made.answer.max_tokens) == ("claude-x", 9)


def test_only_the_model_is_renamed_where_the_route_says_so():
    request = asking(TEXT)

    made = DIALECT.build_request(request, Target(model="claude-y"))

    assert made.body == {**request, "model": "claude-y"}
    assert made.answer.model == "claude-x"


SEARCH = [
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [{"type": "web_search_result", "url": "u", "encrypted_content": ""}],
    },
]


@pytest.mark.parametrize(
    "gone",
    [
        [{"type": "thinking", "thinking": "why", "signature": CARRIER}],
        [{"type": "thinking", "thinking": "why", "signature": ""}],
        [{"type": "thinking", "thinking": "why"}],
        [{"type": "redacted_thinking", "data": CARRIER}],
        SEARCH,
    ],
)
def test_what_no_anthropic_model_can_read_is_taken_out(gone):
    request = asking(*gone, TEXT)

    made = DIALECT.build_request(request, Target())

    assert made.body["messages"][1] == {"role": "assistant", "content": [TEXT]}
    assert made.body["messages"][0] is request["messages"][0]
    assert made.body["messages"][2] is request["messages"][2]
    assert len(made.notes) == len(gone)
    assert not any(note.lossy for note in made.notes)
    assert request == asking(*gone, TEXT)


def test_a_message_of_which_nothing_is_left_goes():
    made = DIALECT.build_request(asking({"type": "redacted_thinking", "data": CARRIER}), Target())

    assert [message["role"] for message in made.body["messages"]] == ["user", "user"]


def test_anthropic_s_own_searches_stay():
    found = {"type": "web_search_result", "url": "u", "encrypted_content": "cipher"}
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [found]}
    failed = {"type": "web_search_tool_result", "tool_use_id": "s2", "content": {"error_code": "x"}}
    odd = {"type": "web_search_tool_result", "tool_use_id": "s3", "content": []}
    request = asking(SEARCH[0], result, failed, odd)

    assert DIALECT.build_request(request, Target()).body == request


def test_a_result_that_is_no_object_counts_as_made_up():
    odd = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": ["x"]}

    assert len(DIALECT.build_request(asking(odd, TEXT), Target()).notes) == 1


def test_citations_of_others_are_taken_off_the_text():
    own = {"type": "web_search_result_location", "encrypted_index": "cipher"}
    page = {"type": "char_location"}
    other = {"type": "web_search_result_location", "encrypted_index": ""}
    request = asking({**TEXT, "citations": [own, other, page]}, {**TEXT, "citations": [other]})

    made = DIALECT.build_request(request, Target())

    assert made.body["messages"][1]["content"] == [{**TEXT, "citations": [own, page]}, TEXT]


def test_broken_arguments_are_sent_inside_an_object():
    call = {"type": "tool_use", "id": "t", "name": "f", "input": "{oops"}

    made = DIALECT.build_request(asking(call), Target())

    assert made.body["messages"][1]["content"][0]["input"] == {"_raw": "{oops"}
    assert [note.fate for note in made.notes] == ["repaired"]


def narrow(**capabilities) -> Target:
    return Target(profile=profile_with("anthropic", capabilities))


def test_fields_that_a_compatible_server_does_not_know_are_left_out_with_a_note():
    request = asking(TEXT, context_management={"edits": []}, output_config={"effort": "low"})

    made = DIALECT.build_request(request, narrow(refused_fields=["context_management", "thinking"]))

    assert made.body == {k: v for k, v in request.items() if k != "context_management"}
    assert [(note.path, note.fate) for note in made.notes] == [("context_management", "dropped")]
    assert made.body["messages"] is not None


def test_a_region_that_a_compatible_server_knows_nothing_of_is_not_promised():
    unaware = narrow(refused_fields=["inference_geo"])

    with pytest.raises(BadRequest, match="inference_geo"):
        DIALECT.build_request(asking(TEXT, inference_geo="us"), unaware)
    assert DIALECT.build_request(asking(TEXT), unaware).notes == ()
    assert DIALECT.build_request(asking(TEXT, inference_geo="us"), narrow()).body == asking(
        TEXT, inference_geo="us"
    )


def test_server_tools_are_left_out_where_nobody_runs_them():
    own = {"name": "ls", "input_schema": {"type": "object"}}
    request = asking(TEXT, tools=[{"type": "web_search_20250305", "name": "web_search"}, own])

    made = DIALECT.build_request(request, narrow(server_tools=False))

    assert made.body["tools"] == [own]
    assert [note.path for note in made.notes] == ["tools.0"]


def test_a_choice_of_a_server_tool_that_nobody_runs_is_refused():
    search = {"type": "web_search_20250305", "name": "web_search"}
    request = asking(TEXT, tools=[search], tool_choice={"type": "tool", "name": "web_search"})

    with pytest.raises(BadRequest, match=r"tool_choice\.name"):
        DIALECT.build_request(request, narrow(server_tools=False))


def test_mid_conversation_system_text_goes_as_the_users_where_it_must():
    request = asking(TEXT)
    request["messages"].append({"role": "system", "content": "Be brief."})

    made = DIALECT.build_request(request, narrow(mid_system=False))

    assert made.body["messages"][-1] == {"role": "user", "content": "Be brief."}
    assert made.body["messages"][0] is request["messages"][0]
    assert [(note.path, note.fate) for note in made.notes] == [("messages.3.role", "emulated")]


def test_a_server_that_runs_no_tools_of_its_own_gets_the_clients_as_they_are():
    request = asking(TEXT, tools=[{"name": "ls", "input_schema": {"type": "object"}}])

    made = DIALECT.build_request(request, narrow(server_tools=False))

    assert made.body["tools"] is request["tools"]
    assert made.notes == ()

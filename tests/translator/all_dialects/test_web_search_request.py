"""The rewritten request: a function in place of the search tool, and calls in place of searches."""

from translator import openai_chat
from translator.dialect import TranslationTarget
from translator.web_search.request import offer_search, search_tool
from translator.web_search.results import search_error, search_result

TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
PAGE: dict = {
    "type": "web_search_result",
    "url": "https://a.example",
    "title": "A",
    "encrypted_content": "bridge.SXQgaXMgNDIuIOKYgw==",
    "page_age": "today",
}


def use(number: int) -> dict:
    input_ = {"query": f"q{number}"}
    return {"type": "server_tool_use", "id": f"srvtoolu_c{number}", "name": "web_search",
            "input": input_}  # fmt: skip


def result(number: int, content) -> dict:
    return {
        "type": "web_search_tool_result",
        "tool_use_id": f"srvtoolu_c{number}",
        "content": content,
    }


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def request(*content: dict, **fields) -> dict:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [*content]},
        {"role": "user", "content": "and now?"},
    ]
    return {"model": "m", "max_tokens": 100, "messages": messages, "tools": [TOOL], **fields}


def shape(messages: list[dict]) -> list[tuple]:
    return [
        (m["role"], m["content"])
        if isinstance(m["content"], str)
        else (m["role"], *[block["type"] for block in m["content"]])
        for m in messages
    ]


def test_searches_in_turn_become_calls_with_their_results():
    original = request(
        text("a"), use(1), result(1, [PAGE]), use(2), use(3),
        result(2, []), result(3, search_error("unavailable")), text("b"),
    )  # fmt: skip

    offered = offer_search(original, TOOL)

    assert shape(offered.request["messages"]) == [
        ("user", "hi"),
        ("assistant", "text", "tool_use"),
        ("user", "tool_result"),
        ("assistant", "tool_use", "tool_use"),
        ("user", "tool_result", "tool_result"),
        ("assistant", "text"),
        ("user", "and now?"),
    ]
    assert offered.origins == (0, 1, 1, 1, 1, 1, 2)
    found, nothing, failed = [
        block for message in offered.request["messages"][2:5:2] for block in message["content"]
    ]
    assert found["tool_use_id"] == "c1"
    assert found["content"] == "A\nhttps://a.example\ntoday\nIt is 42. ☃"
    assert nothing["content"] == "The search found nothing."
    assert failed["is_error"]
    assert original == request(
        text("a"), use(1), result(1, [PAGE]), use(2), use(3),
        result(2, []), result(3, search_error("unavailable")), text("b"),
    )  # fmt: skip


def test_a_search_without_a_result_gets_an_error_as_its_result():
    offered = offer_search(
        request(use(1), {"type": "tool_use", "id": "t", "name": "f", "input": {}}), TOOL
    )

    body = openai_chat.DIALECT.build_request(offered.request, TranslationTarget()).body

    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    assert "unavailable" in body["messages"][2]["content"]


def test_a_continued_request_has_what_is_left_of_the_output_and_no_forced_choice():
    forced = {"type": "tool", "name": "web_search", "disable_parallel_tool_use": True}
    original = request(text("a"), tool_choice=forced)

    offered = offer_search(original, TOOL, [use(1), result(1, [PAGE])], output=30).request

    assert offered["max_tokens"] == 70
    assert offered["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert shape(offered["messages"])[-2:] == [("assistant", "tool_use"), ("user", "tool_result")]
    assert offer_search(original, TOOL, [use(1)], output=500).request["max_tokens"] == 1


def test_a_continued_request_keeps_a_choice_that_forces_no_call():
    original = request(text("a"), tool_choice={"type": "none"})

    offered = offer_search(original, TOOL, [use(1), result(1, [PAGE])]).request

    assert offered["tool_choice"] == {"type": "none"}


def test_the_text_of_a_page_is_inside_the_encrypted_content_of_its_result():
    found = search_result(url="https://a.example", title="A", text="It is 42. ☃", page_age="today")

    assert found == PAGE


def test_the_function_names_the_place_of_the_user():
    tool = {**TOOL, "user_location": {"type": "approximate", "city": "Ulm", "country": "DE"}}
    original = request(text("a"), tools=[{"name": "f", "input_schema": {}}, tool])

    assert search_tool(original) is tool
    assert search_tool(request(tools=[])) is None
    function = offer_search(original, tool).request["tools"][1]
    assert function["description"].endswith("The user is in: Ulm, DE.")


def test_results_of_other_services_have_only_title_and_url():
    foreign = {**PAGE, "encrypted_content": "EqgfCioIARgB"}
    broken = {**PAGE, "encrypted_content": "bridge.SXQga"}

    offered = offer_search(request(use(1), result(1, [foreign, broken, "?"])), TOOL)

    content = offered.request["messages"][2]["content"][0]["content"]
    assert content == "A\nhttps://a.example\ntoday\n\nA\nhttps://a.example\ntoday"

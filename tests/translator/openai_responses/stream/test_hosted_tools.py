"""Calls of the upstream's own tools, item by item."""

from tests.for_each import for_each
from translator.openai_responses.hosted_tools import (
    code_interpreter_blocks,
    mcp_call_blocks,
    web_search_blocks,
)


def search(action=None, **fields):
    return web_search_blocks({"id": "ws_1", "action": action, **fields})


@for_each(
    ("action", "shown"),
    [
        ({"type": "search", "query": "oslo"}, {"query": "oslo"}),
        ({"type": "search", "queries": ["oslo", 3, "rome"]}, {"query": "oslo; rome"}),
        ({"type": "open_page", "url": "https://a.example"}, {"url": "https://a.example"}),
        (
            {"type": "find_in_page", "url": "https://a.example", "pattern": "cat"},
            {"url": "https://a.example", "pattern": "cat"},
        ),
        ({"type": "open_page"}, {"url": ""}),
        (None, {"query": ""}),
        ("unusual", {"query": ""}),
    ],
)
def test_what_a_search_did_is_its_input(action, shown):
    use, _ = search(action)

    assert use["input"] == shown
    assert use["name"] == "web_search"


def test_sources_become_results_with_their_url_as_title():
    use, result = search({"sources": [{"url": "https://a.example"}, {"url": 3}, None]})

    assert result["tool_use_id"] == use["id"]
    assert [found["title"] for found in result["content"]] == ["https://a.example"]
    assert result["content"][0]["encrypted_content"] == ""


def test_a_failed_search_is_an_error_object():
    _, result = search(status="failed")

    assert result["content"] == {
        "type": "web_search_tool_result_error",
        "error_code": "unavailable",
    }


def test_an_id_follows_from_the_items_id():
    assert search()[0]["id"] == search()[0]["id"]
    assert search()[0]["id"] != web_search_blocks({"id": "ws_2"})[0]["id"]
    assert search()[0]["id"].startswith("srvtoolu_")


@for_each(
    ("outputs", "stdout"),
    [
        ([{"type": "logs", "logs": "a"}, {"type": "image", "url": "x"}, {"logs": "b"}], "a\nb"),
        (None, ""),
    ],
)
def test_the_logs_of_a_code_interpreter_become_stdout(outputs, stdout):
    use, result = code_interpreter_blocks({"id": "ci_1", "code": "1", "outputs": outputs})

    assert use["input"] == {"code": "1"}
    assert result["content"]["stdout"] == stdout
    assert result["content"]["return_code"] == 0


def test_code_that_failed_has_a_return_code():
    use, result = code_interpreter_blocks({"status": "failed"})

    assert use["input"] == {"code": ""}
    assert result["content"]["return_code"] == 1


@for_each(
    ("fields", "text", "is_error"),
    [
        ({"output": "42"}, "42", False),
        ({"error": {"type": "http_error", "message": "gone"}}, "gone", True),
        ({"error": "gone"}, "gone", True),
        ({}, "", False),
        ({"output": ["unusual"]}, "", False),
    ],
)
def test_an_mcp_call_has_its_server_and_result(fields, text, is_error):
    item = {"id": "m", "name": "find", "server_label": "wiki", "arguments": '{"q":1}'}

    use, result = mcp_call_blocks(item | fields)

    assert (use["name"], use["server_name"], use["input"]) == ("find", "wiki", {"q": 1})
    assert result["tool_use_id"] == use["id"]
    assert result["content"] == [{"type": "text", "text": text, "citations": None}]
    assert result["is_error"] is is_error


def test_an_mcp_call_without_details_is_emitted():
    use, _ = mcp_call_blocks({"arguments": None})

    assert (use["name"], use["server_name"], use["input"]) == ("", "", {})

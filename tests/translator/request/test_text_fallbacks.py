from tests.for_each import for_each
from translator.request.text_fallbacks import (
    RENDERERS,
    document_text,
    search_result_text,
    server_result_text,
    system_blocks,
    tool_error_text,
)

TEXT = {"type": "text", "text": "x"}


@for_each(
    ("block", "text"),
    [
        (
            {"title": "T", "context": "C", "source": {"type": "text", "data": "body"}},
            "T\nC\nbody",
        ),
        ({"source": {"type": "content", "content": "body"}}, "body"),
        ({"source": {"type": "content", "content": [TEXT, {"type": "image"}, TEXT]}}, "x\nx"),
        ({"source": {"type": "url", "url": "https://x/y.pdf"}}, "[document: https://x/y.pdf]"),
        ({"title": "T", "source": {"type": "base64", "data": "AAAA"}}, "T\n[document: base64]"),
    ],
)
def test_documents(block, text):
    assert document_text(block) == text


def test_search_results():
    block = {"title": "T", "source": "https://x", "content": [TEXT]}

    assert search_result_text(block) == "T\nhttps://x\nx"


RESULT = {
    "type": "web_search_tool_result",
    "content": [{"title": "T", "url": "https://x"}, "junk", {"url": "https://y"}],
}


@for_each(
    ("block", "text"),
    [
        (RESULT, "T https://x\nhttps://y"),
        ({**RESULT, "content": {"error_code": "unavailable"}}, ""),
        (
            {
                "type": "web_fetch_tool_result",
                "content": {
                    "url": "https://x",
                    "content": {"source": {"type": "text", "data": "body"}},
                },
            },
            "https://x\nbody",
        ),
        ({"type": "web_fetch_tool_result", "content": {"error_code": "x"}}, ""),
        (
            {"type": "web_fetch_tool_result", "content": {"url": "u", "content": {"source": "?"}}},
            "u\n[document: None]",
        ),
        (
            {
                "type": "bash_code_execution_tool_result",
                "content": {"stdout": "out", "stderr": "err", "return_code": 1},
            },
            "out\nerr\n[exit code 1]",
        ),
        ({"type": "code_execution_tool_result", "content": {"stdout": "", "return_code": 0}}, ""),
        (
            {
                "type": "text_editor_code_execution_tool_result",
                "content": {"content": "body", "lines": ["+a", "-b"]},
            },
            "body\n+a\n-b",
        ),
        ({"type": "text_editor_code_execution_tool_result", "content": None}, ""),
        ({"type": "tool_search_tool_result", "content": {"tool_references": []}}, ""),
        ({"type": "mcp_tool_use", "name": "f", "input": {"a": 1}}, ""),
        ({"type": "mcp_tool_result", "content": [TEXT], "is_error": True}, "Error: x"),
        ({"type": "mcp_tool_result", "content": None}, ""),
        ({"type": "advisor_tool_result", "content": {"text": "do"}}, "do"),
        ({"type": "fallback"}, ""),
    ],
)
def test_server_tool_results_as_text(block, text):
    assert server_result_text(block) == text


@for_each("kind", sorted(RENDERERS))
@for_each("content", [None, "x", 5, [], [5], {}, {"content": 5}])
def test_no_content_of_a_result_can_break_its_rendering(kind, content):
    assert isinstance(server_result_text({"type": kind, "content": content}), str)


def test_the_flag_of_a_failed_tool_is_never_lost():
    assert tool_error_text("no file") == "Error: no file"
    assert tool_error_text("") == "Error"


def test_the_system_prompt_as_blocks():
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc=1"}
    empty = {"type": "text", "text": " \n"}

    assert system_blocks({}) == ([], [])
    assert system_blocks({"system": "x"}) == ([TEXT], [])
    blocks, [note] = system_blocks({"system": [billing, empty, TEXT]})
    assert blocks == [TEXT]
    assert (note.path, note.lossy) == ("system.0", False)

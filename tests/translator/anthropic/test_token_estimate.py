import base64
import json
from pathlib import Path

import pytest

from tests.for_each import for_each
from translator.anthropic.token_estimate import (
    MARGIN,
    MAX_PDF_PAGES,
    MAX_UNSEEN_PAGES,
    TOKENS_PER_IMAGE,
    TOKENS_PER_PDF_PAGE,
    content_tokens,
    estimate_tokens,
    tokens_of_characters,
)

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"

RECORDED = {
    "lingua__fableTemperatureParam-anthropic-followup-request": 36,
    "lingua__anthropicOpus5DisabledThinkingHighEffortParam-anthropic-followup-request": 32,
    "lingua__opus47AdaptiveThinkingReasoningEffortParam-anthropic-followup-request": 44,
    "lingua__outputConfigEffortWithJsonSchemaParam-anthropic-followup-request": 198,
    "lingua__stopSequencesParam-anthropic-followup-request": 52,
    "mirascope__input-test_call_with_mcp_tools-anthropic_claude_haiku_4_5__i1": 1346,
    "ruby_llm__chat_citations_with_anthropic_claude-haiku-4-5_cites_text_documents_in_responses": 674,
    "ruby_llm__chat_citations_with_anthropic_claude-haiku-4-5_cites_tool_results_returned_as_search_results__i1": 1253,
}
"""Recorded requests, and the input tokens that the provider counted."""


@pytest.mark.parametrize(("name", "counted"), RECORDED.items())
def test_the_estimate_is_between_the_recorded_count_and_half_more(name, counted):
    file = CORPUS / "anthropic-requests" / f"{name}.json"
    if not file.is_file():
        pytest.skip("NO RECORDED REQUESTS: ../shared/corpus is not here")

    assert counted <= estimate_tokens(json.loads(file.read_text())) <= 1.5 * counted + 30


def estimate(*content, **more) -> int:
    return estimate_tokens({"messages": [{"role": "user", "content": list(content)}], **more})


NOTHING = estimate()


def added(*content, **more) -> float:
    """Return what these parts add to the estimate before its margin."""
    return (estimate(*content, **more) - NOTHING) / MARGIN


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def test_the_estimate_is_positive():
    assert estimate_tokens({"messages": [{"role": "user", "content": ""}]}) > 0


@for_each(
    ("words", "least", "most"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 20, 200, 300),
        ("今天天气很好我们去公园散步吧" * 20, 200, 350),
        ("Съешь же ещё этих мягких французских булок. " * 20, 250, 1000),
    ],
)
def test_text_in_any_script(words, least, most):
    assert least <= added(text(words)) <= most
    assert added(text(words)) == added(system=words)


def pdf(pages: int, padding: int = 0) -> dict:
    raw = b"<< /Type /Page >>" * pages + b"<< /Type /Pages >>" + b"x" * padding
    source = {
        "type": "base64",
        "media_type": "application/pdf",
        "data": base64.b64encode(raw).decode(),
    }
    return {"type": "document", "title": "t", "source": source}


@for_each(
    ("block", "least"),
    [
        ({"type": "image", "source": {"type": "url", "url": "u"}}, TOKENS_PER_IMAGE),
        (pdf(3), 3 * TOKENS_PER_PDF_PAGE),
        (pdf(0, padding=1_000_000), 10 * TOKENS_PER_PDF_PAGE),
        ({"type": "document", "source": {"type": "base64", "data": "broken"}}, TOKENS_PER_PDF_PAGE),
        ({"type": "document", "source": {"type": "url", "url": "u"}}, TOKENS_PER_PDF_PAGE),
        ({"type": "document", "source": {"type": "text", "data": "word " * 100}}, 100),
        (
            {"type": "document", "source": {"type": "content", "content": [text("word " * 100)]}},
            100,
        ),
        ({"type": "document", "citations": {"enabled": True}, "source": {"type": "url"}}, 3000),
        ({"type": "tool_result", "content": [text("word " * 100)]}, 100),
        ({"type": "tool_result", "content": None}, 1),
        ({"type": "thinking", "thinking": "word " * 100, "signature": "x"}, 100),
        ({"type": "thinking", "thinking": "", "signature": "x" * 400}, 100),
        ({"type": "redacted_thinking", "data": "x" * 400}, 100),
        (
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": ["word " * 100, 5, None]}},
            100,
        ),
    ],
)
def test_every_kind_of_block_is_counted(block, least):
    assert least - 1 <= added(block) <= 2 * least + 30


def test_ciphers_of_searches_are_not_text():
    result = {"type": "web_search_tool_result", "content": [{"encrypted_content": "x" * 9000}]}

    assert added(result) < 50


def test_tools_and_layouts_count():
    tool = {"name": "f", "description": "word " * 100, "input_schema": {"type": "object"}}
    layout = {"type": "json_schema", "schema": {"type": "object"}}

    assert added(tools=[tool, tool]) - added(tools=[tool]) >= 100
    assert added(tools=[{"type": "web_search_20250305", "name": "web_search"}]) > 1000
    assert added(output_config={"format": layout}) == added(output_format=layout) > 100


BASE64 = base64.b64encode(bytes(range(256)) * 4_000).decode()
IMAGE_SOURCE = {"type": "base64", "media_type": "image/png", "data": BASE64}
IMAGE = {"type": "image", "source": IMAGE_SOURCE}
PDF_SOURCE = {**IMAGE_SOURCE, "media_type": "application/pdf"}
FETCHED = {"type": "web_fetch_result", "content": {"type": "document", "source": PDF_SOURCE}}


@for_each(
    ("block", "most"),
    [
        (IMAGE, TOKENS_PER_IMAGE),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, TOKENS_PER_IMAGE),
        ({"type": "tool_result", "content": [IMAGE, IMAGE]}, 2 * TOKENS_PER_IMAGE),
        ({"type": "mcp_tool_result", "content": [IMAGE]}, TOKENS_PER_IMAGE),
        ({"type": "screen_recording", "frames": [{"source": IMAGE_SOURCE}]}, TOKENS_PER_IMAGE),
        ({"type": "resource", "resource": {"uri": "f:/a.png", "blob": BASE64}}, TOKENS_PER_IMAGE),
        ({"type": "input_audio", "source": IMAGE_SOURCE | {"media_type": "audio/wav"}}, 1600),
        ({"type": "web_fetch_tool_result", "content": FETCHED}, 18 * TOKENS_PER_PDF_PAGE),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}}, 1600),
        ({"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}"}, 1600),
        (
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{BASE64}"}},
            18 * TOKENS_PER_PDF_PAGE,
        ),
    ],
)
def test_base64_is_counted_by_what_it_shows(block, most):
    """The base64 text of each of these has a million characters and more."""
    assert most - 1 <= added(block) <= most + 60
    assert content_tokens([block]) <= most + 60


def test_base64_that_the_model_reads_as_text_is_text():
    call = {"type": "tool_use", "name": "f", "input": {"png": BASE64}}

    assert added(call) >= len(BASE64) / 4
    assert added(text(f"data:image/png;base64,{BASE64}")) >= len(BASE64) / 4


@for_each(
    ("block", "pages"),
    [
        (pdf(3, padding=20_000_000), 3),
        (pdf(2_000_000), MAX_PDF_PAGES),
        (pdf(0, padding=25_000_000), MAX_UNSEEN_PAGES),
    ],
)
def test_the_pages_of_a_large_pdf_are_bounded(block, pages):
    assert added(block) == pytest.approx(pages * TOKENS_PER_PDF_PAGE, rel=0.01)


def nested(depth: int) -> dict:
    block: dict = {"type": "text", "text": "word " * 100}
    for _ in range(depth):
        block = {"type": "new_block", "citations": {}, "content": [block]}
    return block


def test_deeply_nested_content_is_counted_without_recursion():
    deep = nested(50_000)

    assert added(deep, tools=[{"name": "f", "input_schema": deep}]) > 50_000


@for_each(
    "request_",
    [
        {},
        {"messages": 5, "tools": {"a": 1}, "system": 7, "output_config": [], "output_format": "x"},
        {"messages": [5, {"content": {"type": ["x"]}}, {"content": 7}], "tools": [5, {"name": 3}]},
        {"messages": [{"content": [{"type": kind} for kind in ("document", "image", "text")]}]},
        {"messages": [{"content": [{"type": "thinking", "thinking": 5, "signature": []}]}]},
        {"messages": [{"content": [{"type": "document", "source": {"type": "base64"}}]}]},
        {"messages": [{"content": [{"type": "tool_use"}, {"type": "redacted_thinking"}]}]},
    ],
)
def test_an_invalid_request_has_an_estimate(request_):
    assert 1 <= estimate_tokens(request_) < 10_000


def test_the_output_is_estimated_by_the_same_rule():
    call = {"type": "tool_use", "id": "t", "name": "read_file", "input": {"path": "a.py"}}

    assert content_tokens([text("word " * 100), call]) == content_tokens("word " * 100) + 18
    assert content_tokens("word " * 100) == tokens_of_characters(500)
    assert content_tokens([]) == 0

"""Content blocks of user turns as parts of a Chat message."""

import pytest

from tests.fakes.anthropic_requests import (
    PDF,
    PIXEL,
    assistant,
    call,
    make_request,
    result,
    text,
    user,
)
from tests.for_each import for_each
from tests.translator.openai_chat.requests import body, build, fates, sent
from translator.errors import BadRequest


def parts(*blocks, **overrides):
    return sent(user(*blocks), **overrides)[0]["content"]


def image(**source):
    return {"type": "image", "source": source}


def document(source, **fields):
    return {"type": "document", "source": source, **fields}


def test_an_image_url_is_sent_as_a_url():
    assert parts(image(type="url", url="https://example.org/cat.png")) == [
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    ]


def test_an_image_file_id_of_another_provider_is_rejected():
    with pytest.raises(BadRequest, match=r"^messages\.0\.content\.0\.image\.source\.type: 'file'"):
        parts(image(type="file", file_id="file_1"))


def test_a_model_without_vision_receives_an_image_placeholder():
    request = make_request(user(image(**PIXEL)))

    assert "omitted" in body(request, "deepseek")["messages"][0]["content"]
    assert fates(request, "deepseek") == {"messages.0.content.0": "dropped"}


def test_image_transformations_are_dropped_with_a_note():
    block = image(**PIXEL) | {"transformations": {"oversized_image": "error"}}

    assert fates(make_request(user(block))) == {"messages.0.content.0.transformations": "dropped"}


def test_a_pdf_is_sent_as_a_file_if_supported():
    assert parts(document(PDF, title="Report"), document(PDF), profile="openai") == [
        {
            "type": "file",
            "file": {"filename": name, "file_data": "data:application/pdf;base64,JVBERi0="},
        }
        for name in ("Report.pdf", "document.pdf")
    ]


@for_each(
    ("source", "placeholder"),
    [
        (PDF, "[file omitted: this upstream does not support PDF input: Plan]"),
        (
            {"type": "url", "url": "https://example.org/a.pdf"},
            (
                "[file omitted: this upstream does not fetch documents by URL: "
                "https://example.org/a.pdf]"
            ),
        ),
    ],
)
def test_a_text_takes_the_place_of_a_document_that_the_upstream_cannot_have(source, placeholder):
    block = document(source, title="Plan")
    inside = result(text("Read."), block)

    assert parts(block) == placeholder
    assert fates(make_request(user(block))) == {"messages.0.content.0": "dropped"}
    assert (
        sent(user("Go."), assistant(call()), user(inside))[2]["content"] == f"Read.\n{placeholder}"
    )


def test_a_stored_document_of_another_provider_is_rejected():
    with pytest.raises(BadRequest, match=r"^messages\.0\.content\.0\.document\.source\.type: "):
        parts(document({"type": "file", "file_id": "file_1"}))


@for_each(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "Sun tomorrow."},
        {"type": "content", "content": "Sun tomorrow."},
        {"type": "content", "content": [text("Sun tomorrow.")]},
    ],
)
def test_a_text_document_becomes_text_with_its_title(source):
    rendered = parts(document(source, title="Forecast", context="From the radio."))

    assert [word in rendered for word in ("Forecast", "From the radio.", "Sun tomorrow.")] == [
        True
    ] * 3


def test_a_document_of_blocks_preserves_the_order_of_its_images():
    source = {"type": "content", "content": [text("Before."), image(**PIXEL)]}

    assert [part["type"] for part in parts(document(source))] == ["text", "image_url"]


def test_requested_citations_are_noted_as_dropped():
    source = {"type": "text", "media_type": "text/plain", "data": "Sun."}
    cited = {"citations": {"enabled": True}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [text("x")]}

    request = make_request(
        user(document(source, **cited), found | cited, document(source, citations=None))
    )

    assert fates(request) == {
        "messages.0.content.0.citations": "dropped",
        "messages.0.content.0": "emulated",
        "messages.0.content.1.citations": "dropped",
        "messages.0.content.1": "emulated",
        "messages.0.content.2": "emulated",
    }


def test_a_search_result_becomes_text_with_title_and_source():
    rendered = parts(
        {
            "type": "search_result",
            "source": "https://example.org/ruby",
            "title": "Ruby",
            "content": [text("Made by Matz.")],
        }
    )

    assert all(word in rendered for word in ("https://example.org/ruby", "Ruby", "Made by Matz."))


def test_a_tool_reference_names_its_tool():
    assert parts({"type": "tool_reference", "tool_name": "get_time"}) == "[tool loaded: get_time]"


def test_a_container_upload_is_refused():
    with pytest.raises(BadRequest, match="container_upload"):
        build(make_request(user({"type": "container_upload", "file_id": "file_1"})))

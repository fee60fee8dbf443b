"""OpenRouter's ``reasoning_details``."""

from tests.for_each import for_each
from translator.openai_chat.reasoning import (
    details_text,
    merge_details,
    read_details,
    reasoning_text,
    split_opaque,
)


@for_each("value", [None, "text", {"type": "x"}, 7, [7, None]])
def test_details_that_are_not_a_list_of_objects_are_empty(value):
    assert read_details({"reasoning_details": value}) == []


@for_each("value", [None, "", 7, ["x"]])
def test_what_is_opaque_is_a_text(value):
    assert read_details({"reasoning_opaque": value}) == []


def test_what_is_opaque_travels_beside_the_fragments_and_the_last_counts():
    fragment = {"type": "reasoning.text", "text": "Hm"}
    details = read_details({"reasoning_details": [fragment], "reasoning_opaque": "b2xk"})
    details += read_details({"reasoning_opaque": "bmV3"})

    assert details_text(details) == "Hm"
    assert split_opaque(merge_details(details)) == ([fragment], "bmV3")
    assert split_opaque([fragment]) == ([fragment], "")


@for_each(
    "value",
    [
        "Hm.",
        ["H", {"text": "m."}],
        {"content": "Hm.", "signature": "s"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    ],
)
def test_reasoning_text_is_found_in_each_wrapper(value):
    assert reasoning_text(value) == "Hm."


@for_each("value", [None, 7, {"signature": "s"}, {"text": 7}, []])
def test_a_value_without_text_is_not_reasoning(value):
    assert reasoning_text(value) == ""


def test_the_text_is_what_can_be_read():
    fragments = [{"text": "a"}, {"summary": "b"}, {"data": "c"}, {"text": None}, {"text": 7}]

    assert details_text(fragments) == "ab"


def test_fragments_of_one_entry_are_joined():
    merged = merge_details(
        [
            {"type": "reasoning.text", "index": 0, "text": "a", "signature": None},
            {"type": "reasoning.text", "index": 0, "text": "b", "format": "x"},
            {"type": "reasoning.text", "index": 0, "text": None, "signature": "s"},
            {"type": "reasoning.text", "index": 1, "text": "c"},
            {"type": "reasoning.summary", "index": 1, "summary": "d"},
            {"type": "reasoning.encrypted", "data": "e"},
            {"type": "reasoning.encrypted", "data": "f"},
        ]
    )

    assert merged == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s", "format": "x"},
        {"type": "reasoning.text", "index": 1, "text": "c"},
        {"type": "reasoning.summary", "index": 1, "summary": "d"},
        {"type": "reasoning.encrypted", "data": "e"},
        {"type": "reasoning.encrypted", "data": "f"},
    ]


def test_the_original_fragments_are_not_modified():
    fragments = [{"type": "t", "index": 0, "text": "a"}, {"type": "t", "index": 0, "text": "b"}]

    merge_details(fragments)

    assert fragments[0]["text"] == "a"

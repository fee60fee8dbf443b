"""OpenRouter's ``reasoning_details``."""

import pytest

from translator.openai_chat.details import (
    details_of,
    details_text,
    merged_details,
    opaque_in,
    thought_text,
)


@pytest.mark.parametrize("value", [None, "text", {"type": "x"}, 7, [7, None]])
def test_what_is_no_list_of_objects_holds_nothing(value):
    assert details_of({"reasoning_details": value}) == []


@pytest.mark.parametrize("value", [None, "", 7, ["x"]])
def test_what_is_opaque_is_a_text(value):
    assert details_of({"reasoning_opaque": value}) == []


def test_what_is_opaque_travels_beside_the_fragments_and_the_last_counts():
    fragment = {"type": "reasoning.text", "text": "Hm"}
    details = details_of({"reasoning_details": [fragment], "reasoning_opaque": "b2xk"})
    details += details_of({"reasoning_opaque": "bmV3"})

    assert details_text(details) == "Hm"
    assert opaque_in(merged_details(details)) == ([fragment], "bmV3")
    assert opaque_in([fragment]) == ([fragment], "")


@pytest.mark.parametrize(
    "value",
    [
        "Hm.",
        ["H", {"text": "m."}],
        {"content": "Hm.", "signature": "s"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    ],
)
def test_reasoning_is_found_in_whatever_it_is_wrapped(value):
    assert thought_text(value) == "Hm."


@pytest.mark.parametrize("value", [None, 7, {"signature": "s"}, {"text": 7}, []])
def test_what_holds_no_text_is_no_reasoning(value):
    assert thought_text(value) == ""


def test_the_text_is_what_can_be_read():
    fragments = [{"text": "a"}, {"summary": "b"}, {"data": "c"}, {"text": None}, {"text": 7}]

    assert details_text(fragments) == "ab"


def test_fragments_of_one_entry_are_joined_and_others_kept_apart():
    merged = merged_details(
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


def test_the_fragments_themselves_stay_as_they_are():
    fragments = [{"type": "t", "index": 0, "text": "a"}, {"type": "t", "index": 0, "text": "b"}]

    merged_details(fragments)

    assert fragments[0]["text"] == "a"

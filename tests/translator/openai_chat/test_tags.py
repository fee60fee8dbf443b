"""The splitter of ``<think>`` tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.translator.openai_chat.answers import chunk, stream
from translator.openai_chat.tags import ThinkTags


def split(*pieces, opened=False):
    """Reasoning and text of an answer in pieces."""
    tags = ThinkTags(opened=opened)
    parts = [part for piece in pieces for part in tags.feed(piece)] + tags.rest()
    return tuple(
        "".join(said for kind, said in parts if kind == wanted) for wanted in ("thinking", "text")
    )


@pytest.mark.parametrize(
    ("answer", "thinking", "text"),
    [
        ("Hello.", "", "Hello."),
        ("<think>Hm.</think>Hello.", "Hm.", "Hello."),
        (" \n<think>Hm.</think>\n\nHello.", "Hm.", "Hello."),
        ("<think></think>Hello.", "", "Hello."),
        ("<think>Hm.", "Hm.", ""),
        ("<think>a</thin b</think>c", "a</thin b", "c"),
        ("<think>Hm.</think>", "Hm.", ""),
        ("Hello <think>no</think>", "", "Hello <think>no</think>"),
        ("<thought>Hm.</thought>Hello.", "Hm.", "Hello."),
        ("<reasoning>Hm.</think></reasoning>Hello.", "Hm.</think>", "Hello."),
        ("<thinking>Hm.</thinking>Hello.", "Hm.", "Hello."),
        ("<thoughts>Hm.", "", "<thoughts>Hm."),
        ("<thin air", "", "<thin air"),
        ("<th", "", "<th"),
        ("  ", "", "  "),
    ],
)
def test_only_a_tag_at_the_very_start_opens_reasoning(answer, thinking, text):
    assert split(answer) == (thinking, text)


@pytest.mark.parametrize(
    ("answer", "thinking", "text"),
    [
        ("Hm.</think>\n\nHello.", "Hm.", "Hello."),
        ("<think>Hm.</think>Hello.", "Hm.", "Hello."),
        ("</think>Hello.", "", "Hello."),
        ("a</thin b</think>c</think>d", "a</thin b", "c</think>d"),
        ("Hm.</think>", "Hm.", ""),
        ("Hello.", "", "Hello."),
        ("Hello.</thi", "", "Hello.</thi"),
        ("<think>Hm.", "Hm.", ""),
        ("<th", "", "<th"),
        ("", "", ""),
    ],
)
def test_where_the_prompt_opened_the_tag_all_before_its_end_is_reasoning(answer, thinking, text):
    assert split(answer, opened=True) == (thinking, text)


def test_what_goes_on_after_a_text_without_reasoning_is_text():
    tags = ThinkTags(opened=True)

    assert tags.feed("Hello") == []
    assert tags.rest() == [("text", "Hello")]
    assert tags.feed(" again</think>") == [("text", " again</think>")]
    assert tags.rest() == []


@given(
    st.lists(st.sampled_from([*"<think>/ ab", "<think>", "</think>"]), max_size=40),
    st.booleans(),
    st.data(),
)
def test_where_the_pieces_are_cut_changes_nothing(words, opened, data):
    answer = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]

    assert split(*pieces, opened=opened) == split(answer, opened=opened)


def test_what_was_held_back_leaves_before_the_error_of_a_cut_answer():
    heard = stream(capabilities={"think_tags_opened": True})

    begun = heard.feed(chunk(content="It may be"))
    events = heard.end()

    assert [event["type"] for event in begun] == ["message_start"]
    assert events[1]["delta"]["text"] == "It may be"
    assert events[-1]["type"] == "error"

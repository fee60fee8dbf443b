"""The splitter of ``<think>`` tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translator.openai_chat.tags import ThinkTags


def split(*pieces):
    """Reasoning and text of an answer in pieces."""
    tags = ThinkTags()
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
        ("<thin air", "", "<thin air"),
        ("<th", "", "<th"),
        ("  ", "", "  "),
    ],
)
def test_only_a_tag_at_the_very_start_opens_reasoning(answer, thinking, text):
    assert split(answer) == (thinking, text)


@given(st.text(alphabet="<think>/ ab", max_size=40), st.data())
def test_where_the_pieces_are_cut_changes_nothing(answer, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]

    assert split(*pieces) == split(answer)

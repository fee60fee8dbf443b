"""The splitter of ``<think>`` tags."""

from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from tests.translator.openai_chat.responses import chunk, stream
from translator.openai_chat.text_blocks import ThinkTags


def split(*pieces, opened=False):
    """Return (reasoning, text) of a response in pieces."""
    tags = ThinkTags(maybe_opened=opened)
    parts = [part for piece in pieces for part in tags.feed(piece)] + tags.flush()
    return tuple(
        "".join(content for kind, content in parts if kind == block_type)
        for block_type in ("thinking", "text")
    )


@for_each(
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


@for_each(
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


def test_tags_after_plain_text_are_text():
    tags = ThinkTags(maybe_opened=True)

    assert tags.feed("Hello") == []
    assert tags.flush() == [("text", "Hello")]
    assert tags.feed(" again</think>") == [("text", " again</think>")]
    assert tags.flush() == []


@given(
    st.lists(st.sampled_from([*"<think>/ ab", "<think>", "</think>"]), max_size=40),
    st.booleans(),
    st.data(),
)
def test_the_split_of_the_deltas_does_not_matter(words, opened, data):
    answer = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]

    assert split(*pieces, opened=opened) == split(answer, opened=opened)


def test_withheld_text_is_emitted_before_the_error_of_a_truncated_response():
    decoder = stream(capabilities={"think_tags_opened": True})

    started = decoder.feed(chunk(content="It may be"))
    events = decoder.end()

    assert [event["type"] for event in started] == ["message_start"]
    assert events[1]["delta"]["text"] == "It may be"
    assert events[-1]["type"] == "error"

"""A second generation in one stream, pictures, and answers of reasoning alone."""

from typing import Any

from tests.for_each import for_each
from translator.dialect import ResponseContext
from translator.message_stream.events_to_message import fold
from translator.message_stream.message_composer import REASONING_AS_TEXT
from translator.message_stream.response_stream import FIRST_DROPPED, IMAGE, REPLACED_IMAGE, SPLICED
from translator.openai_chat.chat_stream import ChatStream


def chunk(id_: str | None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": id_, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def fed(*chunks: dict[str, Any], **context: Any) -> tuple[ChatStream, list[dict[str, Any]]]:
    stream = ChatStream(ResponseContext(**context))
    events = [event for each in chunks for event in stream.feed(each)]
    return stream, events if stream.finished else events + stream.end()


ROLE = {"role": "assistant", "content": ""}
CALL = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}
MORE = {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":"sky"}'}}]}


@for_each(
    ("chunks", "is_spliced"),
    [
        ([("a", ROLE), ("a", {"content": "x"}), ("b", ROLE), ("b", {"content": "y"})], True),
        ([("a", ROLE), ("a", {"content": "x"}), ("b", ROLE | {"content": "y"})], True),
        ([("a", ROLE), ("a", {"content": "x"}), ("b", {"content": "y"})], False),
        (
            [
                ("a", ROLE),
                ("a", {"content": "x"}),
                ("b", {"content": "y"}),
                ("b", {"content": "z"}),
            ],
            True,
        ),
        ([("a", ROLE), ("a", {"content": "x"}), ("b", {"content": "y"}), ("b", {})], False),
        (
            [
                ("a", ROLE),
                ("a", {"content": "x"}),
                ("b", {"content": "y"}),
                ("a", {"content": "z"}),
            ],
            False,
        ),
        (
            [
                ("a", ROLE),
                ("a", {"content": "x"}),
                ("b", {"content": "y"}),
                ("c", {"content": "z"}),
            ],
            False,
        ),
        (
            [
                ("a", ROLE),
                ("a", {"reasoning_content": "x"}),
                ("b", {"content": "y"}),
                ("b", {"content": "z"}),
            ],
            False,
        ),
        ([("a", ROLE), ("a", {"content": "x"}), ("b", CALL), ("b", {"content": "z"})], False),
        ([("a", CALL), ("a", MORE), ("b", CALL), ("b", MORE)], True),
        ([("a", ROLE), ("b", {"content": "x"}), ("c", {"content": "y"}), ("d", ROLE)], False),
        ([("a", ROLE | {"content": "x"}), ("b", ROLE | {"content": "y"})], False),
        ([("a", ROLE), ("a", {}), ("b", ROLE), ("b", {"content": "y"})], False),
        ([("a", ROLE), ("a", {"content": "x"}), ("a", ROLE), ("a", {"content": "y"})], False),
        ([(None, ROLE), (None, {"content": "x"}), ("", ROLE), (None, {"content": "y"})], False),
    ],
)
def test_a_new_id_after_content_is_a_second_generation(chunks, is_spliced):
    stream, events = fed(*[chunk(id_, **delta) for id_, delta in chunks], chunk("a", "stop"))

    assert (stream.error is SPLICED) == is_spliced
    assert (events[-1]["type"] == "error") == is_spliced


def test_a_whole_answer_is_the_second_generation_alone():
    first = {"id": "call_1", "index": 0, "function": {"name": "f", "arguments": '{"a":'}}
    stream, events = fed(
        chunk("a", **ROLE), chunk("a", content="one"), chunk("a", tool_calls=[first]),
        {**chunk("b", **ROLE), "model": "m2"}, chunk("b", content="two"), chunk("b", "stop"),
        whole=True,
    )  # fmt: skip

    message = fold(events)
    assert [block["text"] for block in message["content"]] == ["two"]
    assert message["stop_reason"] == "end_turn"
    assert (stream.upstream_id, stream.upstream_model) == ("b", "m2")
    assert FIRST_DROPPED in stream.notes
    assert stream.error is None


@for_each("finish_apart", [True, False])
def test_a_whole_answer_has_all_of_a_second_generation_without_the_role(finish_apart):
    ends = [chunk("b", "stop")] if finish_apart else [chunk("b", "stop", content=" it is.")]
    stream, events = fed(
        chunk("a", **ROLE), chunk("a", content="one"), {**chunk("b", content="two"), "model": "m2"},
        *ends,
        whole=True,
    )  # fmt: skip

    expected = "two" if finish_apart else "two it is."
    assert [block["text"] for block in fold(events)["content"]] == [expected]
    assert (stream.upstream_id, stream.upstream_model) == ("b", "m2")
    assert FIRST_DROPPED in stream.notes


@for_each("whole", [True, False])
def test_a_second_generation_without_the_role_is_found_among_plain_texts(whole):
    stream = ChatStream(ResponseContext(whole=whole))
    events = stream.feed(chunk("a", **ROLE))

    for id_, text in [("a", "one"), ("a", " half"), ("b", "two"), ("b", ".")]:
        events += stream.feed_text((id_, 0, 0), text)
    events += stream.feed(chunk("b", "stop"))

    assert (stream.error is SPLICED) == (not whole)
    if whole:
        assert [block["text"] for block in fold(events + stream.end())["content"]] == ["two."]


@for_each(
    ("second", "is_spliced"),
    [
        (("b", 1, 0), True),
        (("b", 0, 0), False),
        (("a", 1, 0), False),
        (("", 1, 0), False),
    ],
)
def test_a_second_generation_is_found_among_plain_text_deltas(second, is_spliced):
    stream = ChatStream(ResponseContext())
    stream.feed(chunk("a", **ROLE))
    stream.feed_text(("a", 0, 0), "It is ")

    events = stream.feed_text(second, "It is 4.")

    assert (stream.error is SPLICED) == is_spliced
    assert (events[-1]["type"] == "error") == is_spliced


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@for_each(
    ("delta", "text"),
    [
        ({"images": [PICTURE]}, IMAGE),
        ({"content": "Here:", "images": [PICTURE]}, f"Here:\n\n{IMAGE}"),
        ({"content": [{"type": "text", "text": "Here:"}, PICTURE]}, f"Here:\n\n{IMAGE}"),
        ({"images": [PICTURE, PICTURE]}, f"{IMAGE}\n\n{IMAGE}"),
        ({"image": {"url": "data:image/png;base64,AAAA"}}, IMAGE),
        ({"content": [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}, IMAGE),
    ],
)
def test_a_generated_picture_is_replaced_by_words(delta, text):
    stream, events = fed(chunk("a", **delta), chunk("a", "stop"))
    whole = ChatStream(ResponseContext())
    body = {"id": "a", "choices": [{"message": delta, "finish_reason": "stop"}]}

    for content in (fold(events)["content"], fold(whole.feed_body(body))["content"]):
        assert [block["text"] for block in content] == [text]
    assert REPLACED_IMAGE in stream.notes
    assert not stream.unknown


@for_each(
    ("finish", "delta", "content"),
    [
        ("stop", {"reasoning_content": " It is 4. "}, ["It is 4."]),
        ("stop", {"reasoning": "It is 4."}, ["It is 4."]),
        ("stop", {"reasoning_content": "hm", "content": "4"}, ["4"]),
        ("length", {"reasoning_content": "It is"}, []),
        ("stop", {"reasoning_content": "\n"}, []),
    ],
)
def test_an_answer_of_reasoning_alone_is_shown_to_a_client_without_thinking(finish, delta, content):
    stream, events = fed(chunk("a", **delta), chunk("a", finish), thinking="hidden")

    assert [block["text"] for block in fold(events)["content"]] == content
    assert (REASONING_AS_TEXT in stream.notes) == (content == ["It is 4."])


@for_each(
    ("reason", "expected"),
    [
        ("IMAGE_SAFETY", "refusal"),
        ("IMAGE_PROHIBITED_CONTENT", "refusal"),
        ("IMAGE_RECITATION", "refusal"),
        ("content_filter: IMAGE_SAFETY", "refusal"),
        ("IMAGE_OTHER", "end_turn"),
        ("NO_IMAGE", "end_turn"),
    ],
)
def test_the_reasons_of_gemini_s_pictures(reason, expected):
    stream, _ = fed(chunk("a", reason, content="I "))

    assert stream.stop_reason == expected
    assert not stream.unknown


@for_each("whole", [False, True])
def test_a_second_generation_is_found_among_plain_texts_too(whole):
    stream = ChatStream(ResponseContext(whole=whole))
    events = stream.feed(chunk("a", **ROLE))

    for location, text in [(("a", 0, 0), "o"), (("a", 0, 0), "ne"), (("b", 1, 0), "two")]:
        events += stream.feed_text(location, text)

    assert (stream.error is SPLICED) == (not whole)
    if whole:
        events += stream.feed(chunk("b", "stop")) + stream.end()
        assert [block["text"] for block in fold(events)["content"]] == ["two"]

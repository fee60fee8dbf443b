"""Histories in the shapes that chat templates accept; no text is lost."""

from tests.fakes.anthropic_requests import assistant, make_request, result, user
from tests.fakes.anthropic_requests import call as tool_use
from tests.for_each import for_each
from tests.translator.openai_chat.requests import build
from translator.request.history_shapes import (
    IMAGE_PARTS,
    NO_IMAGE,
    merge_turns,
    move_system_text,
    split_calls,
    without_parts,
    write_calls_as_text,
)

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


def text(role, content, **fields):
    return {"role": role, "content": content, **fields}


def call(id_):
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def calling(*ids, content=None):
    return text("assistant", content, tool_calls=[call(id_) for id_ in ids])


def output(id_, content="ok"):
    return text("tool", content, tool_call_id=id_)


@for_each(
    ("messages", "merged"),
    [
        ([text("user", "a"), text("user", "b")], [text("user", "a\n\nb")]),
        ([text("assistant", "a"), text("assistant", "b")], [text("assistant", "a\n\nb")]),
        (
            [text("assistant", "a"), calling("1")],
            [calling("1", content="a")],
        ),
        ([calling("1"), calling("2")], [calling("1", "2")]),
        (
            [calling("1"), output("1"), text("user", "now?")],
            [calling("1"), output("1", "ok\n\nnow?")],
        ),
        (
            [output("1"), text("user", [IMAGE])],
            [output("1"), text("user", [IMAGE])],
        ),
        (
            [text("user", [IMAGE]), text("user", "b")],
            [text("user", [IMAGE, {"type": "text", "text": "b"}])],
        ),
        ([text("system", "s"), text("user", "a")], [text("system", "s"), text("user", "a")]),
    ],
)
def test_turns_alternate(messages, merged):
    assert merge_turns(messages) == merged
    assert merge_turns(merged) == merged


def test_parallel_calls_are_sent_one_after_the_other():
    messages = [
        text("user", "a"),
        calling("1", "2", "3", content="Both."),
        output("1"),
        output("2"),
    ]

    assert split_calls(messages) == [
        text("user", "a"),
        calling("1", content="Both."),
        output("1"),
        calling("2", content=""),
        output("2"),
        calling("3", content=""),
    ]


def test_calls_that_are_already_single_stay_as_they_are():
    messages = [calling("1"), output("1"), calling("2"), output("2")]

    assert split_calls(messages) == messages


@for_each(
    ("messages", "moved"),
    [
        ([text("system", "s"), text("user", "a")], [text("user", "s\n\na")]),
        (
            [text("developer", "s"), text("assistant", "x"), text("user", "a")],
            [text("assistant", "x"), text("user", "s\n\na")],
        ),
        ([text("system", "s"), calling("1")], [text("user", "s"), calling("1")]),
        ([text("user", "a")], [text("user", "a")]),
    ],
)
def test_system_text_moves_into_the_first_user_message(messages, moved):
    assert move_system_text(messages) == moved


def test_calls_and_results_are_written_as_text_in_alternating_turns():
    messages = [text("user", "a"), calling("1", "2", content="Both."), output("1"), output("2")]

    assert write_calls_as_text([*messages, text("user", "b")]) == [
        text("user", "a"),
        text("assistant", "Both.\n[tool call] f({})\n[tool call] f({})"),
        text("user", "[tool result] ok\n\n[tool result] ok\n\nb"),
    ]
    assert write_calls_as_text([calling("1")]) == [text("assistant", "[tool call] f({})")]


def test_each_image_becomes_a_text():
    body = [
        text("user", [IMAGE, {"type": "text", "text": "a"}]),
        {"type": "function_call_output", "output": [{"type": "input_image", "image_url": "x"}]},
        "text",
    ]

    assert without_parts(body, IMAGE_PARTS, NO_IMAGE) == [
        text("user", f"{NO_IMAGE}\n\na"),
        {"type": "function_call_output", "output": [{"type": "input_text", "text": NO_IMAGE}]},
        "text",
    ]


def test_the_builder_gives_the_history_the_shape_of_the_profile():
    history = [
        user("a"),
        assistant(tool_use("t1"), tool_use("t2")),
        user(
            result("one", call_id="t1"), result("two", call_id="t2"), {"type": "text", "text": "b"}
        ),
    ]
    request = make_request(*history, system="s")

    plain = build(request)
    made = build(request, system_role=False, single_calls=True, merge_users=True)

    assert [m["role"] for m in plain.body["messages"]] == [
        "system", "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
    assert [m["role"] for m in made.body["messages"]] == [
        "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert made.body["messages"][0]["content"] == "s\n\na"
    assert made.body["messages"][-1]["content"] == "two\n\nb"
    assert [(n.path, n.fate) for n in made.notes] == [("messages", "emulated")]
    assert [one.path for one in made.origins] == [
        "", "", "messages.2.content.0.tool_result", "", "",
    ]  # fmt: skip
    assert "" not in [one.path for one in plain.origins]


def test_the_builder_writes_calls_as_text_for_a_profile_without_tool_messages():
    history = [user("a"), assistant(tool_use("t1")), user(result("one", call_id="t1"))]

    made = build(make_request(*history), tool_messages=False)

    assert [m["role"] for m in made.body["messages"]] == ["user", "assistant", "user"]
    assert made.body["messages"][-1]["content"] == "[tool result] one"


def test_a_history_that_already_has_the_shape_stays_as_it_is():
    request = make_request(user("a"), assistant("b"), user("c"))

    made = build(request, merge_users=True)

    assert made.body["messages"] == build(request).body["messages"]
    assert made.notes == ()
    assert [one.path for one in made.origins] == ["messages.0", "messages.1", "messages.2"]

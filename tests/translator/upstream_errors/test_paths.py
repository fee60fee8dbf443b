"""Paths in the upstream's body are translated whole to paths in the client's request."""

import re

from tests.fakes.anthropic_requests import (
    PIXEL,
    assistant,
    call,
    image,
    make_request,
    result,
    system,
    text,
    user,
)
from tests.for_each import for_each
from translator import openai_chat, openai_responses
from translator.capabilities import PROFILES, profile_with
from translator.dialect import Lesson, Origin, TranslationTarget, UpstreamError
from translator.request.body_edits import apply_lessons
from translator.request.history_shapes import IMAGE_PARTS
from translator.upstream_errors import map_error_paths, renumbered
from translator.upstream_errors.paths import moved_origins

PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}
DOCUMENT = {"type": "document", "source": PDF, "title": "Plan"}
TEXTS = {"type": "document", "source": {"type": "content", "content": [text("x"), image(**PIXEL)]}}
HISTORY = make_request(
    user(text("Look."), image(**PIXEL), DOCUMENT),
    assistant(text("Yes."), call("toolu_1"), call("toolu_2")),
    user(text("And?"), result(text("a"), image(**PIXEL), call_id="toolu_2"), result("b"), TEXTS),
    system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
)
DROPS_FILE = re.compile(
    r"messages\.\d+\.content\.\d+\.(?:tool_result\.content\.\d+\.)?(?:image|document|pdf)"
)
"""The words by which Claude Code 2.1.332 drops a file from its history by itself."""


def error(message, param=None):
    return UpstreamError(status=400, error_type="x", message=message, param=param)


def origins(dialect, profile="openai", **overrides):
    target = TranslationTarget(profile=profile_with(profile, overrides))
    return dialect.build_request(HISTORY, target).origins


def mapped(theirs, found):
    reply = map_error_paths(error(theirs, theirs), found)
    assert reply.message == reply.param
    assert map_error_paths(error(theirs), found).param is None
    return reply.message


# The input: developer, user, text, two calls, their two results, user
@for_each(
    ("theirs", "ours"),
    [
        ("Invalid 'input[1].content[1].image_url'.",
         "Invalid 'messages.0.content.1.image.source'."),
        ("input[1].content[0].text", "messages.0.content.0.text"),
        ("input[1].content[2].filename", "messages.0.content.2.document.title"),
        ("$.input[1].content[2]", "messages.0.content.2.document"),
        ("input.1.content.1: bad", "messages.0.content.1.image: bad"),
        ("input[3].arguments is bad", "messages.1.content.1.tool_use.input is bad"),
        ("input[4].name", "messages.1.content.2.tool_use.name"),
        ("input[5].output and input[6].output[1].image_url",
         ("messages.2.content.2.tool_result.content"
         " and messages.2.content.1.tool_result.content.1.image.source")),
        ("input[7].content[1].text", "messages.2.content.3.document.source.content.0.text"),
        ("input[7].content[2]", "messages.2.content.3.document.source.content.1.image"),
        ("input[7]: too long", "messages.2: too long"),
        ("input[0].content[0].text is too long", "system is too long"),
        # What the client did not write stays in the upstream's words.
        ("Unknown parameter: 'input[2].phase'.", "Unknown parameter: 'input[2].phase'."),
        ("input[1].content[1].detail", "input[1].content[1].detail"),
        ("input[1].content[9]", "input[1].content[9]"),
        ("input[99] is not ours", "input[99] is not ours"),
        ("the input is bad", "the input is bad"),
        ("in `const a = input[1].map(f)`", "in `const a = input[1].map(f)`"),
        ("in `input[1] = 5`", "in `input[1] = 5`"),
        ("in `my.input[1]`", "in `my.input[1]`"),
    ],
)  # fmt: skip
def test_a_path_of_a_responses_body(theirs, ours):
    assert mapped(theirs, origins(openai_responses.DIALECT)) == ours


# The messages: system, user, assistant, two results, user
@for_each(
    ("theirs", "ours"),
    [
        ("messages[1].content[1].image_url.url", "messages.0.content.1.image.source"),
        ("messages.[1].content.[2].file.file_data", "messages.0.content.2.document.source"),
        ("body.messages.1.content.1.type", "messages.0.content.1.image"),
        ("messages[2].tool_calls[1].function.arguments", "messages.1.content.2.tool_use.input"),
        ("messages[2].tool_calls[0]", "messages.1.content.1.tool_use"),
        ("messages[3].content", "messages.2.content.2.tool_result.content"),
        ("messages[4].tool_call_id", "messages.2.content.1.tool_result.tool_use_id"),
        ("messages[5].content[0].image_url",
         "messages.2.content.1.tool_result.content.1.image.source"),
        ("messages[5].content[1]", "messages.2.content.0.text"),
        ("messages[5].role", "messages.2.role"),
        ("messages[0].role", "messages[0].role"),
        ("messages[0]", "system"),
    ],
)  # fmt: skip
def test_a_path_of_a_chat_body(theirs, ours):
    assert mapped(theirs, origins(openai_chat.DIALECT)) == ours


@for_each("dialect", [openai_chat.DIALECT, openai_responses.DIALECT])
@for_each("profile", PROFILES)
def test_claude_code_knows_the_path_of_each_file(profile, dialect):
    made = dialect.build_request(HISTORY, TranslationTarget(profile=PROFILES[profile]))
    history = made.body.get("input") or made.body["messages"]
    name = "input" if "input" in made.body else "messages"
    places = [
        f"{name}[{number}].{field}[{index}]"
        for number, entry in enumerate(history)
        for field in ("content", "output")
        if isinstance(entry.get(field), list)
        for index, part in enumerate(entry[field])
        if "text" not in part
    ]

    assert [place for place in places if not DROPS_FILE.search(mapped(place, made.origins))] == []


def test_a_merged_history_keeps_the_places_of_its_files():
    found = origins(openai_chat.DIALECT, merge_users=True, system_role=False)

    assert mapped("messages[0].content[2].image_url", found) == "messages.0.content.1.image.source"
    assert mapped("messages[0].content", found) == "messages[0].content"


def test_system_messages_between_results_keep_the_count():
    request = make_request(
        user("a"), assistant(call()), user(result("b")), system("c"), user("d"), assistant("e"),
        user("f"),
    )  # fmt: skip
    target = TranslationTarget(profile=PROFILES["openai"])

    found = openai_chat.DIALECT.build_request(request, target).origins

    assert [one.path for one in found] == [
        "messages.0", "messages.1", "messages.2.content.0.tool_result", "messages.3",
        "messages.4", "messages.5", "messages.6",
    ]  # fmt: skip


def test_without_origins_nothing_is_changed():
    same = error("input[0] is bad")

    assert map_error_paths(same, ()) is same


def test_messages_of_a_rewritten_request_get_the_clients_numbers():
    found = (
        Origin("system"),
        Origin("messages.0", ("messages.0.content.1.image",)),
        Origin("messages.1", (), ("messages.1.content.0.tool_use",)),
        Origin("messages.2.content.0.tool_result"),
        Origin("messages.3", ("messages.3.content.0.image", "")),
        Origin(""),
    )

    assert renumbered(found, (0, 1, 1, 2)) == (
        Origin("system"),
        Origin("messages.0", ("messages.0.content.1.image",)),
        Origin("messages.1", (), ("messages.1",)),
        Origin("messages.1"),
        Origin("messages.2", ("messages.2.content.0.image", "")),
        Origin(""),
    )


RESHAPED = make_request(
    user(text("Look."), image(**PIXEL)),
    assistant(text("Yes."), call("toolu_1"), call("toolu_2")),
    user(result(text("a"), image(**PIXEL), call_id="toolu_2"), result("b")),
    system("Be brief."),
    user(text("And this?"), image(**PIXEL)),
    system="Be kind.",
)
IMAGES = [
    "messages.0.content.1.image.source",
    "messages.2.content.0.tool_result.content.1.image.source",
    "messages.4.content.1.image.source",
]


@for_each("lessons", [
    (), ("system_first",), ("no_system_role",), ("merge_turns",), ("single_calls",),
    ("calls_as_text",), ("system_first", "merge_turns", "single_calls"), ("omit", "calls_as_text"),
])  # fmt: skip
@for_each("profile", ["vllm", "llamacpp", "generic"])
@for_each("dialect", [openai_chat.DIALECT, openai_responses.DIALECT])
def test_a_reshaped_history_still_leads_to_the_images_of_the_client(dialect, profile, lessons):
    made = dialect.build_request(RESHAPED, TranslationTarget(profile=PROFILES[profile]))
    detail = "input[].content[].detail"
    learnt = [Lesson(name, detail if name == "omit" else "") for name in lessons]

    body, _, origins = apply_lessons(made.body, learnt, made.origins)

    history = body.get("input") or body["messages"]
    refused = [
        f"{'input' if 'input' in body else 'messages'}[{number}].{field}[{place}].image_url"
        for number, entry in enumerate(history)
        for field in ("content", "output")
        if isinstance(entry.get(field), list)
        for place, part in enumerate(entry[field])
        if part["type"] in IMAGE_PARTS
    ]
    found = [map_error_paths(error(f"{path} is bad"), origins).message for path in refused]
    assert len(origins) == len(history)
    assert found == [f"{path} is bad" for path in IMAGES[:: 1 if len(found) > 2 else 2]]


def test_entries_that_are_left_out_move_the_origins_of_the_others():
    first, second = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    origins = (Origin("messages.0"), Origin("messages.1"))

    assert moved_origins({"input": [first, second]}, {"input": [second]}, origins) == origins[1:]
    assert moved_origins({"input": [first, second]}, {"input": "text"}, origins) == origins
    assert moved_origins({"messages": [first]}, {"messages": [{**first}]}, origins[:1]) == (
        origins[0],
    )

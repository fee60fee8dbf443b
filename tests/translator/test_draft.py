"""What the builders of a request share, in both dialects."""

from typing import Any

import pytest

from translator import openai_chat, openai_responses
from translator.anthropic.fold import fold
from translator.dialect import Target
from translator.draft import MAX_STOP_CHARACTERS, MAX_STOP_SEQUENCES
from translator.errors import BadRequest
from translator.openai_chat import request as chat
from translator.openai_responses import request as responses
from translator.profiles import Profile

SMALLEST = {
    "model": "claude-bridge",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hello."}],
}


@pytest.mark.parametrize("tables", [chat, responses])
def test_a_field_that_is_null_or_empty_is_as_good_as_none(tables):
    nulls = SMALLEST | dict.fromkeys(tables.BUILT.keys() - SMALLEST.keys())
    smallest = tables.build_request(SMALLEST, Target())

    null = tables.build_request(nulls, Target())
    empty = tables.build_request(nulls | {"stop_sequences": []}, Target())
    uncounted = tables.build_request(nulls | {"max_tokens": None}, Target())

    assert (null.body, null.notes) == (empty.body, empty.notes) == (smallest.body, ())
    assert uncounted.body == {n: v for n, v in null.body.items() if not n.startswith("max_")}


@pytest.mark.parametrize("tables", [chat, responses])
def test_each_builder_is_called_once_and_in_the_order_of_its_table(tables):
    builders = [build for build, _ in tables.BUILDERS]

    assert builders == list(dict.fromkeys(tables.BUILT.values()))
    for build, names in tables.BUILDERS:
        assert {n for n, each in tables.BUILT.items() if each is build} <= {*names}


DIALECTS = pytest.mark.parametrize("dialect", [openai_chat.DIALECT, openai_responses.DIALECT])


@DIALECTS
def test_a_field_that_nobody_knows_is_told_as_dropped(dialect):
    names = ["safeguards", "it's", *"abcd", "z" * 500]

    built = dialect.build_request(SMALLEST | dict.fromkeys(names, 1), Target())

    assert built.body.keys() == dialect.build_request(SMALLEST, Target()).body.keys()
    (note,) = built.notes
    assert (note.path, note.fate) == ("request", "dropped")
    assert note.reason == "nobody here knows 7 of its fields: 'safeguards', 'it?s', 'a', 'b', 'c'"
    (long,) = dialect.build_request(SMALLEST | {"z" * 500: 1}, Target()).notes
    assert len(long.reason) < 120


@DIALECTS
def test_a_region_is_promised_only_where_the_upstream_keeps_to_it(dialect):
    def asked(geo: str, *kept_to: str):
        target = Target(profile=Profile(inference_geos=kept_to))
        return dialect.build_request(SMALLEST | {"inference_geo": geo}, target)

    assert asked("us", "eu", "us").notes == asked("global").notes == ()
    assert "inference_geo" not in asked("us", "us").body
    for kept_to in ((), ("eu",)):
        with pytest.raises(BadRequest) as refused:
            asked("us", *kept_to)
        assert refused.value.path == "inference_geo"


SAID = {
    "chat": {
        "choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2},
    },
    "responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi."}]}],
    },
}


def answered(dialect, tier: str | None = None, **fields: Any) -> dict[str, Any]:
    """The message that this request gets, from an upstream that names its tier."""
    built = dialect.build_request(SMALLEST | fields, Target(profile=Profile(service_tier=True)))
    body = SAID[dialect.name] | ({"service_tier": tier} if tier else {})
    return fold(dialect.stream(built.answer).feed_whole(body))


@DIALECTS
def test_who_asks_for_diagnostics_hears_that_there_are_none(dialect):
    told = answered(dialect, diagnostics={"previous_message_id": "msg_1"})

    assert (told["diagnostics"], told["stop_reason"]) == (None, "end_turn")
    assert "diagnostics" not in answered(dialect)
    assert "diagnostics" not in answered(dialect, diagnostics=None)


@DIALECTS
@pytest.mark.parametrize(
    ("asked", "tier", "told"),
    [
        ("fast", "priority", "fast"),
        ("fast", "fast", "fast"),
        ("fast", "default", "standard"),
        ("fast", None, None),
        ("standard", "priority", None),
        (None, "priority", None),
    ],
)
def test_who_asks_for_speed_hears_what_it_got(dialect, asked, tier, told):
    assert answered(dialect, tier, speed=asked)["usage"].get("speed") == told


@DIALECTS
def test_who_edits_the_context_hears_that_nothing_was_edited(dialect):
    told = answered(dialect, context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})

    assert told["context_management"] == {"applied_edits": []}
    assert "context_management" not in answered(dialect)


CLEAR = {"type": "clear_thinking_20251015"}


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ([CLEAR | {"keep": "all"}], []),
        ([], []),
        ([CLEAR | {"keep": {"type": "thinking_turns", "value": 1}}], ["dropped"]),
        (
            [CLEAR | {"keep": "all"}, {"type": "clear_tool_uses_20250919", "keep": "all"}],
            ["dropped"],
        ),
    ],
)
@pytest.mark.parametrize("tables", [chat, responses])
def test_only_edits_that_change_something_are_told(tables, edits, told):
    """Claude Code asks with each request that all thinking be kept."""
    request = SMALLEST | {"context_management": {"edits": edits}}

    notes = tables.build_request(request, Target()).notes

    assert [note.fate for note in notes] == told


@pytest.mark.parametrize(
    "sequences", [["STOP"] * (MAX_STOP_SEQUENCES + 1), ["x" * MAX_STOP_CHARACTERS, "y"]]
)
@pytest.mark.parametrize("translate", [openai_chat.build_request, openai_responses.build_request])
def test_more_stop_sequences_than_can_be_looked_for_are_refused(translate, sequences):
    asked = {**SMALLEST, "stop_sequences": sequences}

    with pytest.raises(BadRequest, match="stop_sequences: this route takes at most"):
        translate(asked, Target())
    built = translate(asked | {"stop_sequences": sequences[:-1]}, Target())
    assert built.answer.stop_sequences == tuple(sequences[:-1])

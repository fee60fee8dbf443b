"""Request building that both dialects share."""

from typing import Any

import anthropic
import pytest

from tests.for_each import for_each
from translator import openai_chat, openai_responses
from translator.capabilities import Profile
from translator.dialect import TranslationTarget
from translator.errors import BadRequest
from translator.message_stream.events_to_message import fold
from translator.openai_chat import request_body as chat
from translator.openai_responses import request_body as responses
from translator.request.builder import MAX_STOP_CHARACTERS, MAX_STOP_SEQUENCES

SMALLEST = {
    "model": "claude-bridge",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hello."}],
}


@for_each("tables", [chat, responses])
def test_a_null_or_empty_field_equals_a_missing_field(tables):
    nulls = SMALLEST | dict.fromkeys(tables.BUILT.keys() - SMALLEST.keys())
    smallest = tables.build_request(SMALLEST, TranslationTarget())

    null = tables.build_request(nulls, TranslationTarget())
    empty = tables.build_request(nulls | {"stop_sequences": []}, TranslationTarget())
    uncounted = tables.build_request(nulls | {"max_tokens": None}, TranslationTarget())

    assert (null.body, null.notes) == (empty.body, empty.notes) == (smallest.body, ())
    assert uncounted.body == {n: v for n, v in null.body.items() if not n.startswith("max_")}


@for_each("tables", [chat, responses])
def test_each_builder_is_called_once_and_in_the_order_of_its_table(tables):
    builders = [build for build, _ in tables.BUILDERS]

    assert builders == list(dict.fromkeys(tables.BUILT.values()))
    for build, names in tables.BUILDERS:
        assert {n for n, each in tables.BUILT.items() if each is build} <= {*names}


DIALECTS = for_each("dialect", [openai_chat.DIALECT, openai_responses.DIALECT])


@DIALECTS
def test_an_unknown_field_is_noted_as_dropped(dialect):
    names = ["guards", "it's", *"abcd", "z" * 500]

    built = dialect.build_request(SMALLEST | dict.fromkeys(names, 1), TranslationTarget())

    assert built.body.keys() == dialect.build_request(SMALLEST, TranslationTarget()).body.keys()
    (note,) = built.notes
    assert (note.path, note.fate) == ("request", "dropped")
    assert note.reason == "7 unknown fields: 'guards', 'it?s', 'a', 'b', 'c'"
    (long,) = dialect.build_request(SMALLEST | {"z" * 500: 1}, TranslationTarget()).notes
    assert len(long.reason) < 120


@DIALECTS
def test_a_region_needs_upstream_support(dialect):
    def build_with_region(geo: str, *offered: str):
        target = TranslationTarget(profile=Profile(inference_geos=offered))
        return dialect.build_request(SMALLEST | {"inference_geo": geo}, target)

    assert build_with_region("us", "eu", "us").notes == build_with_region("global").notes == ()
    assert "inference_geo" not in build_with_region("us", "us").body
    for offered in ((), ("eu",)):
        with pytest.raises(BadRequest) as refused:
            build_with_region("us", *offered)
        assert refused.value.path == "inference_geo"


MESSAGE = {
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
    """Return the message for this request from an upstream that reports its tier."""
    built = dialect.build_request(
        SMALLEST | fields, TranslationTarget(profile=Profile(service_tier=True))
    )
    body = MESSAGE[dialect.name] | ({"service_tier": tier} if tier else {})
    return fold(dialect.stream(built.response_context).feed_body(body))


@DIALECTS
def test_the_message_has_the_fields_of_the_official_type(dialect):
    outcome = answered(dialect)

    assert set(outcome) == set(anthropic.types.Message.model_fields)
    assert set(outcome["content"][0]) == set(anthropic.types.TextBlock.model_fields)


@DIALECTS
@for_each(
    ("requested", "tier", "outcome"),
    [
        ("fast", "priority", "fast"),
        ("fast", "fast", "fast"),
        ("fast", "default", "standard"),
        ("fast", None, None),
        ("standard", "priority", None),
        (None, "priority", None),
    ],
)
def test_a_requested_speed_is_reported(dialect, requested, tier, outcome):
    assert answered(dialect, tier, speed=requested)["usage"].get("speed") == outcome


@DIALECTS
def test_requested_context_edits_are_reported_as_empty(dialect):
    outcome = answered(
        dialect, context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}
    )

    assert outcome["context_management"] == {"applied_edits": []}
    assert "context_management" not in answered(dialect)


CLEAR = {"type": "clear_thinking_20251015"}


@for_each(
    ("edits", "outcome"),
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
@for_each("tables", [chat, responses])
def test_only_effective_context_edits_are_noted(tables, edits, outcome):
    """Claude Code sends an edit with each request that keeps all thinking."""
    request = SMALLEST | {"context_management": {"edits": edits}}

    notes = tables.build_request(request, TranslationTarget()).notes

    assert [note.fate for note in notes] == outcome


@for_each("sequences", [["STOP"] * (MAX_STOP_SEQUENCES + 1), ["x" * MAX_STOP_CHARACTERS, "y"]])
@for_each("translate", [openai_chat.build_request, openai_responses.build_request])
def test_too_many_stop_sequences_are_rejected(translate, sequences):
    requested = {**SMALLEST, "stop_sequences": sequences}

    with pytest.raises(BadRequest, match="stop_sequences: this route takes at most"):
        translate(requested, TranslationTarget())
    built = translate(requested | {"stop_sequences": sequences[:-1]}, TranslationTarget())
    assert built.response_context.stop_sequences == tuple(sequences[:-1])

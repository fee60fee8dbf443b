"""The event tables against the installed SDK: every type is handled, a ping, or ignored."""

import typing
from collections import Counter

from openai.types.responses import ResponseStreamEvent

from translator.dialect import AnswerContext
from translator.openai_responses import ResponsesStream
from translator.openai_responses.events import IGNORED, PINGS, SAID

SDK_EVENTS = {
    name
    for member in typing.get_args(typing.get_args(ResponseStreamEvent)[0])
    for name in typing.get_args(member.model_fields["type"].annotation)
}
IN_THE_WILD = {
    "keepalive",
    "ping",
    "response.apply_patch_call_operation_diff.delta",
    "response.apply_patch_call_operation_diff.done",
    "response.cancelled",
    "response.content_part.delta",
    "response.done",
    "response.reasoning.delta",
    "response.reasoning.done",
    "response.reasoning_part.added",
    "response.reasoning_part.done",
}
"""Sent by servers although the SDK does not list them."""


def test_the_sdk_lists_59_events():
    assert len(SDK_EVENTS) == 59


def test_each_event_of_the_sdk_has_exactly_one_place():
    places = Counter([*ResponsesStream.HANDLERS, *PINGS, *IGNORED])

    assert set(places) == SDK_EVENTS | IN_THE_WILD
    assert max(places.values()) == 1


def test_every_table_is_asked_by_the_stream():
    assert set(SAID) < set(ResponsesStream.HANDLERS)
    assert ResponsesStream.PINGS is PINGS
    assert ResponsesStream.IGNORED is IGNORED


def test_ignored_events_neither_start_nor_end_anything():
    for kind in IGNORED:
        stream = ResponsesStream(AnswerContext())
        assert stream.feed({"type": kind}) == []
        assert not stream.unknown


def test_signs_of_life_become_pings():
    for kind in PINGS:
        assert ResponsesStream(AnswerContext()).feed({"type": kind}) == [{"type": "ping"}]

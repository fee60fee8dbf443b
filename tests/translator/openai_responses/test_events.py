"""The event tables against the installed SDK: every type is handled, a ping, or ignored."""

import typing
from collections import Counter

from openai.types.responses import ResponseStreamEvent

from translator.dialect import AnswerContext
from translator.openai_responses import ResponsesStream
from translator.openai_responses.events import IGNORED, PINGS, SAID
from translator.openai_responses.types import EventRead, ResponseRead

from .answers import said, stream

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
    "response.error",
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


class Watched(dict):
    """A mapping that remembers what was asked of it."""

    def __init__(self, known, asked):
        super().__init__(known)
        self.asked = asked

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name):
        self.asked.add(name)
        return super().__contains__(name)


def test_nothing_is_read_of_an_event_or_its_response_that_their_wire_types_do_not_name():
    bodies = [
        {"status": "completed", "output": [said("Hi")], "usage": {"input_tokens": 1}},
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        {"status": "failed"},
        {"error": {"message": "No."}},
        {"error": "No."},
        {"tool_usage": {"web_search": {"num_requests": 1}}},
    ]
    of_events, of_responses = set(), set()
    for kind in [*ResponsesStream.HANDLERS, *PINGS, *IGNORED, "new"]:
        for more in [
            {"item": said("Hi")},
            *({"response": Watched(body, of_responses)} for body in bodies),
        ]:
            event = Watched({"type": kind, "output_index": 0, **more}, of_events)
            stream(message_id="", model="").feed(event)

    assert of_events - {""} == set(EventRead.__annotations__)  # "": where parts have no number
    assert of_responses == set(ResponseRead.__annotations__)


def test_what_is_neither_an_event_nor_a_body_is_counted():
    machine = stream()

    assert machine.feed({"object": "chat.completion.chunk", "choices": []}) == []
    assert machine.unknown == {"None": 1}

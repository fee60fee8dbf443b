"""The event tables against the installed SDK: every type is handled, a ping, or ignored."""

import typing
from collections import Counter

from openai.types.responses import ResponseStreamEvent

from tests.translator.openai_responses.responses import output_message, stream
from translator.dialect import ResponseContext
from translator.openai_responses import ResponsesStream
from translator.openai_responses.event_table import EVENT_MAPPINGS, IGNORED, PINGS
from translator.openai_responses.types import EventRead, ResponseRead

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
"""Events that servers send but the SDK does not list."""


def test_the_sdk_lists_59_events():
    assert len(SDK_EVENTS) == 59


def test_each_event_of_the_sdk_has_exactly_one_place():
    places = Counter([*ResponsesStream.HANDLERS, *PINGS, *IGNORED])

    assert set(places) == SDK_EVENTS | IN_THE_WILD
    assert max(places.values()) == 1


def test_the_stream_reads_every_table():
    assert set(EVENT_MAPPINGS) < set(ResponsesStream.HANDLERS)


def test_ignored_events_neither_start_nor_end_anything():
    for kind in IGNORED:
        stream = ResponsesStream(ResponseContext())
        assert stream.feed({"type": kind}) == []
        assert not stream.unknown


def test_progress_events_become_pings():
    for kind in PINGS:
        assert ResponsesStream(ResponseContext()).feed({"type": kind}) == [{"type": "ping"}]


class RecordingDict(dict):
    """A mapping that records the names that are read from it."""

    def __init__(self, known, names_read):
        super().__init__(known)
        self.names_read = names_read

    def get(self, name, default=None):
        self.names_read.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        self.names_read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name):
        self.names_read.add(name)
        return super().__contains__(name)


def test_only_fields_of_the_wire_types_are_read():
    bodies = [
        {"status": "completed", "output": [output_message("Hi")], "usage": {"input_tokens": 1}},
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        {"status": "failed"},
        {"error": {"message": "No."}},
        {"error": "No."},
        {"tool_usage": {"web_search": {"num_requests": 1}}},
    ]
    of_events, of_responses = set(), set()
    for kind in [*ResponsesStream.HANDLERS, *PINGS, *IGNORED, "new"]:
        for more in [
            {"item": output_message("Hi")},
            *({"response": RecordingDict(body, of_responses)} for body in bodies),
        ]:
            event = RecordingDict({"type": kind, "output_index": 0, **more}, of_events)
            stream(message_id="", model="").feed(event)

    assert of_events - {""} == set(EventRead.__annotations__)  # "": parts without an index
    assert of_responses == set(ResponseRead.__annotations__)


def test_what_is_neither_an_event_nor_a_body_is_counted():
    machine = stream()

    assert machine.feed({"object": "chat.completion.chunk", "choices": []}) == []
    assert machine.unknown == {"None": 1}

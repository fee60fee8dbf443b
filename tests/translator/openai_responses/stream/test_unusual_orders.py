"""Responses servers that omit, reuse or change indices and ids, or finish items late.

Each test plays one answer in every pair of such shapes. Whatever the shape: the stream is legal, no
text is lost, doubled or late, and every call has its own arguments.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.upstreams.grammar import faults_of_events
from tests.for_each import for_each
from tests.lanes import repeat
from translator.dialect import ResponseContext
from translator.message_stream.events_to_message import fold
from translator.openai_responses import DIALECT

Shape = dict[str, str]

USUAL: Shape = {
    "output_index": "right",
    "item_id": "right",
    "content_index": "right",
    "added": "sent",
    "parts": "sent",
    "text_done": "sent",
    "item_done": "in order",
    "arguments": "in pieces",
    "call_id": "in items",
    "output": "complete",
}
UNUSUAL: dict[str, tuple[str, ...]] = {
    "output_index": ("absent", "zero", "null"),
    "item_id": ("absent", "one for all", "changing", "the call_id"),
    "content_index": ("absent", "from one"),
    "added": ("absent", "all first"),
    "parts": ("absent",),
    "text_done": ("absent",),
    "item_done": ("at the end", "at the end, reversed", "absent"),
    "arguments": ("pieces only", "whole in done", "whole in item"),
    "call_id": ("in events",),
    "output": ("empty", "absent"),
}
"""For each property of a stream: the unusual ways in which servers were seen to send it."""

THINK = ("reasoning", ["hm", " so"])
TEXT = ("message", ["Hel", "lo", "."])
MORE = ("message", ["And", " bye"])
CALL = ("call", "a", ['{"x"', ": 1}"])
OTHER = ("call", "b", ['{"y"', ': "2"', "}"])
SAME = ("call", "a", ['{"x"', ": 3}"])

ANSWERS: dict[str, list[tuple]] = {
    "text": [TEXT],
    "thinking, text": [THINK, TEXT],
    "thinking, call": [THINK, CALL],
    "text, call": [TEXT, CALL],
    "call, text": [CALL, TEXT],
    "two calls": [CALL, OTHER],
    "two calls of one tool": [CALL, SAME],
    "two texts": [TEXT, MORE],
    "text, thinking, text": [TEXT, THINK, MORE],
    "thinking, text, two calls": [THINK, TEXT, CALL, OTHER],
    "call, text, call": [CALL, TEXT, OTHER],
    "thinking, thinking, text": [THINK, THINK, TEXT],
}


def pairs_of_shapes() -> Iterator[Shape]:
    yield USUAL
    single = [(name, value) for name, values in UNUSUAL.items() for value in values]
    for changed in [(each,) for each in single] + list(itertools.combinations(single, 2)):
        if len({name for name, _ in changed}) == len(changed):
            yield USUAL | dict(changed)


class UnusualServer:
    """Sends one answer as the events of a Responses stream in one shape."""

    def __init__(self, answer: list[tuple], shape: Shape) -> None:
        self.answer = answer
        self.shape = shape
        self.number = 0

    def events(self) -> list[dict[str, Any]]:
        events = [{"type": "response.created", "response": {"id": "resp_1", "model": "m"}}]
        late: list[dict[str, Any]] = []
        if self.shape["added"] == "all first":
            events += itertools.starmap(self.added, enumerate(self.answer))
        for position, entry in enumerate(self.answer):
            if self.shape["added"] == "sent":
                events.append(self.added(position, entry))
            events += self.content(position, entry)
            done = self.at(
                position,
                "response.output_item.done",
                item=self.item(position, entry, is_finished=True),
            )
            if self.shape["item_done"] == "in order":
                events.append(done)
            elif self.shape["item_done"] != "absent":
                late.append(done)
        events += late[::-1] if self.shape["item_done"].endswith("reversed") else late
        return [*events, self.final()]

    def added(self, position: int, entry: tuple) -> dict[str, Any]:
        item = self.item(position, entry, is_finished=False)
        return self.at(position, "response.output_item.added", item=item)

    def final(self) -> dict[str, Any]:
        response: dict[str, Any] = {"id": "resp_1", "model": "m", "status": "completed"}
        response["usage"] = {"input_tokens": 1, "output_tokens": 1}
        if self.shape["output"] != "absent":
            response["output"] = [
                self.item(position, entry, is_finished=True)
                for position, entry in enumerate(self.answer)
                if self.shape["output"] == "complete"
            ]
        return {"type": "response.completed", "response": response}

    def content(self, position: int, entry: tuple) -> list[dict[str, Any]]:
        match entry[0]:
            case "message":
                return self.text(position, entry[1])
            case "reasoning":
                text = "".join(entry[1])
                part = {"content_index": 0}
                deltas = [
                    self.at(position, "response.reasoning_text.delta", delta=piece, **part)
                    for piece in entry[1]
                ]
                done = self.at(position, "response.reasoning_text.done", text=text, **part)
                return deltas + [done] * (self.shape["text_done"] == "sent")
            case _:
                return self.arguments(position, entry)

    def text(self, position: int, pieces: list[str]) -> list[dict[str, Any]]:
        numbers = {"right": {"content_index": 0}, "absent": {}, "from one": {"content_index": 1}}
        number = numbers[self.shape["content_index"]]
        text = {"type": "output_text", "text": "".join(pieces), "annotations": []}
        events = [
            self.at(position, "response.output_text.delta", delta=piece, **number)
            for piece in pieces
        ]
        if self.shape["parts"] == "sent":
            empty = {**text, "text": ""}
            added = self.at(position, "response.content_part.added", part=empty, **number)
            events.insert(0, added)
        if self.shape["text_done"] == "sent":
            done = self.at(position, "response.output_text.done", text=text["text"], **number)
            events.append(done)
        if self.shape["parts"] == "sent":
            events.append(self.at(position, "response.content_part.done", part=text, **number))
        return events

    def arguments(self, position: int, entry: tuple) -> list[dict[str, Any]]:
        kind, place = "response.function_call_arguments", {}
        if self.shape["call_id"] == "in events":
            place = {"call_id": self.call_id(position)}
        done = self.at(position, f"{kind}.done", arguments="".join(entry[2]), **place)
        if self.shape["arguments"] == "whole in item":
            return []
        if self.shape["arguments"] == "whole in done":
            return [done]
        deltas = [self.at(position, f"{kind}.delta", delta=piece, **place) for piece in entry[2]]
        return deltas + [done] * (self.shape["arguments"] == "in pieces")

    def item(self, position: int, entry: tuple, *, is_finished: bool) -> dict[str, Any]:
        item: dict[str, Any] = {"status": "completed" if is_finished else "in_progress"}
        if item_id := self.item_id(position):
            item["id"] = item_id
        match entry[0]:
            case "message":
                part = {"type": "output_text", "text": "".join(entry[1]), "annotations": []}
                content = [part] if is_finished else []
                return item | {"type": "message", "role": "assistant", "content": content}
            case "reasoning":
                part = {"type": "reasoning_text", "text": "".join(entry[1])}
                content = [part] if is_finished else []
                return item | {"type": "reasoning", "summary": [], "content": content}
            case _:
                arguments = "".join(entry[2]) if is_finished else ""
                call = {"call_id": self.call_id(position), "name": entry[1]}
                return item | {"type": "function_call", "arguments": arguments, **call}

    def call_id(self, position: int) -> str:
        return f"call_{position}"

    def item_id(self, position: int) -> str:
        self.number += 1
        match self.shape["item_id"]:
            case "absent":
                return ""
            case "one for all":
                return "item"
            case "changing":
                return f"item_{self.number}"
            case "the call_id" if self.answer[position][0] == "call":
                return self.call_id(position)
            case _:
                return f"item_of_{position}"

    def at(self, position: int, kind: str, **fields: Any) -> dict[str, Any]:
        event: dict[str, Any] = {"type": kind, **fields}
        if "item" not in fields and (item_id := self.item_id(position)):
            event["item_id"] = item_id
        indices = {"right": position, "zero": 0, "null": None}
        if (index := self.shape["output_index"]) in indices:
            event["output_index"] = indices[index]
        return event


def expected_content(answer: list[tuple]) -> tuple[str, str, list[tuple]]:
    def joined(kind: str) -> str:
        return "".join("".join(entry[1]) for entry in answer if entry[0] == kind)

    calls = [
        (f"call_{position}", entry[1], json.loads("".join(entry[2])))
        for position, entry in enumerate(answer)
        if entry[0] == "call"
    ]
    return joined("reasoning"), joined("message"), calls


def content_of(emitted: list[dict[str, Any]]) -> tuple[str, str, list[tuple]]:
    blocks = fold(emitted)["content"]
    calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    return (
        "".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
        "".join(b["text"] for b in blocks if b["type"] == "text"),
        calls,
    )


def sent_of(events: list[dict[str, Any]], field: str) -> str:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta.get(field, "") for delta in deltas)


def may_wait(answer: list[tuple], shape: Shape) -> bool:
    """Return whether content may wait, because nothing shows that the content before is complete.

    This is so for a call that has started and has no arguments yet, and for reasoning without any
    done event on a server whose indices are right: such a server may interleave its items.
    """
    calls = any(entry[0] == "call" for entry in answer)
    is_late = shape["item_done"] != "in order"
    without_arguments = shape["arguments"] == "whole in item" and is_late
    without_done = shape["text_done"] == "absent" and is_late and shape["output_index"] == "right"
    return without_done or (calls and (shape["added"] == "all first" or without_arguments))


DELTAS = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "thinking",
}
"""Events whose text must leave at once, and the field of the client's delta."""


def faults_of(answer: list[tuple], shape: Shape) -> list[str]:
    """Return what is wrong with the translation of one answer in one shape."""
    stream = DIALECT.stream(ResponseContext(message_id="msg_1", model="m"))
    emitted: list[dict[str, Any]] = []
    faults: list[str] = []
    sent = dict.fromkeys(DELTAS.values(), "")
    for event in UnusualServer(answer, shape).events():
        emitted += stream.feed(event)
        if event["type"] in DELTAS and not may_wait(answer, shape):
            field = DELTAS[event["type"]]
            sent[field] += event["delta"]
            if sent_of(emitted, field).replace("\n", "") != sent[field]:
                faults.append(f"late: {sent_of(emitted, field)!r}, the upstream sent {sent!r}")
    emitted += stream.end()
    faults += faults_of_events(emitted)
    if stream.error is not None:
        return [*faults, stream.error.message]
    thinking, text, calls = content_of(emitted)
    expected_thinking, expected_text, expected_calls = expected_content(answer)
    if (thinking.replace("\n", ""), text) != (expected_thinking, expected_text):
        faults.append(f"texts are {thinking!r} and {text!r}")
    if sorted(calls, key=repr) != expected_calls:
        faults.append(f"calls are {calls}")
    return faults


@pytest.mark.repeated
@for_each("name", list(ANSWERS)[:: repeat(fast=3, slow=1)])
def test_each_pair_of_unusual_shapes_preserves_and_times_the_content(name):
    answer = ANSWERS[name]

    wrong = {
        str({key: value for key, value in shape.items() if USUAL[key] != value}): faults
        for shape in pairs_of_shapes()
        if (faults := faults_of(answer, shape))
    }

    assert wrong == {}


@for_each(
    "identity",
    [
        {"output_index": "right", "item_id": "absent"},
        {"output_index": "right", "item_id": "changing"},
        {"output_index": "right", "item_id": "one for all"},
        {"output_index": "zero", "item_id": "right"},
        {"output_index": "absent", "item_id": "right"},
        {"output_index": "absent", "item_id": "the call_id"},
        {"output_index": "zero", "item_id": "absent", "call_id": "in events"},
        {"output_index": "absent", "item_id": "one for all", "call_id": "in events"},
        {"output_index": "zero", "item_id": "changing", "call_id": "in events"},
    ],
    ids=str,
)
@for_each("item_done", ["in order", "at the end", "at the end, reversed", "absent"])
@for_each("arguments", ["in pieces", "pieces only"])
def test_the_arguments_of_interleaved_calls_never_swap(identity, item_done, arguments):
    answer = [CALL, OTHER, SAME]
    shape = (
        USUAL | identity | {"item_done": item_done, "arguments": arguments, "added": "all first"}
    )
    server = UnusualServer(answer, shape)
    events = server.events()
    deltas = [server.arguments(position, entry) for position, entry in enumerate(answer)]
    first = events.index(deltas[0][0]) if deltas[0][0] in events else 4
    mixed = [each for row in itertools.zip_longest(*deltas) for each in row if each is not None]
    others = [event for event in events[first:] if "function_call_arguments" not in event["type"]]

    stream = DIALECT.stream(ResponseContext(message_id="msg_1", model="m"))
    emitted = [each for event in events[:first] + mixed + others for each in stream.feed(event)]

    assert faults_of_events(emitted) == []
    assert content_of(emitted)[2] == expected_content(answer)[2]

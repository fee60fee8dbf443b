"""The grammar checker finds each fault, so an empty result means a valid stream."""

import copy
import json
from pathlib import Path

import pytest

from .grammar import faults_of_bytes, faults_of_events, faults_of_gaps

START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    },
}


def block_start(index, **block):
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index, kind, **rest):
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **rest}}


def block_stop(index):
    return {"type": "content_block_stop", "index": index}


def message_end(reason):
    change = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_delta", "delta": change, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]


ERROR = {"type": "error", "error": {"type": "api_error", "message": "gone"}}
THINKING = [
    block_start(0, type="thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="hm"),
    delta(0, "signature_delta", signature="s"),
    block_stop(0),
]
TEXT = [block_start(1, type="text", text=""), delta(1, "text_delta", text="hi"), block_stop(1)]
TOOL = [
    block_start(2, type="tool_use", id="t", name="n", input={}),
    delta(2, "input_json_delta", partial_json=""),
    delta(2, "input_json_delta", partial_json='{"a":1}'),
    block_stop(2),
]
GOOD = [START, *THINKING, {"type": "ping"}, *TEXT, *TOOL, *message_end("tool_use")]


def with_change(at, path, value):
    events = copy.deepcopy(GOOD)
    place = events[at]
    *way, last = path.split(".")
    for name in way:
        place = place[name]
    place[last] = value
    return events


def without(*gone):
    return [event for n, event in enumerate(GOOD) if n not in gone]


def test_valid_stream_has_no_faults():
    assert faults_of_events(GOOD) == []
    assert faults_of_events([ERROR]) == []
    assert faults_of_events([START, *THINKING, ERROR]) == []


BROKEN = {
    "no message_start": ("I1", without(0)),
    "two message_starts": ("I1", [START, *GOOD]),
    "null usage": ("I1", with_change(0, "message.usage", None)),
    "content in the start": ("I1", with_change(0, "message.content", [{}])),
    "stop_reason in the start": ("I1", with_change(0, "message.stop_reason", "end_turn")),
    "an index gap": ("I2", with_change(6, "index", 3)),
    "a block inside a block": ("I3", without(4)),
    "a stop for a closed block": ("I3", [*GOOD[:5], block_stop(0), *GOOD[5:]]),
    "a delta for another block": ("I3", with_change(7, "index", 0)),
    "text in a thinking block": ("I4", with_change(2, "delta.type", "text_delta")),
    "a tool without an id": ("I5", with_change(9, "content_block.id", "")),
    "a tool without its empty delta": ("I5", without(10)),
    "broken tool input": ("I6", with_change(11, "delta.partial_json", '{"a":')),
    "tool input that is not an object": ("I6", with_change(11, "delta.partial_json", "[1]")),
    "a thinking block without signature": ("I7", without(3)),
    "thinking after its signature": ("I7", [*GOOD[:2], GOOD[3], GOOD[2], *GOOD[4:]]),
    "a start without a signature key": ("I7", with_change(1, "content_block.signature", None)),
    "no message_delta": ("I8", without(13)),
    "a null stop_reason": ("I8", with_change(13, "delta.stop_reason", None)),
    "no usage at the end": ("I8", with_change(13, "usage", None)),
    "a block after message_delta": (
        "I8",
        [*GOOD[:-1], block_start(3, type="text", text=""), GOOD[-1]],
    ),
    "nothing at the end": ("I9", GOOD[:-1]),
    "stop and error": ("I9", [*GOOD, ERROR]),
    "an error of no type": ("I9", [{"type": "error", "error": {"type": "x", "message": "y"}}]),
    "an error inside a block": ("I3", [*GOOD[:3], ERROR]),
    "tool_use without a tool": ("I11", [START, *THINKING, *message_end("tool_use")]),
    "a tool, then end_turn": ("I11", [*GOOD[:-2], *message_end("end_turn")]),
    "an empty text block": ("I12", without(7)),
    "an unknown block": ("I14", with_change(6, "content_block.type", "hologram")),
    "an unknown event": ("I14", [{"type": "hello"}, *GOOD]),
    "unrequested metadata": ("I14", [*GOOD[:-1], {"type": "bridge.metadata"}, GOOD[-1]]),
}


@pytest.mark.parametrize(("rule", "events"), BROKEN.values(), ids=BROKEN.keys())
def test_checker_finds_each_fault(rule, events):
    assert rule in {fault.partition(":")[0] for fault in faults_of_events(events)}


def test_requested_metadata_is_valid():
    metadata = {"type": "bridge.metadata"}

    assert faults_of_events([*GOOD[:-1], metadata, GOOD[-1]], extras=True) == []
    assert faults_of_events([START, metadata, ERROR], extras=True) == []
    assert faults_of_events([START, metadata, *GOOD[1:]], extras=True) != []


@pytest.mark.parametrize(
    "frame",
    [
        b'data: {"type":"ping"}\n\n',
        b'event: ping\ndata: {"type":"pong"}\n\n',
        b"event: ping\ndata: {\n\n",
        b'event: ping\ndata: {"type":"ping"}\n',
        b"data: [DONE]\n\n",
    ],
)
def test_checker_finds_each_malformed_frame(frame):
    good = b"".join(
        b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in GOOD
    )

    assert faults_of_bytes(good) == []
    assert any(fault.startswith("I10") for fault in faults_of_bytes(frame + good))


def test_long_gap_is_a_fault():
    assert faults_of_gaps([0, 15, 30]) == []
    assert faults_of_gaps([0, 16]) == ["I13: 16.0 s of silence"]


RECORDED = Path(__file__).parents[4] / "shared" / "corpus" / "anthropic-stream"
STABLE = ("lingua__simple", "lingua__toolCall", "openllmetry__", "prism__anthropic")


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded corpus is not beside this clone")
def test_recorded_anthropic_streams_break_only_the_projects_own_rules():
    project_rules = {"I5: a tool block's first delta is not the empty one"}
    faults_by_file = {}
    for path in sorted(RECORDED.glob("*.sse")):
        if path.name.startswith(STABLE):
            lines = (line for line in path.read_text().splitlines() if line.startswith("data:"))
            events = [json.loads(line[5:]) for line in lines]
            faults_by_file[path.name] = [
                f for f in faults_of_events(events) if f not in project_rules
            ]

    assert faults_by_file
    assert {name: faults for name, faults in faults_by_file.items() if faults} == {}

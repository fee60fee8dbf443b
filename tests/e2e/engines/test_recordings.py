"""Responses that real engines sent, played as the upstream of a running gateway, with all laws."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.grammar import faults_of_bytes, read_frames
from translator.message_stream.events_to_message import fold

RECORDINGS = Path(__file__).parents[4] / "shared" / "engines" / "recordings"
STREAMS = sorted(RECORDINGS.glob("*.sse"))
pytestmark = pytest.mark.skipif(
    not STREAMS,
    reason=f"NO RECORDINGS: the engines' recordings are not beside this clone ({RECORDINGS})",
)
LIMITS = {"llamacpp-responses-cut-tool": 17, "llamacpp-messages-no-message_start": 4}
"""``max_tokens`` of the recorded requests; 40 for all others."""
FIRST_DELTA = "I5: a tool block's first delta is not the empty one"
"""A rule for streams that the gateway writes. An Anthropic upstream's own deltas pass unchanged."""


def send_question(gateway, model: str, **more: Any):
    request = {"model": model, "max_tokens": 40, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    return gateway.request("POST", "/v1/messages", json.dumps(request | more).encode(), headers)


def dialect_of(path: Path) -> str:
    return "anthropic" if "-messages-" in path.name else "responses"


def text_in(path: Path) -> str:
    """Return all text, thinking and arguments of a recorded stream, in the order of arrival."""
    events = [
        json.loads(line[6:]) for line in path.read_text().splitlines() if line[:6] == "data: "
    ]
    pieces = []
    for event in events:
        delta = event.get("delta")
        if isinstance(delta, str):
            pieces.append(delta)
        elif isinstance(delta, dict):
            pieces += [delta.get(name, "") for name in ("text", "thinking", "partial_json")]
    return "".join(pieces)


@pytest.mark.parametrize("cut", [None, 7], ids=["whole", "in pieces"])
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_recorded_stream_is_delivered_legal_and_whole(gateway, shared_upstream, path, cut):
    model = f"{dialect_of(path)}-{path.stem}-{cut}"
    shared_upstream.on(model, script_steps.stream(path.read_bytes(), cut or 10**6))

    limit = LIMITS.get(path.stem, 40)
    reply = send_question(
        gateway, model, stream=True, max_tokens=limit, thinking={"type": "adaptive"}
    )

    assert reply.status == 200, reply.body
    assert [fault for fault in faults_of_bytes(reply.body) if fault != FIRST_DELTA] == []
    frames = [frame.body for frame in read_frames(reply.body)[0]]
    deltas = [frame["delta"] for frame in frames if frame["type"] == "content_block_delta"]
    sent = "".join(
        delta.get(name, "") for delta in deltas for name in ("text", "thinking", "partial_json")
    )
    assert sent == text_in(path)
    message = fold(frames)
    if "-cut-" in path.stem:
        assert message["stop_reason"] == "max_tokens"
    elif "two-tools" in path.stem:
        assert message["stop_reason"] == "tool_use"
        assert [block["input"]["command"] for block in message["content"]] == [
            "echo one",
            "echo two",
        ]


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_cut_recording_never_ends_as_a_whole_answer(gateway, shared_upstream, path):
    raw = path.read_bytes()
    cut = raw[: raw.rindex(b"data: ") - 40]
    model = f"{dialect_of(path)}-{path.stem}-broken"
    shared_upstream.on(model, script_steps.stream(cut, ending=[script_steps.Close()]))

    reply = send_question(gateway, model, stream=True)

    assert b"message_stop" not in reply.body
    if reply.status == 200:
        assert read_frames(reply.body)[0][-1].name == "error"

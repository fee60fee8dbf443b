"""Recorded responses of many vendors translate without loss and without exceptions.

The expected message is a second reading of the JSON that does not use the translator: it joins all
deltas of the first choice.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic_requests import KEYS
from tests.fakes.upstreams.grammar import faults_of_events
from tests.fakes.upstreams.recordings import ABSENT, recordings
from tests.for_each import for_each
from tests.translator.openai_chat.requests import target
from translator.dialect import ResponseContext
from translator.message_stream.events_to_message import fold
from translator.openai_chat import DIALECT
from translator.stream.sse import SSEDecoder

STREAMS = recordings("chat-stream")
BODIES = recordings("chat-json")
ERRORS = recordings("errors")

FAILED = {"pydantic-ai__test_groq-test_tool_use_failed_error_streaming_with_text"}
"""Streams that end in an error object."""


def context(**fields: Any) -> ResponseContext:
    return ResponseContext(message_id="msg_1", target=target(keys=KEYS), **fields)


def chunks_of(path: Path, step: int = 2**20) -> list[dict[str, Any]]:
    raw, decoder = path.read_bytes(), SSEDecoder()
    reads = [raw[at : at + step] for at in range(0, len(raw), step)]
    frames = [frame for read in reads for frame in decoder.feed(read)] + decoder.end()
    return [json.loads(frame.data) for frame in frames if frame.data.strip() != b"[DONE]"]


def streamed(path: Path, **fields: Any) -> tuple[Any, list[dict[str, Any]]]:
    stream = DIALECT.stream(context(**fields))
    if path.suffix == ".sse":
        return stream, [e for chunk in chunks_of(path) for e in stream.feed(chunk)] + stream.end()
    return stream, stream.feed_body(json.loads(path.read_bytes()))


# The second reading


def plainly(path: Path) -> dict[str, Any]:
    """Return text, reasoning, calls and usage of a recording."""
    if path.suffix == ".sse":
        lines = path.read_text().splitlines()
        chunks = [
            json.loads(line[5:]) for line in lines if line.startswith("data:") and "{" in line
        ]
    else:
        chunks = [json.loads(path.read_bytes())]
    found: dict[str, Any] = {"text": "", "thinking": "", "calls": {}, "usage": None}
    for chunk in chunks:
        found["usage"] = (
            chunk.get("usage") or chunk.get("x_groq", {}).get("usage") or found["usage"]
        )
        for choice in chunk.get("choices", []):
            if choice.get("index", 0) == 0:
                add(found, choice.get("delta" if path.suffix == ".sse" else "message") or {})
    calls = [
        (c["id"], c["name"], json.loads(c["arguments"] or "{}")) for c in found["calls"].values()
    ]
    return found | {"calls": calls}


def add(found: dict[str, Any], delta: dict[str, Any]) -> None:
    content = delta.get("content") or ""
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if part["type"] == "text":
            found["text"] += part["text"]
        else:
            found["thinking"] += "".join(inner["text"] for inner in part["thinking"])
    found["text"] += delta.get("refusal") or ""
    details = [
        part.get("text") or part.get("summary") or "" for part in delta.get("reasoning_details", [])
    ]
    thinking = delta.get("reasoning_content") or delta.get("reasoning") or "".join(details)
    found["thinking"] += thinking
    pieces = delta.get("tool_calls") or []
    if delta.get("function_call"):
        pieces = [{"index": 0, "function": delta["function_call"]}]
    for place, piece in enumerate(pieces):
        empty = {"id": "", "name": "", "arguments": ""}
        call = found["calls"].setdefault(piece.get("index", place), empty)
        call["id"] = call["id"] or piece.get("id") or ""
        call["name"] += piece["function"].get("name") or ""
        call["arguments"] += piece["function"].get("arguments") or ""


def plain_usage(usage: dict[str, Any]) -> dict[str, int]:
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
    cached = cached or usage.get("num_cached_tokens") or 0
    fresh = usage["prompt_tokens"] - cached - (details.get("cache_write_tokens") or 0)
    return {
        "input": fresh if fresh >= 0 else usage["prompt_tokens"],
        "cached": cached,
        "output": usage["completion_tokens"] + reasoning_outside_of_output(usage),
    }


def reasoning_outside_of_output(usage: dict[str, Any]) -> int:
    """Return the reasoning tokens that the server counts outside of the output (xAI)."""
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    counted = usage["prompt_tokens"] + usage["completion_tokens"] + reasoning
    return reasoning if usage.get("total_tokens") == counted else 0


def our_usage(usage: dict[str, Any]) -> dict[str, int]:
    return {
        "input": usage["input_tokens"],
        "cached": usage["cache_read_input_tokens"] or 0,
        "output": usage["output_tokens"],
    }


def joined(message: dict[str, Any], kind: str) -> str:
    return "".join(block[kind] for block in message["content"] if block["type"] == kind)


@pytest.mark.skipif(not STREAMS, reason=ABSENT)
@for_each("path", [*STREAMS, *BODIES], ids=lambda path: path.stem)
def test_the_message_equals_the_recording(path):
    expected = plainly(path)

    stream, events = streamed(path)

    assert stream.fault is None
    assert faults_of_events(events) == []
    if path.stem in FAILED:
        assert events[-1]["type"] == "error"
        return
    message = fold(events)
    calls = [
        (b["id"], b["name"], b["input"]) for b in message["content"] if b["type"] == "tool_use"
    ]
    assert joined(message, "text") == expected["text"]
    assert joined(message, "thinking") == expected["thinking"]
    assert [call[1:] for call in calls] == [call[1:] for call in expected["calls"]]
    for (ours, *_), (theirs, *_) in zip(calls, expected["calls"], strict=True):
        assert ours == theirs or not theirs
    if expected["usage"]:
        assert our_usage(message["usage"]) == plain_usage(expected["usage"])
        assert stream.usage.source == "reported"
    else:
        assert stream.usage.source == "estimated"


@pytest.mark.skipif(not STREAMS, reason=ABSENT)
@for_each("path", STREAMS, ids=lambda path: path.stem)
def test_a_cut_anywhere_before_the_end_is_an_error(path):
    chunks = chunks_of(path)
    ends = [
        n
        for n, chunk in enumerate(chunks)
        if chunk.get("error") or any(c.get("finish_reason") for c in chunk["choices"])
    ]
    last = ends[0] if ends else len(chunks) - 1
    for cut in {0, 1, last // 3, last // 2, last - 1, last} & set(range(last + 1)):
        stream = DIALECT.stream(context())

        events = [e for chunk in chunks[:cut] for e in stream.feed(chunk)] + stream.end()

        assert events[-1]["type"] == "error"
        assert faults_of_events(events, raw_tool_input=True) == []


@pytest.mark.skipif(not STREAMS, reason=ABSENT)
def test_the_recordings_have_no_unknown_fields():
    unknown = Counter[str]()
    for path in [*STREAMS, *BODIES]:
        unknown += streamed(path)[0].unknown

    assert not unknown


@pytest.mark.skipif(not STREAMS, reason=ABSENT)
@for_each("shown", ["omitted", "hidden"])
@for_each("path", STREAMS, ids=lambda path: path.stem)
def test_reasoning_that_is_not_shown_changes_nothing_else(path, shown):
    _, events = streamed(path, thinking=shown)
    whole = [block for block in fold(streamed(path)[1])["content"] if block["type"] != "thinking"]

    message = fold(events)

    assert faults_of_events(events) == []
    assert joined(message, "thinking") == ""
    assert joined(message, "text") == joined({"content": whole}, "text")


@pytest.mark.skipif(not ERRORS, reason=ABSENT)
@for_each("path", ERRORS, ids=lambda path: path.stem)
def test_every_recorded_error_has_a_status_a_type_and_a_message(path):
    recorded = json.loads(path.read_bytes())
    body = recorded["body_json"] if recorded["body_json"] is not None else recorded["body_raw"]

    error = DIALECT.map_error(recorded["status"] or 400, body)

    assert (error.status == 401) is False  # the client's key is valid
    assert error.message
    assert "http" not in error.message
    if "context" in path.stem and recorded["status"] == 400:
        assert error.message.startswith("prompt is too long")
    if "auth_error" in path.stem:
        assert (error.status, error.should_retry) == (500, False)

"""Recorded upstream traffic, through the running gateway, to the real Anthropic SDKs.

A scripted upstream plays each recording byte for byte, in reads cut at random places; the gateway
is the real process; the SDK's final message must carry exactly what the recording says.
"""

from functools import cache
from typing import Any

import pytest

from tests.fakes import recordings
from tests.fakes.gateway import Gateway
from tests.fakes.grammar import faults_of_events
from tests.fakes.recordings import reading_of

from . import plays, sdks

pytestmark = [
    pytest.mark.skipif(not plays.STREAMS, reason=recordings.ABSENT),
    pytest.mark.timeout(900),  # the first test waits for the whole batch
]

LINES = ["newest", "last-0.x"]
MODES = ["helper", "raw", "whole"]
ALL = [*plays.STREAMS, *plays.WHOLE]
ERROR_TYPES = {"insufficient_quota": "billing_error", "tool_use_failed": "invalid_request_error"}
"""Anthropic's types of the errors that recordings end in, by the upstream's code."""

read = cache(recordings.read)


def request_for(play: plays.Play) -> dict[str, Any]:
    """A request as a client would have sent it: with thinking, and the tools that get called."""
    names = {call.name: "a recorded tool" for call in read(play.path).calls}
    body: dict[str, Any] = {
        "model": play.model,
        "max_tokens": 20_000,
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "messages": [{"role": "user", "content": "Say what you said then."}],
    }
    if names:
        schema = {"type": "object", "properties": {}}
        body["tools"] = [
            {"name": name, "description": why, "input_schema": schema}
            for name, why in names.items()
        ]
    return body


@pytest.fixture(scope="session")
def batch(gateway: Gateway):
    """What each SDK made of every recording in every mode; run once per SDK, side by side."""

    @cache
    def run(line: sdks.Line) -> dict[str, Any]:
        jobs = [
            {"id": f"{mode}-{play.model}", "mode": mode, "body": request_for(play)}
            for play in (*ALL, *plays.CUT)
            for mode in MODES
        ]
        return sdks.drive(line, base_url=gateway.url, key=gateway.key, jobs=jobs)

    return run


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that raw events amount to, added up in the simplest way."""
    message = dict(events[0]["message"], content=[])
    pieces: dict[str, str] = {"text_delta": "text", "thinking_delta": "thinking"}
    for event in events:
        match event["type"]:
            case "content_block_start":
                message["content"].append(dict(event["content_block"], said=""))
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                block["said"] += delta.get("partial_json", "")
                if name := pieces.get(delta["type"]):
                    block[name] += delta[name]
            case "message_delta":
                message["stop_reason"] = event["delta"]["stop_reason"]
                message["usage"] = message["usage"] | event["usage"]
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = recordings._call(None, "", block["said"]).input
    return message


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("play", ALL, ids=lambda play: play.id)
def test_the_sdk_hears_what_the_recording_says(batch, play, mode, line):
    expected = read(play.path)

    came = batch(line)[f"{mode}-{play.model}"]

    if expected.failed:
        assert came.get("ours"), came
        assert came["error"]["error"]["type"] == ERROR_TYPES.get(expected.failed, "api_error")
        return
    assert "raised" not in came, came
    actual = reading_of(came.get("message") or added_up(came["events"]))
    assert actual.text == expected.text
    assert actual.thinking == expected.thinking
    assert recordings.same_calls(expected.calls, actual.calls), (actual.calls, expected.calls)
    assert actual.stop_reason == expected.stop_reason
    if expected.usage is not None:
        assert actual.usage == expected.usage


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("play", plays.CUT, ids=lambda play: play.id)
def test_the_sdk_raises_when_the_recording_is_cut(batch, play, mode, line):
    """A cut stream is never a short answer: the SDK raises, with a type it knows."""
    came = batch(line)[f"{mode}-{play.model}"]

    assert came.get("ours"), came
    assert came["error"]["type"] == "error"
    assert came["error"]["error"]["type"] == "api_error"
    assert came["status"] in {200, 502}


@pytest.mark.parametrize("play", ALL, ids=lambda play: play.id)
def test_the_raw_stream_is_legal(batch, play):
    came = batch("newest")[f"raw-{play.model}"]

    if "events" in came:
        assert faults_of_events(came["events"]) == []
    else:
        assert read(play.path).failed

"""Recorded upstream traffic through a running gateway to the Anthropic SDKs.

A scripted upstream sends each recording byte for byte, with random cuts. The SDK's final message
must equal the content of the recording. In the fast lane the newest SDK gets every third recording
and the old one every fifteenth, each in one of the three modes, and every fifth of all is cut.
"""

from functools import cache
from typing import Any, NamedTuple

import pytest

from tests.e2e import scenarios, sdks
from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams import recordings
from tests.fakes.upstreams.grammar import faults_of_events
from tests.fakes.upstreams.recordings import summary_of_message
from tests.for_each import for_each
from tests.lanes import repeat

pytestmark = [
    pytest.mark.skipif(not scenarios.STREAMS, reason=recordings.ABSENT),
    pytest.mark.timeout(900),  # the first test waits for the whole batch
]

STEPS: dict[sdks.Line, int] = {
    "newest": repeat(fast=3, slow=1),
    "last-0.x": repeat(fast=15, slow=1),
}
"""SDK -> it gets each recording (1) or every nth one."""
MODES = ["helper", "raw", "whole"]
ALL = [*scenarios.STREAMS, *scenarios.WHOLE]
CUT = scenarios.CUT[:: repeat(fast=5, slow=1)]
ERROR_TYPES = {"insufficient_quota": "billing_error", "tool_use_failed": "invalid_request_error"}
"""The upstream's error code in a recording -> Anthropic's error type."""

read = cache(recordings.summary_of_recording)


def request_for(scenario: scenarios.RecordedScenario) -> dict[str, Any]:
    """Build a request for a recording, with thinking and with the tools that it calls."""
    names = {call.name: "a recorded tool" for call in read(scenario.path).calls}
    body: dict[str, Any] = {
        "model": scenario.model,
        "max_tokens": 20_000,
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "messages": [{"role": "user", "content": "Repeat your last response."}],
    }
    if names:
        schema = {"type": "object", "properties": {}}
        body["tools"] = [
            {"name": name, "description": description, "input_schema": schema}
            for name, description in names.items()
        ]
    return body


class Job(NamedTuple):
    """One recording, and how the SDK reads it."""

    mode: str
    scenario: scenarios.RecordedScenario

    @property
    def id(self) -> str:
        return f"{self.mode}-{self.scenario.model}"


def jobs_of(version: sdks.Line, group: list[scenarios.RecordedScenario]) -> list[Job]:
    """Return the SDK's recordings of the group, each with the modes in turn or with all of them."""
    all_modes = repeat(fast=False, slow=True)
    return [
        Job(mode, scenario)
        for number, scenario in enumerate(group[:: STEPS[version]])
        for mode in (MODES if all_modes else [MODES[number % len(MODES)]])
    ]


def for_each_sdk(group: list[scenarios.RecordedScenario]) -> list[Any]:
    """Return the parameters: each SDK with its jobs of the group."""
    return [
        pytest.param(version, job, id=f"{job.scenario.id}-{version}-{job.mode}")
        for version in STEPS
        for job in jobs_of(version, group)
    ]


@pytest.fixture(scope="session")
def batch(gateway: Gateway):
    """A function that returns the results of all jobs, run once for each SDK."""

    @cache
    def run(version: sdks.Line) -> dict[str, Any]:
        jobs = [
            {"id": job.id, "mode": job.mode, "body": request_for(job.scenario)}
            for group in (ALL, CUT)
            for job in jobs_of(version, group)
        ]
        return sdks.run_jobs(version, base_url=gateway.url, key=gateway.key, jobs=jobs)

    return run


def fold_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the message from raw events."""
    message = dict(events[0]["message"], content=[])
    pieces: dict[str, str] = {"text_delta": "text", "thinking_delta": "thinking"}
    for event in events:
        match event["type"]:
            case "content_block_start":
                message["content"].append(dict(event["content_block"], received=""))
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                block["received"] += delta.get("partial_json", "")
                if name := pieces.get(delta["type"]):
                    block[name] += delta[name]
            case "message_delta":
                message["stop_reason"] = event["delta"]["stop_reason"]
                message["usage"] = message["usage"] | event["usage"]
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = recordings.parse_call(None, "", block["received"]).input
    return message


@pytest.mark.repeated
@for_each(("version", "job"), for_each_sdk(ALL))
def test_sdk_message_equals_the_recording(batch, job, version):
    expected = read(job.scenario.path)

    result = batch(version)[job.id]

    if expected.failed:
        assert result.get("sdk_error"), result
        assert result["error"]["error"]["type"] == ERROR_TYPES.get(expected.failed, "api_error")
        return
    assert "raised" not in result, result
    actual = summary_of_message(result.get("message") or fold_events(result["events"]))
    assert actual.text == expected.text
    assert actual.thinking == expected.thinking
    assert recordings.same_calls(expected.calls, actual.calls), (actual.calls, expected.calls)
    assert actual.stop_reason == expected.stop_reason
    if expected.usage is not None:
        assert actual.usage == expected.usage


@pytest.mark.repeated
@for_each(("version", "job"), for_each_sdk(CUT))
def test_sdk_raises_for_a_cut_recording(batch, job, version):
    """A cut stream is not a short response: the SDK raises one of its own errors."""
    result = batch(version)[job.id]

    assert result.get("sdk_error"), result
    assert result["error"]["type"] == "error"
    assert result["error"]["error"]["type"] == "api_error"
    assert result["status"] in {200, 502}


RAW = [job for job in jobs_of("newest", ALL) if job.mode == "raw"]


@pytest.mark.repeated
@for_each("job", RAW, ids=lambda job: job.scenario.id)
def test_raw_stream_is_valid(batch, job):
    result = batch("newest")[job.id]

    if "events" in result:
        assert faults_of_events(result["events"]) == []
    else:
        assert read(job.scenario.path).failed

"""An Anthropic upstream's response passes through byte for byte."""

import json
from pathlib import Path

import pytest

from tests.fakes.upstreams import recordings, script_steps
from tests.fakes.upstreams.grammar import faults_of_bytes, read_frames
from tests.for_each import for_each

STREAMS = recordings.recordings("anthropic-stream")
WHOLE = recordings.recordings("anthropic-json")
pytestmark = pytest.mark.skipif(not STREAMS, reason=recordings.ABSENT)


def send_request(gateway, model, **more):
    body = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    return gateway.request("POST", "/v1/messages", json.dumps(body | more).encode(), headers)


def ids(path: Path) -> str:
    return path.stem


@for_each("path", STREAMS, ids=ids)
def test_recorded_stream_passes_through_byte_for_byte(gateway, shared_upstream, path):
    model = f"anthropic-{path.stem}"[:120]
    shared_upstream.on(model, script_steps.stream(path.read_bytes(), 5))

    reply = send_request(gateway, model, stream=True)

    assert reply.status == 200
    assert reply.body == path.read_bytes()


@for_each("path", WHOLE, ids=ids)
def test_recorded_json_response_passes_through_byte_for_byte(gateway, shared_upstream, path):
    model = f"anthropic-{path.stem}"[:120]
    shared_upstream.on(model, script_steps.json_response(path.read_bytes()))

    reply = send_request(gateway, model)

    assert (reply.status, reply.body) == (200, path.read_bytes())


def test_cut_passthrough_ends_with_an_error_event(gateway, shared_upstream):
    path = next(path for path in STREAMS if "simpleRequest-bedrock" in path.name)
    shared_upstream.on(
        "anthropic-cut",
        script_steps.stream(path.read_bytes()[:-200], ending=[script_steps.Close()]),
    )

    reply = send_request(gateway, "anthropic-cut", stream=True)

    frames, _ = read_frames(reply.body)
    assert frames[-1].name == "error"
    assert faults_of_bytes(reply.body) == []


def test_client_key_is_not_sent_to_the_upstream(gateway, shared_upstream):
    shared_upstream.on("anthropic-key", script_steps.stream(STREAMS[0].read_bytes()))

    send_request(gateway, "anthropic-key", stream=True)

    (request,) = shared_upstream.requests_for("anthropic-key")
    assert gateway.key not in str(request.headers)
    assert "sk-upstream-of-the-tests" in str(request.headers)

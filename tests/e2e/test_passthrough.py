"""An Anthropic upstream's answer leaves as it came, byte for byte."""

import json
from pathlib import Path

import pytest

from tests.fakes import recordings, steps
from tests.fakes.grammar import faults_of_bytes, read_frames

STREAMS = recordings.recordings("anthropic-stream")
WHOLE = recordings.recordings("anthropic-json")
pytestmark = pytest.mark.skipif(not STREAMS, reason=recordings.ABSENT)


def ask(gateway, model, **more):
    body = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    return gateway.ask("POST", "/v1/messages", json.dumps(body | more).encode(), headers)


def ids(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", STREAMS, ids=ids)
def test_a_recorded_stream_passes_byte_for_byte(gateway, player, path):
    model = f"anthropic-{path.stem}"[:120]
    player.on(model, steps.stream(path.read_bytes(), 5))

    reply = ask(gateway, model, stream=True)

    assert reply.status == 200
    assert reply.body == path.read_bytes()


@pytest.mark.parametrize("path", WHOLE, ids=ids)
def test_a_recorded_whole_answer_passes_byte_for_byte(gateway, player, path):
    model = f"anthropic-{path.stem}"[:120]
    player.on(model, steps.json_answer(path.read_bytes()))

    reply = ask(gateway, model)

    assert (reply.status, reply.body) == (200, path.read_bytes())


def test_a_cut_passthrough_ends_in_an_error_event(gateway, player):
    path = next(path for path in STREAMS if "simpleRequest-bedrock" in path.name)
    player.on("anthropic-torn", steps.stream(path.read_bytes()[:-200], ending=[steps.Close()]))

    reply = ask(gateway, "anthropic-torn", stream=True)

    frames, _ = read_frames(reply.body)
    assert frames[-1].name == "error"
    assert faults_of_bytes(reply.body) == []


def test_the_clients_key_never_reaches_the_upstream(gateway, player):
    player.on("anthropic-key", steps.stream(STREAMS[0].read_bytes()))

    ask(gateway, "anthropic-key", stream=True)

    (asked,) = player.asked_for("anthropic-key")
    assert gateway.key not in str(asked.headers)
    assert "sk-upstream-of-the-tests" in str(asked.headers)

"""Two hundred streams of ten events a second for a minute (G01), on every push.

Every event is there once and in order, and each stream has its row. How late they come is no
matter of a test: ``python -m benchmarks.endurance --streams 200 --rate 10 --minutes 30`` tells.
"""

import json
import re
from pathlib import Path

import pytest

from tests.fakes.crowd import Crowd, judge, number_of, tokens_of
from tests.fakes.gateway import Gateway
from tests.fakes.killing import config_for, wait_until_drained
from tests.fakes.steps import LAST_CHUNK, Script, Sleep, Step, chunk, stream_head
from tests.fakes.upstream import Asked, ScriptedUpstream

STREAMS = 200
EVENTS = 200
TURNS = 3  # of each client, of twenty seconds each
PACE = Sleep(0.1)
COUNTED = re.compile(rb'"text":"(\d+) "')


def counting(asked: Asked) -> Script:
    """A chat stream whose every delta is its number."""
    prompt, completion = tokens_of(number_of(asked))
    steps: list[Step] = [stream_head()]
    for number in range(EVENTS):
        choice = {"index": 0, "delta": {"content": f"{number} "}}
        steps += [_told({"choices": [choice]}), PACE]
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    steps.append(_told({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    return [*steps, _told({"choices": [], "usage": usage}), chunk(b"data: [DONE]\n\n"), LAST_CHUNK]


def _told(event: dict[str, object]) -> Step:
    return chunk(b"data: %b\n\n" % json.dumps({"id": "c", "model": "m"} | event).encode())


@pytest.mark.timeout(600)
def test_every_event_of_two_hundred_streams_is_there_once(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.choose(counting)
    with Gateway(tmp_path / "gateway", config=config_for(upstream)) as gateway:
        with Crowd(gateway.port, gateway.key, "crowd", STREAMS) as crowd:
            upstream.wait_until(lambda calls: len(calls) >= TURNS * STREAMS, within_s=300)
        wait_until_drained(gateway)
        verdict = judge(crowd.sent, upstream.asked, gateway.rows().values())

    every = [b"%d" % number for number in range(EVENTS)]
    odd = [each.number for each in crowd.sent if COUNTED.findall(each.raw) != every]
    assert len(crowd.sent) >= TURNS * STREAMS
    assert odd == []
    assert verdict.faults == {}
    assert verdict.completed == verdict.sent

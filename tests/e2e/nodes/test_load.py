"""Many streams of ten events per second; in the slow lane two hundred for a minute.

Every event arrives once and in order, and each stream has its row. A benchmark measures the delays:
``python -m benchmarks.endurance --streams 200 --rate 10 --minutes 30``.
"""

import json
import re
from pathlib import Path

import pytest

from tests.fakes.load.kill_process import config_for, wait_until_drained
from tests.fakes.load.load_client import LoadClients, compare_records, number_of, tokens_of
from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Script, Sleep, Step, chunk, stream_head
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.lanes import repeat

STREAMS = repeat(fast=30, slow=200)
EVENTS = repeat(fast=20, slow=200)
TURNS = repeat(fast=1, slow=3)  # streams of each client, each of EVENTS tenths of a second
PACE = Sleep(0.1)
COUNTED = re.compile(rb'"text":"(\d+) "')


def numbered_stream(request: ReceivedRequest) -> Script:
    """Build a chat stream whose deltas are consecutive numbers."""
    prompt, completion = tokens_of(number_of(request))
    steps: list[Step] = [stream_head()]
    for number in range(EVENTS):
        choice = {"index": 0, "delta": {"content": f"{number} "}}
        steps += [_event_chunk({"choices": [choice]}), PACE]
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    steps.append(_event_chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    return [
        *steps,
        _event_chunk({"choices": [], "usage": usage}),
        chunk(b"data: [DONE]\n\n"),
        LAST_CHUNK,
    ]


def _event_chunk(event: dict[str, object]) -> Step:
    return chunk(b"data: %b\n\n" % json.dumps({"id": "c", "model": "m"} | event).encode())


@pytest.mark.repeated
@pytest.mark.timeout(600)
def test_every_event_of_many_concurrent_streams_arrives_once(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.choose(numbered_stream)
    with Gateway(tmp_path / "gateway", config=config_for(upstream)) as gateway:
        with LoadClients(gateway.port, gateway.key, "load", STREAMS) as load:
            upstream.wait_until(lambda calls: len(calls) >= TURNS * STREAMS, within_s=300)
        wait_until_drained(gateway)
        verdict = compare_records(load.sent, upstream.requests, gateway.rows().values())

    expected = [b"%d" % number for number in range(EVENTS)]
    incomplete = [each.number for each in load.sent if COUNTED.findall(each.raw) != expected]
    assert len(load.sent) >= TURNS * STREAMS
    assert incomplete == []
    assert verdict.faults == {}
    assert verdict.completed == verdict.sent

"""Check that the hot path does not grow, by counting calls: seconds depend on the machine.

``cost.json`` contains the number of calls (of Python and C functions) of fixed pieces of work. A
piece fails when it needs more than SLACK times that. After an improvement or an accepted increase,
run ``COST_REWRITE=1 pytest tests/repo/lint/test_cost.py`` and review the difference.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway import answers, payloads
from proxy.gateway.http.request_json import decode_object
from proxy.gateway.http.sse_encoder import encode_events
from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.gateway.upstream.decoding.response_decoder import ResponseDecoder
from translator.anthropic.request_validation import parse_messages_request
from translator.capabilities import PROFILES
from translator.dialect import ResponseContext, TranslationTarget
from translator.message_stream.events_to_message import MessageFold

BASELINE = Path(__file__).with_name("cost.json")
SLACK = 1.15  # Python versions differ by a few per cent
DELTAS = 200


def calls_of(work: Callable[[], object]) -> int:
    """Count the function calls of a piece of work in its second run: the first fills caches."""
    work()
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def stream_reads(dialect: str, deltas: int, per_read: int) -> list[bytes]:
    """Return a streamed response as socket reads of ``per_read`` events."""
    knobs = answers.parse_knobs(f"mock-n{deltas}-b5-g0-text")
    parts = (
        answers.chat_stream("m", knobs, with_usage=True)
        if dialect == "chat"
        else answers.responses_stream("m", knobs)
    )
    events = [event.encode() for part in parts for event in part]
    return [b"".join(events[at : at + per_read]) for at in range(0, len(events), per_read)]


def relay(dialect: str, reads: list[bytes]) -> bytes:
    """Decode, fold and encode a response as the gateway does, without sockets."""
    context = ResponseContext(message_id="msg_1", model="m", input_estimate=9)
    decoder = ResponseDecoder(DIALECTS[dialect].stream(context), dialect)
    fold, output = MessageFold(), b""
    for raw in reads:
        decoder.feed(raw)
        for event in decoder.events:
            fold.feed(event)
        output += encode_events(decoder.events)
    return output


def translate_request(dialect: str, body: bytes) -> object:
    """Translate a request as the gateway does, from bytes to the upstream body."""
    request = parse_messages_request(decode_object(body))
    target = TranslationTarget(upstream="u", model="m", profile=PROFILES["openai"])
    return DIALECTS[dialect].build_request(request, target).body


def relay_work(dialect: str, deltas: int, per_read: int) -> Callable[[], object]:
    reads = stream_reads(dialect, deltas, per_read)
    return lambda: relay(dialect, reads)


def request_work(dialect: str, size: str) -> Callable[[], object]:
    body = payloads.body("anthropic", size, "claude-x", stream=True)
    return lambda: translate_request(dialect, body)


WORK = {
    **{
        f"{dialect}: an answer of {DELTAS} deltas, {per_read} in a read": relay_work(
            dialect, DELTAS, per_read
        )
        for dialect in ("chat", "responses")
        for per_read in (1, 8, 50)
    },
    **{
        f"{dialect}: a {size} request": request_work(dialect, size)
        for dialect in ("chat", "responses")
        for size in ("small", "big")
    },
}


@pytest.mark.parametrize("name", WORK)
def test_the_hot_path_stays_within_its_baseline(name):
    calls = calls_of(WORK[name])
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if os.environ.get("COST_REWRITE"):
        BASELINE.write_text(json.dumps(baseline | {name: calls}, indent=1, sort_keys=True) + "\n")
        return

    assert calls <= baseline[name] * SLACK, f"{name}: {calls} calls, {baseline[name]} before"


def test_the_baseline_lists_exactly_the_measured_work():
    assert json.loads(BASELINE.read_text()).keys() == WORK.keys()


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("per_read", [1, 50])
def test_ten_times_the_events_cost_ten_times_the_calls(dialect, per_read):
    few, many = (calls_of(relay_work(dialect, n, per_read)) for n in (DELTAS, 10 * DELTAS))

    assert many <= 10.5 * few


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize(
    ("few", "many"), [("big-tools12", "big-tools120"), ("big", "big-history10")]
)
def test_ten_times_the_tools_or_turns_cost_at_most_ten_times_the_calls(dialect, few, many):
    assert calls_of(request_work(dialect, many)) <= 10.5 * calls_of(request_work(dialect, few))


def test_the_count_shows_one_more_call_for_each_delta():
    reads = stream_reads("chat", DELTAS, 50)

    def slower() -> None:
        relay("chat", reads)
        for _ in range(DELTAS):
            len(reads)

    assert calls_of(slower) >= calls_of(lambda: relay("chat", reads)) + DELTAS

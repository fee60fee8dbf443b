"""The hot path must not grow: calls are counted, never seconds, so any machine may judge.

``cost.json`` holds what fixed pieces of work cost in calls (of Python functions and of C). More than
SLACK above it fails; after a gain, or a cost that was agreed on, write it anew with
``COST_REWRITE=1 pytest tests/house/test_cost.py`` and let a human read the difference.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway import answers, payloads
from proxy.gateway.dialects import DIALECTS
from proxy.gateway.frames import frames
from proxy.gateway.hearing import Hearing
from proxy.gateway.safejson import decode_object
from translator.anthropic.fold import MessageFold
from translator.anthropic.request import parse_messages_request
from translator.dialect import AnswerContext, Target
from translator.profiles import PROFILES

BASELINE = Path(__file__).with_name("cost.json")
SLACK = 1.15  # Python versions differ by some per cent
DELTAS = 200


def calls_of(work: Callable[[], object]) -> int:
    """How many functions a piece of work calls, its first run (imports, caches) not counted."""
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


def said(dialect: str, deltas: int, per_read: int) -> list[bytes]:
    """A streamed answer, as reads of so many events."""
    knobs = answers.parse_knobs(f"mock-n{deltas}-b5-g0-text")
    parts = (
        answers.chat_stream("m", knobs, with_usage=True)
        if dialect == "chat"
        else answers.responses_stream("m", knobs)
    )
    events = [event.encode() for part in parts for event in part]
    return [b"".join(events[at : at + per_read]) for at in range(0, len(events), per_read)]


def relay(dialect: str, reads: list[bytes]) -> bytes:
    """What the pump does with an answer, without its sockets."""
    context = AnswerContext(message_id="msg_1", model="m", input_estimate=9)
    hearing = Hearing(DIALECTS[dialect].stream(context), dialect)
    fold, told = MessageFold(), b""
    for raw in reads:
        hearing.feed(raw)
        for event in hearing.events:
            fold.feed(event)
        told += frames(hearing.events)
    return told


def ask(dialect: str, body: bytes) -> object:
    """What the gateway does with a request, from bytes to the upstream's body."""
    request = parse_messages_request(decode_object(body))
    target = Target(upstream="u", model="m", profile=PROFILES["openai"])
    return DIALECTS[dialect].build_request(request, target).body


def relaying(dialect: str, deltas: int, per_read: int) -> Callable[[], object]:
    reads = said(dialect, deltas, per_read)
    return lambda: relay(dialect, reads)


def asking(dialect: str, size: str) -> Callable[[], object]:
    body = payloads.body("anthropic", size, "claude-x", stream=True)
    return lambda: ask(dialect, body)


WORK = {
    **{
        f"{dialect}: an answer of {DELTAS} deltas, {per_read} in a read": relaying(
            dialect, DELTAS, per_read
        )
        for dialect in ("chat", "responses")
        for per_read in (1, 8, 50)
    },
    **{
        f"{dialect}: a {size} request": asking(dialect, size)
        for dialect in ("chat", "responses")
        for size in ("small", "big")
    },
}


@pytest.mark.parametrize("name", WORK)
def test_the_hot_path_calls_no_more_than_it_did(name):
    calls = calls_of(WORK[name])
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if os.environ.get("COST_REWRITE"):
        BASELINE.write_text(json.dumps(baseline | {name: calls}, indent=1, sort_keys=True) + "\n")
        return

    assert calls <= baseline[name] * SLACK, f"{name}: {calls} calls, {baseline[name]} before"


def test_the_baseline_holds_no_work_that_is_gone():
    assert json.loads(BASELINE.read_text()).keys() == WORK.keys()


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("per_read", [1, 50])
def test_ten_times_the_events_cost_ten_times_the_calls(dialect, per_read):
    few, many = (calls_of(relaying(dialect, n, per_read)) for n in (DELTAS, 10 * DELTAS))

    assert many <= 10.5 * few


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize(
    ("few", "many"), [("big-tools12", "big-tools120"), ("big", "big-history10")]
)
def test_ten_times_the_tools_or_turns_cost_at_most_ten_times_the_calls(dialect, few, many):
    assert calls_of(asking(dialect, many)) <= 10.5 * calls_of(asking(dialect, few))


def test_the_count_itself_would_notice_one_more_call_for_each_delta():
    reads = said("chat", DELTAS, 50)

    def slower() -> None:
        relay("chat", reads)
        for _ in range(DELTAS):
            len(reads)

    assert calls_of(slower) >= calls_of(lambda: relay("chat", reads)) + DELTAS

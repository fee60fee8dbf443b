"""A stream may break at any byte: cut, reset or silent. It never ends as if it were whole (G07).

On each push some places of every case, and of every recording where they lie beside the repository;
``BRIDGE_BYTE_CUTS=all`` is every byte of every case, and of the 48 shortest recordings: what is
heard before a place is heard anew for each, so that long ones take hours.
"""

import os
from pathlib import Path

import pytest

from proxy.gateway.dialects import DIALECTS
from proxy.gateway.hearing import Hearing
from tests.fakes.grammar import faults_of_events
from tests.fakes.recordings import recordings
from translator.dialect import AnswerContext, UpstreamError
from translator.errors import BadUpstream

ALL = os.environ.get("BRIDGE_BYTE_CUTS") == "all"
CASES = Path(__file__).parents[2] / "cases"
DIALECT = {"openai_chat": "chat", "openai_responses": "responses"}
STREAMS = {
    f"{folder}/{path.parent.name}": (dialect, path)
    for folder, dialect in DIALECT.items()
    for path in sorted((CASES / folder).glob("*/upstream.sse"))
}
PLACES = 100  # of each case, spread by its own length
RECORDED = 24  # of each kind, at every byte
RECORDED_PLACES = 5  # of every recording
LOST = UpstreamError(
    status=502, error_type="api_error", message="the upstream closed the connection"
)
LATE = UpstreamError(status=504, error_type="timeout_error", message="the upstream fell silent")


def heard(dialect: str, raw: bytes, cause: UpstreamError | None):
    """What a client hears of these bytes when nothing follows them; ``cause`` None: a clean close."""
    stream = DIALECTS[dialect].stream(
        AnswerContext(message_id="msg_1", model="m", input_estimate=9)
    )
    hearing = Hearing(stream, dialect)
    events = []
    for piece in (raw, b"") if cause is None else (raw,) if raw else ():
        if stream.finished:
            break
        try:
            hearing.feed(piece)
        except BadUpstream:
            events += hearing.events
            return events + stream.fail(LOST)
        events += hearing.events
    if cause is not None and not stream.finished:
        events += stream.fail(cause)
    return events


def judge(dialect: str, raw: bytes, places) -> list[str]:
    """What is wrong at which byte; the whole stream says where its own end is."""
    whole = [event["type"] for event in heard(dialect, raw, None)]
    wrong = []
    for place in places:
        for cause in (None, LOST, LATE):
            events = heard(dialect, raw[:place], cause)
            kinds = [event["type"] for event in events if event["type"] != "ping"]
            if kinds[-1] == "message_stop" and whole[-1] != "message_stop":
                wrong.append(f"{place}: an end that the whole stream does not have")
            if kinds[-1] not in {"message_stop", "error"}:
                wrong.append(f"{place}: it ends with {kinds[-1]}")
            if kinds.count("message_stop") + kinds.count("error") != 1:
                wrong.append(f"{place}: two ends")
            wrong += [
                f"{place}: {fault}" for fault in faults_of_events(events, raw_tool_input=True)
            ]
    return wrong


def end_of(dialect: str, raw: bytes) -> int:
    """The first byte after which the stream is whole; all of it when it never is."""
    low, high = 0, len(raw)
    while low < high:
        middle = (low + high) // 2
        if heard(dialect, raw[:middle], LOST)[-1]["type"] == "message_stop":
            high = middle
        else:
            low = middle + 1
    return low


@pytest.mark.timeout(300 + 3_000 * ALL)
@pytest.mark.parametrize("case", STREAMS)
def test_no_cut_of_a_case_ends_as_if_it_were_whole(case):
    dialect, path = STREAMS[case]
    raw = path.read_bytes()
    places = range(0, len(raw) + 1, 1 if ALL else max(1, len(raw) // PLACES))

    assert judge(dialect, raw, places) == []


@pytest.mark.parametrize("case", STREAMS)
def test_before_its_last_event_a_stream_is_not_whole(case):
    """The last byte that matters: one less, and the answer is an error."""
    dialect, path = STREAMS[case]
    raw = path.read_bytes()
    end = end_of(dialect, raw)

    if end:
        before = [event["type"] for event in heard(dialect, raw[: end - 1], LOST)]
        assert before[-1] == "error"
        assert "message_stop" not in before


@pytest.mark.skipif(not recordings("chat-stream"), reason="NO RECORDINGS lie beside the repository")
@pytest.mark.timeout(300 + 3_000 * ALL)
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_no_cut_of_a_recording_ends_as_if_it_were_whole(dialect):
    by_size = sorted(recordings(f"{dialect}-stream"), key=lambda path: path.stat().st_size)
    for path in by_size[:RECORDED] if ALL else by_size:
        raw = path.read_bytes()
        step = 1 if ALL else max(1, len(raw) // RECORDED_PLACES)
        places = range(0, len(raw) + 1, step)

        assert judge(dialect, raw, places) == [], path.name

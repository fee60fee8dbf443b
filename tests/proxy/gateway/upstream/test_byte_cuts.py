"""A stream may break at any byte: cut, reset or silent. It never ends as if it were complete.

The fast lane tests some positions of every case, and of some recordings if they are available; the
slow lane tests every byte of every case and of the 48 shortest recordings. The stream is decoded
from its start for each position, so long recordings would take hours.
"""

from pathlib import Path

import pytest

from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.gateway.upstream.decoding.response_decoder import ResponseDecoder
from tests.fakes.upstreams.grammar import faults_of_events
from tests.fakes.upstreams.recordings import recordings
from tests.for_each import for_each
from tests.lanes import repeat
from translator.dialect import ResponseContext, UpstreamError
from translator.errors import BadUpstream

ALL = repeat(fast="some", slow="all", variable="BRIDGE_BYTE_CUTS") == "all"
CASES = Path(__file__).parents[3] / "cases"
DIALECT = {"openai_chat": "chat", "openai_responses": "responses"}
STREAMS = {
    f"{folder}/{path.parent.name}": (dialect, path)
    for folder, dialect in DIALECT.items()
    for path in sorted((CASES / folder).glob("*/upstream.sse"))
}
POSITIONS = 10  # of each case, evenly distributed
RECORDED = 24  # recordings of each dialect tested at every byte
RECORDED_POSITIONS = 4  # of every fourth recording, in the fast lane
LOST = UpstreamError(
    status=502, error_type="api_error", message="the upstream closed the connection"
)
LATE = UpstreamError(status=504, error_type="timeout_error", message="the upstream fell silent")


def events_after_cut(dialect: str, raw: bytes, cause: UpstreamError | None):
    """Return the client's events for a stream that ends here; ``cause`` None: a clean close."""
    stream = DIALECTS[dialect].stream(
        ResponseContext(message_id="msg_1", model="m", input_estimate=9)
    )
    decoder = ResponseDecoder(stream, dialect)
    events = []
    for piece in (raw, b"") if cause is None else (raw,) if raw else ():
        if stream.finished:
            break
        try:
            decoder.feed(piece)
        except BadUpstream:
            events += decoder.events
            return events + stream.fail(LOST)
        events += decoder.events
    if cause is not None and not stream.finished:
        events += stream.fail(cause)
    return events


def find_errors(dialect: str, raw: bytes, positions) -> list[str]:
    """Return the errors by position; a complete end is allowed only if the stream has one."""
    whole = [event["type"] for event in events_after_cut(dialect, raw, None)]
    wrong = []
    for position in positions:
        for cause in (None, LOST, LATE):
            events = events_after_cut(dialect, raw[:position], cause)
            kinds = [event["type"] for event in events if event["type"] != "ping"]
            if kinds[-1] == "message_stop" and whole[-1] != "message_stop":
                wrong.append(f"{position}: an end that the complete stream does not have")
            if kinds[-1] not in {"message_stop", "error"}:
                wrong.append(f"{position}: it ends with {kinds[-1]}")
            if kinds.count("message_stop") + kinds.count("error") != 1:
                wrong.append(f"{position}: two ends")
            wrong += [
                f"{position}: {fault}" for fault in faults_of_events(events, raw_tool_input=True)
            ]
    return wrong


def end_of(dialect: str, raw: bytes) -> int:
    """Return the first position at which the stream is complete, else its length."""
    low, high = 0, len(raw)
    while low < high:
        middle = (low + high) // 2
        if events_after_cut(dialect, raw[:middle], LOST)[-1]["type"] == "message_stop":
            high = middle
        else:
            low = middle + 1
    return low


@pytest.mark.repeated
@pytest.mark.timeout(300 + 3_000 * ALL)
@for_each("case", STREAMS)
def test_no_cut_of_a_case_ends_as_if_it_were_complete(case):
    dialect, path = STREAMS[case]
    raw = path.read_bytes()
    positions = range(0, len(raw) + 1, 1 if ALL else max(1, len(raw) // POSITIONS))

    assert find_errors(dialect, raw, positions) == []


@for_each("case", STREAMS)
def test_a_stream_without_its_last_event_is_not_complete(case):
    """Without the last significant byte, the response is an error."""
    dialect, path = STREAMS[case]
    raw = path.read_bytes()
    end = end_of(dialect, raw)

    if end:
        before = [event["type"] for event in events_after_cut(dialect, raw[: end - 1], LOST)]
        assert before[-1] == "error"
        assert "message_stop" not in before


@pytest.mark.skipif(not recordings("chat-stream"), reason="NO RECORDINGS are available")
@pytest.mark.repeated
@pytest.mark.timeout(300 + 3_000 * ALL)
@for_each("dialect", ["chat", "responses"])
def test_no_cut_of_a_recording_ends_as_if_it_were_complete(dialect):
    by_size = sorted(recordings(f"{dialect}-stream"), key=lambda path: path.stat().st_size)
    for path in by_size[:RECORDED] if ALL else by_size[::4]:
        raw = path.read_bytes()
        step = 1 if ALL else max(1, len(raw) // RECORDED_POSITIONS)
        positions = range(0, len(raw) + 1, step)

        assert find_errors(dialect, raw, positions) == [], path.name

"""A request and its two records: each field and each limit, with a clock of the test."""

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import date

import pytest

from proxy.counters.memory_store import MemoryStore
from proxy.gateway.admission.client_options import PLAIN
from proxy.gateway.admission.rate_limits import Limiter, limits_of
from proxy.gateway.http.deadlines import CancelReason
from proxy.gateway.http.errors import HttpError, stopped, to_http_error
from proxy.gateway.request import ledger_records
from proxy.gateway.request.ledger_records import usage_record
from proxy.gateway.request.request import LONG_ANSWER, MAX_NOTES, READ_FOR_BILLING
from proxy.gateway.snapshot.config_snapshot import Limits
from proxy.gateway.snapshot.targets import Target
from proxy.ledger.journal.records import CloseRecord, OpenRecord
from proxy.ledger.recorder import recorder
from proxy.ledger.usage.pricing import PriceList
from proxy.live.running_requests import RUNNING
from proxy.models import Price
from tests.for_each import for_each
from tests.proxy.gateway.request_factory import (
    CHUNK,
    CHUNKS,
    END,
    LATE,
    REFUSED,
    REQUEST,
    SERVER,
    TARGET_RECORD,
    USAGE,
    RecordedRequest,
)
from translator.anthropic.usage import Usage
from translator.notes import Note
from translator.stream.text_buffer import MAX_CHARACTERS


def limited(request: RecordedRequest) -> Callable[[], float]:
    """Let the request hold a slot, with an estimate of 30 tokens; return the tokens used."""
    caller = dataclasses.replace(request.caller, limits=Limits(tpm=100))
    limiter, checks = Limiter(MemoryStore(lambda: 0.0)), limits_of(caller, 30, "")
    request.slot = limiter.acquire(caller, 30)
    return lambda: checks[0].used(limiter.peek(checks)[0])


def test_the_open_record_has_all_fields_of_the_request():
    request = RecordedRequest()
    request.set_body(b"{" + b" " * 40 + b"}", REQUEST, 101)
    request.attempts.target_record = TARGET_RECORD

    record = ledger_records.open_record(request, request.body)

    assert record == OpenRecord(
        id=request.head.request_id, created=request.created, worker=recorder.worker, team="team_1", key_id=7,
        user="user_1", session_id="s" * 200, agent_id="agent-1",
        parent_agent_id="agent-0", ip="192.0.2.7", user_agent="claude-cli/2.1.329 (external, cli)",
        client_name="claude-cli", client_version="2.1.329", api_version="2024-01-01",
        betas=["a-1", "b-2"], tags={"team": "blue"}, traceparent="t" * 100, stream=True,
        model_requested="m" * 200, model_upstream="gpt-x", upstream="up", dialect="chat",
        request_bytes=42, message_count=0, target=TARGET_RECORD, body=request.body,
    )  # fmt: skip
    assert request.input_estimate == 101


def test_the_open_record_without_a_body_counts_the_messages():
    request = RecordedRequest([], store_full=False)
    request.set_body(b"{}", {**REQUEST, "stream": "true"}, 101)

    record = ledger_records.open_record(request, None)

    assert record == OpenRecord(
        id=request.head.request_id, created=request.created, worker=recorder.worker, team="team_1", key_id=7,
        user="user_1", session_id="in_the_body", ip="192.0.2.7",
        api_version="2023-06-01", model_requested="m" * 200, request_bytes=2, message_count=3,
    )  # fmt: skip


def test_the_close_record_has_all_fields_of_a_completed_request():
    request = RecordedRequest()
    request.set_body(b"{}", REQUEST, 101)
    request.prices = PriceList([Price(model="gpt-x", since=date(1970, 1, 1), input=1, output=2)])
    used = limited(request)
    request.attempts.upstream_request_id, request.attempts.body_digest = "x-1", "5ea1"
    request.start_attempt(100.25)
    request.at = 101.0
    request.first_content_sent()
    request.store_upstream_bytes(b"part ", 101.0)
    request.feed(*CHUNKS, END, {**CHUNK, "choices": [], "usage": USAGE})
    request.attempts.fold.feed(*request.attempts.stream.end())
    request.attempts.stream.unknown["new_event"] = 2
    request.attempts.notes.append(Note("top_k", "dropped", "'it' is unknown"))
    request.at = 103.5

    record = ledger_records.close_record(request, None)

    assert record == CloseRecord(
        id=request.head.request_id, finished=request.created + 3.5, outcome="completed", status=200,
        stop_reason="tool_use", ttft_ms=1_000.0, total_ms=3_500.0, upstream_ms=3_250.0,
        overhead_ms=250.0, model_upstream="gpt-x", upstream="up", dialect="chat",
        upstream_status=200, upstream_request_id="x-1",
        attempts=[{"upstream": "up", "model": "gpt-x", "status": 200, "error": "", "ms": 3_250.0}],
        notes=[{"path": "top_k", "fate": "dropped", "reason": "'it' is unknown"}],
        unknown_events={"new_event": 2}, usage=usage_record(Usage(input=12, output=5, source="reported")),
        price=request.prices.at("up", "gpt-x", date(2026, 1, 1)), tool_calls=1, tool_names=["f"],
        has_thinking=True, response_bytes=321, delivered=True, upstream_request_sha256="5ea1",
        target=TARGET_RECORD, attempt=0, reads=[(750.0, b"part ")], answer=request.attempts.fold.message,
    )  # fmt: skip
    assert used() == 17


def test_the_close_record_of_a_request_without_attempts():
    request = RecordedRequest([], store_full=False)
    request.set_body(b"{}", REQUEST, 101)
    request.response.delivered = False
    request.at = 100.5

    record = ledger_records.close_record(request, REFUSED)

    assert record == CloseRecord(
        id=request.head.request_id, finished=request.created + 0.5, outcome="refused", status=429,
        error_type="rate_limit_error", error_source="gateway", total_ms=500.0,
        usage=usage_record(Usage()), response_bytes=321, delivered=False,
    )  # fmt: skip


def test_the_close_record_of_a_stream_that_the_second_upstream_ended_early():
    other = Target(server=SERVER, model="gpt-y")
    request = RecordedRequest()
    request.set_body(b"x" * 404, REQUEST, 101)
    request.start_attempt(101.0)
    request.store_upstream_bytes(b"first", 101.5)
    request.start_attempt(102.0, other)
    request.store_upstream_bytes(b"second", 102.5)
    request.feed(CHUNKS[1])
    request.attempts.fold.feed(*request.attempts.stream.fail(LATE))
    request.response.headers_sent, request.outcome, request.detail = (
        True,
        "upstream_timeout",
        "idle_s",
    )
    request.response.cancel_reason = CancelReason.CLIENT_GONE
    request.at = 103.0

    record = ledger_records.close_record(request, None)

    assert (record.outcome, record.status, record.stop_reason) == ("client_gone", 499, "")
    assert (record.error_type, record.error_message) == ("timeout_error", "m" * 2_000)
    assert (record.detail, record.error_source) == ("idle_s", "upstream")
    assert (record.ttft_ms, record.upstream_ms, record.overhead_ms) == (None, 2_000.0, 1_000.0)
    assert [each["ms"] for each in record.attempts] == [2_000.0, 1_000.0]
    assert (record.attempt, record.reads) == (1, [(500.0, b"second")])
    assert record.model_upstream == record.target["model"] == "gpt-y"
    assert record.answer["content"] == [{"type": "text", "text": "Well: é.", "citations": None}]
    assert record.usage == usage_record(Usage(input=101, output=4, source="estimated"))
    assert not record.delivered


def test_the_detail_of_a_refusal_is_recorded():
    request = RecordedRequest()
    refusal = HttpError(400, "invalid_request_error", "no", detail="rpm")

    assert ledger_records.close_record(request, refusal).detail == "rpm"
    request.detail = "own detail"
    assert ledger_records.close_record(request, refusal).detail == "own detail"


def test_response_bytes_after_a_disconnect_are_not_counted():
    request = RecordedRequest()
    request.response.bytes_at_disconnect = 0

    record = ledger_records.close_record(request, None)
    assert (record.response_bytes, record.outcome, record.status) == (0, "client_gone", 499)


def test_a_slot_is_not_settled_without_usage_nor_twice():
    request = RecordedRequest()
    used = limited(request)
    ledger_records.close_record(request, None)
    assert used() == 30

    request.slot.settled = True
    request.start_attempt(100.0)
    request.feed(CHUNKS[1], END, {**CHUNK, "choices": [], "usage": USAGE})
    ledger_records.close_record(request, None)
    assert used() == 30


@for_each("quoted", ["'a word'", '"a word\'s"', "'a \\'word'"])
def test_a_note_of_a_team_without_stored_content_quotes_nothing(quoted):
    request = RecordedRequest(store_full=False)
    request.notes.append(Note("tools", "renamed", f"known as {quoted} now"))

    (note,) = ledger_records.close_record(request, None).notes

    assert note["reason"] == "known as '…' now"


def test_notes_are_in_the_order_of_processing():
    own, sent, received = (Note(name, "ignored", "x") for name in "abc")
    request = RecordedRequest()
    request.start_attempt(100.0)
    request.notes.append(own)
    request.attempts.notes.append(sent)
    request.attempts.stream.notes.append(received)
    long_text = {"index": 0, "delta": {"content": "x" * MAX_CHARACTERS}}
    request.feed({**CHUNK, "choices": [long_text]})

    assert request.all_notes() == [own, sent, received, LONG_ANSWER]


def test_the_number_of_notes_is_limited():
    request = RecordedRequest()
    many = [Note("x", "dropped", str(number)) for number in range(MAX_NOTES + 3)]
    request.attempts.notes += many

    notes = request.all_notes()

    assert notes[:-1] == many[:MAX_NOTES]
    assert notes[-1] == Note("notes", "dropped", "3 more of them")


@for_each("events", [[], [END], [CHUNKS[1], END, {**CHUNK, "choices": [], "usage": USAGE}]])
def test_usage_is_not_estimated_without_output_or_if_reported(events):
    request = RecordedRequest()
    request.set_body(b"x" * 400, REQUEST, 101)
    request.start_attempt(100.0)
    request.feed(*events)

    assert request.usage() == request.attempts.stream.usage
    assert RecordedRequest().usage() == Usage()


def test_the_request_body_is_released_at_the_first_content():
    request = RecordedRequest()
    request.set_body(b"{}", REQUEST, 101)
    request.at = 102.0
    request.first_content_sent()
    request.at = 103.0
    request.first_content_sent()

    assert (request.attempts.first_content, request.body) == (102.0, b"")
    assert request.fields == {
        "stream": True, "max_tokens": 9, "temperature": 0, "top_p": 1, "top_k": 2,
    }  # fmt: skip


@for_each(("drains_on_disconnect", "has_attempt"), [(True, True), (True, False), (False, True)])
def test_the_upstream_is_read_to_the_end_if_it_bills_the_whole_response(
    drains_on_disconnect, has_attempt
):
    request = RecordedRequest()
    if has_attempt:
        server = dataclasses.replace(SERVER, drains_on_disconnect=drains_on_disconnect)
        request.start_attempt(100.0, Target(server=server, model="gpt-x"))

    assert request.should_drain_upstream() is (drains_on_disconnect and has_attempt)
    if drains_on_disconnect and has_attempt:
        assert (request.outcome, request.detail) == ("client_gone", "read_to_end")
        assert request.all_notes() == [READ_FOR_BILLING]
    else:
        assert (request.outcome, request.detail, request.all_notes()) == ("", "", [])


@for_each(
    ("exc", "reason", "expected"),
    [
        (REFUSED, CancelReason.CLIENT_GONE, REFUSED),
        (ValueError("a bug"), None, to_http_error(ValueError("a bug"))),
        (None, CancelReason.STOPPED, stopped()),
        (asyncio.CancelledError(), CancelReason.CLIENT_GONE, None),
        (asyncio.CancelledError(), CancelReason.WRITE, None),
        (
            asyncio.CancelledError(), None,
            HttpError(
                529, "overloaded_error", "the gateway is shutting down", {"retry-after": "1"},
                outcome="drained", source="gateway",
            ),
        ),
    ],
)  # fmt: skip
def test_the_error_that_ends_a_response(exc, reason, expected):
    request = RecordedRequest()
    request.response.cancel_reason = reason
    assert request.refusal_for(exc) == expected


async def test_a_running_request_is_stopped_once_from_the_admin(monkeypatch):
    request = RecordedRequest()
    request.response.task = asyncio.current_task()
    request.stop_by("olga")  # it is not running
    assert (request.stopped_by, request.notes, request.response.cancel_reason) == (
        "",
        [],
        None,
    )

    monkeypatch.setitem(RUNNING, request.head.request_id, request)
    request.stop_by("olga")
    request.stop_by("ben")
    assert request.response.cancel_reason is CancelReason.STOPPED
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    request.response.clear_cancellation()

    assert request.stopped_by == "olga"
    assert request.notes == [Note("answer", "dropped", "stopped by olga")]


def test_the_initial_values_of_a_request():
    request = RecordedRequest([])

    assert (request.response.request, request.live_row()["upstream"]) == (request, "")
    assert ledger_records.open_record(request, None) == OpenRecord(
        id=request.head.request_id, created=request.created, worker=recorder.worker, team="team_1", key_id=7,
        user="user_1", ip="192.0.2.7", api_version="2023-06-01",
    )  # fmt: skip
    assert (
        request.all_notes(),
        request.attempts.response_message(),
        request.take_unsaved_reads(),
        request.should_drain_upstream(),
    ) == ([], None, [], False)
    assert (
        request.accepted,
        request.attempts.is_last_target,
        request.route_name,
        request.options,
    ) == (
        False,
        False,
        "",
        PLAIN,
    )

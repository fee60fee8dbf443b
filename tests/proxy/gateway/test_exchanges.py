"""An exchange from its request to its two records: each field and each bound, on a clock of ours."""

import asyncio
import dataclasses
from datetime import date
from types import SimpleNamespace

import pytest

from proxy.gateway import entries, ledger
from proxy.gateway.entries import usage_record
from proxy.gateway.ledger import CHECKPOINT_BYTES
from proxy.gateway.limits import Bucket, Meter, Seat
from proxy.gateway.refusals import Refusal, refusal_of, stopped
from proxy.gateway.targets import Target
from proxy.gateway.watch import Stop
from proxy.gateway.wishes import PLAIN
from proxy.live.running import RUNNING
from proxy.models import Price
from proxy.record.pricing import PriceList
from proxy.record.recorder import Recorder, recorder
from proxy.record.records import Chunk, CloseRecord, OpenRecord
from translator import said
from translator.anthropic import fold
from translator.anthropic.usage import Usage
from translator.notes import Note

from .exchanges import (
    ASKED,
    END,
    LATE,
    OF_TARGET,
    PIECE,
    REFUSED,
    SAID,
    SERVER,
    USAGE,
    Asked,
)


@pytest.fixture(autouse=True)
def nobody_writes(monkeypatch):
    """Another file's gateway may still run in this process, and its recorder with it."""
    monkeypatch.setattr(ledger, "recorder", Recorder())


def test_the_open_record_says_who_asks_for_what():
    one = Asked()
    one.received(b"{" + b" " * 40 + b"}", ASKED)
    one.target_record = OF_TARGET

    opened = entries.open_record(one, one.body)

    assert opened == OpenRecord(
        id=one.head.request_id, created=one.created, worker=recorder.worker, team="t", key_id=7,
        key_name="k", user="ada", session_id="s" * 200, agent_id="agent-1",
        parent_agent_id="agent-0", ip="192.0.2.7", user_agent="claude-cli/2.1.329 (external, cli)",
        client_name="claude-cli", client_version="2.1.329", api_version="2024-01-01",
        betas=["a-1", "b-2"], tags={"team": "blue"}, traceparent="t" * 100, stream=True,
        model_requested="m" * 200, model_upstream="gpt-x", upstream="up", dialect="chat",
        request_bytes=42, message_count=0, target=OF_TARGET, body=one.body,
    )  # fmt: skip
    assert one.input_estimate == 10


def test_the_open_record_without_words_counts_the_messages():
    one = Asked([], store_full=False)
    one.received(b"{}", {**ASKED, "stream": "true"})

    opened = entries.open_record(one, None)

    assert opened == OpenRecord(
        id=one.head.request_id, created=one.created, worker=recorder.worker, team="t", key_id=7,
        key_name="k", user="ada", session_id="in_the_body", ip="192.0.2.7",
        api_version="2023-06-01", model_requested="m" * 200, request_bytes=2, message_count=3,
    )  # fmt: skip


def test_the_close_record_says_what_became_of_it():
    one = Asked()
    one.received(b"{}", ASKED)
    one.prices = PriceList([Price(model="gpt-x", since=date(1970, 1, 1), input=1, output=2)])
    one.seat = Seat((Meter("key t/k", tokens=Bucket(100, 50, 0.0)),), 30)
    one.upstream_request_id, one.body_digest = "x-1", "5ea1"
    one.dial(100.25)
    one.at = 101.0
    one.spoke()
    one.read(b"one ", 101.0)
    one.hear(*SAID, END, {**PIECE, "choices": [], "usage": USAGE})
    one.fold.feed(*one.stream.end())
    one.stream.unknown["odd"] = 2
    one.notes.append(Note("top_k", "dropped", "nobody knows 'it'"))
    one.at = 103.5

    closed = entries.close_record(one, None)

    assert closed == CloseRecord(
        id=one.head.request_id, finished=one.created + 3.5, outcome="completed", status=200,
        stop_reason="tool_use", ttft_ms=1_000.0, total_ms=3_500.0, upstream_ms=3_250.0,
        overhead_ms=250.0, model_upstream="gpt-x", upstream="up", dialect="chat",
        upstream_status=200, upstream_request_id="x-1",
        attempts=[{"upstream": "up", "model": "gpt-x", "status": 200, "error": "", "ms": 3_250.0}],
        notes=[{"path": "top_k", "fate": "dropped", "reason": "nobody knows 'it'"}],
        unknown_events={"odd": 2}, usage=usage_record(Usage(input=12, output=5, source="reported")),
        price=one.prices.at("up", "gpt-x", date(2026, 1, 1)), tool_calls=1, tool_names=["f"],
        has_thinking=True, response_bytes=321, delivered=True, upstream_request_sha256="5ea1",
        target=OF_TARGET, attempt=0, reads=[(750.0, b"one ")], answer=one.fold.message,
    )  # fmt: skip
    assert one.seat == Seat((Meter("key t/k", tokens=Bucket(100, 63, 0.0)),), 30, settled=True)


def test_the_close_record_of_a_request_that_was_never_dialled():
    one = Asked([], store_full=False)
    one.received(b"{}", ASKED)
    one.consumer.delivered = False
    one.at = 100.5

    closed = entries.close_record(one, REFUSED)

    assert closed == CloseRecord(
        id=one.head.request_id, finished=one.created + 0.5, outcome="refused", status=429,
        error_type="rate_limit_error", error_source="gateway", total_ms=500.0,
        usage=usage_record(Usage()), response_bytes=321, delivered=False,
    )  # fmt: skip


def test_the_close_record_of_an_answer_that_its_second_upstream_broke_off():
    other = Target(server=SERVER, model="gpt-y")
    one = Asked()
    one.received(b"x" * 404, ASKED)
    one.dial(101.0)
    one.read(b"first", 101.5)
    one.dial(102.0, other)
    one.read(b"second", 102.5)
    one.hear(SAID[1])
    one.fold.feed(*one.stream.fail(LATE))
    one.consumer.begun, one.outcome, one.detail = True, "upstream_timeout", "idle_s"
    one.consumer.stopped = Stop.CLIENT_GONE
    one.at = 103.0

    closed = entries.close_record(one, None)

    assert (closed.outcome, closed.status, closed.stop_reason) == ("client_gone", 499, "")
    assert (closed.error_type, closed.error_message) == ("timeout_error", "m" * 2_000)
    assert (closed.detail, closed.error_source) == ("idle_s", "upstream")
    assert (closed.ttft_ms, closed.upstream_ms, closed.overhead_ms) == (None, 2_000.0, 1_000.0)
    assert [each["ms"] for each in closed.attempts] == [2_000.0, 1_000.0]
    assert (closed.attempt, closed.reads) == (1, [(500.0, b"second")])
    assert closed.model_upstream == closed.target["model"] == "gpt-y"
    assert closed.answer["content"] == [{"type": "text", "text": "Well: é."}]
    said = len('[{"type": "text", "text": "Well: é."}]'.encode())
    assert closed.usage == usage_record(Usage(input=101, output=said // 4, source="estimated"))
    assert not closed.delivered


def test_what_a_refusal_says_of_its_cause_is_kept():
    one = Asked()
    told = Refusal(400, "invalid_request_error", "no", detail="rpm")

    assert entries.close_record(one, told).detail == "rpm"
    one.detail = "our own"
    assert entries.close_record(one, told).detail == "our own"


def test_bytes_that_nobody_heard_are_not_counted_as_told():
    one = Asked()
    one.consumer.unheard_from = 0

    closed = entries.close_record(one, None)
    assert (closed.response_bytes, closed.outcome, closed.status) == (0, "client_gone", 499)


def test_a_seat_is_not_settled_by_a_guess_of_nothing_nor_twice():
    one = Asked()
    one.seat = Seat((Meter("key t/k", tokens=Bucket(100, 50, 0.0)),), 30)
    entries.close_record(one, None)
    assert one.seat.meters[0].tokens.left == 50

    one.seat.settled = True
    one.dial(100.0)
    one.hear(SAID[1], END, {**PIECE, "choices": [], "usage": USAGE})
    entries.close_record(one, None)
    assert one.seat.meters[0].tokens.left == 50


def test_what_was_read_is_handed_over_after_a_second_or_a_full_buffer(monkeypatch):
    told: list[Chunk] = []
    monkeypatch.setattr(ledger.recorder, "_spool", SimpleNamespace(enter=told.append))
    one = Asked()
    one.dial(100.0)
    one.tick(200.0)  # nothing is there
    one.read(b"a", 100.25)
    one.tick(100.9)
    assert not told
    one.at = 101.0
    one.tick(101.0)
    assert told.pop() == Chunk(id=one.head.request_id, reads=[(250.0, b"a")])
    assert one._saved_at == 101.0

    one.read(b"b" * (CHECKPOINT_BYTES - 1), 101.5)
    assert [len(one.unsaved()), len(one.unsaved())] == [1, 0]
    one.read(b"c" * (CHECKPOINT_BYTES - 1), 101.5)
    one.dial(102.0)  # what came before is another answer's
    assert [len(raw) for _, raw in told.pop().reads] == [CHECKPOINT_BYTES - 1]
    one.read(b"d" * (CHECKPOINT_BYTES - 1), 102.5)
    assert not told
    one.read(b"e", 102.5)
    assert (told[0].attempt, told[0].target, len(told[0].reads)) == (1, OF_TARGET, 2)


KEY = b"sk-of-somebody-0123456789"
STARS = b"*" * len(KEY)


def test_what_looks_like_a_key_is_kept_of_an_answer_and_not_of_what_broke_one_off(monkeypatch):
    told: list[Chunk] = []
    monkeypatch.setattr(ledger.recorder, "_spool", SimpleNamespace(enter=told.append))
    one = Asked()
    one.dial(100.0)
    one.read(KEY, 100.0)
    one.checkpoint()
    assert [raw for _, raw in told.pop().reads] == [KEY]

    one.read(KEY, 100.0)
    one.dial(101.0)  # it failed, or there would be no other attempt
    assert [raw for _, raw in told.pop().reads] == [STARS]

    one.read(KEY, 101.0)
    one.stream.fail(LATE)
    one.checkpoint()
    assert [raw for _, raw in told.pop().reads] == [STARS]

    one.read(KEY, 101.0)
    assert [raw for _, raw in entries.close_record(one, None).reads] == [STARS]


def test_the_row_of_an_answer_that_ended_well_has_its_bytes_as_they_came():
    one = Asked()
    one.dial(100.0)
    one.hear(SAID[1], END, {**PIECE, "choices": [], "usage": USAGE})
    one.stream.end()
    one.read(KEY, 100.0)

    assert [raw for _, raw in entries.close_record(one, None).reads] == [KEY]


@pytest.mark.parametrize("quoted", ["'a word'", '"a word\'s"', "'a \\'word'"])
def test_a_note_of_a_team_that_keeps_no_words_quotes_none(quoted):
    one = Asked(store_full=False)
    one.remarks.append(Note("tools", "renamed", f"known as {quoted} now"))

    (told,) = entries.close_record(one, None).notes

    assert told["reason"] == "known as '…' now"


def test_an_upstream_s_bytes_are_kept_up_to_a_bound_for_each_attempt(monkeypatch):
    monkeypatch.setattr(ledger, "MOST_READ_BYTES", 10)
    one = Asked()
    one.dial(100.0)
    one.read(b"123456789", 100.0)
    assert one.all_notes() == []
    one.read(b"0 is over it", 100.0)
    one.read(b"not kept", 100.0)
    assert [raw for _, raw in one.unsaved()] == [b"123456789", b"0 is over it"]
    assert one.all_notes() == [ledger.LONG_STREAM]

    one.dial(101.0)
    one.read(b"kept", 101.0)
    assert [raw for _, raw in one.unsaved()] == [b"kept"]
    silent = Asked(store_full=False)
    silent.dial(100.0)
    silent.read(b"a word", 100.0)
    assert silent.unsaved() == []


def test_notes_come_in_the_order_in_which_they_were_made(monkeypatch):
    monkeypatch.setattr(said, "MOST_CHARACTERS", 3)
    monkeypatch.setattr(fold, "MOST_CHARACTERS", 3)
    door, asked, heard = (Note(name, "ignored", "x") for name in "abc")
    one = Asked()
    one.dial(100.0)
    one.remarks.append(door)
    one.notes.append(asked)
    one.stream.notes.append(heard)
    one.hear(SAID[1])

    assert one.all_notes() == [door, asked, heard, ledger.LONG_ANSWER]


def test_of_many_notes_the_first_are_kept_and_how_many_more_there_were():
    one = Asked()
    asked = [Note("x", "dropped", str(number)) for number in range(ledger.MOST_NOTES + 3)]
    one.notes += asked

    kept = one.all_notes()

    assert kept[:-1] == asked[: ledger.MOST_NOTES]
    assert kept[-1] == Note("notes", "dropped", "3 more of them")


@pytest.mark.parametrize(
    "events", [[], [END], [SAID[1], END, {**PIECE, "choices": [], "usage": USAGE}]]
)
def test_nothing_is_estimated_without_an_answer_nor_against_a_report(events):
    one = Asked()
    one.received(b"x" * 400, ASKED)
    one.dial(100.0)
    one.hear(*events)

    assert one.usage() == one.stream.usage
    assert Asked().usage() == Usage()


def test_a_request_that_nobody_will_translate_again_is_let_go():
    one = Asked()
    one.received(b"{}", ASKED)
    one.at = 102.0
    one.spoke()
    one.at = 103.0
    one.spoke()

    assert (one.first_content, one.body) == (102.0, b"")
    assert one.request == {
        "stream": True, "max_tokens": 9, "temperature": 0, "top_p": 1, "top_k": 2,
    }  # fmt: skip


@pytest.mark.parametrize(("hears_out", "dialled"), [(True, True), (True, False), (False, True)])
def test_an_answer_is_heard_out_where_its_upstream_bills_all_of_it(hears_out, dialled):
    one = Asked()
    if dialled:
        server = dataclasses.replace(SERVER, hears_out=hears_out)
        one.dial(100.0, Target(server=server, model="gpt-x"))

    assert one.goes_on() is (hears_out and dialled)
    if hears_out and dialled:
        assert (one.outcome, one.detail) == ("client_gone", "heard_out")
        assert one.all_notes() == [ledger.GOES_ON]
    else:
        assert (one.outcome, one.detail, one.all_notes()) == ("", "", [])


@pytest.mark.parametrize(
    ("exc", "stop", "told"),
    [
        (REFUSED, Stop.CLIENT_GONE, REFUSED),
        (ValueError("a bug"), None, refusal_of(ValueError("a bug"))),
        (None, Stop.STOPPED, stopped()),
        (asyncio.CancelledError(), Stop.CLIENT_GONE, None),
        (asyncio.CancelledError(), Stop.WRITE, None),
        (
            asyncio.CancelledError(), None,
            Refusal(
                529, "overloaded_error", "the gateway is shutting down", {"retry-after": "1"},
                outcome="drained", source="gateway",
            ),
        ),
    ],
)  # fmt: skip
def test_what_the_client_is_told_instead_of_the_rest(exc, stop, told):
    one = Asked()
    one.consumer.stopped = stop
    assert one._refusal(exc) == told


async def test_who_is_stopped_in_the_admin_is_stopped_once_and_while_it_runs(monkeypatch):
    one = Asked()
    one.consumer._task = asyncio.current_task()
    one.stop_by("olga")  # it does not run yet, or no more
    assert (one.stopped_by, one.remarks, one.consumer.stopped) == ("", [], None)

    monkeypatch.setitem(RUNNING, one.head.request_id, one)
    one.stop_by("olga")
    one.stop_by("ben")
    assert one.consumer.stopped is Stop.STOPPED
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    one.consumer.resume()

    assert one.stopped_by == "olga"
    assert one.remarks == [Note("answer", "dropped", "stopped by olga in the admin")]


def test_an_exchange_begins_with_nothing():
    one = Asked([])

    assert (one.consumer.entry, one.glance()["upstream"]) == (one, "")
    assert entries.open_record(one, None) == OpenRecord(
        id=one.head.request_id, created=one.created, worker=recorder.worker, team="t", key_id=7,
        key_name="k", user="ada", ip="192.0.2.7", api_version="2023-06-01",
    )  # fmt: skip
    assert (one.all_notes(), one.answered(), one.unsaved(), one.goes_on()) == ([], None, [], False)
    assert (one.accepted, one.last_try, one.route_name, one.wishes) == (False, False, "", PLAIN)

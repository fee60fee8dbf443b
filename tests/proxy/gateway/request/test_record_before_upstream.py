"""No upstream is called before the open record is durable; a disconnect before that costs nothing."""

import contextlib
import time

from proxy.counters.backends import shared_store
from proxy.counters.budget_periods import window
from proxy.counters.store import Kind, Standing, Take
from proxy.gateway.admission.rate_limits import limits
from proxy.gateway.request.request import Request
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import OpenRecord, decode
from proxy.ledger.posting.budget_sync import counter_name
from proxy.ledger.recorder import recorder
from proxy.ledger.transcripts.storage import read
from proxy.live.running_requests import RUNNING, stop_here
from proxy.models import ApiKey, Budget, Price, Team
from tests.fakes.outages import suspended_disk
from tests.fakes.upstreams.script_steps import Script, Stall, chunk, json_response, stream_head
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import DIALECTS, message, newest_row, row
from tests.proxy.gateway.http_client import GatewayClient, read_until
from tests.waiting import until


def running(model: str) -> list[Request]:
    return [request for request in list(RUNNING.values()) if request.model == model]


def open_records(**filters: str) -> list[OpenRecord]:
    """Return the durable open records that have these fields."""
    journal = recorder.journal
    assert journal is not None
    found = []
    with contextlib.closing(JournalReader(journal.directory, journal, from_start=True)) as own:
        own.read(10**9)
        for name in own.unfinished:
            found += map(decode, own.bodies(name))
    records = [record for record in found if isinstance(record, OpenRecord)]
    return [r for r in records if all(getattr(r, n) == value for n, value in filters.items())]


@for_each("dialect", DIALECTS)
def test_the_open_record_is_on_the_disk_before_the_upstream_is_called(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect: str
):
    model = f"{dialect}-written"
    records: list[OpenRecord] = []

    def record_open_records(request: ReceivedRequest) -> Script:
        records.extend(open_records(model_requested=request.model))
        return json_response({"error": {"message": "no"}}, 400)

    scripted.choose(record_open_records)
    try:
        reply = gateway.post(message(model, system="Be brief."))
    finally:
        scripted.choose(lambda _: None)

    assert reply.status == 400
    assert [(record.id, record.upstream) for record in records] == [(reply.id, dialect)]
    assert b"Be brief." in (records[0].body or b"")


def test_a_disconnect_during_the_record_write_calls_no_upstream_and_releases_everything(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    """The record becomes durable after the disconnect, so the recorder closes it."""
    team = Team.objects.create(name="disconnecting", limits={"concurrency": 1})
    _, secret = ApiKey.issue(team, "key", scopes=["messages"])
    budget = Budget.objects.create(team=team, usd=1, period="month")
    Price.objects.create(model="chat-disconnecting", since="2026-01-01", input=0, output=10)
    counter = counter_name(budget.pk, window("month", "UTC", time.time()))
    reload()

    with suspended_disk():
        with gateway.open(message("chat-disconnecting"), x_api_key=secret):
            until(
                lambda: [
                    context
                    for context in running("chat-disconnecting")
                    if context.attempts.target is not None
                ]
            )
            assert shared_store().standing(counter) == Standing(0, 0, 1_000_000)
        until(lambda: not running("chat-disconnecting"))
        assert limits.store.peek(
            [Take(f"limit {team.pk} team concurrency", 1, kind=Kind.SLOTS)]
        ) == [Standing()]
        until(lambda: shared_store().standing(counter) == Standing(0, 0, 0))
        assert not open_records(team=team.ledger_id)

    exchange = newest_row(team=team.ledger_id)
    assert (exchange.outcome, exchange.status, exchange.detail) == (
        "client_gone",
        499,
        "gone_before_upstream",
    )
    assert (exchange.attempts, exchange.cost_nanousd) == ([], None)
    assert not scripted.requests_for("chat-disconnecting")
    scripted.on("chat-disconnecting", upstream_scripts.chat())
    assert gateway.post(message("chat-disconnecting"), x_api_key=secret).status == 200


def test_a_request_stopped_during_the_record_write_has_one_row_with_the_error_of_its_client(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    with suspended_disk():
        with gateway.open(message("chat-stopped")) as client:
            [context] = until(
                lambda: [one for one in running("chat-stopped") if one.attempts.target is not None]
            )
            assert stop_here(context.head.request_id, "ada")
            reply = read_until(client, b'"type":"error"')
        request_id = context.head.request_id
        assert not open_records(id=request_id)

    row(request_id, outcome="refused", status=403, detail="stopped")
    assert reply.startswith(b"HTTP/1.1 403 ")
    assert len(open_records(id=request_id)) == 1
    assert not scripted.requests_for("chat-stopped")


def test_a_request_refused_during_translation_has_one_row(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    """The open record is still being written at the refusal: it is awaited and is the only one."""
    reply = gateway.post(message("responses-lossy", top_k=5), x_bridge_strict="true")

    exchange = row(reply.id, outcome="refused", status=400)
    assert exchange.upstream == "responses"
    assert len(open_records(id=reply.id)) == 1
    transcript = read(reply.id)
    assert transcript is not None
    assert transcript.request["top_k"] == 5
    assert not scripted.requests_for("responses-lossy")


def test_a_second_stop_of_a_request_has_no_effect(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    events = upstream_scripts.chat_events()[:-4]
    scripted.on("chat-twice", [stream_head(), *(chunk(piece) for piece in events), Stall()])

    with gateway.open(message("chat-twice", stream=True)) as client:
        read_until(client, b"content_block_delta")
        (context,) = running("chat-twice")
        assert stop_here(context.head.request_id, "ada")
        context.stop_by("ben")  # ``stop_here`` would check whether it still runs
        read_until(client, b"event: error")

    exchange = row(context.head.request_id, status=200)
    result = [note["reason"] for note in exchange.notes if "stopped" in note["reason"]]
    assert result == ["stopped by ada"]


def test_a_request_stopped_before_its_response_gets_an_error_status(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-mute", [Stall()])

    with gateway.open(message("chat-mute", stream=True)) as client:
        (context,) = until(
            lambda: [context for context in running("chat-mute") if context.attempts.records]
        )
        assert context.live_row()["state"] == "waiting"
        assert stop_here(context.head.request_id, "ada")
        result = read_until(client, b'"type":"error"')

    exchange = row(context.head.request_id, detail="stopped", outcome="refused")
    assert result.startswith(f"HTTP/1.1 {exchange.status} ".encode())

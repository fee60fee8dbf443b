"""A request that ends before its upstream is asked: nothing was bought, and nothing stays held."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from proxy.counters.shared import budget_store
from proxy.counters.store import Standing
from proxy.counters.windows import window
from proxy.gateway.budgets import UNPRICED
from proxy.gateway.ledger import Exchange
from proxy.gateway.limits import limits
from proxy.live.running import RUNNING, stop_here
from proxy.models import ApiKey, Budget, Team
from proxy.models import Exchange as Row
from proxy.record.landing import Landing
from proxy.record.recorder import recorder
from proxy.record.records import OpenRecord
from proxy.record.spending import counter_of
from proxy.record.transcripts import read
from tests.fakes.steps import Stall, chunk, stream_head
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser, read_until
from .conftest import message, row


def until(true: Callable[[], Any]) -> Any:
    """Poll until it is so; what it was then."""
    deadline = time.monotonic() + 60
    while not (told := true()):
        assert time.monotonic() < deadline, "not so after 60 s"
        time.sleep(0.01)
    return told


def running(model: str) -> list[Exchange]:
    return [one for one in list(RUNNING.values()) if one.model == model]


def test_a_client_that_leaves_while_its_record_is_written_has_no_row_and_holds_nothing(
    gateway: Browser, scripted: ScriptedUpstream, reload, monkeypatch: pytest.MonkeyPatch
):
    """Its record was never durable; if it lands all the same, the recorder closes it."""
    team = Team.objects.create(name="impatient", limits={"concurrency": 1})
    _, secret = ApiKey.issue(team, "key", scopes=["messages"])
    budget = Budget.objects.create(team=team, usd=1, period="month")
    counter = counter_of(budget.pk, window("month", "UTC", time.time()))
    reload()
    landings: list[Landing] = []

    async def slow(*_: object) -> Landing:
        landings.append(landing := Landing(lambda: None))
        return landing

    with monkeypatch.context() as disk:
        disk.setattr(recorder, "enter", slow)
        with gateway.open(message("chat-impatient"), x_api_key=secret):
            until(lambda: landings)
            assert budget_store().standing(counter) == Standing(0, 0, UNPRICED)
        until(lambda: not running("chat-impatient"))

    assert landings[0].future.cancelled()
    assert limits._teams["impatient"].running == 0
    until(lambda: budget_store().standing(counter) == Standing(0, 0, 0))
    assert not scripted.asked_for("chat-impatient")
    assert not Row.objects.filter(team="impatient").exists()
    scripted.on("chat-impatient", scripts.chat())
    assert gateway.post(message("chat-impatient"), x_api_key=secret).status == 200


def test_what_is_refused_while_it_is_translated_has_a_row_that_says_so(
    gateway: Browser, scripted: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
):
    """Its open record was on the way to the disk meanwhile: it is waited for, and is the only one."""
    entered: list[str] = []
    enter = recorder.enter

    async def seen(record: OpenRecord, *loop: Any) -> Landing:
        entered.append(record.id)
        return await enter(record, *loop)

    monkeypatch.setattr(recorder, "enter", seen)

    reply = gateway.post(message("responses-lossy", top_k=5), x_bridge_strict="true")

    kept = row(reply.id, outcome="refused", status=400)
    assert kept.upstream == "responses"
    assert entered.count(reply.id) == 1
    transcript = read(reply.id)
    assert transcript is not None
    assert transcript.request["top_k"] == 5
    assert not scripted.asked_for("responses-lossy")


def test_who_is_stopped_twice_is_stopped_once(gateway: Browser, scripted: ScriptedUpstream):
    said = scripts.chat_events()[:-4]
    scripted.on("chat-twice", [stream_head(), *(chunk(piece) for piece in said), Stall()])

    with gateway.open(message("chat-twice", stream=True)) as client:
        read_until(client, b"content_block_delta")
        (one,) = running("chat-twice")
        for who in ("ada", "ben"):
            assert stop_here(one.head.request_id, who)
        read_until(client, b"event: error")

    kept = row(one.head.request_id, status=200)
    told = [note["reason"] for note in kept.notes if "stopped" in note["reason"]]
    assert told == ["stopped by ada in the admin"]


def test_who_is_stopped_before_a_word_was_said_is_told_by_a_status(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("chat-mute", [Stall()])

    with gateway.open(message("chat-mute", stream=True)) as client:
        (one,) = until(lambda: [one for one in running("chat-mute") if one.dials])
        assert one.glance()["state"] == "waiting"
        assert stop_here(one.head.request_id, "ada")
        told = read_until(client, b'"type":"error"')

    kept = row(one.head.request_id, detail="stopped", outcome="refused")
    assert told.startswith(f"HTTP/1.1 {kept.status} ".encode())

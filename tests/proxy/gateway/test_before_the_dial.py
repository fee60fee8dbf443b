"""Until its record is durable no upstream is asked: nothing was bought, and nothing stays held."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy.counters.shared import budget_store
from proxy.counters.store import Standing
from proxy.counters.windows import window
from proxy.gateway.ledger import Exchange
from proxy.gateway.limits import limits
from proxy.live.running import RUNNING, stop_here
from proxy.models import ApiKey, Budget, Price, Team
from proxy.record import spool_file
from proxy.record.recorder import recorder
from proxy.record.records import OpenRecord, decode
from proxy.record.spending import counter_of
from proxy.record.transcripts import read
from tests.fakes.steps import Script, Stall, chunk, json_answer, stream_head
from tests.fakes.upstream import Asked, ScriptedUpstream

from . import scripts
from .browser import Browser, read_until
from .conftest import DIALECTS, message, newest_row, row


def until(true: Callable[[], Any]) -> Any:
    """Poll until it is so; what it was then."""
    deadline = time.monotonic() + 60
    while not (told := true()):
        assert time.monotonic() < deadline, "not so after 60 s"
        time.sleep(0.01)
    return told


def running(model: str) -> list[Exchange]:
    return [one for one in list(RUNNING.values()) if one.model == model]


@contextlib.contextmanager
def held_disk() -> Iterator[None]:
    """The process that writes the spool stands still, as before a disk that does not answer."""
    writer = recorder._spool.writer
    os.kill(writer.pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        yield
    finally:
        os.kill(writer.pid, signal.SIGCONT)


def opened(**wanted: str) -> list[OpenRecord]:
    """Of the last open records on the disk those that say so; only what is committed is seen."""
    last = "SELECT id FROM records WHERE kind = 0 ORDER BY seq DESC LIMIT 8"
    with contextlib.closing(spool_file.connect(recorder._spool.path)) as link:
        ids = {name for (name,) in link.execute(last)}
        bodies = [body for name in ids for _, body in spool_file.bodies_of(link, name)]
    records = [record for record in map(decode, bodies) if isinstance(record, OpenRecord)]
    return [r for r in records if all(getattr(r, n) == told for n, told in wanted.items())]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_record_is_on_the_disk_when_the_upstream_is_dialled(
    gateway: Browser, scripted: ScriptedUpstream, dialect: str
):
    model = f"{dialect}-written"
    seen: list[OpenRecord] = []

    def look(asked: Asked) -> Script:
        seen.extend(opened(model_requested=asked.model))
        return json_answer({"error": {"message": "no"}}, 400)

    scripted.choose(look)
    try:
        reply = gateway.post(message(model, system="Be brief."))
    finally:
        scripted.choose(lambda _: None)

    assert reply.status == 400
    assert [(record.id, record.upstream) for record in seen] == [(reply.id, dialect)]
    assert b"Be brief." in (seen[0].body or b"")


def test_a_client_that_leaves_while_its_record_is_written_is_never_dialled_for_and_holds_nothing(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    """Its record was not durable when it left; it lands all the same, so the recorder closes it."""
    team = Team.objects.create(name="impatient", limits={"concurrency": 1})
    _, secret = ApiKey.issue(team, "key", scopes=["messages"])
    budget = Budget.objects.create(team=team, usd=1, period="month")
    Price.objects.create(model="chat-impatient", since="2026-01-01", input=0, output=10)
    counter = counter_of(budget.pk, window("month", "UTC", time.time()))
    reload()

    with held_disk():
        with gateway.open(message("chat-impatient"), x_api_key=secret):
            until(lambda: [one for one in running("chat-impatient") if one.target is not None])
            assert budget_store().standing(counter) == Standing(0, 0, 1_000_000)
        until(lambda: not running("chat-impatient"))
        assert limits._teams["impatient"].running == 0
        until(lambda: budget_store().standing(counter) == Standing(0, 0, 0))
        assert not opened(team="impatient")

    kept = newest_row(team="impatient")
    assert (kept.outcome, kept.status, kept.detail) == ("client_gone", 499, "gone_before_dial")
    assert (kept.attempts, kept.cost_nanousd) == ([], None)
    assert not scripted.asked_for("chat-impatient")
    scripted.on("chat-impatient", scripts.chat())
    assert gateway.post(message("chat-impatient"), x_api_key=secret).status == 200


def test_what_is_refused_while_it_is_translated_has_a_row_that_says_so(
    gateway: Browser, scripted: ScriptedUpstream
):
    """Its open record was on the way to the disk meanwhile: it is waited for, and is the only one."""
    reply = gateway.post(message("responses-lossy", top_k=5), x_bridge_strict="true")

    kept = row(reply.id, outcome="refused", status=400)
    assert kept.upstream == "responses"
    assert len(opened(id=reply.id)) == 1
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
        assert stop_here(one.head.request_id, "ada")
        one.stop_by("ben")  # it may have ended by now, which ``stop_here`` would see
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

"""What the ledger keeps, and that a request is never half kept."""

import asyncio
import contextlib
import dataclasses
import json
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from django.db import connections

from proxy.gateway.entries import usage_record
from proxy.gateway.upstream import close_transport
from proxy.models import ApiKey, Team
from proxy.record.recorder import recorder
from proxy.record.transcripts import read
from tests.fakes.steps import Stall, json_answer
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.record.driver import until
from translator.anthropic.usage import Usage

from . import scripts
from .browser import Browser, read_until
from .conftest import Server, add_route, add_upstream, message, newest_row, row

CANARY = "canary-7f3a9b"


def test_the_transcript_holds_both_sides(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-kept", scripts.chat())

    reply = gateway.post(message("chat-kept", stream=True, system="Be brief."))
    row(reply.id)

    kept = read(reply.id)
    assert kept is not None
    assert kept.request["system"] == "Be brief."
    assert kept.answer["content"] == [{"type": "text", "text": "Hello there."}]
    assert b"".join(raw for _, raw in kept.upstream_reads).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("whose", ["team", "key"])
def test_who_keeps_no_words_leaves_none_on_the_disk(
    gateway: Browser, scripted: ScriptedUpstream, database: Path, reload, whose: str
):
    silent = {"store": "metadata"}
    of_team, of_key = (silent, {}) if whose == "team" else ({}, silent)
    team = Team.objects.create(name=f"silent-{whose}", **of_team)
    _, secret = ApiKey.issue(team, "quiet", scopes=["messages"], options=of_key)
    reload()
    scripted.on("chat-silent-team", scripts.chat(f"{CANARY} answer"))
    scripted.on("chat-silent-error", json_answer({"error": {"message": f"bad: {CANARY}"}}, 400))

    answered = gateway.post(message("chat-silent-team", system=CANARY), x_api_key=secret)
    failed = gateway.post(message("chat-silent-error", system=CANARY), x_api_key=secret)

    assert CANARY in answered.body.decode()
    kept = row(answered.id, outcome="completed")
    assert (kept.input_tokens, kept.output_tokens) == (12, 5)
    row(failed.id, outcome="upstream_error", error_type="invalid_request_error")
    connections["default"].close()
    for path in database.iterdir():
        assert CANARY.encode() not in path.read_bytes(), path.name


def test_what_is_past_its_time_goes_while_it_serves(gateway: Browser):
    assert sum(each.name == "nightly" for each in threading.enumerate()) == 1


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file of the process that writes the spool may grow any more."""
    writer = recorder._spool.writer.pid
    before = resource.prlimit(writer, resource.RLIMIT_FSIZE)
    resource.prlimit(writer, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(writer, resource.RLIMIT_FSIZE, before)
    until(lambda: recorder.state()["spool"])


def test_no_record_no_dial(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-unrecorded", scripts.chat())

    with full_disk():
        reply = gateway.post(message("chat-unrecorded"))

    assert (reply.status, reply.headers["retry-after"]) == (503, "10")
    assert reply.json["error"]["type"] == "api_error"
    assert not scripted.asked_for("chat-unrecorded")
    assert gateway.post(message("chat-unrecorded")).status == 200


def test_what_is_refused_is_refused_also_where_nothing_can_be_written(
    gateway: Browser, caplog: pytest.LogCaptureFixture
):
    with full_disk():
        reply = gateway.post({"model": "chat-unrecorded", "messages": []})
        until(lambda: f"{reply.id} refused, and the ledger cannot be written" in caplog.text)

    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")


def test_what_came_before_a_crash_of_the_stream_is_kept(
    gateway: Browser, scripted: ScriptedUpstream, deadlines
):
    deadlines(idle_s=1)
    events = scripts.chat_events(["one ", "two"])
    scripted.on("chat-partial", scripts.pieces(events[:3], Stall()))

    reply = gateway.post(message("chat-partial", stream=True))
    row(reply.id, outcome="upstream_timeout")

    kept = read(reply.id)
    assert kept is not None
    assert kept.answer["content"] == [{"type": "text", "text": "one two"}]


def test_more_requests_than_may_run_are_turned_away(
    gateway: Browser, scripted: ScriptedUpstream, tuned
):
    events = scripts.chat_events(["first"])
    scripted.on("chat-holds", scripts.pieces(events[:2], Stall()))

    with gateway.open(message("chat-holds", stream=True)) as connection:
        read_until(connection, b"first")
        tuned(max_streams=1)
        busy = gateway.post(message("chat-holds"))
        probe = gateway.ask("GET", "/healthz")

    assert (busy.status, busy.json["error"]["type"]) == (529, "overloaded_error")
    assert probe.status == 200


@pytest.fixture
def second_gateway(world: str, gateway: Browser):
    """Another server in this process, to be shut down in the middle of a test."""
    config = uvicorn.Config(
        "bridge_project.asgi:application",
        port=0,
        log_config=None,
        ws="none",
        lifespan="off",  # the record belongs to the first
        timeout_graceful_shutdown=1,
    )
    server = Server(config)

    async def serve() -> None:
        await server.serve()
        await close_transport()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    port = server.run_in(thread)
    yield Browser(port, world), server
    server.should_exit = True
    thread.join(60)


def test_a_shutdown_ends_what_outlasts_it_in_an_error(
    second_gateway: tuple[Browser, Server], scripted: ScriptedUpstream, reload
):
    browser, server = second_gateway
    patient = add_upstream("patient", "chat", scripted.base_url, timeouts={})
    add_route("patient-*", patient)
    reload()
    events = scripts.chat_events(["first"])
    scripted.on("patient-streaming", scripts.pieces(events[:2], Stall()))
    scripted.on("patient-waiting", [Stall()])

    with (
        browser.open(message("patient-streaming", stream=True)) as streaming,
        browser.open(message("patient-waiting")) as waiting,
    ):
        seen = read_until(streaming, b"first")
        scripted.wait_until(lambda asked: asked[-1].model == "patient-waiting")
        server.should_exit = True
        seen += read_until(streaming, b"overloaded_error")
        told = read_until(waiting, b"overloaded_error")

    assert b"event: error" in seen
    assert b"content_block_stop" in seen
    assert b"message_stop" not in seen
    assert told.startswith(b"HTTP/1.1 529")
    assert newest_row(model_requested="patient-streaming").outcome == "drained"
    assert newest_row(model_requested="patient-waiting").outcome == "drained"


def test_sixty_streams_never_mix(gateway: Browser, scripted: ScriptedUpstream):
    marks = [f"mark-{n:03}" for n in range(60)]
    for mark in marks:
        scripted.on(f"chat-{mark}", scripts.chat(*[f"{mark} "] * 20))
    seen: dict[str, str] = {}

    def ask(mark: str) -> None:
        reply = gateway.post(message(f"chat-{mark}", stream=True))
        seen[mark] = reply.text

    threads = [threading.Thread(target=ask, args=(mark,)) for mark in marks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen == {mark: f"{mark} " * 20 for mark in marks}


def test_the_upstream_gets_nothing_of_ours(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-private", scripts.chat())

    gateway.post(
        message("chat-private", metadata={"user_id": "ada@example.com"}),
        x_gateway_tags="cost=secret-project",
    )

    asked = scripted.asked_for("chat-private")[-1]
    sent = json.dumps(asked.headers) + asked.body.decode()
    for canary in ("ada@example.com", "secret-project", "platform", gateway.key):
        assert canary not in sent


def test_the_record_of_a_usage_has_each_of_its_fields():
    usage = Usage(input=1, output=2, cache_read=3, source="reported", service_tier="default")

    assert usage_record(usage) == dataclasses.asdict(usage)

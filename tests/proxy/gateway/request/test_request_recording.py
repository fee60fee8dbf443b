"""What the ledger stores of a request, also at failures of disk, stream and server."""

import asyncio
import dataclasses
import json
import threading
from pathlib import Path

import pytest
import uvicorn
from django.db import connections

from proxy.gateway.request.ledger_records import usage_record
from proxy.gateway.upstream.client import close_transport
from proxy.ledger.transcripts.storage import read
from proxy.models import ApiKey, Team
from tests.fakes.outages import full_disk
from tests.fakes.upstreams.script_steps import Stall, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import Server, add_route, add_upstream, message, newest_row, row
from tests.proxy.gateway.http_client import GatewayClient, read_until
from tests.waiting import until
from translator.anthropic.usage import Iteration, Usage

CANARY = "canary-7f3a9b"


def test_the_transcript_has_request_and_response(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-stored", upstream_scripts.chat())

    reply = gateway.post(message("chat-stored", stream=True, system="Be brief."))
    row(reply.id)

    stored = read(reply.id)
    assert stored is not None
    assert stored.request["system"] == "Be brief."
    assert stored.answer["content"] == [{"type": "text", "text": "Hello there.", "citations": None}]
    assert b"".join(raw for _, raw in stored.upstream_reads).endswith(b"data: [DONE]\n\n")


@for_each("whose", ["team", "key"])
def test_a_team_or_key_without_stored_content_leaves_no_text_on_the_disk(
    gateway: GatewayClient, scripted: ScriptedUpstream, database: Path, reload, whose: str
):
    metadata_only = {"store": "metadata"}
    team_options, key_options = (metadata_only, {}) if whose == "team" else ({}, metadata_only)
    team = Team.objects.create(name=f"metadata-only-{whose}", **team_options)
    _, secret = ApiKey.issue(team, "quiet", scopes=["messages"], options=key_options)
    reload()
    scripted.on("chat-metadata-only-team", upstream_scripts.chat(f"{CANARY} answer"))
    scripted.on(
        "chat-metadata-only-error", json_response({"error": {"message": f"bad: {CANARY}"}}, 400)
    )

    answered = gateway.post(message("chat-metadata-only-team", system=CANARY), x_api_key=secret)
    failed = gateway.post(message("chat-metadata-only-error", system=CANARY), x_api_key=secret)

    assert CANARY in answered.body.decode()
    stored = row(answered.id, outcome="completed")
    assert (stored.input_tokens, stored.output_tokens) == (12, 5)
    row(failed.id, outcome="upstream_error", error_type="invalid_request_error")
    connections["default"].close()
    for path in database.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes(), path.name


def test_the_gateway_runs_one_retention_thread(gateway: GatewayClient):
    assert sum(each.name == "nightly" for each in threading.enumerate()) == 1


def test_while_the_disk_is_full_no_upstream_is_called_and_the_gateway_is_not_ready(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-unrecorded", upstream_scripts.chat())

    with full_disk():
        reply = gateway.post(message("chat-unrecorded"))
        ready = gateway.request("GET", "/readyz")

    assert (reply.status, reply.headers["retry-after"]) == (503, "10")
    assert reply.json["error"]["type"] == "api_error"
    assert not scripted.requests_for("chat-unrecorded")
    assert (ready.status, ready.json["status"]) == (503, "unavailable")
    assert "the journal cannot be written: no request is accepted" in ready.json["degraded"]
    assert gateway.post(message("chat-unrecorded")).status == 200
    assert gateway.request("GET", "/readyz").status == 200


def test_an_invalid_request_is_refused_also_while_the_disk_is_full(
    gateway: GatewayClient, caplog: pytest.LogCaptureFixture
):
    with full_disk():
        reply = gateway.post({"model": "chat-unrecorded", "messages": []})
        until(lambda: f"{reply.id} refused, and the ledger cannot be written" in caplog.text)

    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")


def test_the_output_before_a_stream_timeout_is_stored(
    gateway: GatewayClient, scripted: ScriptedUpstream, deadlines
):
    deadlines(idle_s=1)
    events = upstream_scripts.chat_events(["one ", "two"])
    scripted.on("chat-partial", upstream_scripts.pieces(events[:3], Stall()))

    reply = gateway.post(message("chat-partial", stream=True))
    row(reply.id, outcome="upstream_timeout")

    stored = read(reply.id)
    assert stored is not None
    assert stored.answer["content"] == [{"type": "text", "text": "one two", "citations": None}]


def test_requests_beyond_max_streams_are_refused(
    gateway: GatewayClient, scripted: ScriptedUpstream, settings
):
    events = upstream_scripts.chat_events(["first"])
    scripted.on("chat-stalled", upstream_scripts.pieces(events[:2], Stall()))

    with gateway.open(message("chat-stalled", stream=True)) as connection:
        read_until(connection, b"first")
        settings.MAX_STREAMS = 1
        busy = gateway.post(message("chat-stalled"))
        probe = gateway.request("GET", "/healthz")

    assert (busy.status, busy.json["error"]["type"]) == (529, "overloaded_error")
    assert probe.status == 200


@pytest.fixture
def second_gateway(world: str, gateway: GatewayClient):
    """Another server in this process, which the test shuts down."""
    config = uvicorn.Config(
        "bridge_project.asgi:application",
        port=0,
        log_config=None,
        ws="none",
        lifespan="off",  # the first server owns the services
        timeout_graceful_shutdown=1,
    )
    server = Server(config)

    async def serve() -> None:
        await server.serve()
        await close_transport()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    port = server.run_in(thread)
    yield GatewayClient(port, world), server
    server.should_exit = True
    thread.join(60)


def test_a_shutdown_ends_remaining_requests_with_an_error(
    second_gateway: tuple[GatewayClient, Server], scripted: ScriptedUpstream, reload
):
    client, server = second_gateway
    unhurried = add_upstream("unhurried", "chat", scripted.base_url, timeouts={})
    add_route("unhurried-*", unhurried)
    reload()
    events = upstream_scripts.chat_events(["first"])
    scripted.on("unhurried-streaming", upstream_scripts.pieces(events[:2], Stall()))
    scripted.on("unhurried-waiting", [Stall()])

    with (
        client.open(message("unhurried-streaming", stream=True)) as streaming,
        client.open(message("unhurried-waiting")) as waiting,
    ):
        texts = read_until(streaming, b"first")
        scripted.wait_until(lambda _: scripted.requests_for("unhurried-waiting"))
        server.should_exit = True
        texts += read_until(streaming, b"overloaded_error")
        response = read_until(waiting, b"overloaded_error")

    assert b"event: error" in texts
    assert b"content_block_stop" in texts
    assert b"message_stop" not in texts
    assert response.startswith(b"HTTP/1.1 529")
    assert newest_row(model_requested="unhurried-streaming").outcome == "drained"
    assert newest_row(model_requested="unhurried-waiting").outcome == "drained"


def test_sixty_parallel_streams_do_not_mix(gateway: GatewayClient, scripted: ScriptedUpstream):
    marks = [f"mark-{n:03}" for n in range(60)]
    for mark in marks:
        scripted.on(f"chat-{mark}", upstream_scripts.chat(*[f"{mark} "] * 20))
    texts: dict[str, str] = {}

    def post(mark: str) -> None:
        reply = gateway.post(message(f"chat-{mark}", stream=True))
        texts[mark] = reply.text

    threads = [threading.Thread(target=post, args=(mark,)) for mark in marks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert texts == {mark: f"{mark} " * 20 for mark in marks}


def test_the_upstream_receives_no_private_values(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-private", upstream_scripts.chat())

    gateway.post(
        message("chat-private", metadata={"user_id": "ada@example.com"}),
        x_gateway_tags="cost=secret-project",
    )

    request = scripted.requests_for("chat-private")[-1]
    sent = json.dumps(request.headers) + request.body.decode()
    for canary in ("ada@example.com", "secret-project", "platform", gateway.key):
        assert canary not in sent


def test_the_usage_record_has_all_fields():
    usage = Usage(
        input=1,
        output=2,
        cache_read=3,
        source="reported",
        service_tier="priority",
        speed="fast",
        inference_geo="us",
        iterations=(Iteration(type="message", input=1, output=2, cache_read=3),),
    )

    fields = dataclasses.asdict(usage)
    assert usage_record(usage) == fields | {"iterations": [*fields["iterations"]]}

"""Targets that are not tried first: failing ones in cooldown, and paused ones."""

import itertools
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils.timezone import now

from proxy.gateway.admission import cooldown as cooling
from proxy.models import AuditEntry, Pause, Upstream
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient

numbers = itertools.count()


def test_after_three_failures_the_next_target_is_tried_first(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload, monkeypatch
):
    chat = Upstream.objects.get(name="chat")
    failing = add_upstream("cooling", "responses", scripted.base_url)
    target = add_route("cool-*", failing, chat).targets.get(upstream=failing)
    target.model = "cool-broken"
    target.save()
    reload()
    scripted.on("cool-broken", json_response({"error": {"message": "no"}}, 503))
    scripted.on("cool-m", upstream_scripts.chat())

    # The clock stands still, however long the rows take.
    monkeypatch.setattr(cooling.cooldown, "clock", lambda: 1.0)
    replies = [gateway.post(message("cool-m")) for _ in range(cooling.FAILURES + 1)]
    rows = [row(reply.id) for reply in replies]

    assert [reply.status for reply in replies] == [200] * len(replies)
    seen = [[(each["upstream"], each["status"]) for each in row.attempts] for row in rows]
    assert seen == [[("cooling", 503), ("chat", 200)]] * cooling.FAILURES + [[("chat", 200)]]


@pytest.fixture
def paused():
    yield
    Pause.objects.all().delete()


def paused_route(*names: str) -> str:
    model = f"paused-{next(numbers)}"
    add_route(model, *(Upstream.objects.get(name=name) for name in names))
    return model


def test_a_paused_model_gets_an_error_with_the_message(gateway, scripted, reload, paused):
    model = paused_route("chat")
    call_command("pause", "--model", model, "--message", "back at noon")
    reload()

    reply = gateway.post(message(model))

    assert reply.status == 529
    assert reply.json["error"] == {"type": "overloaded_error", "message": "back at noon"}
    assert reply.headers["x-should-retry"] == "false"
    assert not scripted.requests_for(model)
    row(reply.id, outcome="refused", detail="paused")
    call_command("pause", "--model", model, "--resume")
    reload()
    scripted.on(model, upstream_scripts.chat())
    assert gateway.post(message(model)).status == 200
    entries = AuditEntry.objects.filter(model="pause", object_name=model).order_by("pk")
    assert [(e.action, e.command) for e in entries] == [("add", "pause"), ("delete", "pause")]


def test_a_route_skips_a_paused_upstream(gateway, scripted, reload, paused):
    model = paused_route("responses", "chat")
    call_command("pause", "--upstream", "responses", "--message", "maintenance")
    reload()
    scripted.on(model, upstream_scripts.chat())

    reply = gateway.post(message(model))

    assert reply.status == 200
    row(reply.id, upstream="chat")


def test_a_pause_ends_at_its_time(gateway, scripted, reload, paused):
    model = paused_route("chat")
    Pause.objects.create(model=model, message="over", ends=now() - timedelta(seconds=1))
    reload()
    scripted.on(model, upstream_scripts.chat())

    assert gateway.post(message(model)).status == 200


@for_each(
    ("arguments", "code"),
    [
        (("--message", "x"), 2),
        (("--model", "m"), 2),
        (("--upstream", "nowhere", "--message", "x"), 2),
        (("--model", "m", "--message", "x", "--minutes", "0"), 2),
        (("--model", "not-paused", "--resume"), 1),
    ],
)
def test_the_command_rejects_misuse(gateway, arguments, code):
    with pytest.raises(CommandError) as caught:
        call_command("pause", *arguments)

    assert caught.value.returncode == code
    assert not Pause.objects.exists()

"""A failing target is asked last for a while, and every attempt is on the row."""

from proxy.gateway import cooldown as cooling
from proxy.models import Upstream
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import add_route, add_upstream, message, row


def test_after_three_failures_the_next_target_is_asked_first(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    chat = Upstream.objects.get(name="chat")
    failing = add_upstream("cooling", "responses", scripted.base_url)
    target = add_route("cool-*", failing, chat).targets.get(upstream=failing)
    target.model = "cool-broken"
    target.save()
    reload()
    scripted.on("cool-broken", json_answer({"error": {"message": "no"}}, 503))
    scripted.on("cool-m", scripts.chat())

    seen = []
    for _ in range(cooling.FAILURES + 1):
        reply = gateway.post(message("cool-m"))
        assert reply.status == 200
        seen.append([(e["upstream"], e["status"]) for e in row(reply.id).attempts])

    assert seen == [[("cooling", 503), ("chat", 200)]] * cooling.FAILURES + [[("chat", 200)]]

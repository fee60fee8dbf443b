"""A failing target is asked last for a while, and every attempt is on the row."""

from proxy.gateway import cooldown as cooling
from proxy.models import Upstream
from tests.fakes.steps import json_answer
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import add_route, add_upstream, message, row


def test_after_three_failures_the_next_target_is_asked_first(
    gateway: Browser, scripted: ScriptedUpstream, reload, monkeypatch
):
    chat = Upstream.objects.get(name="chat")
    failing = add_upstream("cooling", "responses", scripted.base_url)
    target = add_route("cool-*", failing, chat).targets.get(upstream=failing)
    target.model = "cool-broken"
    target.save()
    reload()
    scripted.on("cool-broken", json_answer({"error": {"message": "no"}}, 503))
    scripted.on("cool-m", scripts.chat())

    monkeypatch.setattr(cooling.cooldown, "_clock", lambda: 1.0)  # however long the rows take
    replies = [gateway.post(message("cool-m")) for _ in range(cooling.FAILURES + 1)]
    rows = [row(reply.id) for reply in replies]

    assert [reply.status for reply in replies] == [200] * len(replies)
    seen = [[(each["upstream"], each["status"]) for each in row.attempts] for row in rows]
    assert seen == [[("cooling", 503), ("chat", 200)]] * cooling.FAILURES + [[("chat", 200)]]

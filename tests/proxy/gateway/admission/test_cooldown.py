"""A failing target is tried last for a while, and every attempt is in the row."""

from proxy.gateway.admission import cooldown as cooling
from proxy.models import Upstream
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient


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

    monkeypatch.setattr(
        cooling.cooldown, "_clock", lambda: 1.0
    )  # independent of the time the rows take
    replies = [gateway.post(message("cool-m")) for _ in range(cooling.FAILURES + 1)]
    rows = [row(reply.id) for reply in replies]

    assert [reply.status for reply in replies] == [200] * len(replies)
    seen = [[(each["upstream"], each["status"]) for each in row.attempts] for row in rows]
    assert seen == [[("cooling", 503), ("chat", 200)]] * cooling.FAILURES + [[("chat", 200)]]

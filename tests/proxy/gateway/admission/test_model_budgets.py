"""Budgets and models: what budgets of some models count, and models without a price."""

import itertools
import threading
import time

import pytest

from proxy.counters.backends import FILE, shared_store
from proxy.counters.store import Standing
from proxy.gateway.admission.budget_maintenance import budget_maintenance
from proxy.gateway.admission.budgets import team_budgets
from proxy.models import Budget, RouteTarget, Upstream
from tests.fakes.outages import unusable
from tests.fakes.upstreams.script_steps import LAST_CHUNK, WaitForGate, json_response
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.budget_fixtures import settled, standing
from tests.proxy.gateway.conftest import DIALECTS, add_route, message, row

numbers = itertools.count()
COST = 12 * 1_000 + 5 * 10_000
"""Nano-dollars of the usage that the script reports."""


def test_only_requests_for_the_models_are_counted_and_rejected(budget_gateway):
    dear, cheap = budget_gateway.model("chat"), budget_gateway.model("chat")
    for name in (dear, cheap):
        budget_gateway.scripted.on(name, upstream_scripts.chat())
    budget = budget_gateway.cleo.budget(
        "0.000001", models_covered=[dear[:-1] + "[" + dear[-1] + "]"]
    )

    rejected = budget_gateway.send(dear, max_tokens=100)
    served = budget_gateway.send(cheap, max_tokens=100)

    assert (rejected.status, served.status) == (402, 200)
    assert f"has no room in its budget for {dear[:-1]}" in rejected.json["error"]["message"]
    assert settled(budget).spent == 0


def test_the_ledger_and_the_counter_count_the_same_models(budget_gateway):
    dear, cheap = budget_gateway.model("chat"), budget_gateway.model("responses")
    budget_gateway.scripted.on(dear, upstream_scripts.chat())
    budget_gateway.scripted.on(cheap, upstream_scripts.responses())
    every = budget_gateway.cleo.budget("1")
    some = budget_gateway.cleo.budget("1", models_covered=["other-*", dear])

    for name in (dear, cheap, dear):
        assert budget_gateway.send(name, max_tokens=100).status == 200

    assert budget_gateway.charged(every) == 3 * COST
    assert settled(some).spent == 2 * COST
    Budget.objects.filter(pk=some.pk).update(models_covered=[cheap])
    budget_maintenance.publish_all()
    assert settled(some).spent == COST


def test_of_fifty_concurrent_requests_the_models_budget_for_four_admits_four(budget_gateway):
    dear, cheap = budget_gateway.model("chat"), budget_gateway.model("chat")
    gate = threading.Event()
    for name in (dear, cheap):
        budget_gateway.scripted.on(name, [WaitForGate(gate), *upstream_scripts.chat()])
    budget_gateway.cleo.budget("1")
    budget = budget_gateway.cleo.budget("0.0042", models_covered=[dear])
    before, seen = len(budget_gateway.scripted.requests), []

    def send(name: str) -> None:
        seen.append((name, budget_gateway.send(name, max_tokens=100).status))

    names = [dear, cheap] * 25
    threads = [threading.Thread(target=send, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    # No admitted request ends, and releases its reservation, before all have arrived.
    budget_gateway.scripted.wait_until(lambda got: len(got) - before + len(seen) == len(names))
    gate.set()
    for thread in threads:
        thread.join()

    assert seen.count((dear, 200)) == 4
    assert seen.count((dear, 402)) == 21
    assert seen.count((cheap, 200)) == 25
    assert settled(budget).spent == 4 * COST


@pytest.mark.parametrize("hard", [True, False])
def test_a_model_without_a_price_is_rejected_only_by_a_hard_budget_that_covers_it(
    budget_gateway, hard
):
    name = f"chat-unpriced-{hard}"
    budget_gateway.scripted.on(name, upstream_scripts.chat())
    budget_gateway.cleo.budget("1", hard=True, models_covered=["elsewhere"])
    budget_gateway.cleo.budget("1", hard=hard, models_covered=["chat-unpriced-*"])

    reply = budget_gateway.gateway.post(message(name), x_api_key=budget_gateway.cleo.secret)

    assert reply.status == (402 if hard else 200)


@pytest.mark.parametrize("target_model", ["", "*"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_hard_budget_refuses_a_model_without_a_price_on_a_wildcard_target(
    budget_gateway, target_model, dialect
):
    name = f"anything-{next(numbers)}"
    route = add_route(name)
    upstream = Upstream.objects.get(name=dialect)
    RouteTarget.objects.create(route=route, upstream=upstream, position=0, model=target_model)
    budget = budget_gateway.cleo.budget("5")

    reply = budget_gateway.send(name)

    assert reply.status == 402
    error = reply.json["error"]
    assert error["type"] == "billing_error"
    assert reply.headers["x-should-retry"] == "false"
    assert f"model {name} has no price at upstream '{dialect}'" in error["message"]
    assert f"upstream = '{dialect}' and model = '{name}'" in error["message"]
    assert not budget_gateway.scripted.requests_for(name)
    row(reply.id, outcome="refused", detail="unpriced", cost_nanousd=None)
    budget.delete()
    budget_gateway.reload()
    budget_gateway.scripted.on(name, WHOLE_RESPONSES[dialect]())
    assert budget_gateway.send(name).status == 200


WHOLE_RESPONSES = {
    "chat": upstream_scripts.chat,
    "responses": upstream_scripts.responses,
    "anthropic": lambda: upstream_scripts.pieces(upstream_scripts.claude_events(), LAST_CHUNK),
}


def test_counting_tokens_charges_no_budget(budget_gateway):
    name, budget = budget_gateway.model("anthropic"), budget_gateway.cleo.budget("0.000001")
    budget_gateway.scripted.on(name, json_response({"input_tokens": 7}))
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}

    reply = budget_gateway.gateway.post(
        body, "/v1/messages/count_tokens", x_api_key=budget_gateway.cleo.secret
    )

    assert reply.json == {"input_tokens": 7}
    assert standing(budget) in (None, Standing(0, 0, 0))


def test_an_operator_can_allow_a_model_without_a_price(budget_gateway, settings):
    settings.UNPRICED = "serve"
    name, budget = f"chat-unpriced-{next(numbers)}", budget_gateway.cleo.budget("5")
    budget_gateway.scripted.on(name, upstream_scripts.chat())

    reply = budget_gateway.send(name)

    assert reply.status == 200
    assert any("no price is known" in note["reason"] for note in row(reply.id).notes)
    assert settled(budget).spent == 0


def test_metrics_have_what_is_left_of_each_budget_that_a_counter_knows(
    no_new_counters, budget_gateway, database
):
    model = budget_gateway.model("chat")
    budget_gateway.scripted.on(model, upstream_scripts.chat())
    budget = budget_gateway.cleo.budget("1")
    team = budget_gateway.cleo.team.name

    def left() -> list[int]:
        return [one.remaining for one in team_budgets(time.time()) if one.team == team]

    assert left() == []  # no request has created the counter
    assert budget_gateway.send(model, max_tokens=100).status == 200
    spent = settled(budget).spent
    assert left() == [10**9 - spent]

    with unusable(database / FILE, shared_store()):
        assert left() == []

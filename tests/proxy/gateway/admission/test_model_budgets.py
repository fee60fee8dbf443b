"""A budget of some models counts only the requests for these models."""

import threading

import pytest

from proxy.gateway.admission.budget_maintenance import budget_maintenance
from proxy.models import Budget
from tests.fakes.upstreams.script_steps import WaitForGate
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.budget_fixtures import settled
from tests.proxy.gateway.conftest import message

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
    budget_maintenance._publish_all()
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

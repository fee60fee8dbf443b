"""A hard budget refuses models without a price, and counting tokens charges no budget."""

import itertools

import pytest

from proxy.counters.budget_store import Standing
from proxy.models import RouteTarget, Upstream
from tests.fakes.upstreams.script_steps import LAST_CHUNK, json_response
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.budget_fixtures import settled, standing
from tests.proxy.gateway.conftest import DIALECTS, add_route, row

numbers = itertools.count()


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

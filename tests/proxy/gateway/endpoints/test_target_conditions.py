"""The conditions of a route's targets: by estimated size, client and header."""

import pytest
from django.core.exceptions import ValidationError

from proxy.models import Route, RouteTarget, Upstream
from proxy.models.setup.columns import Conditions, check_type
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts as scripts

MODELS = {
    "large": {"min_input_tokens": 5_000},
    "gold": {"headers": {"x-tier": "gold*"}},
    "cli": {"client": "claude-cli 2.*"},
    "small": {"max_input_tokens": 4_000, "headers": {"x-tier": "silver"}},
}
"""The model of each target, in order, with its conditions."""


@for_each(
    ("when", "message"),
    [
        ({"min_tokens": 5}, "unknown key 'min_tokens'"),
        ({"min_input_tokens": 0}, "min_input_tokens"),
        ({"min_input_tokens": 9, "max_input_tokens": 8}, "is larger than max_input_tokens"),
        ({"headers": {"X-Team": "a"}}, "in lower case"),
        ({"headers": {f"x-{n}": "a" for n in range(17)}}, "headers"),
    ],
)
def test_a_wrong_condition_is_rejected_and_named(when, message):
    with pytest.raises(ValidationError) as caught:
        check_type(when, Conditions)

    assert message in str(caught.value)


@pytest.fixture
def conditional_route(world, scripted, reload):
    """A route with these targets, in this order."""
    route = Route.objects.create(model="conditional")
    upstream = Upstream.objects.get(name="chat")
    for position, (model, when) in enumerate(MODELS.items()):
        RouteTarget.objects.create(
            route=route, upstream=upstream, model=model, position=position, when=when
        )
        scripted.on(model, scripts.chat())
    reload()
    yield
    route.delete()
    reload()


SMALL, LARGE = "Hi", "word " * 5_000
CLI = {"user-agent": "claude-cli/2.1.7 (external, cli)"}


@pytest.mark.parametrize(
    ("case", "model"),
    [
        ((LARGE, {}), "large"),
        ((LARGE, {"x-tier": "silver"}), "large"),
        ((SMALL, {"x-tier": "gold-1"}), "gold"),
        ((SMALL, CLI), "cli"),
        ((SMALL, {"x-tier": "silver"}), "small"),
        ((SMALL, {"x-tier": "silver", "user-agent": "claude-cli/1.0.1"}), "small"),
    ],
)
@pytest.mark.usefixtures("conditional_route")
def test_the_first_target_that_takes_the_request_gets_it(gateway, scripted, case, model):
    content, headers = case
    request = {"model": "conditional", "messages": [{"role": "user", "content": content}]}
    before = len(scripted.requests)

    reply = gateway.post({**request, "max_tokens": 9}, **headers)
    estimate = gateway.post(request, path="/v1/messages/count_tokens", **headers)

    assert reply.status == estimate.status == 200, (reply.body, estimate.body)
    assert [each.model for each in scripted.requests[before:]] == [model]


@pytest.mark.usefixtures("conditional_route")
def test_a_request_that_no_target_takes_is_rejected_with_the_route(gateway):
    request = {"model": "conditional", "messages": [{"role": "user", "content": SMALL}]}

    reply = gateway.post({**request, "max_tokens": 9})

    assert reply.status == 400
    assert reply.headers["x-should-retry"] == "false"
    assert (
        "no target of the route 'conditional' takes this request" in reply.json["error"]["message"]
    )

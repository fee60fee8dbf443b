"""GET /v1/models shows the models that an upstream lists itself, where a glob stands for them."""

import itertools

import pytest

from proxy.gateway.upstream import upstream_models
from proxy.gateway.upstream.upstream_models import UpstreamModels
from proxy.models import ApiKey, Team
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway.conftest import add_route, add_upstream
from tests.proxy.gateway.http_client import GatewayClient

numbers = itertools.count()

PATH = "/v1/own/models"


@pytest.fixture
def own_models(gateway: GatewayClient, scripted: ScriptedUpstream, reload, monkeypatch):
    """Return a function that asks twice for the models of a glob, which its upstream may list."""
    created = []

    def listed(*answers: dict, status: int = 200, allowed: str = "*") -> list[list[str]]:
        monkeypatch.setattr(upstream_models, "upstream_models", UpstreamModels())
        monkeypatch.setattr(upstream_models, "WAIT_S", 60)  # a slow machine
        name = f"own{next(numbers)}"
        team = Team.objects.create(name=name, models_allowed=[allowed])
        _, secret = ApiKey.issue(team, name, scopes=["messages"])
        upstream = add_upstream(name, "chat", f"{scripted.base_url}/own", "vllm")
        created.extend([add_route("own-*", upstream, team=team), upstream])
        scripted.on(PATH, *[json_response(each, status=status) for each in answers])
        reload()
        headers = {"x-api-key": secret}
        replies = [gateway.request("GET", "/v1/models?limit=1000", headers=headers) for _ in "12"]
        assert [reply.status for reply in replies] == [200, 200]
        ids = [[each["id"] for each in reply.json["data"]] for reply in replies]
        return [[each for each in some if each.startswith("own-")] for some in ids]

    yield listed
    for row in created:
        row.delete()
    reload()


def models(*names: object) -> dict:
    return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


def asked(scripted: ScriptedUpstream) -> int:
    return sum(each.path == PATH for each in list(scripted.requests))


def test_what_the_upstream_lists_is_shown_and_asked_for_once(
    own_models, scripted: ScriptedUpstream
):
    before = asked(scripted)

    shown = own_models(models("own-b", "own-a", "other"), models("own-c"))

    assert shown == [["own-a", "own-b"]] * 2
    assert asked(scripted) == before + 1
    sent = next(each for each in reversed(scripted.requests) if each.path == PATH)
    assert sent.method == "GET"
    assert "authorization" in sent.headers


def test_what_the_team_may_not_use_is_not_shown(own_models):
    assert own_models(models("own-b", "own-a"), allowed="own-a") == [["own-a"]] * 2


@for_each(
    ("answer", "status"),
    [
        ({"error": {"message": "no such path"}}, 404),
        ({"data": "none"}, 200),
        (models(5), 200),
        (models("own-" + "x" * 500, "own-\n"), 200),
    ],
)
def test_an_upstream_without_a_list_is_not_asked_again(
    own_models, scripted: ScriptedUpstream, answer, status
):
    before = asked(scripted)

    assert own_models(answer, status=status) == [[], []]
    assert asked(scripted) == before + 1

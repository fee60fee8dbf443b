"""“What would happen” on the page of a key."""

from decimal import Decimal

import pytest

from proxy.admin.rehearsal import _title
from proxy.admission import DOORS, Fate, Finding
from proxy.models import Budget, Route, RouteTarget, Upstream
from tests.proxy.admin import cast
from tests.proxy.reports.serving import deciding

pytestmark = pytest.mark.django_db


@pytest.fixture
def key(db):
    team = cast.team("platform", limits={"rpm": 60})
    upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=upstream, model="gpt-5.2")
    cast.price()
    Budget.objects.create(team=team, usd=Decimal("0.01"))
    return cast.key("ci")[0]


def page(client, key, **wish):
    with deciding():
        return client.get(f"/admin/proxy/apikey/{key.pk}/rehearsal/", wish)


def test_the_page_of_a_key_leads_to_it(root, key):
    shown = root.get(f"/admin/proxy/apikey/{key.pk}/change/").content.decode()

    assert f'href="/admin/proxy/apikey/{key.pk}/rehearsal/"' in shown
    asked = page(root, key)
    assert asked.context["told"] is None
    assert "It would" not in asked.content.decode()


def test_what_would_be_let_in_is_told_with_what_is_left(root, key):
    wish = {"model": "claude-x", "input_tokens": "10", "max_tokens": "100"}
    shown = page(root, key, **wish)

    assert "It would be let in." in shown.content.decode()
    told = shown.context["told"]
    assert (told["route"], told["targets"], told["worst"]) == (
        "claude-*",
        "vllm gpt-5.2",
        "$0.0010",
    )
    lines = {one["title"]: one for one in told["doors"]}
    assert [lines["Requests a minute"][name] for name in ("limit", "used", "left", "takes")] == [
        "60", "0", "60", "1",
    ]  # fmt: skip
    assert lines["Budget"]["limit"] == "$0.0100 a month"
    assert lines["Route"]["limit"] == "—"


def test_what_would_be_refused_says_by_what(root, key):
    wish = {"model": "claude-x", "input_tokens": "10", "max_tokens": "100000"}
    shown = page(root, key, **wish).content.decode()

    assert "It would be refused: 402 billing_error." in shown
    assert "Budget, team platform" in shown


def test_every_door_has_a_title(root, key):
    shown = page(root, key, model="claude-x", input_tokens="10", max_tokens="1")

    titles = {_title(Finding(door=door, of="", fate=Fate.PASSES)) for door in DOORS}
    assert {one["title"] for one in shown.context["told"]["doors"]} <= titles
    assert {"Price", "Budget"} <= titles


def test_a_wrong_wish_is_asked_again(root, key):
    shown = page(root, key, model="claude-x", input_tokens="-1", max_tokens="1")

    assert shown.context["told"] is None
    assert shown.context["form"].errors["input_tokens"]


def test_where_no_gateway_serves_it_says_so(root, key):
    url = f"/admin/proxy/apikey/{key.pk}/rehearsal/?model=m&input_tokens=1&max_tokens=1"

    assert "It cannot be said from here" in root.get(url).content.decode()


def test_nobody_asks_for_a_key_that_is_not_theirs(client, key):
    client.force_login(cast.staff("olga", groups=("member",)))

    assert page(client, key).status_code == 404

"""What would become of a request: told to the key itself, and to whoever may read keys."""

from decimal import Decimal

import pytest

from proxy.admission import DOORS
from proxy.models import Budget, Route, RouteTarget, Upstream
from tests.proxy.admin import cast

from .serving import deciding

pytestmark = pytest.mark.django_db
MINE = "/api/v1/me/rehearsal/"


@pytest.fixture
def ci(db):
    cast.team("platform", limits={"rpm": 60, "tpm": 50_000}, models_allowed=["claude-*"])
    key, secret = cast.key("ci", limits={"concurrency": 3})
    upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    RouteTarget.objects.create(
        route=Route.objects.create(model="claude-*"), upstream=upstream, model="gpt-5.2"
    )
    cast.price()
    Budget.objects.create(team=key.team, usd=Decimal("0.5"))
    key.secret = secret
    return key


def asked(client, key, url=MINE, **query):
    with deciding():
        return client.get(url, {"model": "claude-x", **query}, headers={"x-api-key": key.secret})


def test_every_limit_and_budget_is_told_with_what_is_left(client, ci):
    answer = asked(client, ci, input_tokens=1000, max_tokens=2000).json()

    assert (answer["admitted"], answer["refused_by"]) == (True, None)
    assert (answer["route"], answer["targets"]) == ("claude-*", ["vllm gpt-5.2"])
    assert answer["worst_case_usd"] == "0.02125"  # a thousand at 1.25 and two thousand at 10
    doors = {one["door"]: one for one in answer["doors"]}
    assert [one for one in doors if doors[one]["limit"]] == [
        "key_concurrency", "team_rpm", "team_tpm", "team_budget",
    ]  # fmt: skip
    assert [doors["team_rpm"][name] for name in ("limit", "used", "left", "takes")] == [
        "60", "0", "60", "1",
    ]  # fmt: skip
    budget = doors["team_budget"]
    assert (budget["of"], budget["unit"], budget["period"]) == ("team platform", "usd", "month")
    assert (budget["limit"], budget["left"], budget["takes"]) == ("0.5", "0.5", "0.02125")
    order = [door.name for door in DOORS]
    places = [order.index(one["door"]) for one in answer["doors"]]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("wish", "door", "status"),
    [
        ({"model": "gpt-9"}, "team_models", 403),
        ({"input_tokens": 1000, "max_tokens": 60_000}, "team_budget", 402),
    ],
)
def test_the_door_that_would_refuse_is_named(client, ci, wish, door, status):
    answer = asked(client, ci, **wish).json()

    assert (answer["admitted"], answer["refused_by"]) == (False, door)
    (one,) = (each for each in answer["doors"] if each["door"] == door)
    assert (one["fate"], one["status"]) == ("refuses", status)


def test_an_admin_key_asks_for_any_key(client, ci):
    finance, secret = cast.key("finance", of="research", scopes=["admin"])
    finance.secret = secret

    other = asked(client, finance, f"/api/v1/keys/{ci.pk}/rehearsal/")
    nobody = asked(client, finance, "/api/v1/keys/999999/rehearsal/")

    assert other.json()["doors"][0]["of"] == "key platform/ci"
    assert nobody.status_code == 404


def test_who_leads_a_team_hears_no_figures_of_a_members_own_budget(client, ci):
    ci.user = cast.staff("ben")
    ci.save()
    Budget.objects.create(user=ci.user, usd=Decimal(0))
    lead = cast.staff("ada", "view_exchange", "view_apikey", groups=("team:platform",))

    def doors(user):
        client.force_login(user)
        with deciding():
            answer = client.get(f"/api/v1/keys/{ci.pk}/rehearsal/", {"model": "claude-x"})
        return {one["door"]: one for one in answer.json()["doors"]}

    led, whole = doors(lead), doors(cast.superuser())

    assert led["team_budget"]["limit"] == "0.5"
    assert [led["user_budget"][name] for name in ("fate", "limit", "used", "takes")] == [
        "refuses", None, None, None,
    ]  # fmt: skip
    assert whole["user_budget"]["limit"] == "0"


@pytest.mark.parametrize(
    ("wish", "said"),
    [({"max_tokens": 0}, "max_tokens"), ({"ip": "nowhere"}, "ip"), ({"modle": "x"}, "modle")],
)
def test_a_wrong_wish_is_a_clear_400(client, ci, wish, said):
    answer = asked(client, ci, **wish)

    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_a_process_that_serves_nothing_says_so(client, ci):
    answer = client.get(MINE, {"model": "claude-x"}, headers={"x-api-key": ci.secret})

    assert answer.status_code == 409
    assert "gateway" in answer.json()["error"]["message"]

"""The admission dry run for the caller's own key, and for other keys."""

from decimal import Decimal

import pytest

from proxy.admission_checks import CHECKS
from proxy.models import Budget, Route, RouteTarget, Upstream
from tests.proxy.admin import factories
from tests.proxy.reports.live_server import gateway_snapshot

pytestmark = pytest.mark.django_db
OWN_KEY = "/api/v1/me/dry-run/"


@pytest.fixture
def ci(db):
    factories.team("platform", limits={"rpm": 60, "tpm": 50_000}, models_allowed=["claude-*"])
    key, secret = factories.key("ci", limits={"concurrency": 3})
    upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    RouteTarget.objects.create(
        route=Route.objects.create(model="claude-*"), upstream=upstream, model="gpt-5.2"
    )
    factories.price()
    Budget.objects.create(team=key.team, usd=Decimal("0.5"))
    key.secret = secret
    return key


def dry_run(client, key, url=OWN_KEY, **query):
    with gateway_snapshot():
        return client.get(url, {"model": "claude-x", **query}, headers={"x-api-key": key.secret})


def test_the_dry_run_has_every_limit_and_budget_with_the_amount_left(client, ci):
    answer = dry_run(client, ci, input_tokens=1000, max_tokens=2000).json()

    assert (answer["admitted"], answer["refused_by"]) == (True, None)
    assert (answer["route"], answer["targets"]) == ("claude-*", ["vllm gpt-5.2"])
    assert (
        answer["worst_case_usd"] == "0.02125"
    )  # 1,000 tokens at 1.25 and 2,000 at 10 dollars per million
    checks = {one["door"]: one for one in answer["doors"]}
    assert [one for one in checks if checks[one]["limit"]] == [
        "key_concurrency", "team_rpm", "team_tpm", "team_budget",
    ]  # fmt: skip
    assert [checks["team_rpm"][name] for name in ("limit", "used", "left", "takes")] == [
        "60", "0", "60", "1",
    ]  # fmt: skip
    budget = checks["team_budget"]
    assert (budget["of"], budget["unit"], budget["period"]) == ("team platform", "usd", "month")
    assert (budget["limit"], budget["left"], budget["takes"]) == ("0.5", "0.5", "0.02125")
    order = [one.name for one in CHECKS]
    places = [order.index(one["door"]) for one in answer["doors"]]
    assert places == sorted(places)


def test_the_dry_run_leaves_out_budgets_of_other_models(client, ci):
    Budget.objects.update(models_covered=["gpt-*"])

    answer = dry_run(client, ci, input_tokens=1000, max_tokens=60_000).json()

    assert answer["admitted"]
    assert "team_budget" not in [one["door"] for one in answer["doors"]]


@pytest.mark.parametrize(
    ("query", "check", "status"),
    [
        ({"model": "gpt-9"}, "team_models", 403),
        ({"input_tokens": 1000, "max_tokens": 60_000}, "team_budget", 402),
    ],
)
def test_the_dry_run_names_the_check_that_refuses(client, ci, query, check, status):
    answer = dry_run(client, ci, **query).json()

    assert (answer["admitted"], answer["refused_by"]) == (False, check)
    (one,) = (each for each in answer["doors"] if each["door"] == check)
    assert (one["fate"], one["status"]) == ("refuses", status)


def test_an_admin_key_can_run_a_dry_run_for_any_key(client, ci):
    finance, secret = factories.key("finance", of="research", scopes=["admin"])
    finance.secret = secret

    other = dry_run(client, finance, f"/api/v1/keys/apikey_{ci.pk}/dry-run/")
    unknown = dry_run(client, finance, "/api/v1/keys/999999/dry-run/")

    assert other.json()["doors"][0]["of"] == "key platform/ci"
    assert unknown.status_code == 404


def test_the_former_path_answers_and_names_its_successor(client, ci):
    answer = dry_run(client, ci, "/api/v1/me/rehearsal/")

    assert answer.json()["targets"] == dry_run(client, ci).json()["targets"]
    assert answer.headers["Deprecation"].startswith("@")
    assert answer.headers["Link"] == '</api/v1/me/dry-run/?model=claude-x>; rel="successor-version"'


def test_the_link_to_the_successor_is_encoded(client, ci):
    """Schemathesis sent a line feed in the id; Django refuses one in a header."""
    answer = dry_run(client, ci, "/api/v1/keys/1%0A/rehearsal/")

    assert answer.status_code == 403
    assert answer.headers["Link"].startswith("</api/v1/keys/1%0A/dry-run/?")


def test_the_leader_of_a_team_gets_no_figures_of_a_members_budget(client, ci):
    ci.user = factories.staff("ben")
    ci.save()
    Budget.objects.create(user=ci.user, usd=Decimal(0))
    lead = factories.staff("ada", "view_exchange", "view_apikey", groups=("team:platform",))

    def checks(user):
        client.force_login(user)
        with gateway_snapshot():
            answer = client.get(f"/api/v1/keys/apikey_{ci.pk}/dry-run/", {"model": "claude-x"})
        return {one["door"]: one for one in answer.json()["doors"]}

    seen_by_lead, everything = checks(lead), checks(factories.superuser())

    assert seen_by_lead["team_budget"]["limit"] == "0.5"
    assert [seen_by_lead["user_budget"][name] for name in ("fate", "limit", "used", "takes")] == [
        "refuses", None, None, None,
    ]  # fmt: skip
    assert everything["user_budget"]["limit"] == "0"


@pytest.mark.parametrize(
    ("query", "parameter"),
    [({"max_tokens": 0}, "max_tokens"), ({"ip": "nowhere"}, "ip"), ({"modle": "x"}, "modle")],
)
def test_an_invalid_parameter_is_a_400_that_names_it(client, ci, query, parameter):
    answer = dry_run(client, ci, **query)

    assert answer.status_code == 400
    assert parameter in answer.json()["error"]["message"]


def test_a_process_without_a_gateway_is_409(client, ci):
    answer = client.get(OWN_KEY, {"model": "claude-x"}, headers={"x-api-key": ci.secret})

    assert answer.status_code == 409
    assert "gateway" in answer.json()["error"]["message"]

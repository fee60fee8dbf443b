"""The admission dry run on the page of a key."""

from decimal import Decimal

import pytest

from proxy.admin.setup.admission_dry_run import _title
from proxy.admission_checks import CHECKS, CheckFinding, CheckResult
from proxy.models import Budget, Route, RouteTarget, Upstream
from tests.proxy.admin import factories
from tests.proxy.reports.live_server import gateway_snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def key(db):
    team = factories.team("platform", limits={"rpm": 60})
    upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=upstream, model="gpt-5.2")
    factories.price()
    Budget.objects.create(team=team, usd=Decimal("0.01"))
    return factories.key("ci")[0]


def page(client, key, **params):
    with gateway_snapshot():
        return client.get(f"/admin/proxy/apikey/{key.pk}/dry-run/", params)


def test_the_page_of_a_key_links_to_the_dry_run(root, key):
    shown = root.get(f"/admin/proxy/apikey/{key.pk}/change/").content.decode()

    assert f'href="/admin/proxy/apikey/{key.pk}/dry-run/"' in shown
    empty = page(root, key)
    assert empty.context["result"] is None
    assert "Admitted" not in empty.content.decode()


def test_an_admitted_request_shows_what_is_left(root, key):
    params = {"model": "claude-x", "input_tokens": "10", "max_tokens": "100"}
    shown = page(root, key, **params)

    assert "Admitted." in shown.content.decode()
    result = shown.context["result"]
    assert (result["route"], result["targets"], result["worst_case"]) == (
        "claude-*",
        "vllm gpt-5.2",
        "$0.0010",
    )
    checks = {check["title"]: check for check in result["checks"]}
    assert [checks["Requests per minute"][name] for name in ("limit", "used", "left", "request")] == [
        "60", "0", "60", "1",
    ]  # fmt: skip
    assert checks["Budget"]["limit"] == "$0.0100 per month"
    assert checks["Route"]["limit"] == "—"


def test_a_rejected_request_shows_the_failed_check(root, key):
    params = {"model": "claude-x", "input_tokens": "10", "max_tokens": "100000"}
    shown = page(root, key, **params).content.decode()

    assert "Rejected: 402 billing_error." in shown
    assert "Budget, team platform" in shown


def test_every_check_has_a_title(root, key):
    shown = page(root, key, model="claude-x", input_tokens="10", max_tokens="1")

    titles = {
        _title(CheckFinding(check=check, subject="", result=CheckResult.PASSES)) for check in CHECKS
    }
    assert {check["title"] for check in shown.context["result"]["checks"]} <= titles
    assert {"Price", "Budget"} <= titles


def test_invalid_input_shows_a_form_error(root, key):
    shown = page(root, key, model="claude-x", input_tokens="-1", max_tokens="1")

    assert shown.context["result"] is None
    assert shown.context["form"].errors["input_tokens"]


def test_without_a_gateway_in_the_process_an_error_is_shown(root, key):
    url = f"/admin/proxy/apikey/{key.pk}/dry-run/?model=m&input_tokens=1&max_tokens=1"

    assert "The dry run is not possible" in root.get(url).content.decode()


def test_a_key_of_another_user_is_404(client, key):
    client.force_login(factories.staff("olga", groups=("member",)))

    assert page(client, key).status_code == 404

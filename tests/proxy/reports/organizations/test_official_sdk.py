"""Anthropic's SDK reads the Admin API of the ledger: lists, usage, cost and analytics."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import anthropic
import pytest

from proxy.models import Budget
from tests.proxy.admin import factories

USAGE = "/v1/organizations/usage_report/messages"
COST = "/v1/organizations/cost_report"
PAST = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.django_db(transaction=True)
def test_the_official_sdk_reads_the_lists_and_analytics(served_url):
    """``_strict_response_validation`` makes the SDK validate each response."""
    factories.price()
    ben = factories.staff("ben")
    ci, _ = factories.key("ci", user=ben)
    for number in range(3):
        factories.key(f"k{number}")
    _, secret = factories.key("finance", scopes=["admin"])
    factories.record(key=ci, at=factories.NOON, opening={"session_id": "s1"})
    Budget.objects.create(team=ci.team, usd=5)
    Budget.objects.create(user=ben, usd=7, period="week")
    sdk = anthropic.Anthropic(
        base_url=served_url, api_key=secret, max_retries=0, _strict_response_validation=True
    ).beta.organization
    span = {"starting_at": "2026-11-20T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z"}

    keys = list(sdk.api_keys.list(limit=2))
    usage = list(sdk.analytics.usage.list(group_by=["model", "actor", "session_id"], **span))
    cost = list(sdk.analytics.cost.list(group_by=["workspace_id"], **span))

    assert sdk.retrieve().type == "organization"
    assert [key.name for key in keys] == ["finance", "k2", "k1", "k0", "ci"]
    assert keys[-1].principal.user_id == "user_ben"
    assert sdk.api_keys.retrieve(keys[0].id).status == "active"
    assert [user.id for user in sdk.users.list()] == ["user_ben"]
    assert [team.name for team in sdk.workspaces.list()] == ["platform"]
    assert [m.user_id for m in sdk.workspaces.members.list("wrkspc_platform")] == ["user_ben"]
    assert [limit.amount for limit in sdk.spend_limits.list(limit=1)] == ["500", "700"]
    assert {row.actor.type for row in sdk.spend_limits.effective.list()} == {
        "user_actor",
        "scoped_api_key_actor",
    }
    assert usage[0].usage.uncached_input_tokens == 100
    assert usage[0].group.session_id == "s1"
    assert usage[0].group.actor.api_key_id == f"apikey_{ci.pk}"
    assert cost[0].cost.amount == "0.075"
    with pytest.raises(anthropic.NotFoundError):
        sdk.api_keys.retrieve("apikey_999999")


@pytest.mark.django_db(transaction=True)
def test_the_official_sdk_pages_through_every_list(served_url):
    """Each list has three rows and pages of one row; the SDK asks for the following pages."""
    for name in ("platform", "research", "design"):
        user = factories.staff(f"{name}-bot")
        key, _ = factories.key("ci", of=name, user=user)
        factories.key(f"of-{name}", of="platform", user=user)
        Budget.objects.create(team=key.team, usd=5)
    secret = factories.key("finance", of="platform", scopes=["admin"])[1]
    sdk = anthropic.Anthropic(
        base_url=served_url, api_key=secret, max_retries=0, _strict_response_validation=True
    ).beta.organization
    lists = {
        "api_keys": sdk.api_keys.list(limit=1),
        "users": sdk.users.list(limit=1),
        "workspaces": sdk.workspaces.list(limit=1),
        "members": sdk.workspaces.members.list("wrkspc_platform", limit=1),
        "spend_limits": sdk.spend_limits.list(limit=1),
        "effective": sdk.spend_limits.effective.list(limit=1),
    }

    lengths = {name: len(list(pages)) for name, pages in lists.items()}

    assert lengths == {
        "api_keys": 7, "users": 3, "workspaces": 3, "members": 3, "spend_limits": 3, "effective": 7,
    }  # fmt: skip
    assert all(len(first.data) == 1 for first in lists.values())


@pytest.mark.django_db(transaction=True)
def test_the_official_sdk_reads_the_pages_of_claude_code(served_url):
    for number in range(3):
        key, _ = factories.key(f"laptop-{number}")
        factories.record(key=key, opening={"client_name": "claude-cli", "session_id": f"s{number}"})
    secret = factories.key("finance", scopes=["admin"])[1]
    rows, page = [], {}

    with anthropic.Anthropic(base_url=served_url, api_key=secret, max_retries=0) as sdk:
        while page is not None:
            answer = sdk.get(
                "/v1/organizations/usage_report/claude_code",
                cast_to=dict[str, object],
                options={"params": {"starting_at": "2026-11-20", "limit": 2} | page},
            )
            rows += answer["data"]
            page = {"page": answer["next_page"]} if answer["has_more"] else None

    assert len(rows) == 3
    assert {row["actor"]["type"] for row in rows} == {"api_actor"}
    assert {row["core_metrics"]["num_sessions"] for row in rows} == {1}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_the_official_sdk_reads_usage_and_cost_pages(served_url, header, version):
    """The SDK has no methods for these reports, so the test sends raw requests through it."""
    factories.price()
    ci, _ = factories.key("ci")
    for day in range(3):
        factories.record(key=ci, at=factories.NOON - timedelta(days=day))
    _, secret = factories.key("finance", scopes=["admin"])
    value_sent = secret if header == "x-api-key" else f"Bearer {secret}"
    headers = {"Authorization": anthropic.omit, "x-api-key": anthropic.omit}
    headers |= {header.title() if header == "authorization" else header: value_sent}

    def pages(sdk, path, **query):
        page = {}
        while page is not None:
            options = {"params": query | page, "headers": headers | {"anthropic-version": version}}
            answer = sdk.get(path, cast_to=dict[str, object], options=options)
            yield from answer["data"]
            page = {"page": answer["next_page"]} if answer["has_more"] else None

    span = {"starting_at": "2026-11-18T00:00:00Z", "ending_at": "2026-11-21T00:00:00Z", "limit": 2}
    with anthropic.Anthropic(base_url=served_url, api_key=secret, max_retries=0) as sdk:
        usage = list(pages(sdk, USAGE, **span, group_by=["model", "api_key_id"]))
        costs = list(pages(sdk, COST, **span, group_by=["description"]))

    assert [bucket["starting_at"][:10] for bucket in usage] == [
        f"2026-11-{d}" for d in (18, 19, 20)
    ]
    assert [len(bucket["results"]) for bucket in usage] == [1, 1, 1]
    assert usage[0]["results"][0]["api_key_id"] == f"apikey_{ci.pk}"
    assert sum(Decimal(row["amount"]) for day in costs for row in day["results"]) == Decimal(
        "0.225"
    )

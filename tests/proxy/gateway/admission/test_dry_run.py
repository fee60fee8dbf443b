"""The admission checks refuse in their published order, and a dry run predicts the result."""

import dataclasses
import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.contrib.auth import get_user_model

from proxy.admission_checks import (
    CHECKS,
    CheckResult,
    HypotheticalRequest,
    NotServing,
    run_admission_dry_run,
)
from proxy.counters.backends import FILE, shared_store
from proxy.gateway.admission.rate_limits import SharedLimiter, limits
from proxy.gateway.snapshot.config_snapshot import Limits, directory
from proxy.models import ApiKey, Budget, Price, Route, Team, Upstream
from tests.fakes.outages import unusable
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, message
from tests.proxy.gateway.http_client import GatewayClient

numbers = itertools.count()


@pytest.fixture
def refused_key(gateway: GatewayClient, scripted: ScriptedUpstream, reload, settings):
    """A key with empty buckets and one running request, for which every check fails."""
    name = f"checks-{next(numbers)}"
    model = f"checks-model-{next(numbers)}"
    scripted.on(model, upstream_scripts.chat())
    chat = Upstream.objects.get(name="chat")
    route = add_route(model, chat)
    settings.UNPRICED = "refuse"
    one_per_minute = {"rpm": 1, "tpm": 1}
    team = Team.objects.create(name=name, limits=one_per_minute)
    user = get_user_model().objects.create_user(name)
    key, secret = ApiKey.issue(
        team, "mallory", scopes=["messages"], limits=one_per_minute, user=user
    )
    reload()
    caller = next(one for one in directory.snapshot.keys.values() if one.key_id == key.pk)
    of_team = dataclasses.replace(caller.team, limits=Limits(concurrency=9))
    limits.acquire(dataclasses.replace(caller, limits=Limits(concurrency=9), team=of_team), 0)
    assert gateway.post(message(model), x_api_key=secret).status == 200
    key.limits = team.limits = {**one_per_minute, "concurrency": 1}
    key.models_allowed = team.models_allowed = ["nothing-*"]
    key.scopes, key.ip_allow = ["reports"], ["10.0.0.0/8"]
    key.expires, user.is_active = datetime.now(UTC) - timedelta(hours=1), False
    route.targets.all().delete()
    user_budgets = [
        Budget(usd=Decimal(0), **owner) for owner in ({"key": key}, {"team": team}, {"user": user})
    ]
    for one in (key, team, user, *user_budgets):
        one.save()
    reload()
    return key, team, route, user_budgets, secret, model


def test_the_checks_refuse_in_the_published_order_as_the_dry_run_predicts(
    gateway: GatewayClient, reload, refused_key
):
    key, team, route, user_budgets, secret, model = refused_key
    since = datetime(2026, 1, 1, tzinfo=UTC).date()
    price = {"model": model, "since": since, "input": 1, "output": 10}
    chat = Upstream.objects.get(name="chat")

    def without(owner, name):
        remaining = {kind: size for kind, size in owner.limits.items() if kind != name}
        return lambda: set_(owner, limits=remaining)

    def set_(row, **values):
        type(row).objects.filter(pk=row.pk).update(**values)
        row.refresh_from_db()
        row.save()  # increments the revision

    fixes = {
        "revoked": lambda: set_(key.user, is_active=True),  # a revoked key stays revoked
        "expired": lambda: set_(key, expires=None),
        "address": lambda: set_(key, ip_allow=[]),
        "scope": lambda: set_(key, scopes=["messages"]),
        "team_models": lambda: set_(team, models_allowed=[]),
        "key_models": lambda: set_(key, models_allowed=[]),
        "route": lambda: route.targets.create(upstream=chat),
        **{
            f"{kind}_{name}": lambda owner=owner, name=name: without(owner, name)()
            for kind, owner in (("key", key), ("team", team))
            for name in ("concurrency", "rpm", "tpm")
        },
        "price": lambda: Price.objects.create(upstream=chat, **price),
        **{
            f"{kind}_budget": lambda budget=budget: budget.delete()
            for kind, budget in zip(("key", "team", "user"), user_budgets, strict=True)
        },
    }
    assert list(fixes) == [check.name for check in CHECKS]

    for check in CHECKS:
        request = HypotheticalRequest(
            key_id=key.pk, model=model, input_tokens=20, max_tokens=100, ip="127.0.0.1"
        )
        finding = run_admission_dry_run(request).refused_by
        reply = gateway.post(message(model), x_api_key=secret)

        assert finding is not None
        assert finding.check == check
        expected = 500 if check.name == "route" else check.status  # a route without an upstream
        assert (check.name, reply.status) == (check.name, expected)
        if check.status in (402, 429):
            assert reply.json["error"]["type"] == check.error
            assert finding.subject in reply.json["error"]["message"]
        fixes[check.name]()
        reload()

    last = run_admission_dry_run(request)
    assert last.refused_by is None
    assert gateway.post(message(model), x_api_key=secret).status == 200
    assert (last.route, last.targets) == (model, (f"chat {model}",))
    assert last.worst_case == 20 * 1_000 + 100 * 10_000


def test_a_dry_run_considers_only_targets_that_take_the_request(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    model = f"chat-dry-run-{next(numbers)}"
    scripted.on(model, upstream_scripts.chat())
    team = Team.objects.create(name=f"dry-run-{next(numbers)}")
    key, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    chat = Upstream.objects.get(name="chat")
    route = Route.objects.create(model=model, team=team)
    for name, when in (
        ("small", {"max_input_tokens": 100}),
        ("cli", {"min_input_tokens": 101, "client": "claude-cli *"}),
    ):
        route.targets.create(upstream=chat, model=name, when=when)
    reload()

    def dry_run(tokens: int, client: str = "") -> tuple[tuple[str, ...], str | None]:
        found = run_admission_dry_run(
            HypotheticalRequest(
                key_id=key.pk, model=model, input_tokens=tokens, max_tokens=5, client=client
            )
        )
        return found.targets, found.refused_by and found.refused_by.check.name

    assert dry_run(100) == (("chat small",), None)
    assert dry_run(101, "claude-cli 2.1.0") == (("chat cli",), None)
    assert dry_run(101) == ((), "route")
    rejected = gateway.post(
        message(model, messages=[{"role": "user", "content": "words " * 400}]), x_api_key=secret
    )
    assert rejected.status == 400
    assert "no target of the route" in rejected.json["error"]["message"]


def test_a_dry_run_counts_nothing(gateway: GatewayClient, scripted: ScriptedUpstream, reload):
    model = f"chat-dry-run-{next(numbers)}"
    scripted.on(model, upstream_scripts.chat())
    team = Team.objects.create(name=f"dry-run-{next(numbers)}", limits={"rpm": 2})
    key, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    soft = Budget.objects.create(team=team, usd=Decimal(0), hard=False)
    reload()
    request = HypotheticalRequest(key_id=key.pk, model=model, input_tokens=5, max_tokens=5)

    for _ in range(5):
        found = {one.check.name: one for one in run_admission_dry_run(request).findings}
        assert found["team_rpm"].left == 2
    gateway.post(message(model), x_api_key=secret)
    after = {one.check.name: one for one in run_admission_dry_run(request).findings}

    assert after["team_rpm"].used == 1
    assert after["address"].result is CheckResult.PASSES
    assert after["team_budget"].result is CheckResult.WARNS
    assert (after["team_budget"].period, after["team_budget"].limit) == (soft.period, 0)
    assert "key_rpm" not in after


def test_a_dry_run_counts_the_requests_of_all_processes(
    gateway: GatewayClient, reload, database, several_workers
):
    team = Team.objects.create(name=f"dry-run-{next(numbers)}", limits={"rpm": 9, "concurrency": 5})
    key, _ = ApiKey.issue(team, "ada", scopes=["messages"])
    reload()
    caller = next(one for one in directory.snapshot.keys.values() if one.key_id == key.pk)
    SharedLimiter(several_workers.store, "another process").acquire(caller, 10)

    def used():
        found = run_admission_dry_run(
            HypotheticalRequest(key_id=key.pk, model="chat-x", input_tokens=1, max_tokens=1)
        ).findings
        return {one.check.name: one.used for one in found if one.check.status == 429}

    assert used() == {"team_concurrency": 1, "team_rpm": 1}
    with unusable(database / FILE, shared_store()):
        assert used() == {"team_concurrency": 0, "team_rpm": 0}


def test_counters_that_are_unavailable_have_no_figures(gateway: GatewayClient, reload, database):
    team = Team.objects.create(name=f"dry-run-{next(numbers)}")
    key, _ = ApiKey.issue(team, "ada", scopes=["messages"])
    Budget.objects.create(team=team, usd=Decimal(5))
    reload()

    with unusable(database / FILE, shared_store()):
        found = run_admission_dry_run(
            HypotheticalRequest(key_id=key.pk, model="chat-x", input_tokens=1, max_tokens=1)
        ).findings

    assert (found[-1].result, found[-1].used, found[-1].left) == (CheckResult.UNKNOWN, None, None)


def test_the_address_is_checked_only_if_it_is_given(gateway: GatewayClient, reload):
    team = Team.objects.create(name=f"dry-run-{next(numbers)}")
    key, _ = ApiKey.issue(team, "ada", scopes=["messages"], ip_allow=["10.0.0.0/8"])
    reload()

    def address_result(ip):
        dry_run = run_admission_dry_run(
            HypotheticalRequest(key_id=key.pk, model="chat-x", input_tokens=1, max_tokens=1, ip=ip)
        )
        return next(one.result for one in dry_run.findings if one.check.name == "address")

    assert [address_result(ip) for ip in ("", "10.1.2.3", "192.168.0.1")] == [
        CheckResult.UNKNOWN, CheckResult.PASSES, CheckResult.REFUSES,
    ]  # fmt: skip


def test_an_unknown_key_raises(gateway: GatewayClient):
    with pytest.raises(NotServing, match="try again"):
        run_admission_dry_run(
            HypotheticalRequest(key_id=999_999_999, model="m", input_tokens=1, max_tokens=1)
        )


def test_the_worst_case_is_that_of_the_dearest_tier_as_in_admission(
    gateway: GatewayClient, reload, scripted: ScriptedUpstream
):
    model = f"checks-tier-{next(numbers)}"
    chat = Upstream.objects.get(name="chat")
    route = add_route(model, chat)
    since = datetime(2026, 1, 1, tzinfo=UTC).date()
    for tier, usd in (("", 1), ("priority", 3)):
        Price.objects.create(
            upstream=chat, model=model, since=since, input=usd, output=usd, service_tier=tier
        )
    team, _ = Team.objects.get_or_create(name="checks-tiers")
    key, _ = ApiKey.issue(team, model, scopes=["messages"])
    reload()

    request = HypotheticalRequest(key_id=key.pk, model=model, input_tokens=1000, max_tokens=1000)
    found = run_admission_dry_run(request)

    route.delete()
    assert found.worst_case == 3 * 1000 * 2000

"""The doors before an upstream: the order that is published is the one in which they refuse.

And a rehearsal says, before anything is sent, what a request will then be told.
"""

import dataclasses
import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.contrib.auth import get_user_model

from proxy.admission import DOORS, Fate, NotServing, Wish, rehearse
from proxy.conf import conf
from proxy.counters.shared import budget_store
from proxy.counters.states import SqliteStates
from proxy.counters.store import StoreAway
from proxy.gateway import budgets, shared_limits
from proxy.gateway.directory import NO_LIMITS, directory
from proxy.gateway.limits import limits
from proxy.gateway.shared_limits import Common
from proxy.models import ApiKey, Budget, Price, Team, Upstream
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import add_route, message

numbers = itertools.count()


@pytest.fixture
def mallory(gateway: Browser, scripted: ScriptedUpstream, reload, monkeypatch):
    """A key with one request behind it, whose buckets are empty since, and one that runs.

    Then all is closed to it.
    """
    name = f"doors-{next(numbers)}"
    model = f"doors-model-{next(numbers)}"
    scripted.on(model, scripts.chat())
    chat = Upstream.objects.get(name="chat")
    route = add_route(model, chat)
    monkeypatch.setattr(budgets, "conf", dataclasses.replace(conf, refuse_unpriced=True))
    spent = {"rpm": 1, "tpm": 1}
    team = Team.objects.create(name=name, limits=spent)
    user = get_user_model().objects.create_user(name)
    key, secret = ApiKey.issue(team, "mallory", scopes=["messages"], limits=spent, user=user)
    reload()
    caller = next(one for one in directory.snapshot.keys.values() if one.key_id == key.pk)
    free = dataclasses.replace(caller.team, limits=NO_LIMITS)
    limits.take(dataclasses.replace(caller, limits=NO_LIMITS, team=free), 0)
    assert gateway.post(message(model), x_api_key=secret).status == 200
    key.limits = team.limits = {**spent, "concurrency": 1}
    key.models_allowed = team.models_allowed = ["nothing-*"]
    key.scopes, key.ip_allow = ["reports"], ["10.0.0.0/8"]
    key.expires, user.is_active = datetime.now(UTC) - timedelta(hours=1), False
    route.targets.all().delete()
    spending = [
        Budget(usd=Decimal(0), **whose) for whose in ({"key": key}, {"team": team}, {"user": user})
    ]
    for one in (key, team, user, *spending):
        one.save()
    reload()
    return key, team, route, spending, secret, model


def test_the_doors_refuse_in_the_published_order_and_a_rehearsal_knows_it(
    gateway: Browser, reload, mallory
):
    key, team, route, spending, secret, model = mallory
    since = datetime(2026, 1, 1, tzinfo=UTC).date()
    price = {"model": model, "since": since, "input": 1, "output": 10}
    chat = Upstream.objects.get(name="chat")

    def without(whose, name):
        left = {kind: size for kind, size in whose.limits.items() if kind != name}
        return lambda: set_(whose, limits=left)

    def set_(row, **values):
        type(row).objects.filter(pk=row.pk).update(**values)
        row.refresh_from_db()
        row.save()  # which raises the revision

    opens = {
        "revoked": lambda: set_(key.user, is_active=True),  # a revoked key stays revoked
        "expired": lambda: set_(key, expires=None),
        "address": lambda: set_(key, ip_allow=[]),
        "scope": lambda: set_(key, scopes=["messages"]),
        "team_models": lambda: set_(team, models_allowed=[]),
        "key_models": lambda: set_(key, models_allowed=[]),
        "route": lambda: route.targets.create(upstream=chat),
        **{
            f"{kind}_{name}": lambda whose=whose, name=name: without(whose, name)()
            for kind, whose in (("key", key), ("team", team))
            for name in ("concurrency", "rpm", "tpm")
        },
        "price": lambda: Price.objects.create(upstream=chat, **price),
        **{
            f"{kind}_budget": lambda budget=budget: budget.delete()
            for kind, budget in zip(("key", "team", "user"), spending, strict=True)
        },
    }
    assert list(opens) == [door.name for door in DOORS]

    for door in DOORS:
        wish = Wish(key_id=key.pk, model=model, input_tokens=20, max_tokens=100, ip="127.0.0.1")
        told = rehearse(wish).refused_by
        reply = gateway.post(message(model), x_api_key=secret)

        assert told is not None
        assert told.door == door
        expected = 500 if door.name == "route" else door.status  # a route without an upstream
        assert (door.name, reply.status) == (door.name, expected)
        if door.status in (402, 429):
            assert reply.json["error"]["type"] == door.error
            assert told.of in reply.json["error"]["message"]
        opens[door.name]()
        reload()

    last = rehearse(wish)
    assert last.refused_by is None
    assert gateway.post(message(model), x_api_key=secret).status == 200
    assert (last.route, last.targets) == (model, (f"chat {model}",))
    assert last.worst_case == 20 * 1_000 + 100 * 10_000


def test_a_rehearsal_counts_nothing(gateway: Browser, scripted: ScriptedUpstream, reload):
    model = f"chat-rehearsed-{next(numbers)}"
    scripted.on(model, scripts.chat())
    team = Team.objects.create(name=f"rehearsing-{next(numbers)}", limits={"rpm": 2})
    key, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    soft = Budget.objects.create(team=team, usd=Decimal(0), hard=False)
    reload()
    wish = Wish(key_id=key.pk, model=model, input_tokens=5, max_tokens=5)

    for _ in range(5):
        found = {one.door.name: one for one in rehearse(wish).findings}
        assert found["team_rpm"].left == 2
    gateway.post(message(model), x_api_key=secret)
    after = {one.door.name: one for one in rehearse(wish).findings}

    assert after["team_rpm"].used == 1
    assert after["address"].fate is Fate.PASSES
    assert after["team_budget"].fate is Fate.TELLS
    assert (after["team_budget"].period, after["team_budget"].limit) == (soft.period, 0)
    assert "key_rpm" not in after


def test_several_processes_are_asked_together(gateway: Browser, reload, tmp_path, monkeypatch):
    team = Team.objects.create(
        name=f"rehearsing-{next(numbers)}", limits={"rpm": 9, "concurrency": 5}
    )
    key, _ = ApiKey.issue(team, "ada", scopes=["messages"])
    reload()
    caller = next(one for one in directory.snapshot.keys.values() if one.key_id == key.pk)
    states = SqliteStates(tmp_path / "limits.sqlite3")
    other, ours = Common(states, "another process"), Common(states, "this process")
    monkeypatch.setattr(shared_limits, "common", lambda: ours)
    other.take(caller, 10)

    def used():
        found = rehearse(Wish(key_id=key.pk, model="chat-x", input_tokens=1, max_tokens=1)).findings
        return {one.door.name: one.used for one in found if one.door.status == 429}

    assert used() == {"team_concurrency": 1, "team_rpm": 1}
    monkeypatch.setattr(states, "read", away)
    assert used() == {"team_concurrency": 0, "team_rpm": 0}


def away(*_):
    raise StoreAway


def test_counters_that_cannot_be_asked_are_no_figures(gateway: Browser, reload, monkeypatch):
    team = Team.objects.create(name=f"rehearsing-{next(numbers)}")
    key, _ = ApiKey.issue(team, "ada", scopes=["messages"])
    Budget.objects.create(team=team, usd=Decimal(5))
    reload()
    monkeypatch.setattr(budget_store(), "standing", away)

    found = rehearse(Wish(key_id=key.pk, model="chat-x", input_tokens=1, max_tokens=1)).findings

    assert (found[-1].fate, found[-1].used, found[-1].left) == (Fate.UNKNOWN, None, None)


def test_where_it_comes_from_decides_only_when_it_is_told(gateway: Browser, reload):
    team = Team.objects.create(name=f"rehearsing-{next(numbers)}")
    key, _ = ApiKey.issue(team, "ada", scopes=["messages"], ip_allow=["10.0.0.0/8"])
    reload()

    def fate(ip):
        asked = rehearse(Wish(key_id=key.pk, model="chat-x", input_tokens=1, max_tokens=1, ip=ip))
        return next(one.fate for one in asked.findings if one.door.name == "address")

    assert [fate(ip) for ip in ("", "10.1.2.3", "192.168.0.1")] == [
        Fate.UNKNOWN, Fate.PASSES, Fate.REFUSES,
    ]  # fmt: skip


def test_a_key_that_the_gateway_has_not_seen_is_said(gateway: Browser):
    with pytest.raises(NotServing, match="ask again"):
        rehearse(Wish(key_id=999_999_999, model="m", input_tokens=1, max_tokens=1))

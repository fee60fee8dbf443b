"""A budget that reaches a threshold is recorded once per period, with an event."""

import json
import time
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, connections
from django.utils.timezone import now

from proxy.counters.backends import budget_store
from proxy.counters.budget_store_failover import FailoverBudgets
from proxy.counters.redis_budgets import RedisBudgets
from proxy.counters.sqlite_budgets import SqliteBudgets
from proxy.gateway.admission import budget_maintenance as maintenance_module
from proxy.gateway.admission.budget_maintenance import BudgetMaintenance
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.ledger.posting import budget_sync
from proxy.models import Budget, BudgetNotice, Team, UsageQuarterHour, Webhook, WebhookEvent
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S, redis_server, running_redis

__all__ = ["redis_server", "running_redis"]  # fixtures


@pytest.fixture
def store(tmp_path, settings) -> Iterator[SqliteBudgets]:
    settings.DATA_DIR = tmp_path
    budget_store.cache_clear()
    yield budget_store()
    budget_store().close()
    budget_store.cache_clear()


@pytest.fixture
def budget(db: None) -> Budget:
    Webhook(name="ops", url="https://hooks.example.com/x", secret={"env": "HOOK"}).save()
    return Budget.objects.create(team=Team.objects.create(name="platform"), usd=Decimal(10))


def events() -> list[tuple[str, dict[str, Any]]]:
    """Return type and data of the stored events, in their order."""
    bodies = [json.loads(event.body) for event in WebhookEvent.objects.order_by("created")]
    return [(body["type"], body["data"]) for body in bodies]


def thresholds() -> list[int]:
    return [data["threshold_percent"] for _, data in events()]


def spend(budget: Budget, usd: str) -> None:
    """Let the ledger's sum of the period be ``usd``, and the counter follow it."""
    UsageQuarterHour.objects.all().delete()
    UsageQuarterHour.objects.create(
        start=now().replace(minute=0, second=0, microsecond=0),
        team=budget.team.name,
        cost_nanousd=int(Decimal(usd) * 10**9),
    )
    budget_sync.publish_all()


def test_each_threshold_is_reported_once_in_a_period(store, budget):
    for usd, expected in (("7.99", []), ("8", [80]), ("9", [80]), ("12", [80, 100])):
        spend(budget, usd)
        for _ in range(2):
            BudgetMaintenance().record_thresholds()  # as in another process
        assert thresholds() == expected

    (first, data), (last, _) = events()
    assert (first, last) == ("budget.threshold", "budget.exhausted")
    assert (data["owner"], data["team"]) == ("team platform", "platform")
    assert (data["limit_usd"], data["spent_usd"]) == ("10.000000", "8.000000")


def test_a_notice_and_its_event_are_stored_together(store, budget, monkeypatch):
    """An error while the event is stored undoes the notice, so that the next round tries again."""

    def fail(*_: object, **__: object) -> None:
        raise DatabaseError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(budget_sync, "record_event", fail)  # no disk is full here
        with pytest.raises(DatabaseError):
            spend(budget, "8")
    assert not BudgetNotice.objects.exists()

    spend(budget, "8")
    assert thresholds() == [80]


def test_a_refused_request_reports_the_last_threshold(store, budget):
    spend(budget, "9.99")
    maintenance = BudgetMaintenance()
    entry = BudgetConfig(
        id=budget.pk, owner="team platform", limit=10**10, period="month", zone="UTC", hard=True
    )

    maintenance.exhausted(entry, time.time())
    maintenance.record_thresholds()

    assert sorted(thresholds()) == [80, 100]


def test_a_deleted_budget_sends_no_notice(store, budget):
    maintenance = BudgetMaintenance()
    entry = BudgetConfig(
        id=budget.pk, owner="team platform", limit=10**10, period="month", zone="UTC", hard=True
    )
    maintenance.exhausted(entry, time.time())
    budget.delete()

    maintenance.record_thresholds()

    assert events() == []


def test_a_missing_ledger_is_not_replaced_by_an_empty_one(
    store, tmp_path, monkeypatch, django_db_blocker
):
    """SQLite creates a missing file when it opens it; the next start would refuse that file."""
    before = connections["default"]
    if before.vendor != "sqlite":
        pytest.skip("only a SQLite file can be missing")
    monkeypatch.setitem(before.settings_dict, "NAME", str(tmp_path / "ledger.sqlite3"))
    maintenance = BudgetMaintenance()
    with django_db_blocker.unblock():
        connections["default"] = connections.create_connection("default")
        try:
            maintenance.run_task("publish", budget_sync.publish_all)
            maintenance.run_task("thresholds", maintenance.record_thresholds)
        finally:
            connections["default"].close()
            connections["default"] = before

    assert maintenance.failing == {"publish", "thresholds"}
    assert not (tmp_path / "ledger.sqlite3").exists()


def test_a_lowered_limit_reports_the_thresholds_that_are_now_reached(store, budget, monkeypatch):
    maintenance, configuration = BudgetMaintenance(), SimpleNamespace(revision=1)
    # The thread reads the one configuration of its process, and this test runs no gateway.
    monkeypatch.setattr(maintenance_module, "directory", SimpleNamespace(snapshot=configuration))
    spend(budget, "7")
    maintenance.publish_changed()
    Budget.objects.update(usd=Decimal(8))
    maintenance.publish_changed()  # the configuration has not been loaded yet
    assert not BudgetNotice.objects.exists()

    configuration.revision = 2
    maintenance.publish_changed()
    maintenance.record_thresholds()

    assert [data["limit_usd"] for _, data in events()] == ["8.000000"]


def test_a_process_without_requests_does_not_call_redis(
    budget, redis_server, tmp_path, monkeypatch
):
    """Ten minutes with many budgets; the calls are counted by Redis."""
    owners = Team.objects.bulk_create(Team(name=f"team-{number}") for number in range(50))
    Budget.objects.bulk_create(Budget(team=owner, usd=1, period="day") for owner in owners)
    local = SqliteBudgets(tmp_path / "counters.sqlite3")
    failover = FailoverBudgets(RedisBudgets(redis_server.url, REDIS_TIMEOUT_S), local)
    # The store of the settings has the timeout of production, which a busy machine exceeds.
    for module in (budget_sync, maintenance_module):
        monkeypatch.setattr(module, "budget_store", lambda: failover)
    clock = [1_000.0]
    # Ten minutes pass.
    monkeypatch.setattr(maintenance_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    maintenance = BudgetMaintenance()
    maintenance.run_task("publish", maintenance.publish_all)

    def calls() -> int:
        statistics = redis_server.client.info("commandstats")
        return sum(each["calls"] for name, each in statistics.items() if name != "cmdstat_info")

    before = calls()
    assert before > 50  # each counter was published
    for _ in range(600):
        clock[0] += maintenance_module.TICK_S
        maintenance.run_due()

    assert calls() == before
    assert not maintenance.failing
    failover.shared.close()
    local.close()

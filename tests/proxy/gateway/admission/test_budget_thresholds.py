"""A budget that reaches a threshold is recorded once per period, with an event."""

import json
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections
from django.utils.timezone import now

from proxy.counters.backends import shared_store
from proxy.counters.failover import FailoverStore
from proxy.counters.sqlite_store import SqliteStore
from proxy.gateway.admission.budget_maintenance import TICK_S, BudgetMaintenance
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.gateway.snapshot.config_snapshot import ConfigStore, Snapshot
from proxy.ledger.posting import budget_sync
from proxy.models import (
    Budget,
    BudgetNotice,
    Revision,
    Team,
    UsageQuarterHour,
    Webhook,
    WebhookEvent,
)
from tests.fakes.clock import Clock
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S, redis_server, running_redis

__all__ = ["redis_server", "running_redis"]  # fixtures


@pytest.fixture
def store(tmp_path, settings) -> Iterator[SqliteStore]:
    settings.DATA_DIR = tmp_path
    shared_store.cache_clear()
    yield shared_store()
    shared_store().close()
    shared_store.cache_clear()


@pytest.fixture
def redis_store(tmp_path, settings, redis_server) -> Iterator[FailoverStore]:
    """The store of a gateway with Redis."""
    settings.DATA_DIR = tmp_path
    settings.REDIS_URL = redis_server.url
    settings.REDIS_TIMEOUT_S = REDIS_TIMEOUT_S  # a busy machine exceeds that of production
    shared_store.cache_clear()
    yield shared_store()
    shared_store().close()
    shared_store.cache_clear()


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
        team=budget.team.ledger_id,
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
    assert (data["limit_usd"], data["spent_usd"]) == ("10", "8")


def test_a_notice_and_its_event_are_stored_together(store, budget):
    """An error while the event is stored undoes the notice, so that the next round tries again."""
    table = WebhookEvent._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO moved_away")
        with pytest.raises(DatabaseError, match=table):
            spend(budget, "8")
        cursor.execute(f"ALTER TABLE moved_away RENAME TO {table}")
    assert not BudgetNotice.objects.exists()

    spend(budget, "8")
    assert thresholds() == [80]


def test_a_refused_request_reports_the_last_threshold(store, budget):
    spend(budget, "9.99")
    maintenance = BudgetMaintenance()
    entry = BudgetConfig(
        id=budget.pk, owner="team platform", limit=10**10, period="month", zone="UTC", hard=True
    )

    maintenance.reached(entry, time.time(), [100])
    maintenance.record_thresholds()

    assert sorted(thresholds()) == [80, 100]


def test_a_deleted_budget_sends_no_notice(store, budget):
    maintenance = BudgetMaintenance()
    entry = BudgetConfig(
        id=budget.pk, owner="team platform", limit=10**10, period="month", zone="UTC", hard=True
    )
    maintenance.reached(entry, time.time(), [100])
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


def test_a_lowered_limit_reports_the_thresholds_that_are_now_reached(store, budget):
    configuration = ConfigStore(lambda: Snapshot(revision=Revision.current()))
    maintenance = BudgetMaintenance(configuration)
    configuration.poll()
    spend(budget, "7")
    maintenance.publish_changed()
    budget.usd = Decimal(8)
    budget.save()
    maintenance.publish_changed()  # the configuration has not been loaded yet
    assert not BudgetNotice.objects.exists()

    configuration.poll()
    maintenance.publish_changed()
    maintenance.record_thresholds()

    assert [data["limit_usd"] for _, data in events()] == ["8"]


def test_a_process_without_requests_does_not_call_redis(budget, redis_server, redis_store):
    """Ten minutes with many budgets; the calls are counted by Redis."""
    owners = Team.objects.bulk_create(Team(name=f"team-{number}") for number in range(50))
    Budget.objects.bulk_create(Budget(team=owner, usd=1, period="day") for owner in owners)
    clock = Clock(1_000.0)
    maintenance = BudgetMaintenance(clock=clock)
    maintenance.run_task("publish", maintenance.publish_all)

    def calls() -> int:
        statistics = redis_server.client.info("commandstats")
        return sum(each["calls"] for name, each in statistics.items() if name != "cmdstat_info")

    before = calls()
    assert before > 50  # each counter was published
    for _ in range(600):
        clock.at += TICK_S
        maintenance.run_due()

    assert calls() == before
    assert not maintenance.failing

"""A budget notice is sent once per period and threshold, with a valid signature."""

import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest
from django.core import mail
from django.db import connections
from django.utils.timezone import now

from proxy.counters.backends import budget_store
from proxy.counters.budget_store_failover import FailoverBudgets
from proxy.counters.redis_budgets import RedisBudgets
from proxy.counters.sqlite_budgets import SqliteBudgets
from proxy.gateway.admission import budget_alerts
from proxy.gateway.admission import budget_maintenance as maintenance_module
from proxy.gateway.admission.budget_maintenance import BudgetMaintenance
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.ledger.posting import budget_sync
from proxy.models import Budget, BudgetNotice, Team, UsageQuarterHour
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S, redis_server, running_redis

__all__ = ["redis_server", "running_redis"]  # fixtures

SECRET = "hook-secret-0123456789-canary"


class Hook:
    """A webhook receiver on loopback that records its requests."""

    def __init__(self) -> None:
        self.status = 204
        self.requests: list[tuple[dict[str, str], bytes]] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                hook.requests.append((dict(self.headers.items()), self.rfile.read(size)))
                self.send_response(hook.status)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    receiver = Hook()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture
def store(tmp_path, settings) -> Iterator[SqliteBudgets]:
    settings.DATA_DIR = tmp_path
    budget_store.cache_clear()
    yield budget_store()
    budget_store().close()
    budget_store.cache_clear()


@pytest.fixture
def budget(db: None, monkeypatch) -> Budget:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    return Budget.objects.create(
        team=Team.objects.create(name="platform"),
        usd=Decimal(10),
        webhook="https://hooks.example.com/x",
        webhook_secret={"env": "HOOK_SECRET"},
    )


@pytest.fixture
def posted(monkeypatch, hook: Hook) -> Hook:
    """The receiver, to which the budget's https URL is redirected."""
    send = budget_alerts.post
    # The receiver has no TLS, and the gateway calls only https URLs.
    monkeypatch.setattr(budget_alerts, "post", lambda _, secret, body: send(hook.url, secret, body))
    return hook


def spend(budget: Budget, usd: str) -> None:
    """Let the ledger's sum of the period be ``usd``, and the counter follow it."""
    UsageQuarterHour.objects.all().delete()
    UsageQuarterHour.objects.create(
        start=now().replace(minute=0, second=0, microsecond=0),
        team=budget.team.name,
        cost_nanousd=int(Decimal(usd) * 10**9),
    )
    budget_sync.publish_all()


def test_each_threshold_is_reported_once_in_a_period(store, budget, posted: Hook):
    for usd, thresholds in (("7.99", []), ("8", [80]), ("9", [80]), ("12", [80, 100])):
        spend(budget, usd)
        for _ in range(2):
            BudgetMaintenance().send_notices()  # as in another process
        assert [json.loads(body)["threshold_percent"] for _, body in posted.requests] == thresholds

    payload = json.loads(posted.requests[0][1])
    assert payload["owner"] == "team platform"
    assert (payload["limit_usd"], payload["spent_usd"]) == ("10.000000", "8.000000")
    assert not BudgetNotice.objects.filter(sent=None).exists()


def test_a_webhook_request_has_a_valid_signature(hook: Hook):
    assert budget_alerts.post(hook.url, SECRET, b'{"a":1}') == ""

    headers, body = hook.requests[0]
    signature = dict(part.split("=") for part in headers["x-bridge-signature"].split(","))
    expected = hmac.new(SECRET.encode(), f"{signature['t']}.".encode() + body, hashlib.sha256)
    assert signature["v1"] == expected.hexdigest()
    assert abs(time.time() - int(signature["t"])) < 60
    assert SECRET not in str(hook.requests)


@pytest.mark.parametrize("status", [302, 500])
def test_redirects_are_not_followed_and_failures_are_retried(
    store, budget, posted: Hook, status: int
):
    posted.status = status
    spend(budget, "8")
    for _ in range(3):
        BudgetMaintenance().send_notices()
    assert len(posted.requests) == 1
    notice = BudgetNotice.objects.get()
    assert (notice.sent, notice.error) == (None, f"webhook: it answered {status}")

    posted.status = 200
    BudgetNotice.objects.update(claimed=now() - timedelta(hours=1))
    BudgetMaintenance().send_notices()

    notice.refresh_from_db()
    assert notice.sent is not None
    assert notice.error == ""


def test_an_address_that_is_not_https_is_never_called(store, budget, posted: Hook):
    Budget.objects.update(webhook=posted.url)
    spend(budget, "8")

    BudgetMaintenance().send_notices()

    assert posted.requests == []
    assert BudgetNotice.objects.get().error == "webhook: no https URL"


def test_mail_goes_to_all_configured_addresses(store, budget, settings):
    settings.EMAIL_HOST = "mail.example.com"
    Budget.objects.update(webhook="", emails=["ada@example.com", "ben@example.com"])
    spend(budget, "10")

    BudgetMaintenance().send_notices()

    assert [each.to for each in mail.outbox] == [["ada@example.com", "ben@example.com"]] * 2
    assert {each.subject for each in mail.outbox} == {
        "Messages Bridge: team platform at 80 % of its budget",
        "Messages Bridge: team platform at 100 % of its budget",
    }
    assert "10.000000 of 10.000000 US dollars" in mail.outbox[0].body


def test_without_a_mail_server_the_notice_has_an_error(store, budget):
    Budget.objects.update(webhook="", emails=["ada@example.com"])
    spend(budget, "8")

    BudgetMaintenance().send_notices()

    assert "BRIDGE_SMTP_HOST" in BudgetNotice.objects.get().error


def test_a_refused_request_reports_the_last_threshold(store, budget, posted: Hook):
    spend(budget, "9.99")
    maintenance = BudgetMaintenance()
    entry = BudgetConfig(
        id=budget.pk, owner="team platform", limit=10**10, period="month", zone="UTC", hard=True
    )

    maintenance.exhausted(entry, time.time())
    maintenance.send_notices()

    assert sorted(json.loads(body)["threshold_percent"] for _, body in posted.requests) == [80, 100]


def test_a_deleted_budget_sends_no_notice(store, budget, posted: Hook):
    maintenance = BudgetMaintenance()
    entry = BudgetConfig(
        id=budget.pk, owner="team platform", limit=10**10, period="month", zone="UTC", hard=True
    )
    maintenance.exhausted(entry, time.time())
    budget.delete()

    maintenance.send_notices()

    assert posted.requests == []


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
            maintenance._try("publish", budget_sync.publish_all)
            maintenance._try("notice", maintenance.send_notices)
        finally:
            connections["default"].close()
            connections["default"] = before

    assert maintenance._failing == {"publish", "notice"}
    assert not (tmp_path / "ledger.sqlite3").exists()


def test_a_lowered_limit_reports_the_thresholds_that_are_now_reached(
    store, budget, posted: Hook, monkeypatch
):
    maintenance, configuration = BudgetMaintenance(), SimpleNamespace(revision=1)
    # The thread reads the one configuration of its process, and this test runs no gateway.
    monkeypatch.setattr(maintenance_module, "directory", SimpleNamespace(snapshot=configuration))
    spend(budget, "7")
    maintenance._publish_changed()
    Budget.objects.update(usd=Decimal(8))
    maintenance._publish_changed()  # the configuration has not been loaded yet
    assert not BudgetNotice.objects.exists()

    configuration.revision = 2
    maintenance._publish_changed()
    maintenance.send_notices()

    assert [json.loads(body)["limit_usd"] for _, body in posted.requests] == ["8.000000"]


def test_a_process_without_requests_does_not_call_redis(
    budget, redis_server, tmp_path, monkeypatch
):
    """Ten minutes with a thousand budgets; the calls are counted by Redis."""
    owners = Team.objects.bulk_create(Team(name=f"team-{number}") for number in range(1_000))
    Budget.objects.bulk_create(Budget(team=owner, usd=1, period="day") for owner in owners)
    local = SqliteBudgets(tmp_path / "counters.sqlite3")
    failover = FailoverBudgets(RedisBudgets(redis_server.url, REDIS_TIMEOUT_S), local)
    # The store of the settings has the timeout of production, which a busy machine exceeds.
    for module in (budget_sync, budget_alerts, maintenance_module):
        monkeypatch.setattr(module, "budget_store", lambda: failover)
    clock = [1_000.0]
    # Ten minutes pass.
    monkeypatch.setattr(maintenance_module.time, "monotonic", lambda: clock[0])
    maintenance = BudgetMaintenance()
    maintenance._try("publish", maintenance._publish_all)

    def calls() -> int:
        statistics = redis_server.client.info("commandstats")
        return sum(each["calls"] for name, each in statistics.items() if name != "cmdstat_info")

    before = calls()
    assert before > 1_000  # each counter was published
    for _ in range(600):
        clock[0] += maintenance_module.TICK_S
        maintenance._run_due()

    assert calls() == before
    assert not maintenance._failing
    failover._shared.close()
    local.close()

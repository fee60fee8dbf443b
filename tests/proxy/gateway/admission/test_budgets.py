"""Budgets: the worst case is reserved at admission and settled with the actual cost."""

import threading
import time
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model

from proxy.admission_checks import CheckResult
from proxy.counters.budget_periods import window
from proxy.counters.store import Standing, StoreUnavailable, Take, Taken
from proxy.gateway.admission import budgets
from proxy.gateway.admission.budgets import (
    BudgetCheck,
    PlannedRequest,
    Reservation,
    worst_case_cost,
)
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.ledger.posting import budget_sync
from proxy.ledger.recorder import recorder
from proxy.ledger.usage.pricing import PriceList
from proxy.models import ApiKey, Budget, Team
from tests.fakes.upstreams.script_steps import Stall, WaitForGate, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.budget_fixtures import BudgetTeam, numbers, settled, settled_cost, standing
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.http_client import GatewayClient

UNKNOWN_ID = 10**6  # no budget has this number


def test_of_fifty_concurrent_requests_a_budget_for_four_admits_four(
    gateway: GatewayClient, scripted: ScriptedUpstream, cleo: BudgetTeam, priced: str
):
    gate = threading.Event()
    scripted.on(priced, [WaitForGate(gate), *upstream_scripts.chat()])
    budget = cleo.budget("0.004")  # four times 100 output tokens at 10 dollars a million
    seen: list[int] = []
    before = len(scripted.requests)

    def send() -> None:
        reply = gateway.post(message(priced, max_tokens=100), x_api_key=cleo.secret)
        seen.append(reply.status)

    threads = [threading.Thread(target=send) for _ in range(50)]
    for thread in threads:
        thread.start()
    # No admitted request ends, and releases its reservation, before all have arrived.
    scripted.wait_until(lambda requests: len(requests) - before + len(seen) == 50)
    gate.set()
    for thread in threads:
        thread.join()

    assert seen.count(200) == 4
    assert seen.count(402) == 46
    assert settled_cost(budget, team=cleo.team.name) > 0


def test_the_refusal_names_the_owner_and_all_amounts(
    gateway: GatewayClient, cleo: BudgetTeam, priced: str
):
    cleo.budget("0.0005", period="day", zone="Asia/Tokyo")

    reply = gateway.post(message(priced, max_tokens=100), x_api_key=cleo.secret)

    assert reply.status == 402
    assert reply.headers["x-should-retry"] == "false"
    assert reply.json["error"]["type"] == "billing_error"
    text = reply.json["error"]["message"]
    assert text.startswith(f"team {cleo.team} has no room in its budget: limit 0.0005 USD a day")
    assert "spent 0, reserved by running requests 0," in text
    assert "may cost up to 0.001;" in text
    assert text.endswith("+09:00")
    row(reply.id, outcome="refused", status=402, detail="budget", cost_nanousd=None)


@pytest.mark.parametrize("owner", ["team", "key", "user"])
def test_budgets_of_team_key_and_user_are_charged(
    gateway: GatewayClient, cleo: BudgetTeam, priced: str, owner: str
):
    user = get_user_model().objects.create(username=f"user-{next(numbers)}")
    cleo.key.user = user
    cleo.key.save()
    budget = cleo.budget("1", **{owner: {"team": cleo.team, "key": cleo.key, "user": user}[owner]})

    reply = gateway.post(message(priced), x_api_key=cleo.secret)

    assert reply.status == 200
    cost = row(reply.id).cost_nanousd
    assert cost
    assert settled(budget) == Standing(cost, 0, 0)


def test_a_user_budget_covers_all_keys_of_the_user_in_any_team(
    gateway: GatewayClient, scripted: ScriptedUpstream, cleo: BudgetTeam, priced: str
):
    gate = threading.Event()
    scripted.on(priced, [WaitForGate(gate), *upstream_scripts.chat()])
    user = get_user_model().objects.create(username=f"user-{next(numbers)}")
    other = Team.objects.create(name=f"elsewhere-{next(numbers)}")
    secrets = [
        ApiKey.issue(team, "of-the-user", scopes=["messages"], user=user)[1]
        for team in (cleo.team, other)
    ]
    budget = cleo.budget("0.004", user=user)
    seen: list[tuple[int, str]] = []
    before = len(scripted.requests)

    def send(secret: str) -> None:
        reply = gateway.post(message(priced, max_tokens=100), x_api_key=secret)
        text = reply.json["error"]["message"] if reply.status == 402 else ""
        seen.append((reply.status, text))

    threads = [threading.Thread(target=send, args=(secret,)) for secret in secrets * 6]
    for thread in threads:
        thread.start()
    scripted.wait_until(lambda requests: len(requests) - before + len(seen) == 12)
    gate.set()
    for thread in threads:
        thread.join()

    assert [status for status, _ in seen].count(200) == 4
    assert {text.partition(" has no room")[0] for status, text in seen if status == 402} == {
        f"user {user}"
    }
    assert (
        gateway.post(message(priced), x_api_key=cleo.secret).status == 200
    )  # another user's budget
    assert settled_cost(budget, user=user.username) == 4 * 50_000


def test_an_old_secret_uses_the_same_budget_and_the_same_limit(
    gateway: GatewayClient, cleo: BudgetTeam, priced: str
):
    cleo.key.limits = {"rpm": 3}
    cleo.key.save()
    budget = cleo.budget("1", key=cleo.key)
    first = gateway.post(message(priced), x_api_key=cleo.secret)
    retiring, fresh = cleo.key.rotate(timedelta(hours=1))
    cleo.reload()

    replies = [gateway.post(message(priced), x_api_key=key)
               for key in (cleo.secret, fresh, cleo.secret, fresh)]  # fmt: skip

    assert [reply.status for reply in (first, *replies)] == [200, 200, 200, 429, 429]
    rows = [row(reply.id) for reply in (first, *replies[:2])]
    assert [each.key_id for each in rows] == [cleo.key.pk, retiring.pk, cleo.key.pk]
    assert Budget.objects.filter(key=retiring).count() == 0
    assert settled(budget).spent == sum(each.cost_nanousd for each in rows) == 3 * 50_000
    assert budget_sync.spent_nanousd(budget, window("month", "UTC", time.time())) == 3 * 50_000


def test_a_budget_created_within_a_period_starts_with_the_sum_of_the_ledger(
    gateway: GatewayClient, cleo: BudgetTeam, priced: str
):
    cleo.reload()
    before = row(gateway.post(message(priced), x_api_key=cleo.secret).id).cost_nanousd
    budget = cleo.budget("1")
    after = row(gateway.post(message(priced), x_api_key=cleo.secret).id).cost_nanousd

    assert settled(budget).spent == before + after > 0


def test_a_failed_request_releases_its_reservation(
    gateway: GatewayClient, scripted: ScriptedUpstream, cleo: BudgetTeam, priced: str
):
    scripted.on(priced, json_response({"error": {"message": "no"}}, 500))
    budget = cleo.budget("1")

    reply = gateway.post(message(priced), x_api_key=cleo.secret)

    assert reply.status >= 500
    row(reply.id)
    assert settled(budget) == Standing(0, 0, 0)


def test_a_client_disconnect_releases_the_reservation(
    gateway: GatewayClient, scripted: ScriptedUpstream, cleo: BudgetTeam, priced: str
):
    head, *rest = upstream_scripts.chat_events(["first", "second"])
    scripted.on(priced, upstream_scripts.pieces([head, rest[0]], Stall()))
    budget = cleo.budget("1", hard=False)

    with gateway.open(message(priced, stream=True), x_api_key=cleo.secret) as connection:
        while b"first" not in connection.recv(65_536):
            pass
        running = standing(budget)

    assert running is not None
    assert running.reserved == 1_000_000
    assert settled_cost(budget, team=cleo.team.name) > 0


def test_a_model_without_a_price_is_noted_and_refused_by_an_exhausted_budget_only(
    gateway: GatewayClient, scripted: ScriptedUpstream, cleo: BudgetTeam, priced: str, settings
):
    settings.UNPRICED = "serve"
    scripted.on("chat-unpriced", upstream_scripts.chat())
    budget = cleo.budget("0.0011")

    reply = gateway.post(message("chat-unpriced", max_tokens=10**6), x_api_key=cleo.secret)

    assert reply.status == 200
    stored = row(reply.id, cost_nanousd=None)
    assert any("no price is known" in note["reason"] for note in stored.notes)
    assert "chat chat-unpriced" in gateway.request("GET", "/readyz").json["unpriced_models"]
    assert settled(budget) == Standing(0, 0, 0)
    budget.usd = Decimal(0)
    budget.save()
    cleo.reload()
    assert gateway.post(message("chat-unpriced"), x_api_key=cleo.secret).status == 402


@pytest.mark.parametrize("hard", [True, False])
def test_a_hard_budget_refuses_a_model_without_a_price(
    gateway: GatewayClient, scripted: ScriptedUpstream, cleo: BudgetTeam, hard
):
    model = f"chat-unpriced-{hard}"
    scripted.on(model, upstream_scripts.chat())
    budget = cleo.budget("5", hard=hard)

    reply = gateway.post(message(model), x_api_key=cleo.secret)

    assert reply.status == (402 if hard else 200)
    assert len(scripted.requests_for(model)) == (not hard)
    if hard:
        assert reply.headers["x-should-retry"] == "false"
        assert reply.json["error"]["type"] == "billing_error"
        assert f"model {model} has no price at upstream 'chat'" in reply.json["error"]["message"]
        row(reply.id, outcome="refused", status=402, detail="unpriced")
        assert standing(budget) in (None, Standing(0, 0, 0))  # never reserved


def test_the_error_names_the_upstream_model_without_a_price():
    text = budgets.missing_price_error("claude-x", "vllm", "qwen3").message

    assert text.startswith("model claude-x has no price at upstream 'vllm' as 'qwen3', and a hard")
    assert "`[[prices]]` with upstream = 'vllm' and model = 'qwen3'" in text


def test_a_soft_budget_counts_and_refuses_nothing(
    gateway: GatewayClient, cleo: BudgetTeam, priced: str
):
    budget = cleo.budget("0.000001", hard=False)

    replies = [gateway.post(message(priced), x_api_key=cleo.secret) for _ in range(2)]

    assert [reply.status for reply in replies] == [200, 200]
    for reply in replies:
        row(reply.id)
    assert settled_cost(budget, team=cleo.team.name) > 1_000


@for_each(
    ("price", "nanousd"),
    [
        ({"input": "1", "output": "10"}, 2_000 + 30_000),
        (
            {"input": "9", "output": "10", "cache_write_5m": "11.5"},
            23_000 + 30_000,
        ),  # compared as numbers
        ({"input": "3", "output": "0", "cache_write_5m": "1", "cache_write_1h": "4"}, 8_000),
    ],
)
def test_the_worst_case_is_all_input_at_the_highest_price_and_all_output(price, nanousd):
    full_price = {"cache_read": "99", "cache_write_5m": None, "cache_write_1h": None, **price}

    assert worst_case_cost(full_price, tokens=2, max_tokens=3) == nanousd


@pytest.fixture
def reservation(database, monkeypatch) -> SimpleNamespace:
    """A request whose budget was deleted, and a store that returns ``results``."""
    month = BudgetConfig(
        id=UNKNOWN_ID, owner="team x", limit=5, period="month", zone="UTC", hard=True
    )
    planned = PlannedRequest(
        id="req_1", model="m", created=0.0, prices=PriceList(()), input_tokens=7, max_tokens=9
    )
    setup = SimpleNamespace(results=[], seen=[], published=[], released=[], budget=month)

    async def attempt() -> Reservation:
        return await budgets.reserve((month,), SimpleNamespace(targets=()), planned)

    setup.reserve = attempt

    def take(*arguments):
        setup.seen.append(arguments)
        result = setup.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    store = SimpleNamespace(
        take=take,
        publish=lambda *sums: setup.published.append(sums),
        release=lambda name, counters: setup.released.append((name, *counters)),
    )
    # Each result of a reservation is scripted; a real store races to give it.
    monkeypatch.setattr(budgets, "shared_store", lambda: store)
    return setup


COUNTER = budget_sync.counter_name(UNKNOWN_ID, window("month", "UTC", 0.0))
UNKNOWN = Taken(granted=False, unknown=(COUNTER,))


@pytest.mark.parametrize(
    "results",
    [[StoreUnavailable("gone")], [UNKNOWN] * budgets.SEEDINGS],
)
async def test_no_request_is_sent_while_budgets_cannot_be_checked(reservation, results):
    reservation.results = [*results]

    with pytest.raises(HttpError) as caught:
        await reservation.reserve()

    refusal = caught.value
    assert (refusal.status, refusal.error_type) == (503, "api_error")
    assert refusal.message == "budgets cannot be checked right now"
    assert refusal.headers == {"retry-after": "5"}
    assert (refusal.outcome, refusal.source) == ("gateway_error", "gateway")
    assert refusal.detail == "budgets"
    assert reservation.results == []
    budgets.thread.submit(int).result()  # the release runs after the reservation, in one thread
    assert reservation.released == [("req_1", COUNTER)]


async def test_an_unexpected_error_releases_what_may_be_reserved(reservation):
    reservation.results = [ZeroDivisionError("planted")]

    with pytest.raises(ZeroDivisionError):
        await reservation.reserve()

    budgets.thread.submit(int).result()
    assert reservation.released == [("req_1", COUNTER)]


async def test_an_unseeded_counter_is_seeded_and_reserved_again(reservation):
    reservation.results = [UNKNOWN, Taken(granted=True)]

    reserved = await reservation.reserve()

    assert reserved == Reservation(
        "req_1", {COUNTER: reservation.budget}, {"input": 7, "output": 9}
    )
    once = ("req_1", recorder.worker, [Take(COUNTER, budgets.UNPRICED, 5)])
    assert reservation.seen == [once, once]
    assert reservation.published == [(COUNTER, 0)]


def test_a_request_without_cost_may_run_with_a_full_budget_and_the_dry_run_says_so():
    month = BudgetConfig(
        id=UNKNOWN_ID, owner="team x", limit=5, period="month", zone="UTC", hard=True
    )
    full = Standing(spent=9)

    for amount, result in ((0, CheckResult.PASSES), (1, CheckResult.REFUSES)):
        check = BudgetCheck(month, amount, 0.0)
        assert check.take.fits(full) is (amount == 0)
        assert check.evaluate(full).result is result

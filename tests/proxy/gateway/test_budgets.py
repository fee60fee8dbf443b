"""Money: the worst case is held at the door, the real cost settles it, and the rest is told."""

import dataclasses
import threading
import time
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model

from proxy.conf import conf
from proxy.counters.store import Ceiling, Standing, StoreAway, Verdict
from proxy.counters.windows import window
from proxy.gateway import budgets
from proxy.gateway.budgets import most, reserve
from proxy.gateway.ceilings import BudgetEntry
from proxy.gateway.refusals import Refusal
from proxy.models import ApiKey, Budget, Team
from proxy.record import spending
from proxy.record.recorder import recorder
from tests.fakes.steps import Hold, Stall, json_answer
from tests.fakes.upstream import ScriptedUpstream
from translator.estimate import estimate_tokens

from . import scripts
from .browser import Browser
from .budgeted import Cast, booked, numbers, settled, standing
from .conftest import message, row

NOBODYS = 10**6  # no budget has this number


def test_of_fifty_at_once_with_room_for_four_at_most_four_pass(
    gateway: Browser, scripted: ScriptedUpstream, cleo: Cast, priced: str
):
    gate = threading.Event()
    scripted.on(priced, [Hold(gate), *scripts.chat()])
    budget = cleo.budget("0.004")  # four times 100 output tokens at 10 dollars a million
    seen: list[int] = []
    before = len(scripted.asked)

    def ask() -> None:
        reply = gateway.post(message(priced, max_tokens=100), x_api_key=cleo.secret)
        seen.append(reply.status)

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    # None that was let in ends, and frees what it held, before all were at the door.
    scripted.wait_until(lambda asked: len(asked) - before + len(seen) == 50)
    gate.set()
    for thread in threads:
        thread.join()

    assert seen.count(200) == 4
    assert seen.count(402) == 46
    assert booked(budget, team=cleo.team.name) > 0


def test_the_refusal_says_whose_budget_and_all_its_figures(
    gateway: Browser, cleo: Cast, priced: str
):
    cleo.budget("0.0005", period="day", zone="Asia/Tokyo")

    reply = gateway.post(message(priced, max_tokens=100), x_api_key=cleo.secret)

    assert reply.status == 402
    assert reply.headers["x-should-retry"] == "false"
    assert reply.json["error"]["type"] == "billing_error"
    told = reply.json["error"]["message"]
    assert told.startswith(f"team {cleo.team} has no room in its budget: limit 0.000500 USD a day")
    assert "spent 0.000000, reserved by running requests 0.000000" in told
    assert "may cost up to 0.001000" in told
    assert told.endswith("+09:00")
    row(reply.id, outcome="refused", status=402, detail="budget", cost_nanousd=None)


@pytest.mark.parametrize("owner", ["team", "key", "user"])
def test_budgets_of_team_key_and_user_all_count(
    gateway: Browser, cleo: Cast, priced: str, owner: str
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


def test_a_users_budget_covers_all_keys_of_the_user_in_any_team(
    gateway: Browser, scripted: ScriptedUpstream, cleo: Cast, priced: str
):
    gate = threading.Event()
    scripted.on(priced, [Hold(gate), *scripts.chat()])
    user = get_user_model().objects.create(username=f"user-{next(numbers)}")
    other = Team.objects.create(name=f"elsewhere-{next(numbers)}")
    secrets = [
        ApiKey.issue(team, "of-the-user", scopes=["messages"], user=user)[1]
        for team in (cleo.team, other)
    ]
    budget = cleo.budget("0.004", user=user)
    seen: list[tuple[int, str]] = []
    before = len(scripted.asked)

    def ask(secret: str) -> None:
        reply = gateway.post(message(priced, max_tokens=100), x_api_key=secret)
        told = reply.json["error"]["message"] if reply.status == 402 else ""
        seen.append((reply.status, told))

    threads = [threading.Thread(target=ask, args=(secret,)) for secret in secrets * 6]
    for thread in threads:
        thread.start()
    scripted.wait_until(lambda asked: len(asked) - before + len(seen) == 12)
    gate.set()
    for thread in threads:
        thread.join()

    assert [status for status, _ in seen].count(200) == 4
    assert {told.partition(" has no room")[0] for status, told in seen if status == 402} == {
        f"user {user}"
    }
    assert gateway.post(message(priced), x_api_key=cleo.secret).status == 200  # another's money
    assert booked(budget, user=user.username) == 4 * 50_000


def test_an_old_secret_spends_the_same_budget_and_the_same_limit(
    gateway: Browser, cleo: Cast, priced: str
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
    assert spending.spent(budget, window("month", "UTC", time.time())) == 3 * 50_000


def test_a_budget_made_in_the_middle_of_a_period_starts_from_the_ledger(
    gateway: Browser, cleo: Cast, priced: str
):
    before = row(gateway.post(message(priced), x_api_key=cleo.secret).id).cost_nanousd
    budget = cleo.budget("1")
    after = row(gateway.post(message(priced), x_api_key=cleo.secret).id).cost_nanousd

    assert settled(budget).spent == before + after > 0


def test_what_never_reaches_an_answer_gives_its_room_back(
    gateway: Browser, scripted: ScriptedUpstream, cleo: Cast, priced: str
):
    scripted.on(priced, json_answer({"error": {"message": "no"}}, 500))
    budget = cleo.budget("1")

    reply = gateway.post(message(priced), x_api_key=cleo.secret)

    assert reply.status >= 500
    row(reply.id)
    assert settled(budget) == Standing(0, 0, 0)


def test_a_client_that_leaves_gives_its_room_back(
    gateway: Browser, scripted: ScriptedUpstream, cleo: Cast, priced: str
):
    head, *rest = scripts.chat_events(["first", "second"])
    scripted.on(priced, scripts.pieces([head, rest[0]], Stall()))
    budget = cleo.budget("1", hard=False)

    with gateway.open(message(priced, stream=True), x_api_key=cleo.secret) as connection:
        while b"first" not in connection.recv(65_536):
            pass
        held = standing(budget)

    assert held is not None
    assert held.reserved == 1_000_000
    assert booked(budget, team=cleo.team.name) > 0


def test_a_model_without_a_price_is_noted_and_refused_by_a_spent_budget_only(
    gateway: Browser, scripted: ScriptedUpstream, cleo: Cast, priced: str, monkeypatch
):
    monkeypatch.setattr(budgets, "conf", dataclasses.replace(conf, refuse_unpriced=False))
    scripted.on("chat-unpriced", scripts.chat())
    budget = cleo.budget("0.0011")

    reply = gateway.post(message("chat-unpriced", max_tokens=10**6), x_api_key=cleo.secret)

    assert reply.status == 200
    kept = row(reply.id, cost_nanousd=None)
    assert any("no price is known" in note["reason"] for note in kept.notes)
    assert "chat chat-unpriced" in gateway.ask("GET", "/readyz").json["unpriced_models"]
    assert settled(budget) == Standing(0, 0, 0)
    budget.usd = Decimal(0)
    budget.save()
    cleo.reload()
    assert gateway.post(message("chat-unpriced"), x_api_key=cleo.secret).status == 402


@pytest.mark.parametrize("hard", [True, False])
def test_a_hard_budget_refuses_what_has_no_price(
    gateway: Browser, scripted: ScriptedUpstream, cleo: Cast, hard
):
    model = f"chat-unpriced-{hard}"
    scripted.on(model, scripts.chat())
    budget = cleo.budget("5", hard=hard)

    reply = gateway.post(message(model), x_api_key=cleo.secret)

    assert reply.status == (402 if hard else 200)
    assert len(scripted.asked_for(model)) == (not hard)
    if hard:
        assert reply.headers["x-should-retry"] == "false"
        assert reply.json["error"]["type"] == "billing_error"
        assert f"model {model} has no price at upstream 'chat'" in reply.json["error"]["message"]
        row(reply.id, outcome="refused", status=402, detail="unpriced")
        assert standing(budget) in (None, Standing(0, 0, 0))  # nothing was ever asked of it


def test_the_name_that_lacks_a_price_is_told():
    told = budgets._unpriced("claude-x", "vllm", "qwen3").message

    assert told.startswith("model claude-x has no price at upstream 'vllm' as 'qwen3', and a hard")
    assert "`[[prices]]` with upstream = 'vllm' and model = 'qwen3'" in told


def test_a_soft_budget_refuses_nobody_and_counts(gateway: Browser, cleo: Cast, priced: str):
    budget = cleo.budget("0.000001", hard=False)

    replies = [gateway.post(message(priced), x_api_key=cleo.secret) for _ in range(2)]

    assert [reply.status for reply in replies] == [200, 200]
    for reply in replies:
        row(reply.id)
    assert booked(budget, team=cleo.team.name) > 1_000


@pytest.mark.parametrize(
    ("price", "nanousd"),
    [
        ({"input": "1", "output": "10"}, 2_000 + 30_000),
        ({"input": "9", "output": "10", "cache_write_5m": "11.5"}, 23_000 + 30_000),  # as numbers
        ({"input": "3", "output": "0", "cache_write_5m": "1", "cache_write_1h": "4"}, 8_000),
    ],
)
def test_the_worst_case_is_all_input_at_the_dearest_class_and_all_output(price, nanousd):
    whole = {"cache_read": "99", "cache_write_5m": None, "cache_write_1h": None, **price}

    assert most(whole, tokens=2, max_tokens=3) == nanousd


@pytest.fixture
def asked(database, monkeypatch) -> SimpleNamespace:
    """A request of somebody whose budget was taken away, and a store that says ``verdicts``."""
    month = BudgetEntry(id=NOBODYS, owner="team x", limit=5, period="month", zone="UTC", hard=True)
    entry = SimpleNamespace(
        caller=SimpleNamespace(budgets=(month,)), created=0.0, remarks=[], hold=None,
        head=SimpleNamespace(request_id="req_1"), request={"messages": [], "max_tokens": 9},
    )  # fmt: skip
    route = SimpleNamespace(targets=())
    told = SimpleNamespace(entry=entry, route=route, verdicts=[], seen=[], published=[])

    def reserve(*arguments):
        told.seen.append(arguments)
        verdict = told.verdicts.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    store = SimpleNamespace(reserve=reserve, publish=lambda *sums: told.published.append(sums))
    monkeypatch.setattr(budgets, "budget_store", lambda: store)
    return told


COUNTER = spending.counter_of(NOBODYS, window("month", "UTC", 0.0))


@pytest.mark.parametrize(
    "verdicts", [[StoreAway("gone")], [Verdict(unknown=(COUNTER,))] * budgets.SEEDINGS]
)
async def test_money_is_not_spent_unseen(asked, verdicts):
    asked.verdicts = [*verdicts]

    with pytest.raises(Refusal) as caught:
        await reserve(asked.entry, asked.route)

    refusal = caught.value
    assert (refusal.status, refusal.error_type) == (503, "api_error")
    assert refusal.message == "budgets cannot be checked right now"
    assert refusal.headers == {"retry-after": "5"}
    assert (refusal.outcome, refusal.source) == ("gateway_error", "gateway")
    assert refusal.detail == "budgets"
    worst_case = {"input": estimate_tokens(asked.entry.request), "output": 9}
    assert asked.entry.hold == budgets.Hold("req_1", (COUNTER,), worst_case)
    assert asked.verdicts == []


async def test_a_counter_that_nobody_asked_for_yet_is_seeded_and_asked_again(asked):
    asked.verdicts = [Verdict(unknown=(COUNTER,)), Verdict()]

    await reserve(asked.entry, asked.route)

    once = ("req_1", recorder.worker, budgets.UNPRICED, [Ceiling(COUNTER, 5)])
    assert asked.seen == [once, once]
    assert asked.published == [(COUNTER, 0)]


async def test_without_a_budget_no_store_is_asked(monkeypatch):
    class Entry:
        class caller:  # noqa: N801 - stands for an attribute
            budgets = ()

    monkeypatch.setattr("proxy.gateway.budgets.budget_store", None)
    await reserve(Entry, None)

"""A hard budget is charged for all that may have been spent, however a request ends."""

import itertools
import threading
import time
from decimal import Decimal

import pytest

from proxy.live.running_requests import RUNNING
from proxy.models import ApiKey, Budget, BudgetNotice, Upstream
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Close,
    Reset,
    Script,
    Stall,
    WaitForGate,
    chunk,
    html_response,
    json_response,
    stream_head,
)
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.admission.conftest import BudgetGateway
from tests.proxy.gateway.budget_fixtures import settled
from tests.proxy.gateway.conftest import DIALECTS, add_route, newest_row, row
from tests.proxy.gateway.upstream.test_client_disconnect import EVENTS_BY_DIALECT, gated_script

numbers = itertools.count()
MAX_TOKENS = 100
REPORTED = 12 * 1_000 + 5 * 10_000
"""Nano-dollars of the usage that all scripts report."""
ERROR = {"error": {"message": "no", "type": "server_error", "code": "server_error"}}


def worst_case(stored) -> int:
    """Return the cost of the row's estimated input and all of ``max_tokens``."""
    assert (stored.input_source, stored.output_source) == ("estimated", "estimated")
    assert stored.input_tokens > 0
    assert stored.output_tokens == MAX_TOKENS
    return stored.input_tokens * 1_000 + MAX_TOKENS * 10_000


IN_THE_MIDDLE = 4


def examples(fast, *values):
    """Return each combination of the values; all but those of ``fast`` are for the slow lane."""
    return [
        pytest.param(*each, marks=() if each in fast else pytest.mark.slow)
        for each in itertools.product(*values)
    ]


@pytest.mark.parametrize(
    ("dialect", "stream", "sent_pieces"),
    examples(
        {("chat", True, 0), ("responses", False, IN_THE_MIDDLE), ("anthropic", True, IN_THE_MIDDLE)},
        DIALECTS, (True, False), (0, IN_THE_MIDDLE),
    ),
)  # fmt: skip
def test_a_client_disconnect_is_charged_by_the_usage_of_the_upstream(
    budget_gateway, dialect, stream, sent_pieces
):
    name, gate = budget_gateway.model(dialect), threading.Event()
    budget = budget_gateway.cleo.budget("1")
    pieces = EVENTS_BY_DIALECT[dialect]()
    budget_gateway.scripted.on(
        name,
        gated_script(pieces, gate, sent_pieces)
        if sent_pieces
        else [WaitForGate(gate), *gated_script(pieces, gate, 0)],
    )

    until = b"content_block_delta" if stream and sent_pieces else b""
    budget_gateway.disconnect(name, until, stream=stream)
    gate.set()

    stored = newest_row(model_requested=name)
    assert (stored.outcome, stored.status, stored.detail) == ("client_gone", 499, "read_to_end")
    assert (stored.input_source, stored.output_source) == ("reported", "reported")
    assert stored.cost_nanousd == REPORTED
    assert "its hard budget" in stored.notes[0]["reason"]
    assert budget_gateway.charged(budget) == REPORTED


@pytest.mark.parametrize("owner", ["team", pytest.param("key", marks=pytest.mark.slow)])
def test_with_a_soft_budget_a_disconnect_closes_the_upstream_without_an_estimate(
    budget_gateway, owner
):
    name = budget_gateway.model("chat")
    budget = budget_gateway.cleo.budget(
        "1", hard=False, **({"key": budget_gateway.cleo.key} if owner == "key" else {})
    )
    budget_gateway.scripted.on(name, [Stall()])

    budget_gateway.disconnect(name)

    stored = newest_row(model_requested=name)
    assert (stored.outcome, stored.detail, stored.cost_nanousd) == ("client_gone", "", None)
    assert stored.output_source == "missing"
    budget_gateway.scripted.wait_until(
        lambda _: budget_gateway.scripted.requests_for(name)[0].ending == "client_gone"
    )
    assert settled(budget).spent == 0


SILENT: dict[str, tuple[Script, dict[str, float]]] = {
    "no head in time": ([Stall()], {"first_byte_s": 0.3}),
    "no head in the whole time": ([Stall()], {"total_s": 0.3}),
    "silence after the head": ([stream_head(), Stall()], {"idle_s": 0.3}),
    "reset before the head": ([Reset()], {}),
    "closed before the head": ([Close()], {}),
    "cut before any content": ([stream_head(), LAST_CHUNK], {}),
    "a proxy that gave up": (json_response(ERROR, 504), {}),
    "no HTTP": ([chunk(b"what is this"), Close()], {}),
}


TYPICAL = (
    "no head in time",
    "silence after the head",
    "reset before the head",
    "a proxy that gave up",
)


@pytest.mark.parametrize(
    ("case", "dialect"), examples({(case, "chat") for case in TYPICAL}, SILENT, DIALECTS)
)
def test_a_request_without_a_response_is_charged_the_worst_case(
    budget_gateway, deadlines, dialect, case
):
    script, shorter = SILENT[case]
    name, budget = budget_gateway.model(dialect), budget_gateway.cleo.budget("1")
    deadlines(**shorter)
    budget_gateway.scripted.on(name, script)

    reply = budget_gateway.send(name, stream=True)

    stored = row(reply.id)
    assert stored.outcome in {"upstream_timeout", "upstream_error"}
    assert stored.cost_nanousd == worst_case(stored)
    assert budget_gateway.charged(budget) == stored.cost_nanousd


@pytest.mark.parametrize(
    ("dialect", "ending"),
    examples({("chat", Stall()), ("responses", Reset())}, DIALECTS, (Stall(), Reset())),
)
def test_a_cut_response_is_charged_for_the_received_part(
    budget_gateway, deadlines, dialect, ending
):
    name, budget = budget_gateway.model(dialect), budget_gateway.cleo.budget("1")
    if isinstance(ending, Stall):
        deadlines(idle_s=1)
    budget_gateway.scripted.on(
        name, upstream_scripts.pieces(EVENTS_BY_DIALECT[dialect](["w" * 40] * 3)[:5], ending)
    )

    reply = budget_gateway.send(name, stream=True)

    stored = row(reply.id)
    assert stored.output_source == "estimated"
    assert 0 < stored.output_tokens < MAX_TOKENS
    assert budget_gateway.charged(budget) == stored.cost_nanousd > 0


REFUSALS: dict[str, Script] = {
    "an error status": json_response(ERROR, 500),
    "a rate limit": json_response(ERROR, 429),
    "a web page": html_response(200),
    "an error event": upstream_scripts.pieces([upstream_scripts.sse(ERROR)], LAST_CHUNK),
}


@pytest.mark.parametrize("case", examples({("an error status",), ("an error event",)}, REFUSALS))
def test_a_request_refused_by_the_upstream_costs_nothing(budget_gateway, case):
    name, budget = budget_gateway.model("chat"), budget_gateway.cleo.budget("1")
    budget_gateway.scripted.on(name, REFUSALS[case])

    reply = budget_gateway.send(name, stream=True)

    assert row(reply.id).cost_nanousd is None
    assert settled(budget).spent == 0


def test_a_request_that_was_never_delivered_costs_nothing(budget_gateway):
    name, budget = budget_gateway.model("nowhere"), budget_gateway.cleo.budget("1")
    upstream = Upstream.objects.create(
        name=f"nowhere-{next(numbers)}", dialect="chat", base_url="http://127.0.0.1:9/v1"
    )
    add_route(name, upstream)
    budget_gateway.reload()

    reply = budget_gateway.send(name)

    assert row(reply.id).cost_nanousd is None
    assert settled(budget).spent == 0


@pytest.mark.parametrize(
    ("dialect", "at_once", "stream"),
    examples(
        {("chat", False, True), ("responses", True, False)},
        ("chat", "responses"), (True, False), (True, False),
    ),
)  # fmt: skip
def test_a_response_ended_by_a_stop_sequence_is_charged_by_the_usage_of_the_upstream(
    budget_gateway, dialect, at_once, stream
):
    name, budget, gate = (
        budget_gateway.model(dialect),
        budget_gateway.cleo.budget("1"),
        threading.Event(),
    )
    pieces = EVENTS_BY_DIALECT[dialect](["before", " END ", "after"])
    sent_pieces = (
        len(pieces) if at_once else next(n for n, one in enumerate(pieces) if b"END" in one) + 1
    )
    budget_gateway.scripted.on(name, gated_script(pieces, gate, sent_pieces))
    if at_once:
        budget_gateway.scripted.on(name, upstream_scripts.pieces([b"".join(pieces)], LAST_CHUNK))

    reply = budget_gateway.send(
        name, stream=stream, stop_sequences=["END"]
    )  # ends before the rest is sent
    gate.set()

    assert reply.status == 200
    stored = row(reply.id, outcome="completed", stop_reason="stop_sequence")
    assert (stored.output_source, stored.cost_nanousd) == ("reported", REPORTED)
    assert budget_gateway.charged(budget) == REPORTED


@pytest.mark.parametrize("ending", [Reset(), LAST_CHUNK], ids=["cut", "without usage"])
def test_a_response_ended_by_a_stop_sequence_without_usage_is_estimated(budget_gateway, ending):
    name, budget = budget_gateway.model("chat"), budget_gateway.cleo.budget("1")
    pieces = EVENTS_BY_DIALECT["chat"](["before", " END ", "after"])[:4]
    budget_gateway.scripted.on(name, upstream_scripts.pieces(pieces, ending))

    reply = budget_gateway.send(name, stream=True, stop_sequences=["END"])

    stored = row(reply.id, outcome="completed", stop_reason="stop_sequence")
    assert stored.output_source == "estimated"
    assert budget_gateway.charged(budget) == stored.cost_nanousd > 0


def test_with_a_soft_budget_a_stop_sequence_closes_the_upstream(budget_gateway):
    name, budget, gate = (
        budget_gateway.model("chat"),
        budget_gateway.cleo.budget("1", hard=False),
        threading.Event(),
    )
    budget_gateway.scripted.on(
        name, gated_script(EVENTS_BY_DIALECT["chat"](["before", " END "]), gate, 3)
    )

    reply = budget_gateway.send(name, stream=True, stop_sequences=["END"])

    budget_gateway.scripted.wait_until(
        lambda _: budget_gateway.scripted.requests_for(name)[0].ending
    )
    assert budget_gateway.scripted.requests_for(name)[0].ending == "client_gone"
    assert row(reply.id, outcome="completed").output_source == "estimated"
    assert budget_gateway.charged(budget) > 0


EMPTY = {
    "anthropic": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": {},
                  "content": [], "stop_reason": "end_turn", "stop_sequence": None},
    "chat": {"id": "c", "object": "chat.completion", "model": "m",
             "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": ""}}]},
    "responses": {"id": "resp_1", "object": "response", "status": "completed", "output": []},
}  # fmt: skip


@pytest.mark.parametrize("dialect", examples({("chat",), ("anthropic",)}, DIALECTS))
def test_an_empty_response_without_usage_is_charged_the_worst_case(budget_gateway, dialect):
    name, budget = budget_gateway.model(dialect), budget_gateway.cleo.budget("1")
    budget_gateway.scripted.on(name, json_response(EMPTY[dialect]))

    reply = budget_gateway.send(name)

    assert reply.status == 200
    stored = row(reply.id, outcome="completed")
    assert stored.cost_nanousd == worst_case(stored)
    assert budget_gateway.charged(budget) == stored.cost_nanousd


def test_a_request_stopped_by_an_administrator_is_charged_the_worst_case(budget_gateway):
    name, budget = budget_gateway.model("chat"), budget_gateway.cleo.budget("1")
    budget_gateway.scripted.on(name, [Stall()])
    replies = []

    def send() -> None:
        replies.append(budget_gateway.send(name))

    sender = threading.Thread(target=send)
    sender.start()
    budget_gateway.scripted.wait_until(lambda seen: any(one.model == name for one in seen))
    next(one for one in RUNNING.values() if one.model == name).stop_by("root")
    sender.join()

    stored = row(replies[0].id, outcome="refused", detail="stopped")
    assert stored.cost_nanousd == worst_case(stored)
    assert budget_gateway.charged(budget) == stored.cost_nanousd


def test_a_failed_attempt_is_charged_in_addition_to_the_successful_one(budget_gateway, deadlines):
    name, budget = budget_gateway.model("twice"), budget_gateway.cleo.budget("1")
    add_route(name, Upstream.objects.get(name="chat"), Upstream.objects.get(name="responses"))
    deadlines("chat", first_byte_s=0.5)
    budget_gateway.scripted.on(name, [Stall()], upstream_scripts.responses())

    reply = budget_gateway.send(name)

    assert reply.status == 200
    stored = row(reply.id, outcome="completed", upstream="responses", output_source="reported")
    failed, answered = stored.attempts
    assert failed["usage"] == {"input": failed["usage"]["input"], "output": MAX_TOKENS,
                               "source": "estimated", "output_source": "estimated"}  # fmt: skip
    assert failed["cost_nanousd"] == failed["usage"]["input"] * 1_000 + MAX_TOKENS * 10_000
    assert "cost_nanousd" not in answered
    assert stored.cost_nanousd == REPORTED + failed["cost_nanousd"]
    assert budget_gateway.charged(budget) == stored.cost_nanousd
    _check_reports(budget_gateway, reply.id, budget, stored.cost_nanousd, failed["cost_nanousd"])


def _check_reports(
    budget_gateway: BudgetGateway, request_id: str, budget: Budget, cost: int, lost: int
) -> None:
    """Assert that the reports of the running server agree with the charge of the budget."""
    _, secret = ApiKey.issue(budget_gateway.cleo.team, "finance", scopes=["reports"])
    budget_gateway.reload()

    def report(path: str):
        reply = budget_gateway.gateway.request("GET", path, headers={"x-api-key": secret})
        assert reply.status == 200, reply.body
        return reply.json

    stored = report(f"/api/v1/requests/{request_id}/")
    assert Decimal(stored["cost_usd"]).scaleb(9) == cost
    assert sum(Decimal(part).scaleb(9) for part in stored["cost_parts"].values()) == cost
    assert Decimal(stored["cost_parts"]["failed_attempts"]).scaleb(9) == lost
    totals = report("/api/v1/usage/?from=2026-01-01")["totals"]
    assert Decimal(totals["cost_usd"]).scaleb(9) == cost
    assert Decimal(totals["cost_estimated_usd"]).scaleb(9) == lost
    state = report(f"/api/v1/budgets/budget_{budget.pk}/status/")
    assert Decimal(state["spent_usd"]).scaleb(9) == cost


def test_a_request_that_reaches_the_limit_creates_the_notices_before_it_is_in_the_ledger(
    budget_gateway,
):
    name = budget_gateway.model("chat")
    budget = budget_gateway.cleo.budget("0.000062", hard=False)
    budget_gateway.scripted.on(name, upstream_scripts.chat())

    assert budget_gateway.send(name).status == 200

    deadline = time.monotonic() + 60
    while BudgetNotice.objects.filter(budget=budget).count() < 2:
        assert time.monotonic() < deadline, "a notice is missing"
        time.sleep(0.05)
    assert {each.threshold for each in budget.notices.all()} == {80, 100}
    assert {each.used_nanousd for each in budget.notices.all()} == {REPORTED}


@pytest.mark.parametrize(("hard", "status"), [(True, 402), (False, 200)], ids=["hard", "soft"])
def test_a_limit_whose_cost_no_database_can_store_is_no_error_of_the_gateway(
    budget_gateway, hard, status
):
    name = budget_gateway.model("chat")
    budget_gateway.cleo.budget("1", hard=hard)
    budget_gateway.scripted.on(name, upstream_scripts.chat())

    assert budget_gateway.send(name, max_tokens=2**63).status == status

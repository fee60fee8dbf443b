"""A hard budget counts all that may have been spent, whatever way a request ends."""

import dataclasses
import itertools
import threading
import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from proxy.conf import conf
from proxy.counters.store import Standing
from proxy.gateway import budgets
from proxy.live.running import RUNNING
from proxy.models import ApiKey, Budget, Price, RouteTarget, Upstream
from tests.fakes.steps import (
    LAST_CHUNK,
    Close,
    Hold,
    Reset,
    Script,
    Stall,
    chunk,
    html_answer,
    json_answer,
    stream_head,
)
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser, Reply, read_until
from .budgeted import Cast, booked, settled, standing
from .conftest import DIALECTS, add_route, message, newest_row, row
from .test_leaving import SPEAKERS, held

numbers = itertools.count()
MAX_TOKENS = 100
REPORTED = 12 * 1_000 + 5 * 10_000
"""Nano-dollars of the usage that all scripts report."""
ERROR = {"error": {"message": "no", "type": "server_error", "code": "server_error"}}


class Setting:
    """A gateway, its upstream, and a team whose budgets are its own."""

    def __init__(self, gateway: Browser, scripted: ScriptedUpstream, cleo: Cast, reload) -> None:
        self.gateway, self.scripted, self.cleo, self.reload = gateway, scripted, cleo, reload

    def model(self, dialect: str) -> str:
        """A new name of a model that is priced at each upstream: 1 and 10 dollars a million."""
        name = f"{dialect}-hard-{next(numbers)}"
        since = datetime(2026, 1, 1, tzinfo=UTC).date()
        Price.objects.create(model=name, since=since, input=1, output=10)
        self.reload()
        return name

    def send(self, name: str, **fields) -> Reply:
        return self.gateway.post(message(name, **fields), x_api_key=self.cleo.secret)

    def leave(self, name: str, until: bytes = b"", **fields) -> None:
        """Send, read so far, hang up; returns when the gateway has noticed it."""
        with self.gateway.open(message(name, **fields), x_api_key=self.cleo.secret) as client:
            if until:
                read_until(client, until)
            else:
                self.scripted.wait_until(lambda seen: any(one.model == name for one in seen))
            entry = next(one for one in RUNNING.values() if one.model == name)
        deadline = time.monotonic() + 60
        while entry.consumer.unheard_from is None and entry.head.request_id in RUNNING:
            assert time.monotonic() < deadline, "the gateway did not see the client leave"
            time.sleep(0.005)

    def booked(self, budget: Budget) -> int:
        return booked(budget, team=self.cleo.team.name)


@pytest.fixture
def setting(gateway: Browser, scripted: ScriptedUpstream, cleo: Cast, reload) -> Setting:
    return Setting(gateway, scripted, cleo, reload)


def worst_case(kept) -> int:
    """What the row's estimated input and all of ``max_tokens`` cost."""
    assert (kept.input_source, kept.output_source) == ("estimated", "estimated")
    assert kept.input_tokens > 0
    assert kept.output_tokens == MAX_TOKENS
    return kept.input_tokens * 1_000 + MAX_TOKENS * 10_000


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("said", [0, 4], ids=["before the first byte", "in the middle"])
def test_a_client_that_leaves_is_charged_what_the_upstream_reports(setting, dialect, stream, said):
    name, gate = setting.model(dialect), threading.Event()
    budget = setting.cleo.budget("1")
    pieces = SPEAKERS[dialect]()
    setting.scripted.on(
        name, held(pieces, gate, said) if said else [Hold(gate), *held(pieces, gate, 0)]
    )

    until = b"content_block_delta" if stream and said else b""
    setting.leave(name, until, stream=stream)
    gate.set()

    kept = newest_row(model_requested=name)
    assert (kept.outcome, kept.status, kept.detail) == ("client_gone", 499, "heard_out")
    assert (kept.input_source, kept.output_source) == ("reported", "reported")
    assert kept.cost_nanousd == REPORTED
    assert "its hard budget" in kept.notes[0]["reason"]
    assert setting.booked(budget) == REPORTED


@pytest.mark.parametrize("owner", ["team", "key"])
def test_a_soft_budget_hangs_up_and_estimates_nothing(setting, owner):
    name = setting.model("chat")
    budget = setting.cleo.budget(
        "1", hard=False, **({"key": setting.cleo.key} if owner == "key" else {})
    )
    setting.scripted.on(name, [Stall()])

    setting.leave(name)

    kept = newest_row(model_requested=name)
    assert (kept.outcome, kept.detail, kept.cost_nanousd) == ("client_gone", "", None)
    assert kept.output_source == "missing"
    setting.scripted.wait_until(
        lambda _: setting.scripted.asked_for(name)[0].ending == "client_gone"
    )
    assert settled(budget).spent == 0


SILENT: dict[str, tuple[Script, dict[str, float]]] = {
    "no head in time": ([Stall()], {"first_byte_s": 0.3}),
    "no head in the whole time": ([Stall()], {"total_s": 0.3}),
    "silence after the head": ([stream_head(), Stall()], {"idle_s": 0.3}),
    "reset before the head": ([Reset()], {}),
    "closed before the head": ([Close()], {}),
    "cut before any content": ([stream_head(), LAST_CHUNK], {}),
    "a proxy that gave up": (json_answer(ERROR, 504), {}),
    "no HTTP": ([chunk(b"what is this"), Close()], {}),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", SILENT)
def test_what_was_sent_and_never_answered_is_charged_the_worst_case(
    setting, deadlines, dialect, case
):
    script, shorter = SILENT[case]
    name, budget = setting.model(dialect), setting.cleo.budget("1")
    deadlines(**shorter)
    setting.scripted.on(name, script)

    reply = setting.send(name, stream=True)

    kept = row(reply.id)
    assert kept.outcome in {"upstream_timeout", "upstream_error"}
    assert kept.cost_nanousd == worst_case(kept)
    assert setting.booked(budget) == kept.cost_nanousd


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("ending", [Reset(), Stall()], ids=["reset", "silence"])
def test_a_cut_answer_is_charged_what_arrived(setting, deadlines, dialect, ending):
    name, budget = setting.model(dialect), setting.cleo.budget("1")
    deadlines(idle_s=0.5)
    setting.scripted.on(name, scripts.pieces(SPEAKERS[dialect](["w" * 40] * 3)[:5], ending))

    reply = setting.send(name, stream=True)

    kept = row(reply.id)
    assert kept.output_source == "estimated"
    assert 0 < kept.output_tokens < MAX_TOKENS
    assert setting.booked(budget) == kept.cost_nanousd > 0


REFUSALS: dict[str, Script] = {
    "an error status": json_answer(ERROR, 500),
    "a rate limit": json_answer(ERROR, 429),
    "a web page": html_answer(200),
    "an error event": scripts.pieces([scripts.sse(ERROR)], LAST_CHUNK),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_the_upstream_itself_refused_costs_nothing(setting, case):
    name, budget = setting.model("chat"), setting.cleo.budget("1")
    setting.scripted.on(name, REFUSALS[case])

    reply = setting.send(name, stream=True)

    assert row(reply.id).cost_nanousd is None
    assert settled(budget).spent == 0


def test_what_nobody_ever_received_costs_nothing(setting):
    name, budget = setting.model("nowhere"), setting.cleo.budget("1")
    upstream = Upstream.objects.create(
        name=f"nowhere-{next(numbers)}", dialect="chat", base_url="http://127.0.0.1:9/v1"
    )
    add_route(name, upstream)
    setting.reload()

    reply = setting.send(name)

    assert row(reply.id).cost_nanousd is None
    assert settled(budget).spent == 0


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("at_once", [True, False], ids=["in one read", "later"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_an_answer_that_a_stop_sequence_ends_is_charged_what_the_upstream_reports(
    setting, dialect, at_once, stream
):
    name, budget, gate = setting.model(dialect), setting.cleo.budget("1"), threading.Event()
    pieces = SPEAKERS[dialect](["before", " END ", "after"])
    said = len(pieces) if at_once else next(n for n, one in enumerate(pieces) if b"END" in one) + 1
    setting.scripted.on(name, held(pieces, gate, said))
    if at_once:
        setting.scripted.on(name, scripts.pieces([b"".join(pieces)], LAST_CHUNK))

    reply = setting.send(name, stream=stream, stop_sequences=["END"])  # it need not wait
    gate.set()

    assert reply.status == 200
    kept = row(reply.id, outcome="completed", stop_reason="stop_sequence")
    assert (kept.output_source, kept.cost_nanousd) == ("reported", REPORTED)
    assert setting.booked(budget) == REPORTED


@pytest.mark.parametrize("ending", [Reset(), LAST_CHUNK], ids=["cut", "without usage"])
def test_an_answer_that_a_stop_sequence_ends_is_estimated_if_nothing_is_reported(setting, ending):
    name, budget = setting.model("chat"), setting.cleo.budget("1")
    pieces = SPEAKERS["chat"](["before", " END ", "after"])[:4]
    setting.scripted.on(name, scripts.pieces(pieces, ending))

    reply = setting.send(name, stream=True, stop_sequences=["END"])

    kept = row(reply.id, outcome="completed", stop_reason="stop_sequence")
    assert kept.output_source == "estimated"
    assert setting.booked(budget) == kept.cost_nanousd > 0


def test_a_soft_budget_leaves_the_upstream_at_a_stop_sequence(setting):
    name, budget, gate = (
        setting.model("chat"),
        setting.cleo.budget("1", hard=False),
        threading.Event(),
    )
    setting.scripted.on(name, held(SPEAKERS["chat"](["before", " END "]), gate, 3))

    reply = setting.send(name, stream=True, stop_sequences=["END"])

    setting.scripted.wait_until(lambda _: setting.scripted.asked_for(name)[0].ending)
    assert setting.scripted.asked_for(name)[0].ending == "client_gone"
    assert row(reply.id, outcome="completed").output_source == "estimated"
    assert setting.booked(budget) > 0


EMPTY = {
    "anthropic": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": {},
                  "content": [], "stop_reason": "end_turn", "stop_sequence": None},
    "chat": {"id": "c", "object": "chat.completion", "model": "m",
             "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": ""}}]},
    "responses": {"id": "resp_1", "object": "response", "status": "completed", "output": []},
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_empty_answer_without_usage_is_charged_the_worst_case(setting, dialect):
    name, budget = setting.model(dialect), setting.cleo.budget("1")
    setting.scripted.on(name, json_answer(EMPTY[dialect]))

    reply = setting.send(name)

    assert reply.status == 200
    kept = row(reply.id, outcome="completed")
    assert kept.cost_nanousd == worst_case(kept)
    assert setting.booked(budget) == kept.cost_nanousd


def test_a_request_that_an_administrator_stops_is_charged_the_worst_case(setting):
    name, budget = setting.model("chat"), setting.cleo.budget("1")
    setting.scripted.on(name, [Stall()])
    replies = []

    def send() -> None:
        replies.append(setting.send(name))

    sender = threading.Thread(target=send)
    sender.start()
    setting.scripted.wait_until(lambda seen: any(one.model == name for one in seen))
    next(one for one in RUNNING.values() if one.model == name).stop_by("root")
    sender.join()

    kept = row(replies[0].id, outcome="refused", detail="stopped")
    assert kept.cost_nanousd == worst_case(kept)
    assert setting.booked(budget) == kept.cost_nanousd


def test_a_failed_attempt_is_charged_beside_the_one_that_answered(setting, deadlines):
    name, budget = setting.model("twice"), setting.cleo.budget("1")
    add_route(name, Upstream.objects.get(name="chat"), Upstream.objects.get(name="responses"))
    deadlines(first_byte_s=0.5)
    setting.reload()
    setting.scripted.on(name, [Stall()], scripts.responses())

    reply = setting.send(name)

    assert reply.status == 200
    kept = row(reply.id, outcome="completed", upstream="responses", output_source="reported")
    failed, answered = kept.attempts
    assert failed["usage"] == {"input": failed["usage"]["input"], "output": MAX_TOKENS,
                               "source": "estimated", "output_source": "estimated"}  # fmt: skip
    assert failed["cost_nanousd"] == failed["usage"]["input"] * 1_000 + MAX_TOKENS * 10_000
    assert "cost_nanousd" not in answered
    assert kept.cost_nanousd == REPORTED + failed["cost_nanousd"]
    assert setting.booked(budget) == kept.cost_nanousd
    _check_reports(setting, reply.id, budget, kept.cost_nanousd, failed["cost_nanousd"])


def _check_reports(setting: Setting, request_id: str, budget: Budget, cost: int, lost: int) -> None:
    """The reports of the running server agree with what the budget was charged."""
    _, secret = ApiKey.issue(setting.cleo.team, "finance", scopes=["reports"])
    setting.reload()

    def report(path: str):
        reply = setting.gateway.ask("GET", path, headers={"x-api-key": secret})
        assert reply.status == 200, reply.body
        return reply.json

    kept = report(f"/api/v1/requests/{request_id}/")
    assert Decimal(kept["cost_usd"]).scaleb(9) == cost
    assert sum(Decimal(part).scaleb(9) for part in kept["cost_parts"].values()) == cost
    assert Decimal(kept["cost_parts"]["failed_attempts"]).scaleb(9) == lost
    totals = report("/api/v1/usage/?from=2026-01-01")["totals"]
    assert Decimal(totals["cost_usd"]).scaleb(9) == cost
    assert Decimal(totals["cost_estimated_usd"]).scaleb(9) == lost
    state = report(f"/api/v1/budgets/{budget.pk}/status/")
    assert Decimal(state["spent_usd"]).scaleb(9) == cost


@pytest.mark.parametrize("named", ["", "*"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_hard_budget_refuses_what_has_no_price_also_under_any_name(setting, named, dialect):
    name = f"anything-{next(numbers)}"
    route = add_route(name)
    upstream = Upstream.objects.get(name=dialect)
    RouteTarget.objects.create(route=route, upstream=upstream, position=0, model=named)
    budget = setting.cleo.budget("5")

    reply = setting.send(name)

    assert reply.status == 402
    error = reply.json["error"]
    assert error["type"] == "billing_error"
    assert reply.headers["x-should-retry"] == "false"
    assert f"model {name} has no price at upstream '{dialect}'" in error["message"]
    assert f"upstream = '{dialect}' and model = '{name}'" in error["message"]
    assert not setting.scripted.asked_for(name)
    row(reply.id, outcome="refused", detail="unpriced", cost_nanousd=None)
    budget.delete()
    setting.reload()
    setting.scripted.on(name, SPEAKERS_WHOLE[dialect]())
    assert setting.send(name).status == 200


SPEAKERS_WHOLE = {
    "chat": scripts.chat,
    "responses": scripts.responses,
    "anthropic": lambda: scripts.pieces(scripts.claude_events(), LAST_CHUNK),
}


def test_counting_tokens_is_free_and_takes_from_no_budget(setting):
    name, budget = setting.model("anthropic"), setting.cleo.budget("0.000001")
    setting.scripted.on(name, json_answer({"input_tokens": 7}))
    asked = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}

    reply = setting.gateway.post(asked, "/v1/messages/count_tokens", x_api_key=setting.cleo.secret)

    assert reply.json == {"input_tokens": 7}
    assert standing(budget) in (None, Standing(0, 0, 0))


def test_an_operator_may_serve_what_has_no_price(setting, monkeypatch):
    monkeypatch.setattr(budgets, "conf", dataclasses.replace(conf, refuse_unpriced=False))
    name, budget = f"chat-unpriced-{next(numbers)}", setting.cleo.budget("5")
    setting.scripted.on(name, scripts.chat())

    reply = setting.send(name)

    assert reply.status == 200
    assert any("no price is known" in note["reason"] for note in row(reply.id).notes)
    assert settled(budget).spent == 0

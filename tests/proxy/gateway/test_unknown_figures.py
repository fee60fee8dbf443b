"""The reports of the running server: what nobody knows is null, and good requests are no errors."""

import csv
import io
import itertools
import json

import pytest

from proxy.models import ApiKey, Team
from tests.fakes.steps import LAST_CHUNK, Stall, json_answer
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import message, newest_row, row

SINCE = "from=2026-01-01"
CLAUDE_CODE = {"user_agent": "claude-cli/2.1.329 (external, cli)"}
numbers = itertools.count()
KNOWN = (
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_5m_tokens",
    "cache_write_1h_tokens", "reasoning_tokens",
)  # fmt: skip


class Books:
    """A team of its own: it sends requests, and its reports are read over the same socket."""

    def __init__(self, gateway: Browser, scripted: ScriptedUpstream) -> None:
        team = Team.objects.create(name=f"books-{next(numbers)}")
        self.gateway, self.scripted, self.model = gateway, scripted, f"chat-{team.name}"
        self.session = f"session-{team.name}"
        _, self.key = ApiKey.issue(team, "cli", scopes=["messages"])
        _, self.reader = ApiKey.issue(team, "finance", scopes=["reports"])
        self.team = team

    def send(self, script, **fields):
        self.scripted.on(self.model, script)
        told = {"x_api_key": self.key, "x_claude_code_session_id": self.session, **CLAUDE_CODE}
        reply = self.gateway.post(message(self.model, **fields), **told)
        return row(reply.id)

    def leave(self):
        """A request of which nobody knows what it used: its client left before the first byte."""
        self.scripted.on(self.model, [Stall()])
        told = {"x_api_key": self.key, "x_claude_code_session_id": self.session, **CLAUDE_CODE}
        before = len(self.scripted.asked_for(self.model))
        with self.gateway.open(message(self.model), **told):
            self.scripted.wait_until(lambda _: len(self.scripted.asked_for(self.model)) > before)
        return newest_row(model_requested=self.model, outcome="client_gone")

    def read(self, path: str):
        reply = self.gateway.ask("GET", path, headers={"x-api-key": self.reader})
        assert reply.status == 200, reply.body
        return reply

    def json(self, path: str):
        return self.read(path).json


@pytest.fixture
def books(gateway: Browser, scripted: ScriptedUpstream, reload) -> Books:
    made = Books(gateway, scripted)
    reload()
    return made


def test_what_no_request_reported_is_null_in_every_report(books: Books):
    assert books.leave().output_source == "missing"

    totals = books.json(f"/api/v1/usage/?{SINCE}")["totals"]
    assert totals["requests"] == totals["output_missing_requests"] == 1
    summary = books.json(f"/api/v1/summary/?{SINCE}")
    (top,) = books.json(f"/api/v1/top/?{SINCE}&by=model&metric=output_tokens")["data"]
    month = books.gateway.ask("GET", "/api/v1/me/", headers={"x-api-key": books.key}).json
    (session,) = books.json(f"/api/v1/sessions/?{SINCE}")["data"]
    for found in (totals, summary, top, month["this_month"]):
        assert {name: found[name] for name in KNOWN} == dict.fromkeys(KNOWN)
        assert found["output_tokens_reported"] == 0
    assert {session[name] for name in KNOWN[:-1]} == {None}
    assert summary["cache_hit_rate"] is None
    (cached,) = books.json(f"/api/v1/cache/?{SINCE}")["data"]
    assert {name for name, value in cached.items() if value is not None} == {"saved_is_partial"}
    (latency,) = books.json(f"/api/v1/latency/?{SINCE}")["data"]
    assert latency["output_tokens_per_upstream_s"] is None
    series = books.json(
        f"/api/v1/timeseries/?{SINCE}&bucket=1mo"
        "&metric=total_tokens,cache_write_tokens,cache_hit_rate,output_tokens"
    )["series"]
    assert [{*one["points"]} - {0} for one in series] == [{None}] * 4


def test_a_csv_has_empty_cells_for_what_is_unknown(books: Books):
    books.leave()

    lines = books.read(f"/api/v1/usage/?{SINCE}&format=csv").body.decode()

    (line,) = csv.DictReader(io.StringIO(lines))
    assert {line[name] for name in KNOWN} == {""}
    assert (line["output_tokens_reported"], line["output_missing_requests"]) == ("0", "1")


def test_one_known_request_makes_a_floor_and_the_rest_is_counted(books: Books):
    books.leave()
    books.send(scripts.chat())

    totals = books.json(f"/api/v1/usage/?{SINCE}")["totals"]

    assert (totals["output_tokens"], totals["output_missing_requests"]) == (5, 1)
    assert totals["cache_write_5m_tokens"] is None


def test_claude_code_s_report_is_null_where_nobody_counts(books: Books):
    day = books.leave().created.date().isoformat()

    def report():
        path = f"/v1/organizations/usage_report/claude_code?starting_at={day}&limit=1000"
        reply = books.gateway.ask("GET", path, headers={"x-api-key": _admin(books)})
        assert reply.status == 200, reply.body
        name = f"{books.team.name}/cli"
        return next(one for one in reply.json["data"] if one["actor"]["api_key_name"] == name)

    unknown = report()
    assert unknown["core_metrics"] == {
        "num_sessions": 1,
        "lines_of_code": {"added": None, "removed": None},
        "commits_by_claude_code": None,
        "pull_requests_by_claude_code": None,
    }
    assert {json.dumps(tool) for tool in unknown["tool_actions"].values()} == {
        '{"accepted": null, "rejected": null}'
    }
    (used,) = unknown["model_breakdown"]
    assert {*used["tokens"].values(), used["estimated_cost"]["amount"]} == {None}

    books.send(scripts.chat())
    (used,) = report()["model_breakdown"]
    assert used["tokens"] == {
        "input": 12, "output": 5, "cache_read": None, "cache_creation": None,
    }  # fmt: skip


def test_anthropic_s_integers_say_how_many_requests_lack_them(books: Books):
    left = books.leave()
    day = f"{left.created.date().isoformat()}T00:00:00Z"

    path = "/v1/organizations/analytics/usage?group_by[]=model&limit=1000"
    reply = books.gateway.ask(
        "GET", f"{path}&starting_at={day}", headers={"x-api-key": _admin(books)}
    )

    assert reply.status == 200, reply.body
    used = next(one["usage"] for one in reply.json["data"] if one["group"]["model"] == books.model)
    assert (used["output_tokens"], used["total_tokens"], used["requests"]) == (0, 0, 1)
    assert used["missing_requests"] == {
        "uncached_input_tokens": 1, "cache_creation": 1, "cache_read_input_tokens": 1,
        "output_tokens": 1,
    }  # fmt: skip


def _admin(books: Books) -> str:
    return ApiKey.issue(books.team, f"admin-{next(numbers)}", scopes=["admin"])[1]


@pytest.mark.parametrize("stream", [True, False])
def test_only_an_answer_that_streamed_has_a_speed(books: Books, stream):
    kept = books.send(scripts.pieces(scripts.chat_events(), LAST_CHUNK), stream=stream)

    speed = books.json(f"/api/v1/requests/{kept.pk}/")["output_tps"]
    assert kept.output_tokens == 5
    assert (speed is not None) is stream


def test_good_requests_are_no_errors(books: Books):
    for _ in range(3):
        books.send(scripts.chat())
    books.send(json_answer({"error": {"message": "no", "type": "server_error"}}, 500))
    books.leave()

    data = books.json(f"/api/v1/errors/?{SINCE}")["data"]

    assert [(one["value"], one["requests"], one["errors"]) for one in data] == [
        ("api_error", 1, 1),
        (None, 1, 0),
    ]
    assert data[1]["client_gone"] == 1
    (whole,) = books.json(f"/api/v1/errors/?{SINCE}&by=model")["data"]
    assert (whole["requests"], whole["errors"], whole["client_gone"]) == (5, 1, 1)


def test_without_errors_the_list_is_empty_and_its_csv_has_a_header(books: Books):
    books.send(scripts.chat())

    assert books.json(f"/api/v1/errors/?{SINCE}")["data"] == []
    lines = books.read(f"/api/v1/errors/?{SINCE}&format=csv").body.decode().splitlines()
    assert lines == ["value,requests,errors,error_rate,client_gone,client_gone_rate"]
